"""Bulk operations: each instance is acted on once, whatever happens to the engine that does it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest
import trio

from penstock.access.identity import Identity, set_identity
from penstock.engine.repair.bulk import LEASE_S
from penstock.errors import BadRequest, Conflict, NotFound, Unavailable
from penstock.store.rows import bulk as store
from penstock.testing.cancellation import cancel_at_step
from penstock.testing.definitions import definition, end, linear
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.repair import BulkView
from tests.engine import runs
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import user, wait
from tests.waiting import wait_until

NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - to be refused


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
        assert await retries(driver, id) == [("token:ada", f"bulk-{made.id}: the gateway is back")]
    assert (await driver.view(other)).status == "FAILED"


async def test_filters_are_those_of_the_list(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    keys = ("order-1", "order-2", "bill-1")
    made = [await driver.start("linear", business_key=key) for key in keys]
    for number in range(3):
        await driver.fail(await driver.one("work"), f"gateway: 50{number}" if number else "declined", retryable=False)
    await driver.upload(linear(1, job_type="work") | {"name": "newer"})
    made.append(await driver.start("linear", business_key="order-3"))

    async def met(wanted: BulkFilter, besides: BulkFilter | None = None) -> int:
        request = BulkRequest(action="cancel", filter=wanted, besides=besides, dry_run=True)
        return (await driver.engine.bulk.preview(request)).count

    at, (since, until) = BulkFilter(definition_id="linear"), (made[1].started_at, made[3].started_at)
    assert since is not None
    assert until is not None
    assert await met(at) == 4
    assert await met(BulkFilter(definition_id="linear", definition_version=2)) == 1
    assert await met(BulkFilter(business_key_prefix="order-")) == 3
    assert await met(BulkFilter(status="FAILED", definition_id="linear", step_id="task-1")) == 3
    assert await met(BulkFilter(started_before=until + timedelta(seconds=9))) == 4
    assert await met(BulkFilter(started_after=until + timedelta(seconds=9))) == 0
    for besides, left in (
        (BulkFilter(status="FAILED"), 1),
        (BulkFilter(definition_id="linear", definition_version=1), 1),
        (BulkFilter(business_key="order-1"), 3),
        (BulkFilter(business_key_prefix="order-"), 1),
        (BulkFilter(status="FAILED", cause="gateway: 7"), 2),
        (BulkFilter(status="FAILED", definition_id="linear", step_id="task-1"), 1),
        (BulkFilter(status="FAILED", definition_id="linear", step_id="end"), 4),
        (BulkFilter(started_after=until + timedelta(seconds=9)), 4),
        (BulkFilter(definition_id="another"), 4),
    ):
        assert await met(at, besides) == left, besides
    failures = await driver.engine.bulk.preview(BulkRequest(action="retry", filter=BulkFilter(status="FAILED")))
    assert [(one.step_id, one.count) for one in failures.by_step] == [("task-1", 3)]
    view = await run(
        driver, action="retry", filter=BulkFilter(status="FAILED"), besides=BulkFilter(business_key="bill-1")
    )
    assert counts(view) == ("DONE", 2, 0, 0)
    assert await driver.status(made[2].id) == "FAILED"


async def test_older_engines_get_no_filters_they_can_not_read(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.run(linear(1))
    driver.rows(
        "INSERT INTO engine (number, holder, leased_until, description, dispatch_mode, schema_version)"
        " VALUES (900, gen_random_uuid(), penstock_now() + interval '1 h', 'old', 'long_poll', 12) RETURNING 1"
    )
    newer = BulkFilter(definition_id="linear", definition_version=1)
    with pytest.raises(Conflict, match="upgrade all engines first"):
        await driver.engine.bulk.create(BulkRequest(action="cancel", filter=newer))
    made = await driver.engine.bulk.create(BulkRequest(action="cancel", filter=BulkFilter(definition_id="linear")))
    assert counts(await finish(driver, made.id)) == ("DONE", 1, 0, 0)


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
    assert counts(view) == ("DONE", 3, 0, 0)
    for id in started:
        assert len(await retries(driver, id)) == 1


WAITING = definition(wait("w", "again"), wait("again", "end"), end(), definition_id="waiting")
FAILING = BulkFilter(status="FAILED")
LOST_PAGES: dict[str, dict[str, Any]] = {
    "retry": {},
    "retry of a filter": {"filter": FAILING},
    "retry from elsewhere": {"from_step_id": "task-2"},
    "cancel": {},
    "skip": {"step_id": "task-1"},
    "move": {"step_id": "task-1", "to_step_id": "task-2"},
    "migrate": {"version": 2},
    "edit": {"variables": msgspec.Raw(b'{"a":1}')},
    "signal": {"step_id": "w"},
}


@pytest.mark.parametrize("what", LOST_PAGES)
async def test_what_is_done_counts_though_its_page_was_lost(
    make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The database goes away, or the engine is killed, between the page and its end: it said that nothing was to do."""
    driver, (action, *_), fields = make_driver(), what.split(), LOST_PAGES[what]
    await driver.upload(WAITING)
    await driver.upload(linear(2, job_type="work"))
    name = "linear" if action in ("skip", "move", "migrate", "retry", "edit") else "waiting"
    started = [(await driver.start(name)).id for _ in range(3)]
    if action in ("retry", "edit"):
        for _ in started:
            await driver.fail(await driver.one("work"), "no", retryable=False)
    if action == "migrate":
        await driver.upload(linear(2, job_type="work") | {"name": "newer"})
    which: dict[str, Any] = (
        fields if "filter" in fields else {"ids": [*started, started[0]], **fields}
    )  # one of them twice
    made = await driver.engine.bulk.create(BulkRequest(action=action, **which))

    async def away(*arguments: Any, **more: Any) -> bool:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(store, "advance", away)
        with pytest.raises(Unavailable):
            await driver.engine.bulk.step()
    assert counts(await driver.engine.bulk.get(made.id)) == ("RUNNING", 3, 0, 0)
    driver.clock.advance(LEASE_S + 1)
    assert counts(await finish(driver, made.id)) == ("DONE", 3, 0, 0)
    assert driver.rows("SELECT count(*) FROM audit WHERE detail LIKE '%%bulk-%%'") == [(3,)]
    assert driver.rows("SELECT counted FROM bulk_operation") == [([],)], "of pages that are over nothing is kept"


