"""Attempts of a step are counted across restarts: those that failed for `retries`, those cut off for `max_lost`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio

from penstock.durable import StepLost, open_nursery, sleep, step, step_info, workflow
from penstock.durable.executor import Executor
from penstock.durable.held_run import ExecutorLimits
from penstock.durable.workflow import Workflow
from penstock.kernel.record import Kind
from tests.durable.memory import Database, MemoryBackend, Row

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
    told = [record for record in row.records if '"is_loss":true' not in (record.payload or "")]
    assert [record.kind for record in told] == [Kind.RETRY, Kind.RETRY, Kind.RETRY, Kind.FAILED]


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
    losses = [record for record in row.records if record.kind is Kind.RETRY]
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
