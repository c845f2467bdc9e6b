"""Bulk operations: each instance is acted on once, whatever happens to the engine that does it."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
import pytest
import trio

from penstock.access.identity import Identity, set_identity
from penstock.engine.bulk import LEASE_S, BulkFilter, BulkRequest, BulkView
from penstock.errors import BadRequest, Conflict, NotFound, Unavailable
from penstock.store import bulk as store
from penstock.testing.definitions import definition, end, linear
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import user, wait


async def fail_some(driver: Driver, count: int, reason: str = "gateway: 503 in '{}'") -> list[str]:
    started = [(await driver.start("linear")).id for _ in range(count)]
    for number in range(count):
        await driver.fail(await driver.one("work"), reason.format(number), retryable=False)
    return started


async def finish(driver: Driver, id: str) -> BulkView:
    """Work on operations until that one has ended."""
    with trio.fail_after(60):
        while (found := await driver.engine.bulk.get(id)).state == "RUNNING":
            await driver.engine.bulk.step()
    return found


async def run(driver: Driver, **request: Any) -> BulkView:
    return await finish(driver, (await driver.engine.bulk.create(BulkRequest(**request))).id)


def counts(view: BulkView) -> tuple[str, int, int, int]:
    return view.state, view.done, view.skipped, view.failed


async def retries(driver: Driver, instance: str) -> list[tuple[str | None, str | None]]:
    records = (await driver.engine.instances.audit(instance, 1_000)).items
    return [(record.actor, record.detail) for record in records if record.kind == "RETRIED"]


async def test_failures_of_one_cause_are_retried_and_no_others(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    alike = await fail_some(driver, 5)
    (other,) = await fail_some(driver, 1, "card declined")
    chosen = BulkFilter(status="FAILED", definition_id="linear", cause="gateway: 9 in 'x'")
    preview = await driver.engine.bulk.preview(BulkRequest(action="retry", filter=chosen, dry_run=True))
    assert (preview.count, preview.exact, [one.count for one in preview.by_cause]) == (5, True, [5])
    assert (await driver.engine.bulk.list(None, 10)).items == [], "a dry run leaves nothing"
    set_identity(Identity("token:ada", frozenset()))
    made = await driver.engine.bulk.create(BulkRequest(action="retry", filter=chosen, note="the gateway is back"))
    set_identity(None)
    view = await finish(driver, made.id)
    assert counts(view) == ("DONE", 5, 0, 0)
    assert (view.actor, view.total, view.total_exact) == ("token:ada", 5, True)
    for id in alike:
        assert (await driver.view(id)).status == "ACTIVE"
        assert await retries(driver, id) == [("token:ada", "the gateway is back")]
    assert (await driver.view(other)).status == "FAILED"


async def test_a_page_that_is_done_again_retries_nothing_twice(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    started = await fail_some(driver, 3)
    made = await driver.engine.bulk.create(BulkRequest(action="retry", filter=BulkFilter(status="FAILED")))
    async with driver.engine.database.connection() as connection:
        work = await store.claim(connection, 0, LEASE_S)
    assert work is not None
    await driver.engine.bulk._act(work, [int(id, 16) for id in started])  # and the engine dies before it says so
    for _ in started:
        await driver.fail(await driver.one("work"), "again", retryable=False)
    driver.clock.advance(LEASE_S + 1)
    view = await finish(driver, made.id)
    assert counts(view) == ("DONE", 0, 3, 0)
    for id in started:
        assert len(await retries(driver, id)) == 1


async def test_two_engines_share_operations_and_do_each_once(make_driver: MakeDriver) -> None:
    one, other = make_driver(), make_driver()
    await one.upload(linear(1, job_type="work"))
    started = await fail_some(one, 30)
    made = [
        (await one.engine.bulk.create(BulkRequest(action="retry", ids=started[part::3], per_second=500.0))).id
        for part in range(3)
    ]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(finish, one, made[0])
        nursery.start_soon(finish, other, made[2])
    views = [await finish(one, id) for id in made]
    assert [counts(view) for view in views] == [("DONE", 10, 0, 0)] * 3
    for id in started:
        assert len(await retries(one, id)) == 1


async def test_cancelled_are_those_that_were_there_when_it_began(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(definition(user("u", "end"), end(), definition_id="approval"))
    before = [(await driver.start("approval")).id for _ in range(4)]
    made = await driver.engine.bulk.create(
        BulkRequest(action="cancel", filter=BulkFilter(definition_id="approval"), note="made by mistake")
    )
    later = (await driver.start("approval")).id
    await driver.engine.instances.cancel(before[0], None)
    view = await finish(driver, made.id)
    assert counts(view) == ("DONE", 3, 1, 0)
    assert {(await driver.view(id)).status for id in before} == {"CANCELLED"}
    assert (await driver.view(later)).status == "WAITING"
    details = [
        one.detail for one in (await driver.engine.instances.audit(before[1], 1_000)).items if one.kind == "CANCELLED"
    ]
    assert details == ["made by mistake"]


def test_a_bulk_signals_variables_are_read() -> None:
    """They were refused: a field of JSON as it is, or None, takes only null."""
    body = b'{"action":"signal","ids":["1"],"stepId":"w","variables":{"paid":true}}'
    assert bytes(msgspec.json.decode(body, type=BulkRequest).variables) == b'{"paid":true}'


async def test_a_signal_acts_once_on_each(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(definition(wait("w", "again"), wait("again", "end"), end(), definition_id="waiting"))
    started = [(await driver.start("waiting")).id for _ in range(3)]
    request: dict[str, Any] = {
        "action": "signal",
        "ids": started,
        "step_id": "w",
        "variables": msgspec.Raw(b'{"paid": true}'),
    }
    view = await run(driver, **request)
    assert counts(view) == ("DONE", 3, 0, 0)
    found = await driver.view(started[0])
    assert (found.current_step_ids, await driver.variables(started[0])) == (["again"], {"paid": True})


async def test_a_rate_is_kept_and_stopping_leaves_the_rest(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    started = await fail_some(driver, 4)
    made = await driver.engine.bulk.create(BulkRequest(action="retry", ids=started, per_second=0.2))
    real, advanced = store.advance, trio.Event()

    async def advance(*arguments: Any, **more: Any) -> bool:
        going_on = await real(*arguments, **more)
        advanced.set()
        return going_on

    monkeypatch.setattr(store, "advance", advance)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.engine.bulk.step)
        await advanced.wait()  # one of them is done, the next follows in five seconds
        assert (await driver.engine.bulk.stop(made.id)).state == "STOPPED"
    view = await driver.engine.bulk.get(made.id)
    assert view.state == "STOPPED"
    assert view.done == 1
    assert (await driver.engine.bulk.stop(made.id)) == view


async def test_a_page_waits_for_the_database_and_is_done_then(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    started = await fail_some(driver, 3)
    real, tries = driver.engine.instances.retry_one_of_many, 0

    async def away(*arguments: Any) -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise Unavailable("the database is away")
        await real(*arguments)

    monkeypatch.setattr(driver.engine.instances, "retry_one_of_many", away)
    made = await driver.engine.bulk.create(BulkRequest(action="retry", ids=started))
    with pytest.raises(Unavailable):
        await driver.engine.bulk.step()
    view = await finish(driver, made.id)
    assert (view.state, view.done + view.skipped, view.failed) == ("DONE", 3, 0)
    for id in started:
        assert len(await retries(driver, id)) == 1


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ({"action": "delete", "ids": ["1"]}, "action: must be one of retry, cancel, signal"),
        ({"action": "retry"}, "filter: give either a filter or ids"),
        ({"action": "retry", "ids": ["1"], "filter": BulkFilter(status="FAILED")}, "filter: give either"),
        ({"action": "retry", "filter": BulkFilter()}, "filter: names nothing"),
        ({"action": "retry", "filter": BulkFilter(status="LOST")}, "filter.status: must be one of"),
        ({"action": "retry", "filter": BulkFilter(definition_id="d", cause="x")}, "filter.cause: needs the status"),
        ({"action": "retry", "ids": []}, "ids: 1 to 1,000"),
        ({"action": "retry", "ids": ["nothing"]}, "ids: 'nothing' is no instance id"),
        ({"action": "cancel", "ids": ["1"], "per_second": 0.0}, "perSecond: more than 0"),
        ({"action": "cancel", "ids": ["1"], "step_id": "s"}, "stepId: the step that is signalled"),
        ({"action": "signal", "ids": ["1"]}, "stepId: the step that is signalled"),
        ({"action": "cancel", "ids": ["1"], "note": "x" * 5_000}, "note"),
    ],
)
async def test_a_wrong_request_is_told_its_field(make_driver: MakeDriver, request_: dict[str, Any], told: str) -> None:
    driver = make_driver()
    with pytest.raises(BadRequest, match=told):
        await driver.engine.bulk.create(BulkRequest(**request_))
    with psycopg.connect(driver.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM bulk_operation").fetchone() == (0,)


async def test_what_matches_nothing_and_what_there_is_not(make_driver: MakeDriver) -> None:
    bulk = make_driver().engine.bulk
    with pytest.raises(Conflict, match="no instance matches"):
        await bulk.create(BulkRequest(action="cancel", filter=BulkFilter(definition_id="none")))
    for id in ("7", "x", "9" * 30):
        with pytest.raises(NotFound):
            await bulk.get(id)
    with pytest.raises(BadRequest):
        await bulk.list("x", 10)