@pytest.mark.parametrize("action", ["cancel", "signal"])
async def test_what_runs_are_told_counts_though_its_page_was_lost(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """The runs have ended when the page comes again, so the filter finds none: it said that none was told."""
    started = [await runs.start(driver) for _ in range(3)]
    for one in await runs.take(driver, n=3):  # those that nobody ever had are cancelled at once
        await driver.engine.journal.release(one.run_lease)
    said: dict[str, Any] = {"step_id": "go"} if action == "signal" else {}
    made = await driver.engine.bulk.create(
        BulkRequest(action=action, filter=BulkFilter(status="ACTIVE"), note="too late", **said)
    )

    async def away(*arguments: Any, **more: Any) -> bool:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(store, "advance", away)
        with pytest.raises(Unavailable):
            await driver.engine.bulk.step()
    assert counts(await driver.engine.bulk.get(made.id)) == ("RUNNING", 3, 0, 0)
    taken = await runs.take(driver, n=3)
    assert {one.instance_id for one in taken} == set(started)
    for one in taken:
        assert one.mail == 1
        assert await runs.finish(driver, one.run_lease, mail=1)
    driver.clock.advance(LEASE_S + 1)
    assert counts(await finish(driver, made.id)) == ("DONE", 3, 0, 0)
    reported = driver.rows("SELECT detail FROM audit WHERE kind = 'CANCEL_REQUESTED'")
    assert reported == [(f"bulk-{made.id}: too late",)] * (3 if action == "cancel" else 0)
    assert counts(await run(driver, action=action, ids=started, **said)) == ("DONE", 0, 3, 0), (
        "who has ended is told nothing, and not counted"
    )


async def test_a_full_mailbox_holds_up_no_bulk_operation(make_driver: MakeDriver) -> None:
    """Nor those that come after it: the page was done again for as long as the run read nothing."""
    driver = make_driver(messages_unread_max_items=1)
    full, free = [await runs.start(driver) for _ in range(2)]
    await driver.engine.runs.send(full, "before", b"1")
    view = await run(driver, action="signal", ids=[full, free], step_id="go")
    assert counts(view) == ("DONE", 1, 0, 1)
    assert view.errors == [f"{full}: the run has 1 unread messages"]


async def test_cut_off_anywhere_it_counts_each_once(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1, job_type="work"))
    point = 0
    for point in range(1, 1_000):
        started = await fail_some(driver, 2)
        request = BulkRequest(action="retry", ids=started)
        made = await driver.engine.bulk.create(request)
        attempt = await cancel_at_step(point, driver.engine.bulk.step)
        view = await finish(driver, made.id)
        assert counts(view) == ("DONE", 2, 0, 0), point
        for id in started:
            assert len(await retries(driver, id)) == 1
            await driver.cancel(id)
        if not attempt.fired:
            break
    assert point > 10


