"""Every background service and every read cancelled at every point: nothing is left, and the next round does the work.

After each run: no task, file or connection is left, no session holds a lock or an open transaction, the database is in
the state before or after, and the same service, run once more, finishes what there is to do exactly once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import trio

from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.membership import Membership
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.schema import SCHEMA_VERSION, ensure_schema
from penstock.store.rows import engines as engine_store
from penstock.testing.cancellation import CancelledAttempt, Holdings, Operation, cancel_everywhere
from penstock.testing.definitions import definition, end, linear, step
from penstock.wire.model import Job
from tests import postgres
from tests.runtime.conftest import StartLocal
from tests.runtime.local_engine import LocalEngine
from tests.shares import mostly_slow
from tests.waiting import wait_until

FAR_S = 1e6
"""So far in the future that every lease of a test has ended by then, for this engine's own clock."""
POOL = Holdings(tasks=0, threads=0, files=8)
"""The connections that an engine keeps, and the test's own eyes and clock. A leak at every point is more than that."""
PATIENCE = Holdings(tasks=1, threads=0, files=0)
"""The task of `store.db.statement_watchdog`, which sleeps for as long as the first statement was to be waited for."""
ROUNDS = 3
"""Sockets answer at other moments each time: what one round passes over, another one meets."""
PAUSE = definition(step("pause", "WAIT", duration="PT1H", nextStep="end"), end(), definition_id="pause")
SIGNALS = 5
MANY = definition(
    step("ask", "USER_TASK", nextStep="w"), step("w", "WAIT", nextStep="c"),
    step("c", "DECISION", conditionalNextSteps={"last": "end", "!last": "w"}), end(), definition_id="many",
)  # fmt: skip
SESSIONS = """
SELECT a.state, l.locktype, a.query FROM pg_stat_activity a LEFT JOIN pg_locks l ON l.pid = a.pid
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND (a.state <> 'idle' OR l.pid IS NOT NULL)
"""


class Case(NamedTuple):
    """``prepare`` makes each run's operation; ``after`` looks at what became of it and finishes the work."""

    prepare: Callable[[], Awaitable[Operation[Any]]]
    after: Callable[[CancelledAttempt[Any]], Awaitable[None]]


async def quiet(engine: LocalEngine) -> None:
    """Wait until nothing is under way; what never ends is the failure."""

    async def idle() -> bool:
        statistics = engine.database.pool.statistics()
        busy = any(not batcher.statistics().idle for batcher in engine.engine.batchers())
        return not busy and statistics.busy == 0 and statistics.waiting == 0 and not engine.rows(SESSIONS)

    await wait_until(idle)


# -- the cases


def timers(engine: LocalEngine) -> Case:
    started: list[str] = []

    async def prepare() -> Operation[int]:
        await engine.upload(PAUSE)
        started.append((await engine.start("pause")).id)
        engine.clock.advance(3_601)
        return engine.engine.timers.fire_once

    async def after(attempt: CancelledAttempt[int]) -> None:
        await quiet(engine)
        assert await engine.status(started[-1]) in ("WAITING", "COMPLETED")
        await engine.engine.timers.fire_once()
        assert await engine.path(started[-1]) == [("pause", "COMPLETED"), ("end", "COMPLETED")]

    return Case(prepare, after)


def rest_of_signals(engine: LocalEngine) -> Case:
    """What one advance leaves to the next one, by a timer of its own."""
    started: list[str] = []

    async def prepare() -> Operation[int]:
        await engine.upload(MANY)
        started.append((await engine.start("many")).id)
        for number in range(SIGNALS):
            await engine.signal(started[-1], "w", {"last": number == SIGNALS - 1}, buffer=True)
        await engine.finish_task(started[-1], "ask")
        assert engine.rows("SELECT count(*) FROM timer WHERE index = -3") == [(1,)]
        return engine.engine.timers.fire_once

    async def after(attempt: CancelledAttempt[int]) -> None:
        await quiet(engine)
        for _ in range(SIGNALS):
            await engine.engine.timers.fire_once()
        taken = [("w", "COMPLETED"), ("c", "COMPLETED")] * SIGNALS
        assert await engine.path(started[-1]) == [("ask", "COMPLETED"), *taken, ("end", "COMPLETED")]
        assert engine.rows("SELECT count(*) FROM buffered_signal") == [(0,)]

    return Case(prepare, after)


async def leased(engine: LocalEngine) -> Job:
    """A job whose lease has ended, as the database sees it."""
    await engine.upload(linear(1))
    await engine.start("linear")
    job = await engine.one("work")
    engine.clock.advance(31)
    return job


