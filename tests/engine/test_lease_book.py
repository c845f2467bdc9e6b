"""What the engine remembers of leases when commits of one execution are told in another order than they happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from penstock.engine.advance.transaction import Transaction
from penstock.engine.queues.lease_book import ENDED_MAX_ITEMS, STALE_ENDS_MAX, GrantedLease, LeaseBook
from penstock.engine.queues.releases import ReleaseItem
from penstock.engine.requests import ids
from penstock.errors import Conflict
from penstock.runtime.lease_sweeper import LeaseSweeper
from penstock.store.rows import jobs as store
from penstock.testing.definitions import linear
from penstock.wire.model import Job
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver

MANY = 10 * STALE_ENDS_MAX


def lease(attempt: int, ends_at: float) -> GrantedLease:
    return GrantedLease(1, 2, 3, attempt, 0, None, f"w{attempt}", ends_at)


def watched(book: LeaseBook) -> tuple[int, float] | None:
    known = book.find(2, 3)
    return None if known is None else (known.attempt, known.ends_at)


@pytest.mark.parametrize(
    "late",
    [
        lambda book: book.grant(lease(1, 10.0)),
        lambda book: book.end(2, 3, 1),
        lambda book: book.extend(2, 3, 1, 99.0),
        lambda book: book.put_back(lease(1, 10.0)),
    ],
    ids=["granted", "ended", "extended", "put back"],
)
def test_late_news_of_an_older_attempt_changes_nothing(late: Callable[[LeaseBook], None]) -> None:
    book = LeaseBook(MANY)
    book.grant(lease(2, 20.0))
    late(book)
    assert watched(book) == (2, 20.0)
    assert book.take_due(19.9, 10) == []
    assert [due.attempt for due in book.take_due(20.0, 10)] == [2]


def test_an_extended_lease_is_due_at_its_new_end_only() -> None:
    book = LeaseBook(MANY)
    book.grant(lease(1, 10.0))
    book.extend(2, 3, 1, 99.0)
    assert book.take_due(98.0, 10) == []
    assert [due.ends_at for due in book.take_due(99.0, 10)] == [99.0]


def test_the_end_of_an_attempt_and_its_execution_count() -> None:
    book = LeaseBook(MANY)
    book.grant(lease(1, 10.0))
    book.end(2, 3, 1)
    assert watched(book) is None
    book.grant(lease(2, 10.0))
    book.forget(2, 3)
    assert (watched(book), book.take_due(10.0, 10)) == (None, [])


def test_a_lease_extended_meanwhile_keeps_its_new_end() -> None:
    book = LeaseBook(MANY)
    book.grant(lease(1, 10.0))
    (due,) = book.take_due(10.0, 10)
    book.grant(lease(1, 40.0))  # as a heartbeat does that finds none
    book.put_back(due)
    assert watched(book) == (1, 40.0)


def test_jobs_done_early_are_not_remembered_until_their_lease_ends() -> None:
    book = LeaseBook(MANY)
    still_held = GrantedLease(1, 0, 3, 1, 0, None, "w", 1_800.0)
    book.grant(still_held)
    for token in range(1, 5 * STALE_ENDS_MAX):
        book.grant(GrantedLease(1, token, 3, 1, 0, None, "w", 3_600.0 + token))
        book.extend(token, 3, 1, 7_200.0 + token)
        book.forget(token, 3)
        assert len(book._ends) <= STALE_ENDS_MAX + 4
    assert book.take_due(1_799.0, 10) == []
    assert book.take_due(9_999.0, 10) == [still_held]


def test_a_token_has_one_lease_that_of_its_latest_execution() -> None:
    """What another engine finished is known to be over by the next job of the same token."""
    book = LeaseBook(MANY)
    book.grant(lease(1, 3_600.0))
    book.grant(GrantedLease(1, 2, 9, 1, 0, None, "w", 60.0))
    assert (len(book), watched(book)) == (1, None)
    book.grant(lease(7, 99.0))  # told late
    book.forget(2, 3)
    book.end(2, 3, 7)
    assert [due.seq for due in book.take_due(9_999.0, 10)] == [9]
    book.grant(lease(1, 3_600.0))
    book.forget(2, 9)
    assert len(book) == 0


@pytest.mark.parametrize(
    ("over", "late"),
    [
        (lambda book: book.forget(2, 3), lambda book: book.grant(lease(1, 3_600.0))),
        (lambda book: book.forget(2, 9), lambda book: book.grant(lease(1, 3_600.0))),
        (lambda book: book.end(2, 3, 1), lambda book: book.grant(lease(1, 3_600.0))),
        (lambda book: book.forget(2, 3), lambda book: book.put_back(lease(1, 3_600.0))),
    ],
    ids=["closed", "a later one closed", "given back", "put back"],
)
def test_a_lease_told_after_its_end_is_not_watched(
    over: Callable[[LeaseBook], None], late: Callable[[LeaseBook], None]
) -> None:
    """A job was cancelled before its poll's answer, say: nothing would remove it before its hour is over."""
    book = LeaseBook(MANY)
    over(book)
    late(book)
    assert book.all() == []
    book.grant(lease(1, 60.0), scanned=True)  # a standby that did not have the end yet took over, say
    assert watched(book) == (1, 60.0)
    book.grant(GrantedLease(1, 2, 10, 1, 0, None, "w", 60.0))
    assert [lease.seq for lease in book.all()] == [10]


