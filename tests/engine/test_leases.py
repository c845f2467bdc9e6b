"""What the engine remembers of leases when commits of one execution are told in another order than they happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from penstock.engine import ids
from penstock.engine.leases import STALE_ENDS_MAX, GrantedLease, LeaseBook
from penstock.engine.polls import ReleaseItem
from penstock.engine.vocabulary import Job
from penstock.engine.wide import WideLane
from penstock.store import jobs as store
from penstock.testing.definitions import linear
from tests.engine.driver import Driver


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
def test_a_late_word_of_an_older_attempt_leaves_the_newer_lease_alone(late: Callable[[LeaseBook], None]) -> None:
    book = LeaseBook()
    book.grant(lease(2, 20.0))
    late(book)
    assert watched(book) == (2, 20.0)
    assert book.take_due(19.9, 10) == []
    assert [due.attempt for due in book.take_due(20.0, 10)] == [2]


def test_an_attempts_own_end_and_the_close_of_its_execution_are_taken() -> None:
    book = LeaseBook()
    book.grant(lease(1, 10.0))
    book.end(2, 3, 1)
    assert watched(book) is None
    book.grant(lease(2, 10.0))
    book.forget(2, 3)
    assert (watched(book), book.take_due(10.0, 10)) == (None, [])


def test_a_lease_that_was_extended_while_it_was_looked_at_keeps_its_new_end() -> None:
    book = LeaseBook()
    book.grant(lease(1, 10.0))
    (due,) = book.take_due(10.0, 10)
    book.grant(lease(1, 40.0))  # as a heartbeat does that finds none
    book.put_back(due)
    assert watched(book) == (1, 40.0)


def test_jobs_that_are_done_long_before_the_end_of_their_lease_are_not_remembered_until_then() -> None:
    book = LeaseBook()
    still_held = GrantedLease(1, 0, 3, 1, 0, None, "w", 1_800.0)
    book.grant(still_held)
    for token in range(1, 5 * STALE_ENDS_MAX):
        book.grant(GrantedLease(1, token, 3, 1, 0, None, "w", 3_600.0 + token))
        book.extend(token, 3, 1, 7_200.0 + token)
        book.forget(token, 3)
        assert len(book._ends) <= STALE_ENDS_MAX + 4
    assert book.take_due(1_799.0, 10) == []
    assert book.take_due(9_999.0, 10) == [still_held]


def watched_attempt(driver: Driver, job: Job) -> int | None:
    key = ids.read_job(job.id)
    found = driver.engine.polls.leases.find(key.token, key.seq)
    return None if found is None else found.attempt


async def test_a_job_that_is_claimed_again_before_its_release_is_told_stays_watched(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such leases came back by the scan only, up to ten seconds late (found by the storm of cancelled calls)."""
    await driver.run(linear(1))
    job = await driver.one("work", worker="first")
    again: list[Job] = []
    give_back = store.give_back

    async def overtaken(*args: Any, **options: Any) -> object:
        freed = await give_back(*args, **options)
        again.append(await driver.one("work", worker="second"))
        return freed

    monkeypatch.setattr(store, "give_back", overtaken)
    key = ids.read_job(job.id)
    assert await driver.engine.polls.releases.submit(ReleaseItem(key, store.Lease(key.token, key.seq, 1, "first")))
    assert (again[0].attempt, watched_attempt(driver, job)) == (2, 2)


async def test_a_retry_that_is_claimed_before_the_failure_is_told_stays_watched(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver.run(linear(1, retry_count=1))
    job = await driver.one("work", worker="first")
    again: list[Job] = []
    told = trio.Event()
    committed: Callable[..., Awaitable[None]] = WideLane.committed

    async def overtaken(*args: Any) -> None:
        if not again:
            again.append(await driver.one("work", worker="second"))
        await committed(*args)
        told.set()

    monkeypatch.setattr(WideLane, "committed", overtaken)
    await driver.fail(job)
    with trio.fail_after(20):
        await told.wait()
    assert (again[0].attempt, watched_attempt(driver, job)) == (2, 2)
