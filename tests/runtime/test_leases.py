"""Leases that end: returned in time, dead-lettered after too many, found again when their engine is gone."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import trio

from penstock.core.advance.event import Event
from penstock.engine.advance.commands import DeadLetterCommand
from penstock.engine.requests.ids import read_instance
from penstock.errors import PenstockError, Unavailable
from penstock.runtime import lease_sweeper
from penstock.testing.definitions import fork, linear
from penstock.testing.invariants import assert_invariants
from tests.engine import runs
from tests.runtime.conftest import StartLocal
from tests.runtime.local_engine import LocalEngine
from tests.waiting import wait_until

FAR_S = 1e6
"""So far in the future that every lease of a test has ended by then, for this engine's own clock."""


TRIES_MAX = 9
"""For three: the machine may be busy with others for a second."""


async def sweep(engine: LocalEngine, later_s: float = 0) -> int:
    return await engine.sweeper.run_once(trio.current_time() + FAR_S + later_s)


def states(engine: LocalEngine) -> list[tuple[int, int]]:
    """(state, expiries) of all tokens; 0 is READY, 1 LOCKED."""
    return engine.rows("SELECT state, expiries FROM token ORDER BY id")


@pytest.mark.slow(reason="waits for the end of a lease")
async def test_a_lease_is_returned_within_a_second_of_its_end(start_local: StartLocal) -> None:
    engine = await start_local(lease_min_seconds=0.2)
    await engine.upload(linear(1))
    late_s: list[float] = []
    while sum(late < 1 for late in late_s) < 3 and len(late_s) < TRIES_MAX:
        await engine.start("linear")
        asked_at = trio.current_time()
        job = await engine.one("work", lease=1)
        answered_at = trio.current_time()
        lease_s = (job.lock_expires_at - job.locked_at).total_seconds()  # pyright: ignore[reportOperatorIssue] - they are there
        again = await engine.one("work", worker="next", wait=15)
        back_at = trio.current_time()
        assert back_at - (asked_at + lease_s) > -0.05
        late_s.append(back_at - (answered_at + lease_s))
        assert (again.id, again.attempt, again.retries_remaining) == (job.id, 2, job.retries_remaining)
        await engine.complete(again)
    assert sum(late < 1 for late in late_s) == 3, late_s
    assert engine.engine.metrics.job_timeouts._value.get() == len(late_s)


async def test_the_last_holder_may_still_complete_a_returned_job(start_local: StartLocal) -> None:
    engine = await start_local(services=False)
    instance = await engine.run(linear(1))
    job = await engine.one("work")
    engine.clock.advance(31)
    assert await sweep(engine) == 1
    assert states(engine) == [(0, 1)]
    await engine.complete(job)
    assert await engine.status(instance) == "COMPLETED"
    assert engine.rows("SELECT count(*) FROM ready") == [(0,)]


async def test_a_lease_ended_only_here_is_looked_at_again(start_local: StartLocal) -> None:
    engine = await start_local(services=False)
    await engine.run(linear(1))
    await engine.one("work")
    book = engine.engine.polls.leases
    assert await sweep(engine) == 0  # the database says: 30 s more
    assert states(engine) == [(1, 0)]
    assert len(book) == 1
    engine.clock.advance(31)
    assert await sweep(engine, 1) == 1
    assert len(book) == 0


async def test_a_lease_without_end_is_left_to_the_scan(start_local: StartLocal) -> None:
    engine = await start_local(services=False)
    await engine.run(linear(1))
    await engine.one("work")
    for later_s in range(0, 50, 10):
        assert await sweep(engine, later_s) == 0
    assert len(engine.engine.polls.leases) == 0


async def test_a_heartbeat_moves_the_end(start_local: StartLocal) -> None:
    engine = await start_local(services=False)
    await engine.run(linear(1))
    job = await engine.one("work")
    engine.clock.advance(20)
    await engine.heartbeat(job, lease_seconds=30)
    engine.clock.advance(20)
    assert await sweep(engine) == 0
    assert states(engine) == [(1, 0)]