async def test_cut_off_anywhere_runs_are_reported_and_counted_once(driver: Driver) -> None:
    started = [await runs.start(driver) for _ in range(2)]
    point = 0
    for point in range(1, 1_000):
        made = await driver.engine.bulk.create(BulkRequest(action="signal", ids=started, step_id=f"go-{point}"))
        attempt = await cancel_at_step(point, driver.engine.bulk.step)
        assert counts(await finish(driver, made.id)) == ("DONE", 2, 0, 0), point
        reported = driver.rows("SELECT count(*) FROM journal WHERE name = %s", f"go-{point}")
        assert reported == [(2,)], point
        if not attempt.fired:
            break
    assert point > 10


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
    assert details == [f"bulk-{made.id}: made by mistake"]
    assert (await driver.view(before[1])).failure_reason == "made by mistake"


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
    made = await driver.engine.bulk.create(BulkRequest(action="retry", ids=started, per_second=0.01))
    monkeypatch.setattr("penstock.engine.repair.bulk.HOLD_S", 0.01)
    real, advanced = store.advance, trio.Event()

    async def advance(*arguments: Any, **more: Any) -> bool:
        going_on = await real(*arguments, **more)
        advanced.set()
        return going_on

    monkeypatch.setattr(store, "advance", advance)
    lease = "SELECT leased_until FROM bulk_operation"
    with trio.fail_after(60):  # one of them is done, the next would follow in a hundred seconds
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.engine.bulk.step)
            await advanced.wait()
            [first] = driver.rows(lease)

            async def is_held() -> bool:
                return driver.rows(lease) > [first]

            await wait_until(is_held)
            assert (await driver.engine.bulk.stop(made.id)).state == "STOPPED"
    assert driver.rows("SELECT count(*) FROM instance WHERE status = 0") == [(1,)], "none went on after the stop"
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
    ("request_", "reported"),
    [
        ({"action": "delete", "ids": ["1"]}, "action: must be one of retry, cancel, signal"),
        ({"action": "retry"}, "filter: give either a filter or ids"),
        ({"action": "retry", "ids": ["1"], "filter": BulkFilter(status="FAILED")}, "filter: give either"),
        ({"action": "retry", "filter": BulkFilter()}, "filter: is empty, so it would match all instances"),
        ({"action": "retry", "filter": BulkFilter(status="LOST")}, "filter.status: must be one of"),
        ({"action": "retry", "filter": BulkFilter(definition_id="d", cause="x")}, "filter.cause: needs the status"),
        (
            {"action": "retry", "filter": BulkFilter(step_id="s", status="FAILED")},
            "filter.stepId: needs a definitionId",
        ),
        ({"action": "retry", "filter": BulkFilter(business_key_prefix="")}, "filter.businessKeyPrefix: must not be"),
        ({"action": "retry", "filter": BulkFilter(definition_version=1)}, "filter.definitionVersion: needs"),
        (
            {"action": "retry", "filter": BulkFilter(definition_version=-1)},
            "filter.definitionVersion: must be a version",
        ),
        ({"action": "retry", "filter": BulkFilter(started_after=NAIVE)}, "filter.startedAfter: must"),
        (
            {"action": "retry", "ids": ["1"], "besides": BulkFilter()},
            "except: is empty, so it would match all instances",
        ),
        ({"action": "retry", "ids": ["1"], "besides": BulkFilter(status="LOST")}, "except.status: must be one of"),
        ({"action": "retry", "ids": []}, "ids: must have 1 to 1,000"),
        ({"action": "retry", "ids": ["nothing"]}, "ids: 'nothing' is not an instance id"),
        ({"action": "cancel", "ids": ["1"], "per_second": 0.0}, "perSecond: must be more than 0"),
        ({"action": "cancel", "ids": ["1"], "step_id": "s"}, "stepId: does not belong to the action cancel"),
        ({"action": "signal", "ids": ["1"]}, "stepId: is required for the action signal"),
        ({"action": "cancel", "ids": ["1"], "note": "x" * 5_000}, "note"),
    ],
)
async def test_a_wrong_request_is_told_its_field(
    make_driver: MakeDriver, request_: dict[str, Any], reported: str
) -> None:
    driver = make_driver()
    with pytest.raises(BadRequest, match=reported):
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
