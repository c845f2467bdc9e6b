"""What people see of open work: jobs by state, timers to come; and the one act on it, ending a lease."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.errors import BadRequest, Conflict, NotFound
from penstock.store.rows import open_work as store
from penstock.testing.definitions import definition, end, timer
from penstock.testing.invariants import find_broken
from tests.engine.driver import Driver
from tests.shapes import task, user, wait

LINE = definition(task("one", "two", retryCount=3, retryBackoff={"initial": "PT10M"}), task("two"), end(), id="line")
TIMED = definition(
    user("ask", boundaryEvents=[timer("late", "PT3H", interrupting=True), timer("remind", "PT1H")]),
    task("late"), task("remind"), end(), id="timed",
)  # fmt: skip
PAUSED = definition(wait("pause", duration="PT2H"), end(), id="paused")


async def listed(driver: Driver, status: str, job_type: str | None = None, **fields: Any) -> Any:
    given: dict[str, Any] = {"cursor": None, "limit": 50, **fields}
    return await driver.engine.open_work.jobs(status, job_type, given["cursor"], given["limit"])


async def timers(driver: Driver, kind: str | None = None, cursor: str | None = None, limit: int = 50) -> Any:
    return await driver.engine.open_work.timers(kind, cursor, limit)


async def test_jobs_are_listed_where_they_stand(driver: Driver) -> None:
    await driver.upload(LINE)
    started = [(await driver.start("line")).id for _ in range(3)]
    page = await listed(driver, "WAITING", "one", limit=2)
    rest = await listed(driver, "WAITING", "one", limit=2, cursor=page.next)
    assert [job.instance_id for job in (*page.items, *rest.items)] == started
    assert (rest.next, page.items[0].job_type, page.items[0].step_id) == (None, "one", "one")
    held, failing = await driver.one("one"), await driver.one("one", worker="w2")
    await driver.heartbeat(held, progress=b'"half of it"')
    await driver.fail(failing)
    (leased,) = (await listed(driver, "LOCKED", "one")).items
    assert (leased.id, leased.worker_id, leased.attempt) == (held.id, "w1", 1)
    assert leased.lease_until is not None
    assert leased.lease_until >= held.lock_expires_at
    assert leased.progress == msgspec.Raw(b'"half of it"')
    (backing,) = (await listed(driver, "BACKOFF", "one")).items
    assert (backing.id, backing.failures) == (failing.id, 1)
    assert backing.retry_at is not None
    assert backing.retry_at > backing.since
    driver.rows(
        "UPDATE token SET state = 5, attempt = 1, claimed_at = now(), lease_until = now() + interval '1 h'"
        " WHERE state = 0 RETURNING 1"  # as the relay does
    )
    (dispatched,) = (await listed(driver, "DISPATCHED", "one")).items
    assert (dispatched.instance_id, dispatched.worker_id) == (started[2], None)
    assert dispatched.lease_until is not None
    driver.rows("DELETE FROM ready RETURNING 1")
    for status in ("WAITING", "LOCKED", "DISPATCHED", "BACKOFF"):
        assert (await listed(driver, status, "unheard of")).items == []
    assert (await listed(driver, "BACKOFF", "two")).items == []


async def test_what_can_not_be_listed_is_refused(driver: Driver) -> None:
    with pytest.raises(BadRequest, match="jobType"):
        await listed(driver, "WAITING")
    with pytest.raises(BadRequest, match="status"):
        await listed(driver, "ASLEEP")
    for cursor in ("x", "1", "-1-2", "1--2", "1-x-key", "99999999999999999999-1"):
        with pytest.raises(BadRequest, match="cursor"):
            await listed(driver, "WAITING", "one", cursor=cursor)
    for cursor in ("x", "1", "1-2-3", "-1-2", "1-2-3-4-5", "99999999999999999999-1"):
        with pytest.raises(BadRequest, match="cursor"):
            await timers(driver, cursor=cursor)
    for cursor in ("9999999999999999999-1-1-1", "1-9999999999999999999-1-1", "1-1-1-99999"):
        with pytest.raises(BadRequest, match="cursor"):
            await timers(driver, cursor=cursor)
    await driver.upload(LINE)
    for cursor in ("40000-1", "1-9999999999999999999"):
        with pytest.raises(BadRequest, match="cursor"):
            await listed(driver, "WAITING", "one", cursor=cursor)
    with pytest.raises(BadRequest, match="kind"):
        await timers(driver, "clock")


async def test_timers_are_listed_next_first_by_kind(driver: Driver) -> None:
    await driver.run(TIMED)
    await driver.run(PAUSED)
    await driver.run(LINE)
    await driver.fail(await driver.one("one"))
    found = (await timers(driver)).items
    assert [(timer.kind, timer.step_id, timer.target) for timer in found] == [
        ("retry", "one", None), ("boundary", "ask", "remind"), ("wait", "pause", None), ("boundary", "ask", "late")
    ]  # fmt: skip
    assert [timer.interrupting for timer in found] == [False, False, False, True]
    assert [timer.target for timer in (await timers(driver, "boundary")).items] == ["remind", "late"]
    assert (await timers(driver, "wake")).items == []
    seen: list[str] = []
    cursor = None
    for _ in range(4):
        page = await timers(driver, cursor=cursor, limit=1)
        seen += [timer.kind for timer in page.items]
        cursor = page.next
    assert (seen, cursor) == (["retry", "boundary", "wait", "boundary"], None)


async def test_a_page_of_a_rare_kind_ends_early(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SCAN_ROWS", 2)
    for _ in range(3):
        await driver.run(PAUSED)
    await driver.run(TIMED)
    page = await timers(driver, "boundary")
    assert [timer.target for timer in page.items] == ["remind"]
    assert page.next is not None
    later = await timers(driver, "boundary", page.next)
    assert later.items == []
    assert [timer.target for timer in (await timers(driver, "boundary", later.next)).items] == ["late"]


async def test_an_operator_ends_a_lease(driver: Driver) -> None:
    instance = await driver.run(LINE)
    job = await driver.one("one")
    unlock = driver.engine.open_work.unlock
    await unlock(job.id, "its host is gone")
    with pytest.raises(Conflict, match="no worker"):
        await unlock(job.id, None)
    again = await driver.one("one", worker="w2")
    assert (again.id, again.attempt, again.retries_remaining) == (job.id, 2, job.retries_remaining)
    with pytest.raises(Conflict):
        await driver.complete(job)
    await driver.complete(again)
    audit = (await driver.engine.instances.audit(instance)).items
    assert [r.detail for r in audit if r.kind == "LEASE_ENDED"] == ["of w1: its host is gone"]
    with pytest.raises(NotFound):
        await unlock("what", None)
    assert find_broken(driver.dsn) == []