def sweeper(engine: LocalEngine) -> Case:
    jobs: list[Job] = []

    async def prepare() -> Operation[int]:
        jobs.append(await leased(engine))
        return partial(engine.sweeper.run_once, trio.current_time() + FAR_S)

    async def after(attempt: CancelledAttempt[int]) -> None:
        await quiet(engine)
        await engine.sweeper.run_once(trio.current_time() + 2 * FAR_S)
        again = await engine.one("work", wait=0)
        assert (again.id, again.attempt) == (jobs[-1].id, 2)
        await engine.complete(again)

    return Case(prepare, after)


def dead_letter(engine: LocalEngine) -> Case:
    """With a limit of one expiry: what a cancelled sweep has not failed, the next scan fails."""
    jobs: list[Job] = []

    async def prepare() -> Operation[int]:
        jobs.append(await leased(engine))
        return partial(engine.sweeper.run_once, trio.current_time() + FAR_S)

    async def after(attempt: CancelledAttempt[int]) -> None:
        await quiet(engine)
        await engine.sweeper.scan_once()
        await engine.sweeper.run_once(trio.current_time() + 2 * FAR_S)
        view = await engine.view(jobs[-1].instance_id)
        assert (view.status, view.failure_reason) == ("FAILED", "lease expired 1 times")

    return Case(prepare, after)


def scan(engine: LocalEngine) -> Case:
    """A lease that nobody watches, as of an engine that died."""
    jobs: list[Job] = []

    async def prepare() -> Operation[int]:
        job = await leased(engine)
        ((token, seq),) = engine.rows("SELECT id, seq FROM token WHERE state = 1")
        engine.engine.polls.leases.forget(token, seq)
        jobs.append(job)
        return engine.sweeper.scan_once

    async def after(attempt: CancelledAttempt[int]) -> None:
        await quiet(engine)
        await engine.sweeper.scan_once()
        await engine.sweeper.run_once(trio.current_time() + FAR_S)
        again = await engine.one("work", wait=0)
        assert (again.id, again.attempt) == (jobs[-1].id, 2)
        await engine.complete(again)

    return Case(prepare, after)


def upload(engine: LocalEngine) -> Case:
    numbers = iter(range(10_000))
    bodies: list[dict[str, Any]] = []

    async def prepare() -> Operation[Any]:
        bodies.append(linear(1, definition_id=f"line-{next(numbers)}"))
        return partial(engine.upload, bodies[-1])

    async def after(attempt: CancelledAttempt[Any]) -> None:
        await quiet(engine)
        versions = "SELECT version FROM definition WHERE id = %s"
        before = engine.rows(versions, bodies[-1]["id"])
        assert before in ([], [(1,)])
        assert before == [(1,)] or attempt.cancelled
        await engine.upload(bodies[-1])
        assert engine.rows(versions, bodies[-1]["id"]) == [(1,)]

    return Case(prepare, after)


def housekeeping(engine: LocalEngine) -> Case:
    chores = Housekeeping(engine.engine)

    async def prepare() -> Operation[int]:
        await engine.upload(linear(1))
        await engine.start("linear", idempotency_key="old")
        engine.clock.advance(3_600 * 25)
        return chores.run_once

    async def after(attempt: CancelledAttempt[int]) -> None:
        await quiet(engine)
        await chores.run_once()
        assert engine.rows("SELECT count(*) FROM idempotency") == [(0,)]

    return Case(prepare, after)


def refresh(engine: LocalEngine) -> Case:
    async def prepare() -> Operation[None]:
        return engine.membership.refresh

    async def after(attempt: CancelledAttempt[None]) -> None:
        await quiet(engine)
        with trio.move_on_after(0.1):
            await engine.membership.refresh()
        assert engine.rows("SELECT number FROM engine") == [(engine.membership.number,)]

    return Case(prepare, after)


def join(engine: LocalEngine) -> Case:
    members: list[Membership] = []

    async def prepare() -> Operation[int]:
        members.append(Membership(engine.database, "polling"))
        return members[-1].join

    async def after(attempt: CancelledAttempt[int]) -> None:
        await quiet(engine)
        taken = engine.rows("SELECT number FROM engine WHERE holder = %s", members[-1].holder)
        assert len(taken) == 1 or (attempt.cancelled and not taken)
        await members[-1].leave()
        other = Membership(engine.database, "polling")
        assert await other.join() != engine.membership.number
        await other.leave()

    return Case(prepare, after)


def listen(engine: LocalEngine) -> Case:
    """A connection of its own with a session lock on it."""

    async def prepare() -> Operation[None]:
        async def some_time() -> None:
            with trio.move_on_after(0.05):
                await engine.membership.listen()

        return some_time

    async def after(attempt: CancelledAttempt[None]) -> None:
        await quiet(engine)  # no session of it is left, nor its lock

    return Case(prepare, after)


