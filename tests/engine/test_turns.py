"""Flow keys and priorities that steps and definitions say, and the call that changes the priority of an instance."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
import pytest

from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.schedules import firings
from penstock.errors import BadRequest
from penstock.store.db.database import WrittenApart
from penstock.testing.definitions import definition, end, linear, service
from penstock.testing.invariants import assert_invariants
from penstock.wire.edits import VariablesEdit
from penstock.wire.model import JobRef, Park
from penstock.wire.queue import QueuePolicy
from tests.engine.driver import Driver
from tests.engine.test_schedules import HOUR_S, begun, later
from tests.shapes import call


def waiting(driver: Driver) -> list[tuple[str | None, int]]:
    """Flow key and priority of the jobs that wait."""
    return driver.rows(
        "SELECT flow_key, priority FROM ready_flow UNION ALL SELECT NULL, priority FROM ready ORDER BY 1, 2"
    )


async def test_a_step_says_key_and_priority_for_itself(driver: Driver) -> None:
    steps = [
        service("one", "own"),
        service("own", "last", flowKey="${customer.id}", priority="${1 + 1}"),
        service("last", "end"),
        end(),
    ]
    await driver.upload(definition(*steps, definition_id="d"))
    await driver.start("d", {"customer": {"id": "c7"}}, flow_key="tenant", priority=7)
    found = [waiting(driver)]
    for _ in range(2):
        await driver.complete(await driver.one("work"))
        found.append(waiting(driver))
    assert found == [[("tenant", 7)], [("c7", 2)], [("tenant", 7)]]
    job = await driver.one("work")
    await driver.fail(job)
    assert await driver.status(job.instance_id) == "FAILED"
    await driver.retry(job.instance_id)
    assert waiting(driver) == [("tenant", 7)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"flowKey": "${missing}"}, "missing is not defined"),
        ({"flowKey": "${1 + 1}"}, "flowKey must be text of 1 to 256 characters, not 2"),
        ({"flowKey": "${''}"}, 'flowKey must be text of 1 to 256 characters, not ""'),
        ({"priority": "${5 + 5}"}, "priority must be 0 to 9, not 10"),
        ({"priority": "${true}"}, "priority must be 0 to 9, not true"),
    ],
)
async def test_what_gives_none_fails_the_step_or_the_start(driver: Driver, fields: dict[str, Any], reason: str) -> None:
    await driver.upload(definition(service("a", "end", **fields), end(), definition_id="step"))
    failed = await driver.start("step")
    assert failed.status == "FAILED"
    assert reason in (failed.failure_reason or "")
    await driver.upload(definition(service("a", "end"), end(), definition_id="whole") | fields)
    with pytest.raises(BadRequest, match=r"flowKey|priority|missing") as refused:
        await driver.start("whole")
    assert reason in refused.value.reason
    await driver.upload(definition(call("c", "whole"), end(), definition_id="caller"))
    caller = await driver.start("caller")
    assert await driver.due() == 1
    assert await driver.status(caller.id) == "FAILED"


async def test_a_definition_says_what_the_start_does_not(driver: Driver) -> None:
    fields = {"flowKey": "${tenant}", "priority": 3}
    await driver.upload(definition(service("a", "b"), service("b", "end"), end(), definition_id="d") | fields)
    await driver.start("d", {"tenant": "t1"})
    assert waiting(driver) == [("t1", 3)]
    await driver.complete(await driver.one("work"), {"tenant": "t2"})
    assert waiting(driver) == [("t1", 3)]  # evaluated once
    await driver.complete(await driver.one("work"))
    await driver.start("d", {"tenant": "t1"}, flow_key="given", priority=9)
    assert waiting(driver) == [("given", 9)]
    assert driver.rows("SELECT priority, flow_key FROM instance ORDER BY id") == [(3, "t1"), (9, "given")]
    for _ in range(2):
        await driver.complete(await driver.one("work"))
    await driver.upload(definition(call("c", "d"), end(), definition_id="caller"))
    await driver.start("caller", {"tenant": "t3"})
    assert waiting(driver) == [("t3", 3)]


async def test_items_of_a_for_each_have_keys_of_their_own(driver: Driver) -> None:
    each = {"items": "${hosts}", "as": "host", "parallel": 3}
    await driver.upload(definition(service("a", "end", flowKey="${host}", forEach=each), end(), definition_id="d"))
    await driver.engine.queues.put("q", QueuePolicy(["work"], concurrency_per_key=1))
    await driver.start("d", {"hosts": ["x", "x", "y", "y", "z"]})
    assert [key for key, _ in waiting(driver)] == ["x", "x", "y"]
    first = await driver.poll("work")
    assert len(first) == 2
    for job in first:
        await driver.complete(job)
    assert [key for key, _ in waiting(driver)] == ["x", "y", "z"]


async def test_a_transaction_that_stays_open_keeps_no_job_back(driver: Driver) -> None:
    """A job that was locked or changed after it began was passed over for as long as it ran, in whichever database."""
    await driver.upload(definition(service("a", "end"), end(), definition_id="d"))
    await driver.engine.queues.put("q", QueuePolicy(["work"], concurrency=1))
    with psycopg.connect(driver.dsn) as open_for_long:
        open_for_long.execute("SELECT pg_current_xact_id()")
        await driver.start("d")
        job = await driver.one("work", wait=0)
        await driver.engine.jobs.release_many(
            [JobRef(job_id=job.id, attempt=job.attempt, worker_id=job.worker_id or "")]
        )
        assert (await driver.one("work", wait=0)).id == job.id


async def test_an_instance_shows_its_key_and_is_listed_by_it(driver: Driver) -> None:
    await driver.upload(linear(1))
    plain = (await driver.start("linear")).id
    kept = (await driver.start("linear", flow_key="gold", priority=2)).id
    other = (await driver.start("linear", flow_key="silver")).id
    done = (await driver.start("linear", flow_key="gold")).id
    await driver.complete(next(job for job in await driver.poll("work") if job.instance_id == done))
    ended = (await driver.start("linear", flow_key="gold")).id
    await driver.cancel(ended)
    shown = [(view.priority, view.flow_key) for view in [await driver.view(id) for id in (plain, kept, other)]]
    assert shown == [(None, None), (2, "gold"), (None, "silver")]

    async def listed(**wanted: Any) -> list[str]:
        page = await driver.engine.instances.list(InstanceFilter(flow_key="gold", **wanted), 0, 10)
        return [instance.id for instance in page.items]

    assert await listed() == [ended, done, kept]
    by_status = [await listed(status=status) for status in ("ACTIVE", "WAITING", "COMPLETED", "CANCELLED", "FAILED")]
    assert by_status == [[kept], [], [done], [ended], []]
    assert await listed(definition_id="linear", business_key_prefix="x") == []
    with pytest.raises(BadRequest, match="flowKey"):
        await listed(parent_instance_id=plain)


async def test_an_open_job_shows_its_key_and_priority(driver: Driver) -> None:
    await driver.upload(linear(1))

    async def shown(status: str) -> list[tuple[int | None, str | None]]:
        page = await driver.engine.open_work.jobs(status, "work", None, 10)
        return [(job.priority, job.flow_key) for job in page.items]

    await driver.start("linear", flow_key="gold", priority=2)
    assert await shown("WAITING") == [(2, "gold")]
    await driver.one("work")
    await driver.start("linear")
    assert await shown("WAITING") == [(None, None)]
    assert await shown("LOCKED") == [(2, "gold")]


async def test_a_priority_counts_for_what_waits_and_what_comes(driver: Driver) -> None:
    steps = [service("a", "b"), service("b", "own"), service("own", "end", priority=1), end()]
    await driver.upload(definition(*steps, definition_id="d"))
    late = await driver.start("d", flow_key="t")
    first = await driver.start("d", flow_key="t")
    plain = await driver.start("d", priority=6)
    assert (await driver.engine.repair.set_priority(first.id, 0)).id == first.id
    assert waiting(driver) == [("", 6), ("t", 0), ("t", 5)]
    job = await driver.one("work")
    assert job.instance_id == first.id
    await driver.engine.repair.set_priority(first.id, 2)  # it is under way
    await driver.complete(job)
    assert ("t", 2) in waiting(driver)
    await driver.engine.repair.set_priority(plain.id, 1)
    job = await driver.one("work")
    assert job.instance_id == plain.id
    await driver.complete(await driver.one("work"))
    await driver.engine.repair.set_priority(first.id, 8)
    assert ("t", 1) in waiting(driver)  # its own
    assert driver.rows("SELECT priority FROM instance ORDER BY id") == [(None,), (8,), (1,)]
    with pytest.raises(BadRequest, match="priority: must be 0 to 9"):
        await driver.engine.repair.set_priority(late.id, 10)


async def test_a_delayed_start_keeps_what_its_definition_says(driver: Driver) -> None:
    fields = {"flowKey": "${tenant}", "priority": 3}
    await driver.upload(definition(service("a", "b"), service("b", "end"), end(), definition_id="d") | fields)
    await driver.start("d", {"tenant": "t1"}, delay="PT1H")
    assert await driver.due(HOUR_S) == 1
    assert waiting(driver) == [("t1", 3)]
    await driver.complete(await driver.one("work"))
    assert waiting(driver) == [("t1", 3)]
    assert driver.rows("SELECT priority, flow_key FROM instance") == [(3, "t1")]
    assert_invariants(driver.dsn)


async def test_a_turn_that_failed_is_reported_by_the_retry(driver: Driver) -> None:
    fields = {"flowKey": "${tenant}"}
    await driver.upload(definition(service("a", "b"), service("b", "end"), end(), definition_id="d") | fields)
    made = await driver.start("d", delay="PT1H")
    assert await driver.due(HOUR_S) == 1
    assert await driver.status(made.id) == "FAILED"
    assert (await driver.retry(made.id)).status == "FAILED"
    await driver.engine.repair.edit_variables(made.id, VariablesEdit(set=msgspec.Raw(b'{"tenant":"t1"}')))
    await driver.retry(made.id)
    assert waiting(driver) == [("t1", 5)]
    await driver.complete(await driver.one("work"))
    assert waiting(driver) == [("t1", 5)]


async def test_a_parked_job_comes_back_with_the_new_priority(driver: Driver) -> None:
    made = await driver.start((await driver.upload(linear(1))).id)
    job = await driver.one("work")
    park = Park(job_id=job.id, attempt=job.attempt, worker_id=job.worker_id or "", signal="go")
    await driver.engine.jobs.park(park)
    await driver.engine.repair.set_priority(made.id, 1)
    await driver.signal(made.id, "go")
    assert waiting(driver) == [(None, 1)]


async def test_a_firing_that_is_repeated_knows_nothing_uncommitted(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(driver, flow_key="reports")
    write, tries = firings.store.writes, 0

    def fail_once(*args: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise WrittenApart("as for the sake of another transaction")
        return write(*args)

    monkeypatch.setattr(firings.store, "writes", fail_once)
    await later(driver, HOUR_S)
    assert tries == 2
    assert driver.rows("SELECT name FROM job_type WHERE keyed") == [("work",)]
    await driver.engine.queues.put("crm", QueuePolicy(["work"], concurrency=1))
    assert driver.engine.queues.limited == {"work"}
