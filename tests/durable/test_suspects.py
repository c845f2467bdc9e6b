"""A run that ends its executors does not take its neighbours with it: from the third time on it is activated alone."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
import pytest
import trio

from penstock.core.rules.state import TokenState
from penstock.durable import App, receive, sleep, step, workflow
from penstock.durable import executor as executors
from penstock.durable.backend import LeasedRun
from penstock.durable.executor import Executor
from penstock.durable.loaded_run import ExecutorLimits
from penstock.testing.clock import DatabaseClock
from penstock.testing.invariants import assert_invariants
from tests.durable.deadly import deadly, healthy
from tests.durable.memory import Database, MemoryBackend, message
from tests.durable.test_executor import executing
from tests.postgres import REPOSITORY
from tests.runtime.waiting import wait_until

EXPIRED = 11
BOUND_S = 150.0
OVER_S = 400.0
"""Longer than any lease and any pause."""


@workflow
async def waits(name: str) -> str:
    return await receive(name, str)


async def test_a_suspect_is_activated_when_nothing_else_is(autojump_clock, caplog: pytest.LogCaptureFixture):
    beside: list[int] = []
    executors: list[Executor] = []

    @step
    async def probe() -> None:
        beside.append(len(executors[0]))

    @step
    async def short() -> None:
        await trio.sleep(2)

    @workflow
    async def suspect() -> None:
        await probe()
        await sleep("1 min")
        await probe()

    @workflow
    async def busy() -> None:
        await short()
        await sleep("1 h")

    database = Database()
    with caplog.at_level(logging.WARNING, "penstock.durable"):
        async with executing(database, waits, busy, suspect) as (executor, _):
            executors.append(executor)
            for number in range(3):
                database.start(waits, "m", id=f"w{number}")
            database.start(busy, id="b")
            await trio.sleep(0.5)
            assert len(executor) == 4
            row = database.start(suspect, id="s")
            row.expiries = 3
            database.start(waits, "m", id="later")
            await database.wait_state("s", "parked")
            assert beside == [1], "it was alone"
            assert database.runs["later"].state in ("held", "parked"), "others are begun again"
            for id in ("w0", "w1", "w2", "later"):
                database.notify(id, message("m", '"x"'))
                await database.wait_state(id, "ended")
            await database.wait_state("s", "ended")
    assert "run s: 3 executors ended while they ran it: it is activated when nothing else is" in caplog.text
    assert row.expiries == 0


async def test_a_long_step_is_not_ended_for_a_suspect(autojump_clock):
    ended: list[str] = []

    @step
    async def encode() -> None:
        await trio.sleep(100)
        ended.append("encode")

    @step
    async def quick() -> None:
        ended.append("suspect")

    @workflow
    async def long() -> None:
        await encode()

    @workflow
    async def suspect() -> None:
        await quick()

    database = Database()
    async with executing(database, long, suspect):
        row = database.start(long, id="l")
        await trio.sleep(1)
        database.start(suspect, id="s").expiries = 5
        await database.wait_state("s", "ended")
        await database.wait_state("l", "ended")
    assert ended == ["suspect", "encode"]
    assert row.attempt == 1


async def test_several_suspects_have_their_turn_one_after_the_other(autojump_clock):
    now: list[int] = []

    @step
    async def alone() -> None:
        now.append(1)
        assert len(now) == 1
        await trio.sleep(3)
        now.clear()

    @workflow
    async def suspect() -> None:
        await alone()

    database = Database()
    for number in range(4):
        database.start(suspect, id=f"s{number}").expiries = 4
    async with executing(database, suspect, limits=ExecutorLimits(max_lost=10)):
        for number in range(4):
            row = await database.wait_state(f"s{number}", "ended")
            assert row.ending is not None
            assert row.ending.failure is None


async def test_what_is_taken_with_a_suspect_goes_back_before(autojump_clock):
    database = Database()

    @step
    async def alone() -> list[str]:
        return [row.state for row in database.runs.values()]

    @workflow
    async def suspect() -> list[str]:
        return await alone()

    for number in range(4):
        database.start(suspect, id=f"s{number}").expiries = 0 if number == 2 else 4
    async with executing(database, suspect):
        row = await database.wait_state("s0", "ended")
    assert row.ending is not None
    assert row.ending.result == '["held","ready","ready","ready"]'


async def test_a_suspect_waits_until_what_another_call_took_is_back(autojump_clock, monkeypatch: pytest.MonkeyPatch):
    """Two calls for runs were answered at once. What the other one got would have ended with this program."""
    database, release = Database(), MemoryBackend.release

    async def give_back_late(backend: MemoryBackend, leased: LeasedRun) -> None:
        await trio.sleep(1)
        await release(backend, leased)

    @step
    async def alone() -> str:
        return database.runs["w"].state

    @workflow
    async def suspect() -> str:
        return await alone()

    monkeypatch.setattr(executors, "CLAIM_MAX_RUNS", 1)
    monkeypatch.setattr(MemoryBackend, "release", give_back_late)
    async with executing(database, suspect, waits):
        await trio.sleep(1)  # both wait
        database.start(suspect, id="s").expiries = 4
        database.start(waits, "m", id="w")
        row = await database.wait_state("s", "ended")
    assert row.ending is not None
    assert row.ending.result == '"ready"'


@contextmanager
def executor(dsn: str, **environment: str) -> Generator[subprocess.Popen[bytes]]:
    path = f"{REPOSITORY / 'src'}:{REPOSITORY}"
    command = [sys.executable, "-m", "tests.durable.deadly", dsn]
    process = subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": path, **environment})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(BOUND_S)


def leased(dsn: str) -> int:
    """Runs under lease."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT count(*) FROM token WHERE state = %s", (TokenState.LOCKED,)).fetchone()
    assert found is not None
    return int(found[0])


def survives(dsn: str, deaths: int, others: int) -> None:
    clock = DatabaseClock(dsn)
    with App(waits, at=dsn).in_thread() as client:  # with a workflow of its own, it looks after leases
        poison = client.start(deadly, id="poison")
        neighbours = [client.start(healthy, number, id=f"h-{number}") for number in range(others)]
        for _ in range(deaths):
            with executor(dsn) as dying:
                assert dying.wait(BOUND_S) == 9
            clock.advance(OVER_S)
            wait_until(lambda: leased(dsn) == 0, BOUND_S)  # the leases are over, and the pause has begun
            clock.advance(OVER_S)
        with executor(dsn, LIVES="1"):
            assert [run.result(BOUND_S) for run in neighbours] == list(range(others))
            assert poison.result(BOUND_S) == "lived"
    with psycopg.connect(dsn) as connection:
        expired = connection.execute(
            "SELECT i.business_key, count(*) FROM history h JOIN instance i ON i.id = h.instance_id WHERE h.kind = %s"
            " GROUP BY 1",
            (EXPIRED,),
        ).fetchall()
    counts = dict(expired)
    assert counts.pop("poison") == deaths
    assert max(counts.values(), default=0) <= 3, "they did not end with it any more when it was alone"
    assert_invariants(dsn)


@pytest.mark.slow(reason="a program that dies again and again")
def test_a_step_that_ends_its_process_spares_its_neighbours(database_dsn: str):
    survives(database_dsn, deaths=4, others=10)


@pytest.mark.chaos
def test_ten_ends_of_the_process_spare_a_hundred_neighbours(database_dsn: str):
    survives(database_dsn, deaths=10, others=100)