def test_ends_are_remembered_for_a_while_and_in_bounds() -> None:
    book = LeaseBook(MANY)
    for token in range(10 * ENDED_MAX_ITEMS):
        book.forget(token, 3)
        book.grant(GrantedLease(1, token - ENDED_MAX_ITEMS + 1, 3, 1, 0, None, "w", 60.0))
        assert len(book._ended) + len(book._ended_before) <= 2 * ENDED_MAX_ITEMS
    assert [lease.token for lease in book.all() if lease.token >= 0] == []


def test_a_full_book_forgets_the_oldest_grants_and_extensions() -> None:
    book = LeaseBook(3)
    for token in range(3):
        book.grant(GrantedLease(1, token, 3, 1, 0, None, "w", 60.0 + token))
    book.extend(0, 3, 1, 90.0)
    for token in range(3, 100):
        book.grant(GrantedLease(1, token, 3, 1, 0, None, "w", 60.0 + token))
        assert len(book) == 3
        book.extend(0, 3, 1, 90.0)
    assert sorted(due.token for due in book.take_due(9_999.0, 10)) == [0, 98, 99]


async def test_the_scan_ends_leases_that_found_no_room(make_driver: MakeDriver) -> None:
    driver = make_driver(leases_watched_max_items=1)
    await driver.upload(linear(1))
    for _ in range(3):
        await driver.start("linear")
    jobs = await driver.poll("work")
    assert len(driver.engine.polls.leases) == 1
    await driver.complete(jobs[0])
    driver.clock.advance(31)
    sweeper = LeaseSweeper(driver.engine)
    returned = 0
    for _ in range(2):
        await sweeper.scan_once()
        returned += await sweeper.run_once(trio.current_time() + 31)
    assert returned == 2
    assert len(await driver.poll("work")) == 2


async def test_other_engines_finished_jobs_are_forgotten_with_their_next(
    make_driver: MakeDriver,
) -> None:
    here, there = make_driver(), make_driver()
    await here.upload(linear(3))
    for _ in range(5):
        await here.start("linear")
    for _ in range(3):
        for job in await here.poll("work", lease=3_600):
            await there.complete(job)
        assert len(here.engine.polls.leases) == 5


async def test_a_late_call_tells_that_the_job_is_closed(make_driver: MakeDriver) -> None:
    here, there = make_driver(), make_driver()
    await here.run(linear(2))
    job = await here.one("work", lease=3_600)
    await there.complete(job)
    with pytest.raises(Conflict):
        await here.heartbeat(job)
    assert len(here.engine.polls.leases) == 0


def watched_attempt(driver: Driver, job: Job) -> int | None:
    key = ids.read_job(job.id)
    found = driver.engine.polls.leases.find(key.token, key.seq)
    return None if found is None else found.attempt


async def test_a_job_claimed_before_its_releases_news_stays_watched(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such leases came back by the scan only, up to ten seconds late (found by the storm of cancelled calls)."""
    await driver.run(linear(1))
    job = await driver.one("work", worker="first")
    again: list[Job] = []
    release = store.release

    async def overtaken(*args: Any, **options: Any) -> object:
        freed = await release(*args, **options)
        again.append(await driver.one("work", worker="second"))
        return freed

    monkeypatch.setattr(store, "release", overtaken)
    key = ids.read_job(job.id)
    assert await driver.engine.polls.releases.submit(ReleaseItem(key, store.Lease(key.token, key.seq, 1, "first")))
    assert (again[0].attempt, watched_attempt(driver, job)) == (2, 2)


async def test_a_retry_claimed_before_the_failures_news_stays_watched(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver.run(linear(1, retry_count=1))
    job = await driver.one("work", worker="first")
    again: list[Job] = []
    reported = trio.Event()
    committed: Callable[..., Awaitable[None]] = Transaction.carry_out

    async def overtaken(*args: Any) -> None:
        if not again:
            again.append(await driver.one("work", worker="second"))
        await committed(*args)
        reported.set()

    monkeypatch.setattr(Transaction, "carry_out", overtaken)
    await driver.fail(job)
    with trio.fail_after(60):
        await reported.wait()
    assert (again[0].attempt, watched_attempt(driver, job)) == (2, 2)
