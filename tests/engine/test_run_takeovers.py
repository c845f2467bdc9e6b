"""Runs whose executors die: taken from them by the end of a lease or by the death of their engine, and from nobody who
lives; what kills its executors stands back, and never fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog.testing

from penstock.core.graph.definition import InvalidDefinition
from penstock.errors import Forbidden, LeaseLost
from penstock.runtime.deaths import Deaths, is_alive, this_process
from penstock.runtime.lease_sweeper import LeaseSweeper
from penstock.settings import DispatchMode
from penstock.store.rows import outbox as outbox_store
from penstock.store.rows.engines import OtherEngine
from penstock.testing.definitions import linear
from penstock.wire.model import Completion, Heartbeat, JobRef, PollRequest
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.engine.runs import HOLDER, ORDER, append, begin, done, finish, paths, start, take

TAG = "0123abcd"


async def sweep(driver: Driver, seconds: float) -> int:
    """Let so much time pass, and do what the lease service does."""
    driver.clock.advance(seconds)
    leased = driver.rows("SELECT id, seq, attempt FROM token WHERE state = 1")
    return len(await driver.engine.leases.expire(leased))


async def test_a_run_that_ends_its_executors_pauses_and_never_fails(driver: Driver) -> None:
    run = await begin(driver)
    healthy = await begin(driver, "e0.0123abcd/shop-2")
    await append(driver, healthy.run_lease, done("/0"))
    pauses: list[float] = []
    held = run.run_lease
    due = "SELECT extract(epoch FROM fire_at - penstock_now())::float8 FROM timer"
    with structlog.testing.capture_logs() as logs:
        for number in range(1, 13):
            driver.clock.advance(31)
            await driver.engine.leases.expire([(held.instance, held.seq, held.attempt)])
            [(state, expiries, due_s)] = driver.rows(
                f"SELECT state, expiries, ({due}) FROM token WHERE id = {held.instance}"
            )
            assert expiries == number
            if number < 3:
                assert (state, due_s) == (0, None)
            else:
                assert state == 4
                pauses.append(round(due_s / 5))
                assert await driver.due(due_s + 1) == 1
            [again] = await take(driver)
            assert (again.run_lease.instance, again.expiries) == (held.instance, number)
            held = again.run_lease
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert [log["executors"] for log in logs if "ended its executors several times" in log["event"]] == [10, 11, 12]
    await append(driver, held, done("/0"))
    assert driver.rows("SELECT expiries FROM token WHERE id = %s", held.instance) == [(0,)]
    await finish(driver, held)


async def test_a_zombie_writes_nothing_after_its_run_was_taken(driver: Driver) -> None:
    run = await begin(driver)
    assert await sweep(driver, 31) == 1
    assert driver.rows("SELECT state FROM token") == [(0,)]
    with pytest.raises(LeaseLost):
        await append(driver, run.run_lease, done("/0"))
    with pytest.raises(LeaseLost):
        await driver.engine.journal.extend(run.run_lease)
    [again] = await take(driver)
    with pytest.raises(LeaseLost):
        await finish(driver, run.run_lease)
    assert await paths(driver, run.run_lease) == []
    await finish(driver, again.run_lease)


async def test_the_runs_of_dead_engines_are_returned_and_nobody_elses(driver: Driver) -> None:
    gone = [await begin(driver, f"e{number}.{TAG}/shop-1") for number in (0, 7)]
    await begin(driver, "e0.89abcdef/shop-1")
    await driver.run(linear(1))
    await driver.one("work", worker="w1")
    sweeper = LeaseSweeper(driver.engine)
    sweeper.on_dead([TAG])
    assert await sweeper.return_held() == 2
    assert await sweeper.return_held() == 0
    assert driver.rows("SELECT count(*) FROM token WHERE state = 1") == [(2,)]
    assert {run.run_lease.instance for run in await take(driver, "e1.89abcdef/shop-1", n=5)} == {
        run.run_lease.instance for run in gone
    }
    assert [row[0] for row in driver.rows("SELECT DISTINCT kind FROM history WHERE worker LIKE 'e%%'")] == [11]


def other(tag: str, *, connected: bool = True, process: str | None = None) -> OtherEngine:
    return OtherEngine(1, tag + "-0000", process, "polling", "an engine", connected, 30.0)


def test_an_engine_without_row_or_twice_without_lock_is_dead() -> None:
    deaths = Deaths()
    deaths.begin_session()
    assert deaths.find_dead([other("aaaaaaaa"), other("bbbbbbbb")], 0) == []
    assert deaths.find_dead([other("aaaaaaaa")], 1) == ["bbbbbbbb"]
    assert deaths.find_dead([other("aaaaaaaa", connected=False)], 2) == []
    assert deaths.find_dead([other("aaaaaaaa", connected=False)], 2.5) == [], "not a second apart"
    assert deaths.find_dead([other("aaaaaaaa", connected=False)], 3.1) == ["aaaaaaaa"]
    assert deaths.find_dead([other("aaaaaaaa", connected=False)], 9) == [], "told once"
    assert deaths.find_dead([], 10) == []


def test_losing_ones_own_session_makes_no_engine_dead() -> None:
    """A restart of PostgreSQL takes all locks; who is back first must not take the others for dead."""
    deaths = Deaths()
    deaths.begin_session()
    assert deaths.find_dead([other("aaaaaaaa")], 0) == []
    deaths.end_session()
    assert deaths.find_dead([other("aaaaaaaa", connected=False)], 1) == []
    deaths.begin_session()
    for now in (2, 3, 9):
        assert deaths.find_dead([other("aaaaaaaa", connected=False)], now) == [], "never seen in this session"
    assert deaths.find_dead([other("aaaaaaaa")], 10) == []
    assert deaths.find_dead([other("aaaaaaaa", connected=False)], 11) == []
    assert deaths.find_dead([other("aaaaaaaa")], 11.5) == []
    assert deaths.find_dead([other("aaaaaaaa", connected=False)], 13) == [], "it was there between"
    assert deaths.find_dead([other("aaaaaaaa", connected=False)], 14.1) == ["aaaaaaaa"]


@pytest.mark.skipif(this_process() is None, reason="a system without /proc")
def test_where_the_process_was_on_this_machine_that_decides() -> None:
    deaths = Deaths()
    deaths.begin_session()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    me = this_process() or ""
    machine = me.rsplit(" ", 2)[0]
    started = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
    theirs = f"{machine} {child.pid} {started}"
    assert is_alive(me)
    for now in range(5):
        assert deaths.find_dead([other("aaaaaaaa", connected=False, process=theirs)], now) == []
    child.kill()
    child.communicate()
    assert deaths.find_dead([other("aaaaaaaa", connected=False, process=theirs)], 9) == ["aaaaaaaa"], (
        "also when never seen before"
    )
    assert is_alive(f"{machine} {os.getpid()} 1") is False, "the number was given again"
    assert is_alive("another machine 1 1") is None


async def test_only_executors_take_runs_and_are_called_so(driver: Driver) -> None:
    run = await begin(driver)
    await start(driver)
    jobs = driver.engine.jobs
    with pytest.raises(Forbidden, match="code:"):
        await jobs.poll(PollRequest(worker_id="w", job_types=["work", ORDER.job_type]))
    with pytest.raises(Forbidden, match="workerId"):
        await jobs.poll(PollRequest(worker_id=HOLDER, job_types=["work"]))
    job = f"{run.instance_id}-{run.instance_id}-{run.run_lease.seq:x}"
    with pytest.raises(Forbidden, match="workerId"):
        await jobs.complete(Completion(job_id=job, worker_id=HOLDER, attempt=1))
    with pytest.raises(Forbidden, match="workerId"):
        await jobs.heartbeat(Heartbeat(job_id=job, worker_id=HOLDER, attempt=1))
    [outcome] = await jobs.release_many([JobRef(job_id=job, worker_id=HOLDER, attempt=1)])
    assert outcome.outcome == "invalid"
    with pytest.raises(LeaseLost):
        await jobs.complete(Completion(job_id=job, worker_id="w", attempt=1))
    assert driver.rows("SELECT state FROM token ORDER BY id") == [(1,), (0,)]


async def test_in_kafka_mode_runs_still_wait_in_the_queue(make_driver: MakeDriver) -> None:
    driver = make_driver(dispatch_mode=DispatchMode.KAFKA_OUTBOX)
    with pytest.raises(InvalidDefinition):
        await driver.upload(linear(1, job_type="no topic:"))
    where = "SELECT (SELECT count(*) FROM ready), (SELECT count(*) FROM dispatch_outbox)"
    instance = await start(driver)
    assert driver.rows(where) == [(1, 0)]
    [run] = await take(driver)
    assert run.instance_id == instance
    await driver.engine.journal.release(run.run_lease)
    assert driver.rows(where) == [(1, 0)]
    [run] = await take(driver)
    assert await driver.engine.journal.block(run.run_lease, "no") == 5
    assert await driver.due(6) == 1
    assert driver.rows(where) == [(1, 0)]
    [run] = await take(driver)
    await sweep(driver, 31)
    assert driver.rows(where) == [(1, 0)]
    async with driver.engine.database.connection() as connection:
        assert not await outbox_store.anything_left(connection, to_outbox=True)
        assert await outbox_store.migrate_dispatch(connection, 10, (), to_outbox=True) == 0
        assert await outbox_store.dispatched_types(connection) == []
    assert driver.rows(where) == [(1, 0)]
    [run] = await take(driver)
    assert await driver.engine.journal.park(run.run_lease, mail=0, due_at=None)
    await driver.engine.runs.send(run.instance_id, "go", b"1")
    [run] = await take(driver)
    await finish(driver, run.run_lease, mail=1)