def send(engine: LocalEngine) -> Case:
    async def prepare() -> Operation[None]:
        engine.membership.others[77] = engine_store.OtherEngine(77, "0" * 36, None, "polling", "a test", True, 30)
        engine.engine.events.queued("work")
        return engine.membership.send

    async def after(attempt: CancelledAttempt[None]) -> None:
        await quiet(engine)
        engine.engine.events.queued("work")
        await engine.membership.send()

    return Case(prepare, after)


def reading(call: Callable[[LocalEngine, str], Awaitable[object]]) -> Callable[[LocalEngine], Case]:
    """A read answers the same after a cancelled one."""

    def make(engine: LocalEngine) -> Case:
        started: list[str] = []
        expected: list[object] = []

        async def prepare() -> Operation[object]:
            if not started:
                await engine.upload(linear(1))
                started.append((await engine.start("linear", {"x": 1}, business_key="b")).id)
                expected.append(await call(engine, started[0]))
            return partial(call, engine, started[0])

        async def after(attempt: CancelledAttempt[object]) -> None:
            await quiet(engine)
            assert attempt.cancelled or attempt.results == expected
            assert await call(engine, started[0]) == expected[0]

        return Case(prepare, after)

    return make


CASES: dict[str, Callable[[LocalEngine], Case]] = {
    "timers": timers,
    "the rest of kept signals": rest_of_signals,
    "lease sweeper": sweeper,
    "lease sweeper that dead-letters": dead_letter,
    "lease scan": scan,
    "housekeeping": housekeeping,
    "membership": refresh,
    "joining": join,
    "listener": listen,
    "notifier": send,
    "an upload": upload,
    "a look at an instance": reading(lambda engine, id: engine.view(id)),
    "a look at a history": reading(lambda engine, id: engine.history(id)),
    "readiness": reading(lambda engine, id: engine.engine.ready()),
}


SETTINGS = {
    "lease sweeper that dead-letters": {"lease_expiry_limit": 1},
    "the rest of kept signals": {"max_automatic_steps": 6},
}


@pytest.mark.parametrize(
    "name", mostly_slow(CASES, quick=["timers", "lease scan", "an upload"], reason="cancels a service at every point")
)
async def test_a_service_cancelled_at_every_point(start_local: StartLocal, name: str) -> None:
    engine = await start_local(services=False, **SETTINGS.get(name, {}))
    assert engine.clock
    case = CASES[name](engine)
    for _ in range(ROUNDS):
        points = await cancel_everywhere(case.prepare, case.after, may_grow=POOL)
        assert points.cancelled, points


# -- what has no engine yet, or none any more


@asynccontextmanager
async def polling(dsn: str) -> AsyncGenerator[TrioConnection]:
    async with await TrioConnection.connect(dsn) as connection:
        yield connection


@pytest.mark.slow(reason="cancels the schema at every point")
async def test_the_schema_applied_and_cancelled_at_every_point(postgres_server: postgres.PostgresServer) -> None:
    """It is there whole or not at all, and whoever comes next is not kept waiting by a lock."""
    with postgres_server.database() as dsn:

        async def prepare() -> Operation[None]:
            async with polling(dsn) as connection:
                await connection.fetch("DROP SCHEMA public CASCADE")
                await connection.fetch("CREATE SCHEMA public")
            return apply

        async def apply() -> None:
            async with await TrioConnection.connect(dsn) as connection:
                await ensure_schema(connection)

        async def after(attempt: CancelledAttempt[None]) -> None:
            async with polling(dsn) as connection:
                tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
                ((count,),) = await connection.fetch(tables)
                with trio.fail_after(60):
                    applied = await ensure_schema(connection)
                assert (applied == 0) == (count == 0)
                assert await connection.fetch("SELECT version FROM penstock_schema") == [(SCHEMA_VERSION,)]

        points = await cancel_everywhere(prepare, after, own_task_only=True)
        assert points.cancelled >= 20, points


@pytest.mark.slow(reason="cancels a pool at every point")
async def test_a_pool_opened_used_and_closed_cancelled_at_every_point(database_dsn: str) -> None:
    async def prepare() -> Operation[None]:
        return use

    async def use() -> None:
        database = Database(database_dsn, max_connections=2, min_connections=2)
        async with database.pool, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(database.fetch, "now")

    async def after(attempt: CancelledAttempt[None]) -> None:
        async with polling(database_dsn) as connection:

            async def alone() -> bool:
                return not await connection.fetch(
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    " AND backend_type = 'client backend'"
                )

            await wait_until(alone)

    points = await cancel_everywhere(prepare, after, may_grow=PATIENCE)
    assert points.cancelled >= 20, points
