"""One row that another session holds for long: its own call gets 503 after `outage_wait_seconds`, nobody else waits."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import psycopg
import pytest
import trio

from penstock.core.rules import fencing
from penstock.engine.advance.commands import TimerCommand
from penstock.engine.queues.fast_path import FastCompletion
from penstock.engine.queues.waiters import Waiter
from penstock.errors import Unavailable
from penstock.runtime.lease_sweeper import LeaseSweeper
from penstock.store.rows.jobs import JobKey
from penstock.testing.definitions import Json, definition, end, fork, linear, service, timer
from penstock.wire.model import Job, JobRef
from tests.engine import runs
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver, number
from tests.shapes import wait
from tests.shares import mostly_slow
from tests.waiting import wait_until

OTHERS_WAIT_S = 10.0
"""Those whose rows are free: while the row is held nothing lets them go on, so that any end to their wait shows it."""
PATIENCE_S = 3.0


@contextmanager
def held(dsn: str, sql: str, *params: object) -> Generator[None]:
    """What the statement locks is held for the block."""
    with psycopg.connect(dsn) as connection:
        connection.execute(sql.encode(), params)
        yield
        connection.rollback()


def held_instance(dsn: str, instance: str) -> Any:
    return held(dsn, "SELECT FROM token WHERE instance_id = %s FOR UPDATE", number(instance))


class Subject(NamedTuple):
    """An instance, and its job if it has one."""

    instance: str
    job: Job | None


Call = Callable[[Driver, Subject], Awaitable[Any]]


class Operation(NamedTuple):
    body: Json
    call: Call
    leased: bool = True


def of_job(call: Callable[[Driver, Job], Awaitable[Any]]) -> Call:
    async def run(driver: Driver, subject: Subject) -> None:
        assert subject.job is not None
        await call(driver, subject.job)

    return run


async def release(driver: Driver, subject: Subject) -> None:
    assert subject.job is not None
    request = JobRef(job_id=subject.job.id, worker_id=subject.job.worker_id)  # pyright: ignore[reportArgumentType] - a stand-in
    [outcome] = await driver.engine.jobs.release_many([request])
    if outcome.outcome == "unavailable":
        raise Unavailable(outcome.reason or "")


async def fire(driver: Driver, subject: Subject) -> None:
    [found] = driver.rows("SELECT token_id, seq, index FROM timer WHERE instance_id = %s", number(subject.instance))
    await driver.engine.full_path.submit(TimerCommand(number(subject.instance), found))


WAITING = definition(wait("w"), end())
LATE = definition(
    service("x", "end", boundaryEvents=[timer("late", "PT1H", interrupting=True)]), service("late"), end()
)
OPERATIONS = {
    "complete": Operation(linear(2), of_job(lambda driver, job: driver.complete(job, {"a": 1}))),
    "complete the last step": Operation(linear(1), of_job(lambda driver, job: driver.complete(job))),
    "complete in the full path": Operation(LATE, of_job(lambda driver, job: driver.complete(job))),
    "fail": Operation(linear(1), of_job(lambda driver, job: driver.fail(job))),
    "heartbeat": Operation(linear(1), of_job(lambda driver, job: driver.heartbeat(job))),
    "release": Operation(linear(1), release),
    "cancel": Operation(linear(1), lambda driver, subject: driver.cancel(subject.instance)),
    "signal": Operation(WAITING, lambda driver, subject: driver.signal(subject.instance, "w"), leased=False),
    "timer": Operation(LATE, fire),
}  # fmt: skip


async def subjects(driver: Driver, operation: Operation, count: int) -> list[Subject]:
    parsed = await driver.upload(operation.body)
    started = [(await driver.start(parsed.id)).id for _ in range(count)]
    if not operation.leased:
        return [Subject(instance, None) for instance in started]
    jobs = {job.instance_id: job for job in await driver.poll("work", n=count)}
    return [Subject(instance, jobs[instance]) for instance in started]


async def is_lock_waiting(driver: Driver) -> bool:
    return any(batcher.statistics().lock_waiting for batcher in driver.engine.batchers())


async def timed(call: Awaitable[Any]) -> float:
    began = trio.current_time()
    await call
    return trio.current_time() - began


@pytest.mark.parametrize(
    "name", mostly_slow(OPERATIONS, quick=["cancel", "timer"], reason="waits behind a row that is held")
)
async def test_a_held_instance_makes_only_its_own_call_wait(make_driver: MakeDriver, name: str) -> None:
    operation = OPERATIONS[name]
    driver = make_driver(outage_wait_seconds=PATIENCE_S)
    slow, *others = await subjects(driver, operation, 9)
    if name == "timer":
        driver.clock.advance(3_601)
    took_s: list[float] = []
    refused_after_s: list[float] = []

    async def refused() -> None:
        began = trio.current_time()
        with pytest.raises(Unavailable):
            await operation.call(driver, slow)
        refused_after_s.append(trio.current_time() - began)

    async def other(subject: Subject) -> None:
        took_s.append(await timed(operation.call(driver, subject)))

    with held_instance(driver.dsn, slow.instance):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            for subject in others[:6]:  # in one batch with it
                nursery.start_soon(other, subject)
            nursery.start_soon(refused)  # again meanwhile
            await wait_until(partial(is_lock_waiting, driver))
            for subject in others[6:]:
                await other(subject)
    assert len(took_s) == 8
    assert max(took_s) < OTHERS_WAIT_S
    assert min(refused_after_s) >= PATIENCE_S
    assert max(refused_after_s) < PATIENCE_S + 10
    await operation.call(driver, slow)


async def test_a_held_call_goes_through_with_the_free_row(make_driver: MakeDriver) -> None:
    driver = make_driver()
    slow, free = await subjects(driver, OPERATIONS["complete"], 2)
    assert slow.job is not None
    async with trio.open_nursery() as nursery:
        with held_instance(driver.dsn, slow.instance):
            nursery.start_soon(driver.complete, slow.job)
            await wait_until(partial(is_lock_waiting, driver))
            assert driver.engine.metrics.registry.get_sample_value("penstock_aside_items", {"queue": "complete"}) == 1
        let_go = trio.current_time()
    assert trio.current_time() - let_go < OTHERS_WAIT_S
    assert await driver.open_steps(slow.instance) == ["task-2"]
    assert await driver.open_steps(free.instance) == ["task-1"]


async def test_a_held_key_makes_only_its_own_start_wait(make_driver: MakeDriver) -> None:
    driver = make_driver(outage_wait_seconds=PATIENCE_S)
    await driver.upload(linear(1))
    took_s: list[float] = []

    async def refused() -> None:
        with pytest.raises(Unavailable):
            await driver.start("linear", idempotency_key="held")

    async def other(key: str | None) -> None:
        took_s.append(await timed(driver.start("linear", idempotency_key=key)))

    with held(
        driver.dsn,
        "INSERT INTO idempotency (scope, key, request_hash, instance_id, created_at)"
        " VALUES ('start', 'held', '', 0, now())",
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            nursery.start_soon(refused)
            for key in ("a", "b", None):
                nursery.start_soon(other, key)
            await wait_until(partial(is_lock_waiting, driver))
            await other("c")
    assert len(took_s) == 4
    assert max(took_s) < OTHERS_WAIT_S
    await driver.start("linear", idempotency_key="held")


async def test_a_held_run_makes_only_its_own_forks_wait(make_driver: MakeDriver) -> None:
    driver = make_driver(outage_wait_seconds=PATIENCE_S)
    slow, free = [await runs.begin(driver, id=id) for id in ("slow", "free")]
    took_s: list[float] = []

    async def refused(id: str | None) -> None:
        with pytest.raises(Unavailable):
            await driver.engine.forks.fork(slow.instance_id, "start", fork_id=id)

    async def other(id: str | None) -> None:
        took_s.append(await timed(driver.engine.forks.fork(free.instance_id, "start", fork_id=id)))
        took_s.append(await timed(runs.start(driver, id=None if id is None else f"as {id}")))

    with held_instance(driver.dsn, slow.instance_id):
        async with trio.open_nursery() as nursery:
            for id in (None, "of the slow one"):
                nursery.start_soon(refused, id)
            for id in (None, "of the free one"):
                nursery.start_soon(other, id)
            await wait_until(partial(is_lock_waiting, driver))
            for id in (None, "another"):
                await other(id)
    assert len(took_s) == 8
    assert max(took_s) < OTHERS_WAIT_S
    assert driver.rows("SELECT count(*) FROM audit WHERE kind = 'FORKED'") == [(4,)]
    await driver.engine.forks.fork(slow.instance_id, "start", fork_id="of the slow one")


async def test_polls_get_the_jobs_that_nobody_holds(make_driver: MakeDriver) -> None:
    driver = make_driver()
    await driver.upload(linear(1))
    slow, *others = [(await driver.start("linear")).id for _ in range(4)]
    with held_instance(driver.dsn, slow):
        began = trio.current_time()
        jobs = await driver.poll("work", n=4)
        assert trio.current_time() - began < OTHERS_WAIT_S
        assert {job.instance_id for job in jobs} == set(others)
    assert (await driver.one("work")).instance_id == slow


async def test_a_held_timer_keeps_no_other_waiting(make_driver: MakeDriver) -> None:
    driver = make_driver()
    slow, free = await subjects(driver, OPERATIONS["timer"], 2)
    driver.clock.advance(3_601)
    with held_instance(driver.dsn, slow.instance):
        assert await timed(driver.engine.timers.fire_once()) < OTHERS_WAIT_S
        assert await driver.open_steps(free.instance) == ["late"]
        assert await timed(driver.engine.timers.fire_once()) < OTHERS_WAIT_S

    async def fired() -> bool:
        return await driver.open_steps(slow.instance) == ["late"]

    await wait_until(fired)


async def test_a_held_dead_letter_keeps_no_other_waiting(make_driver: MakeDriver) -> None:
    """The lease that ended is free, another branch of the instance is not."""
    driver = make_driver(lease_expiry_limit=1)
    await driver.upload(fork())
    slow, free = [(await driver.start("fork")).id for _ in range(2)]
    assert len(await driver.poll("work")) == 4
    driver.clock.advance(31)
    with held(
        driver.dsn,
        "SELECT FROM token WHERE id = (SELECT max(id) FROM token WHERE instance_id = %s) FOR UPDATE",
        number(slow),
    ):
        assert await timed(LeaseSweeper(driver.engine).run_once(trio.current_time() + 31)) < OTHERS_WAIT_S
        assert await driver.status(free) == "FAILED"
        assert await driver.status(slow) == "ACTIVE"

    async def failed() -> bool:
        return await driver.status(slow) == "FAILED"

    await wait_until(failed)


async def test_a_locked_table_is_as_good_as_away(make_driver: MakeDriver) -> None:
    driver = make_driver(outage_wait_seconds=PATIENCE_S)
    one, two = await subjects(driver, OPERATIONS["complete"], 2)
    assert one.job is not None
    assert two.job is not None
    with held(driver.dsn, "LOCK TABLE history IN EXCLUSIVE MODE"), pytest.raises(Unavailable, match="away"):
        await driver.complete(one.job)
    await driver.complete(one.job)
    await driver.complete(two.job)


async def test_readiness_and_a_metric_tell_of_a_long_batch(make_driver: MakeDriver) -> None:
    driver = make_driver(batch_stuck_seconds=0.3, outage_wait_seconds=60)
    one, _ = await subjects(driver, OPERATIONS["complete"], 2)
    assert one.job is not None

    async def stuck() -> bool:
        try:
            await driver.engine.ready()
        except Unavailable as error:
            return error.reason.startswith("a batch of complete calls has been under way for")
        return False

    assert not await stuck()
    async with trio.open_nursery() as nursery:
        with held(driver.dsn, "LOCK TABLE history IN EXCLUSIVE MODE"):
            nursery.start_soon(driver.complete, one.job)
            await wait_until(stuck)
            age_s = driver.engine.metrics.registry.get_sample_value("penstock_batch_age_seconds", {"queue": "complete"})
            assert age_s is not None
            assert age_s > 0.3
    await driver.engine.ready()


@contextmanager
def held_a_while(dsn: str, instance: str) -> Generator[list[dt.datetime]]:
    """As `held_instance`; then the list has the time when it was let go."""
    let_go: list[dt.datetime] = []
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT FROM token WHERE instance_id = %s FOR UPDATE", (number(instance),))
        yield let_go
        let_go += [row[0] for row in connection.execute("SELECT clock_timestamp()")]
        connection.rollback()


async def is_past(time: float) -> bool:
    return trio.current_time() > time


SHORT_S = 0.2
HELD_S = 1.0


async def test_a_heartbeat_that_waited_gives_the_whole_lease(make_driver: MakeDriver) -> None:
    driver = make_driver()
    [slow] = await subjects(driver, OPERATIONS["heartbeat"], 1)
    assert slow.job is not None
    ends: list[dt.datetime] = []

    async def beat(job: Job) -> None:
        ends.append((await driver.heartbeat(job, lease_seconds=60)).lock_expires_at)

    async with trio.open_nursery() as nursery:
        with held_a_while(driver.dsn, slow.instance) as let_go:
            nursery.start_soon(beat, slow.job)
            await wait_until(partial(is_past, trio.current_time() + HELD_S))
    assert ends[0] - let_go[0] > dt.timedelta(seconds=60 - SHORT_S)


async def test_a_direct_dispatch_that_waited_gives_the_whole_lease(make_driver: MakeDriver) -> None:
    driver = make_driver()
    [slow] = await subjects(driver, OPERATIONS["complete"], 1)
    assert slow.job is not None
    ends: list[dt.datetime] = []

    async def is_parked() -> bool:
        return len(driver.engine.polls.waiters) == 1

    async def poll() -> None:
        ends.append((await driver.one("work", wait=30, lease=60)).lock_expires_at)  # pyright: ignore[reportArgumentType] - a stand-in

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        with held_a_while(driver.dsn, slow.instance) as let_go:
            await wait_until(is_parked)
            nursery.start_soon(driver.complete, slow.job)
            await wait_until(partial(is_past, trio.current_time() + HELD_S))
    assert ends[0] - let_go[0] > dt.timedelta(seconds=60 - SHORT_S)


async def test_a_late_batch_leaves_polls_that_stood_aside_alone(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their completions may be under way again, in a batch beside the queue that hands jobs to these polls."""
    commit_queue = driver.engine.fast_path
    nothing: Any = None
    item = FastCompletion(
        JobKey(1, 1, 1), fencing.FenceRequest(fencing.CallKind.COMPLETE, "w"), None, nothing, 0, nothing, None
    )
    batch, beside = [item], [item]
    waiter = Waiter("w", ("work",), 1, 30.0)
    waiter.reserved = 1

    async def apply(_: list[FastCompletion]) -> None:
        commit_queue.let_wait_for_locks([item])
        item.lock_waiting, item.batch, item.waiter = False, beside, waiter  # as the retry does meanwhile

    monkeypatch.setattr(commit_queue, "apply_safely", apply)
    item.batch = batch
    await commit_queue.apply_batch(batch)
    assert (item.waiter, waiter.reserved) == (waiter, 1)
    item.answer(fencing.FenceDecision.DONE)
