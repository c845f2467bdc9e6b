"""What a step knows and says of itself, threads that nobody waits for, and how many steps run at a time."""

from __future__ import annotations

import threading

import msgspec
import pytest
import trio

from penstock.durable import (
    PayloadTooLarge,
    Unencodable,
    move_on_after,
    open_nursery,
    step,
    step_info,
    workflow,
)
from penstock.durable.loaded_run import ExecutorLimits
from penstock.testing import run_workflow
from tests.durable.memory import Database, kinds
from tests.durable.test_executor import executing, running


async def test_progress_of_a_step_is_shown_while_it_runs(autojump_clock):
    async def pack() -> None:
        for done in range(3):
            step_info().heartbeat({"packed": done})
            await trio.sleep(5)

    body = running(pack)
    database = Database()
    async with executing(database, body):
        row = database.start(body)
        shown: list[object] = []
        for _ in range(3):
            await trio.sleep(3)
            shown += [each.get("progress") for each in msgspec.json.decode(row.shown.branches or "[]")]
            await trio.sleep(2)
        await database.wait_state("r", "ended")
    assert shown == [{"packed": 0}, {"packed": 1}, {"packed": 2}]
    assert kinds(row) == ["DONE /0 s"], "no record of it"


@pytest.mark.parametrize(
    ("progress", "error", "why"),
    [("x" * 5_000, PayloadTooLarge, "the progress of a step is 5 kB"), (object(), Unencodable, "no JSON form")],
)
def test_progress_that_can_not_be_kept_is_refused(progress: object, error: type[Exception], why: str):
    @step(raises=[error])
    def says() -> None:
        step_info().heartbeat(progress)

    @workflow
    async def body() -> None:
        await says()

    run = run_workflow(body)
    assert isinstance(run.error, error)
    assert why in str(run.error)


async def test_the_epoch_grows_when_the_run_changes_hands(autojump_clock):
    seen: list[tuple[int, int]] = []

    async def tell() -> None:
        seen.append((step_info().epoch, step_info().attempt))
        await trio.sleep(0 if len(seen) > 1 else 600)

    body = running(tell)
    database = Database()
    async with executing(database, body):
        row = database.start(body)
        await trio.sleep(1)
    async with executing(database, body):
        await database.wait_state("r", "ended")
    assert row.attempt == 2
    assert seen == [(1, 1), (2, 1)]


async def test_a_thread_may_be_abandoned_when_its_step_says_so(autojump_clock):
    began, let_go = threading.Event(), threading.Event()

    def stuck() -> str:
        began.set()
        let_go.wait(60)
        return "nobody hears it"

    stuck_step = step(abandon=True)(stuck)

    @workflow
    async def body() -> str:
        with move_on_after("10 s"):
            return await stuck_step()
        return "moved on"

    database = Database()
    try:
        async with executing(database, body):
            row = database.start(body)
            await trio.to_thread.run_sync(began.wait, 60)
            await database.wait_state("r", "ended")
    finally:
        let_go.set()
    assert row.ending is not None
    assert row.ending.result == '"moved on"'
    assert kinds(row) == ["CLOCK", "ABANDONED /1 stuck"]


def test_only_threads_can_be_abandoned():
    async def waits() -> None: ...

    with pytest.raises(ValueError, match="waits: abandon is for a plain def"):
        step(abandon=True)(waits)


async def test_no_more_steps_await_at_a_time_than_allowed(autojump_clock):
    running_now, most = 0, 0

    @step(timeout="5 s")
    async def call(n: int) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await trio.sleep(3)
        running_now -= 1

    @workflow
    async def body() -> None:
        async with open_nursery() as nursery:
            for n in range(9):
                nursery.start_soon(call, n)

    database = Database()
    async with executing(database, body, limits=ExecutorLimits(step_tasks=3)):
        row = database.start(body)
        await database.wait_state("r", "ended")
    assert most == 3
    assert row.ending is not None
    assert row.ending.failure is None, "who waits for a place is not in time trouble"
