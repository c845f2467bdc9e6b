"""A run that no code can go on with is WAITING with `blocked`, since when and why, until code has gone on with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec
import pytest

from penstock.api.instances import LIST_INSTANCES, ListInstances
from penstock.cli.options import instance_line, shown_time
from penstock.client import exchange as over_rest
from penstock.client.call import RowCall
from penstock.client.grpc import exchange as over_grpc
from penstock.core.rules.state import InstanceStatus
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.queues.journal_items import ClaimedRun, RunEnd
from penstock.errors import BadRequest
from penstock.store.rows.instances import BEYOND_ALL, Listed
from penstock.store.rows.instances import _walk as walk_of_list  # when it is too long
from penstock.wire.model import Instance
from penstock.wire.workflow_v1 import ListInstancesRequest
from tests.engine.conftest import MakeDriver, driver, make_driver
from tests.engine.driver import Driver
from tests.engine.runs import append, begin, continue_as_new, done, finish, take

__all__ = ["driver", "make_driver"]

REASON = "at /3 the journal has 'charge', the code asks for 'fraud' (order.py:57). " + "x" * 300
WANTED = InstanceFilter(blocked=True)


async def listed(driver: Driver, wanted: InstanceFilter) -> list[str]:
    return [one.id for one in (await driver.engine.instances.list(wanted, 0, 50)).items]


async def block(driver: Driver) -> ClaimedRun:
    run = await begin(driver)
    await driver.engine.journal.block(run.run_lease, REASON)
    return run


async def take_again(driver: Driver) -> ClaimedRun:
    await driver.due(301)
    [again] = await take(driver)
    return again


async def test_a_blocked_run_waits_and_says_since_when_and_why(driver: Driver) -> None:
    other = await begin(driver)
    run = await block(driver)
    seen = await driver.view(run.instance_id)
    assert (seen.status, seen.blocked, seen.blocked_reason) == ("WAITING", True, REASON)
    assert seen.blocked_since is not None
    assert seen.started_at is not None
    assert seen.started_at <= seen.blocked_since <= driver.clock.now()
    tree = await driver.engine.runs.tree(run.instance_id)
    assert (tree.status, tree.blocked, tree.blocked_reason) == ("WAITING", True, REASON)
    assert tree.blocked_since == seen.blocked_since
    assert tree.waits_for == f"other code: {REASON}"
    calm = await driver.view(other.instance_id)
    assert (calm.status, calm.blocked, calm.blocked_since, calm.blocked_reason) == ("ACTIVE", None, None, None)
    assert b"blocked" not in msgspec.json.encode(calm)


async def test_blocked_runs_are_a_list(driver: Driver) -> None:
    other, run = await begin(driver), await block(driver)
    for wanted in (
        WANTED,
        InstanceFilter(status="WAITING"),
        InstanceFilter(blocked=True, status="WAITING", definition_id="order"),
    ):
        assert await listed(driver, wanted) == [run.instance_id], wanted
    assert await listed(driver, InstanceFilter(status="ACTIVE")) == [other.instance_id]
    assert await listed(driver, InstanceFilter(blocked=True, business_key="another")) == []
    assert (await driver.engine.instances.count(WANTED)).count == 1
    async with driver.engine.instances._database.connection() as connection:
        found = await walk_of_list(connection, Listed(status="BLOCKED"), 10, BEYOND_ALL)
    assert found == ([run.run_lease.instance], None)
    for wrong in (InstanceFilter(blocked=True, status="FAILED"), InstanceFilter(blocked=True, delayed=True)):
        with pytest.raises(BadRequest, match="blocked: a blocked run is WAITING"):
            await listed(driver, wrong)


async def test_a_run_stays_blocked_while_it_is_tried_again(driver: Driver) -> None:
    run = await block(driver)
    since = (await driver.view(run.instance_id)).blocked_since
    await driver.due(301)
    waits = await driver.engine.runs.tree(run.instance_id)
    assert (waits.blocked, waits.waits_for) == (True, f"other code: {REASON}")
    [again] = await take(driver)
    assert await listed(driver, WANTED) == [run.instance_id], "it is tried, and has not gone on"
    await driver.engine.journal.block(again.run_lease, "another")
    seen = await driver.view(run.instance_id)
    assert (seen.blocked_since, seen.blocked_reason) == (since, "another")


async def appends(driver: Driver, run: ClaimedRun) -> str:
    await append(driver, run.run_lease, done("/0"))
    return "ACTIVE"


async def parks(driver: Driver, run: ClaimedRun) -> str:
    assert await driver.engine.journal.park(run.run_lease, mail=0, due_at=None)
    return "WAITING"


async def ends(driver: Driver, run: ClaimedRun) -> str:
    assert await finish(driver, run.run_lease)
    return "COMPLETED"


async def fails(driver: Driver, run: ClaimedRun) -> str:
    assert await driver.engine.journal.finish(run.run_lease, RunEnd(InstanceStatus.FAILED, failure="no"), mail=0)
    return "FAILED"


async def continues(driver: Driver, run: ClaimedRun) -> str:
    assert await continue_as_new(driver, run.run_lease)
    return await appends(driver, run)


async def works_long(driver: Driver, run: ClaimedRun) -> str:
    """In a step, from which nothing is written yet."""
    await driver.engine.journal.extend(run.run_lease, branches=b'[{"path": "/0", "kind": "step"}]')
    return "ACTIVE"


async def is_ended(driver: Driver, run: ClaimedRun) -> str:
    await driver.engine.instances.cancel(run.instance_id, "now", force=True)
    return "CANCELLED"


@pytest.mark.parametrize("go_on", [appends, parks, ends, fails, continues, works_long, is_ended])
async def test_a_run_that_goes_on_is_blocked_no_more(
    driver: Driver, go_on: Callable[[Driver, ClaimedRun], Awaitable[str]]
) -> None:
    await block(driver)
    again = await take_again(driver)
    status = await go_on(driver, again)
    seen = await driver.view(again.instance_id)
    assert (seen.status, seen.blocked, seen.blocked_since, seen.blocked_reason) == (status, None, None, None)
    assert await listed(driver, WANTED) == []
    assert await listed(driver, InstanceFilter(status="WAITING")) == [again.instance_id] * (status == "WAITING")
    assert driver.rows("SELECT count(*) FROM blocked_run") == [(0,)]


async def test_a_heartbeat_while_a_journal_is_read_unblocks_nothing(driver: Driver) -> None:
    await block(driver)
    again = await take_again(driver)
    await driver.engine.journal.extend(again.run_lease)
    assert await listed(driver, WANTED) == [again.instance_id]
    assert await driver.engine.journal.block(again.run_lease, REASON) == 10


async def test_force_ends_a_blocked_run_that_nobody_holds(driver: Driver) -> None:
    run = await block(driver)
    assert await is_ended(driver, run) == await driver.status(run.instance_id)
    assert driver.rows("SELECT (SELECT count(*) FROM blocked_run), (SELECT count(*) FROM parked)") == [(0, 0)]


async def test_beside_an_engine_of_before_no_run_is_listed(driver: Driver, make_driver: MakeDriver) -> None:
    """It would leave it in the list for ever."""
    driver.rows(
        "INSERT INTO engine (number, holder, leased_until, dispatch_mode, description, schema_version)"
        " VALUES (77, gen_random_uuid(), now() + interval '1 d', 'poll', 'old', 20) RETURNING number"
    )
    run = await block(driver)
    assert (await driver.view(run.instance_id)).status == "ACTIVE"
    assert (await driver.engine.runs.tree(run.instance_id)).waits_for == f"other code: {REASON}"


def test_clients_ask_for_them_over_both_wires() -> None:
    for asked, query in ((ListInstances(blocked=True), "true"), (ListInstances(), None)):
        operation = RowCall(LIST_INSTANCES, asked)
        assert (over_rest.exchange_for(operation).query or {})["blocked"] == query
        request = over_grpc.exchange_for(operation).request
        assert isinstance(request, ListInstancesRequest)
        assert request.blocked is asked.blocked


def test_people_read_blocked_in_place_of_waiting() -> None:
    since = datetime(2026, 11, 30, tzinfo=UTC)
    seen = Instance("1", "order", 1, "WAITING", blocked=True, blocked_since=since, blocked_reason=REASON)
    assert instance_line(seen) == f"1  BLOCKED  order:1  since {shown_time(since)}: {REASON}"