async def test_a_job_whose_lease_expires_too_often_is_dead_lettered(start_local: StartLocal) -> None:
    engine = await start_local(services=False, lease_expiry_limit=3)
    instance = await engine.run(linear(1, retry_count=5))
    job = None
    for attempt in range(1, 4):
        job = await engine.one("work", worker=f"w{attempt}")
        assert job.attempt == attempt
        engine.clock.advance(31)
        assert await sweep(engine) == 1
    view = await engine.view(instance)
    assert (view.status, view.failure_reason) == ("FAILED", "lease expired 3 times")
    (item,) = await engine.history(instance)
    assert (item.status, item.failure_reason) == ("FAILED", "lease expired 3 times")
    assert await engine.poll("work") == []
    (dead,) = (await engine.engine.jobs.failed(0, 20)).items
    assert job is not None
    assert (dead.id, dead.worker_id) == (job.id, "w3")


async def test_many_dead_letters_share_transactions(start_local: StartLocal) -> None:
    engine = await start_local(services=False, lease_expiry_limit=1)
    instances = [await engine.run(linear(1)) for _ in range(20)]
    assert len(await engine.poll("work", n=20)) == 20
    engine.clock.advance(31)
    before = batches(engine)
    assert await sweep(engine) == 20
    assert batches(engine) - before <= 2  # the first may go alone
    assert {await engine.status(instance) for instance in instances} == {"FAILED"}


def batches(engine: LocalEngine) -> float:
    """Transactions of the full path."""
    name = "engine_db_transaction_duration_seconds_count"
    return engine.engine.metrics.registry.get_sample_value(name, {"tx_type": "wide"}) or 0


