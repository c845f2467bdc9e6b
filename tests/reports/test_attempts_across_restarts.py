"""Attempts of a step are counted across restarts: those that failed for `retries`, those cut off for `max_lost`."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import trio

from penstock.core.rules.state import TokenState
from penstock.durable import App, StepLost, open_nursery, sleep, step, step_info, workflow
from penstock.durable.activation import MAX_LOST
from penstock.durable.executor import Executor
from penstock.durable.loaded_run import ExecutorLimits
from penstock.durable.workflow import Workflow
from penstock.kernel.record import JournalKind
from penstock.testing.clock import DatabaseClock
from penstock.testing.invariants import assert_invariants
from tests.durable.memory import Database, MemoryBackend, Row
from tests.postgres import REPOSITORY
from tests.reports.outliving import outliving
from tests.runtime.waiting import wait_until

OVER_S = 400.0
"""Longer than any lease and any pause."""
BOUND_S = 90.0
LIMITS = ExecutorLimits(max_lost=2)


async def live(database: Database, *workflows: Workflow[..., Any], until: Callable[..., bool]) -> None:
    """An executor that is gone without a word when that holds."""
    by_name = {(each.name, each.version): each for each in workflows}
    executor = Executor(MemoryBackend(database), by_name, LIMITS)
    async with trio.open_nursery() as nursery:
        await nursery.start(executor.run)
        while not until():
            await trio.sleep(0.5)
        nursery.cancel_scope.cancel()


def ended(row: Row) -> Callable[[], bool]:
    return lambda: row.state == "ended"


async def test_attempts_that_failed_are_counted_across_restarts(autojump_clock):
    attempts: list[int] = []

    @step(retries=3, first="10 s", cap="10 s")
    async def fails() -> None:
        attempts.append(step_info().attempt)
        raise OSError("the bank is away")

    @workflow
    async def body() -> None:
        await fails()

    database = Database()
    row = database.start(body)
    for number in (1, 2, 3):
        await live(database, body, until=lambda count=number: len(attempts) == count)
    await live(database, body, until=ended(row))
    assert attempts == [1, 2, 3, 4], "the pause of one that has failed is not an attempt that was cut off"
    reported = [record for record in row.records if '"is_loss":true' not in (record.payload or "")]
    assert [record.kind for record in reported] == [
        JournalKind.RETRY,
        JournalKind.RETRY,
        JournalKind.RETRY,
        JournalKind.FAILED,
    ]


def cut_off(attempts: list[int], **options: Any) -> Workflow[..., Any]:
    @step(**options)
    async def takes_its_process() -> str:
        attempts.append(step_info().attempt)
        await trio.sleep_forever()
        return "never"

    @workflow
    async def body() -> str:
        try:
            return await takes_its_process()
        except StepLost as error:
            return str(error)

    return body


@pytest.mark.parametrize("retries", [0, 5])
async def test_a_step_that_is_cut_off_each_time_is_lost(autojump_clock, caplog: pytest.LogCaptureFixture, retries: int):
    attempts: list[int] = []
    body, database = cut_off(attempts, retries=retries), Database()
    row = database.start(body)
    with caplog.at_level(logging.WARNING, "penstock.durable"):
        for number in (1, 2, 3):
            await live(database, body, until=lambda count=number: len(attempts) == count)
        await live(database, body, until=ended(row))
    assert attempts == [1, 2, 3], "executed, and executed again twice"
    assert row.ending is not None
    result = row.ending.result or ""
    assert "the lease of run r ended while step 'takes_its_process' at /0 ran" in result
    assert "executed again 2 times, as App(max_lost=…) allows" in result
    losses = [msgspec.json.decode(record.payload or "") for record in row.records if record.kind is JournalKind.RETRY]
    assert [(loss["lost"], loss["error"]["message"][-6:]) for loss in losses] == [(1, "1 of 2"), (2, "2 of 2")]
    lines = [record.getMessage() for record in caplog.records if "executed again" in record.getMessage()]
    assert [line.rpartition("executed again, ")[2] for line in lines] == ["1 of 2", "2 of 2"]


async def test_records_of_other_branches_do_not_reset_the_count(autojump_clock):
    attempts: list[int] = []
    begun: list[int] = []

    @step
    async def takes_its_process() -> None:
        attempts.append(step_info().attempt)
        await trio.sleep_forever()

    @step
    async def tick() -> None:
        begun.append(step_info().attempt)

    @workflow
    async def body() -> None:
        async def ticks() -> None:
            for _ in range(100):
                await tick()
                await sleep("1 s")

        async with open_nursery() as nursery:
            nursery.start_soon(ticks)
            nursery.start_soon(takes_its_process)

    database = Database()
    row = database.start(body)
    for number in (1, 2, 3):
        await live(database, body, until=lambda count=number: len(attempts) == count and len(begun) >= 5 * count)
    await live(database, body, until=ended(row))
    assert attempts == [1, 2, 3]
    assert row.ending is not None
    assert "StepLost: the lease of run r ended" in (row.ending.failure or "")
    losses = [record for record in row.records if record.kind is JournalKind.RETRY]
    assert [msgspec.json.decode(record.payload or "")["lost"] for record in losses] == [1, 2]
    assert set(begun) == {1}


async def test_one_that_ends_after_it_was_cut_off_ends_as_itself(autojump_clock):
    """An error after a cut counts as the first one that failed."""
    attempts: list[int] = []

    @step(retries=1, first="1 s")
    async def unlucky() -> int:
        attempts.append(step_info().attempt)
        if len(attempts) <= 2:
            await trio.sleep_forever()
        if len(attempts) == 3:
            raise OSError("away")
        return step_info().attempt

    @workflow
    async def body() -> int:
        return await unlucky()

    database = Database()
    row = database.start(body)
    for number in (1, 2):
        await live(database, body, until=lambda count=number: len(attempts) == count)
    await live(database, body, until=ended(row))
    assert attempts == [1, 2, 3, 4]
    assert row.ending is not None
    assert row.ending.result == "4"


@step
async def unused() -> None:
    return None


@workflow
async def beside() -> None:
    """An App with a workflow of its own looks after leases."""
    await unused()


def ask(dsn: str, sql: str, *params: object) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(sql.encode(), params).fetchall()


@pytest.mark.slow(reason="a program that is cut off again and again")
@pytest.mark.parametrize(("kind", "max_lost"), [("exits", 1), ("stops", 1), ("gil", MAX_LOST)])
def test_a_step_that_is_cut_off_each_time_is_lost_after_its_repeats(
    database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, max_lost: int
):
    monkeypatch.setenv("WE_LEASE_SCAN_INTERVAL_SECONDS", "0.2")
    clock, begun, log = DatabaseClock(database_dsn), tmp_path / "begun", tmp_path / "log"
    begun.touch()
    os.mkfifo(tmp_path / "pipe")
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"}
    programs: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with log.open("ab") as file:
            command = [sys.executable, "-m", "tests.reports.outliving", database_dsn, str(max_lost)]
            programs.append(subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=file))

    def is_under_lease() -> bool:
        return bool(ask(database_dsn, "SELECT FROM token WHERE state = %s", TokenState.LOCKED))

    try:
        with App(beside, at=database_dsn).in_thread() as client:
            run = client.start(outliving, kind, str(tmp_path))
            for number in range(max_lost + 1):
                if number == 0 or kind != "gil":
                    start()
                wait_until(lambda count=number + 1: len(begun.read_text().split()) == count, BOUND_S)
                clock.advance(OVER_S)
                wait_until(lambda: not is_under_lease(), BOUND_S)
                clock.advance(OVER_S)
                if kind == "gil":
                    (tmp_path / "pipe").write_text("x")
            if kind != "gil":
                start()
            result = run.result(BOUND_S)
    finally:
        for program in programs:
            program.kill()
            program.wait(BOUND_S)
    assert len(begun.read_text().split()) == max_lost + 1
    assert "ended while step 'cut_off' at /0 ran" in result
    assert f"It was executed again {max_lost} times" in result
    reported = [line for line in log.read_text().splitlines() if "executed again, " in line]
    assert [line.rpartition("executed again, ")[2] for line in reported] == [
        f"{number} of {max_lost}" for number in range(1, max_lost + 1)
    ]
    losses = ask(database_dsn, "SELECT payload FROM journal WHERE kind = %s ORDER BY pos", JournalKind.RETRY)
    texts = [json.loads(str(payload)) for (payload,) in losses]
    assert [text["lost"] for text in texts] == list(range(1, max_lost + 1))
    assert f"executed again, 1 of {max_lost}" in str(texts[0])
    assert_invariants(database_dsn)