async def test_the_scan_finds_a_dead_letter_refused_in_an_outage(
    start_local: StartLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start_local(services=False, lease_expiry_limit=1)
    instance = await engine.run(linear(1))
    await engine.one("work")
    engine.clock.advance(31)

    def refuse(item: DeadLetterCommand) -> None:
        item.refuse(Unavailable("the database is away"))

    with monkeypatch.context() as patch:
        patch.setattr(engine.engine.full_path, "submit_nowait", refuse)
        with pytest.raises(Unavailable):
            await sweep(engine)
    assert await engine.status(instance) == "ACTIVE"
    assert await engine.sweeper.scan_once() == 1
    await sweep(engine)
    assert await engine.status(instance) == "FAILED"


async def test_a_dead_letter_that_fails_is_set_aside(start_local: StartLocal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It held up the leases that ended with it, for ever."""
    engine = await start_local(services=False, lease_expiry_limit=1)
    broken = await engine.run(linear(1))
    await engine.one("work")
    fine = await engine.run(linear(1))
    await engine.one("work")
    engine.clock.advance(31)
    tried: list[int] = []
    event = DeadLetterCommand.event

    def fail(item: DeadLetterCommand, *about: Any) -> Event:
        tried.append(item.instance)
        if item.instance == read_instance(broken):
            raise PenstockError("a bug")
        return event(item, *about)

    monkeypatch.setattr(DeadLetterCommand, "event", fail)
    for _ in range(4):
        await sweep(engine)
        await engine.sweeper.scan_once()
    assert tried.count(read_instance(broken)) == 1, "until its pause is over"
    assert [about.reason for about in engine.engine.quarantine.listing()] == ["a bug"]
    assert (await engine.status(broken), await engine.status(fine)) == ("ACTIVE", "FAILED")


async def test_a_dead_letter_failing_after_it_stood_aside_is_reported(
    start_local: StartLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its instance is held by another transaction when the lease ends; nobody waits for it any more."""
    engine = await start_local(services=False, lease_expiry_limit=1, outage_wait_seconds=60)
    instance = await engine.run(fork(1, 1))
    assert len(await engine.poll("work", n=2)) == 2
    engine.clock.advance(31)

    def fail(item: DeadLetterCommand, *about: Any) -> Event:
        raise PenstockError("a bug")

    monkeypatch.setattr(DeadLetterCommand, "event", fail)
    held = "SELECT FROM token WHERE instance_id = %s AND parent_id IS NULL FOR UPDATE"
    with psycopg.connect(engine.dsn) as holder:
        holder.execute(held, (read_instance(instance),))
        await sweep(engine)
        assert engine.engine.quarantine.listing() == []
        holder.rollback()

    async def reported() -> bool:
        return [about.reason for about in engine.engine.quarantine.listing()] == ["a bug", "a bug"]

    await wait_until(reported)


async def test_leases_are_kept_while_the_database_is_away(
    start_local: StartLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start_local(services=False)
    await engine.run(linear(1))
    await engine.one("work")

    async def away(*_: object, **__: object) -> None:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(lease_sweeper.store, "expire", away)
        with pytest.raises(Unavailable):
            await sweep(engine)
    assert len(engine.engine.polls.leases) == 1


async def test_the_scan_finds_leases_of_an_engine_that_died(start_local: StartLocal) -> None:
    dead = await start_local(services=False)
    await dead.run(linear(1))
    job = await dead.one("work")
    await dead.crash()
    engine = await start_local(services=False, lease_scan_interval_seconds=60)
    assert await engine.sweeper.scan_once() == 1
    assert await engine.sweeper.run_once(trio.current_time()) == 0  # it has not ended yet
    engine.clock.advance(31)
    assert await sweep(engine) == 1
    assert (await engine.one("work")).id == job.id


async def test_the_scan_skips_leases_that_end_after_the_next(start_local: StartLocal) -> None:
    dead = await start_local(services=False)
    await dead.run(linear(1))
    await dead.one("work", lease=600)
    await dead.crash()
    engine = await start_local(services=False, lease_scan_interval_seconds=10)
    assert await engine.sweeper.scan_once() == 0
    assert len(engine.engine.polls.leases) == 0


async def test_a_lost_engine_brings_the_scan_at_once(start_local: StartLocal) -> None:
    engine = await start_local(services=False, lease_scan_interval_seconds=60)
    scans = 0

    async def scan_once() -> int:
        nonlocal scans
        scans += 1
        engine.sweeper._next_scan_at = trio.current_time() + 60
        return 0

    engine.sweeper.scan_once = scan_once  # type: ignore[method-assign]
    await engine.sweeper.step()
    await engine.sweeper.step()
    assert scans == 1
    engine.sweeper.scan_soon()
    await engine.sweeper.step()
    assert scans == 2


async def test_many_leases_that_end_at_once_are_returned_in_batches(
    start_local: StartLocal, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_sweeper, "BATCH_MAX", 7)
    engine = await start_local(services=False)
    await engine.upload(linear(1))
    for _ in range(20):
        await engine.start("linear")
    assert len(await engine.poll("work", n=20)) == 20
    engine.clock.advance(31)
    assert await sweep(engine) == 20
    assert states(engine) == [(0, 1)] * 20
    assert_invariants(database_dsn)


async def test_ended_leases_are_found_however_many_end_soon(start_local: StartLocal) -> None:
    """More than one scan takes: those are watched by whoever granted them."""
    engine = await start_local(services=False)
    engine.clock.stop()
    engine.rows(
        "INSERT INTO token (id, instance_id, seq, step, entered_at, state, attempt, claimed_by, lease_until)"
        " SELECT n, n, 1, 0, penstock_now(), 1, 1, 'w', penstock_now() + '5 s'"
        " FROM generate_series(1, 10000) n RETURNING 1"
    )
    await engine.run(linear(1))
    await engine.one("work")
    engine.rows("UPDATE token SET lease_until = penstock_now() - interval '1 s' WHERE id > 10000 RETURNING 1")
    other = await start_local(services=False)
    await other.sweeper.scan_once()
    assert await other.sweeper.run_once(trio.current_time()) == 1
    assert engine.rows("SELECT state FROM token WHERE id > 10000") == [(0,)]
    engine.rows("DELETE FROM token WHERE id <= 10000 RETURNING 1")


async def test_a_heartbeat_of_a_later_attempt_is_watched_as_that(start_local: StartLocal) -> None:
    """The engine still has the lease of the attempt before, which ended elsewhere."""
    engine, other = await start_local(services=False), await start_local(services=False)
    await engine.run(linear(1))
    await engine.one("work")
    assert await other.expire(31) == 1
    await engine.heartbeat(await other.one("work", worker="next"))
    engine.clock.advance(31)
    assert await sweep(engine) == 1
    assert states(engine) == [(0, 2)]


async def test_an_engine_ends_leases_of_runs_it_never_met(start_local: StartLocal) -> None:
    a, b = await start_local(services=False), await start_local(services=False)
    run = await runs.begin(a)
    a.rows("UPDATE token SET expiries = 2 RETURNING 1")
    assert not b.engine.definitions.has_code
    a.clock.advance(60)
    assert await b.sweeper.scan_once() == 1
    await b.sweeper.run_once(trio.current_time() + 1)
    assert a.rows("SELECT state, expiries FROM token") == [(4, 3)], "it stands back, after its third executor"
    await a.engine.instances.cancel(run.instance_id, None, force=True)
