"""Loops for async steps: what asyncio and Trio libraries need is there, and cancels and wrong libraries are told."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
import trio

from penstock.durable import App, RunBlocked, TooSlow, fail_after, step, workflow
from penstock.durable.step_loop import IDLE_MAX_TASKS, Backend, TrioLoop
from penstock.durable.workflow import Workflow
from penstock.kernel.operation import Outcome

BOUND_S = 60.0
BACKENDS: list[Backend] = ["asyncio", "trio"]


@step
async def use_asyncio() -> list[str]:
    found: list[str] = []

    async def note(text: str) -> None:
        await asyncio.sleep(0)
        found.append(text)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(note("task group"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print('subprocess')", stdout=asyncio.subprocess.PIPE
    )
    found.append((await process.communicate())[0].decode().strip())
    found.append(await asyncio.to_thread(lambda: "thread"))
    return found


@step
async def use_trio() -> str:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0.01)
    return "nursery"


@step
async def use_anyio() -> str:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0)
    return "anyio"


def body_of(use: object) -> Workflow[[], Any]:
    @workflow(name="body")
    async def body() -> Any:
        return await use()  # type: ignore[operator]  # a step

    return body


def result_of(app: App, body: Workflow[[], Any]) -> Any:
    with app.in_thread() as blocking:
        return blocking.start(body).result(BOUND_S)


def test_asyncio_has_what_its_libraries_need(database_dsn: str):
    body = body_of(use_asyncio)
    assert result_of(App(body, at=database_dsn), body) == ["task group", "subprocess", "thread"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_anyio_runs_in_both(database_dsn: str, backend: Backend):
    body = body_of(use_anyio)
    assert result_of(App(body, at=database_dsn, backend=backend), body) == "anyio"


def test_trio_runs_where_it_is_asked_for(database_dsn: str):
    body = body_of(use_trio)
    assert result_of(App(body, at=database_dsn, backend="trio"), body) == "nursery"


@step
async def sleep_in_trio() -> None:
    await trio.sleep(0.01)


@step
async def sleep_in_asyncio() -> None:
    await asyncio.sleep(0.01)


@step
async def group_in_asyncio() -> None:
    async with asyncio.TaskGroup():
        pass


@step
async def wrapped() -> None:
    try:
        await trio.sleep(0.01)
    except RuntimeError as error:
        raise OSError("the client can't connect") from error


@pytest.mark.parametrize(
    ("use", "backend"),
    [
        (use_trio, "asyncio"), (sleep_in_trio, "asyncio"), (wrapped, "asyncio"), (use_asyncio, "trio"),
        (sleep_in_asyncio, "trio"), (group_in_asyncio, "trio"),
    ],
)  # fmt: skip
def test_the_wrong_library_blocks_the_run(database_dsn: str, use: object, backend: Backend):
    body = body_of(use)
    other = "trio" if backend == "asyncio" else "asyncio"
    with App(body, at=database_dsn, backend=backend).in_thread() as app:
        run = app.start(body)
        with pytest.raises(RunBlocked) as caught:
            run.result(BOUND_S)
    reported = str(caught.value)
    assert f"uses {other} at test_step_loops.py:" in reported
    assert f"async steps of this App run in {backend}" in reported
    assert f"App(…, backend='{other}')" in reported


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_over_its_time_is_cancelled_once_and_waited_for(database_dsn: str, backend: Backend):
    seen: list[str] = []

    @step(timeout="200 ms")
    async def slow() -> None:
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            seen.append("cancelled")
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            seen.append("ended")
            raise

    @step
    async def stubborn() -> str:
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            seen.append("went on")
        return "its outcome stands"

    @workflow
    async def body() -> str:
        try:
            await slow()
        except TooSlow:
            seen.append("too slow")
        with fail_after("1 s"):
            return await stubborn()

    with App(body, at=database_dsn, backend=backend).in_thread() as app:
        assert app.start(body).result(BOUND_S) == "its outcome stands"
    assert seen == ["cancelled", "ended", "too slow", "went on"]


def test_steps_of_one_app_share_a_loop_beside_the_engines(database_dsn: str):
    @step
    async def where() -> str:
        return threading.current_thread().name

    @step
    def plain() -> str:
        return threading.current_thread().name

    @workflow
    async def body() -> list[str]:
        return [await where(), await where(), await plain()]

    with App(body, at=database_dsn).in_thread() as app:
        first, second, third = app.start(body).result(BOUND_S)
    assert (first, second) == ("penstock steps", "penstock steps")
    assert third not in ("penstock steps", "penstock app")


# -- tasks of Trio that steps share

_mark: ContextVar[object] = ContextVar("_mark")


class Mark:
    """Something that a variable leads to."""


async def called(loop: TrioLoop, function: Callable[[], Awaitable[Any]]) -> Outcome:
    """What it gives in the loop; `Event.wait` and the like need no turn of its own there."""
    return await loop.call(function)


async def this_task() -> trio.lowlevel.Task:
    await trio.lowlevel.checkpoint()
    return trio.lowlevel.current_task()


async def test_steps_of_trio_share_a_task_and_no_variable():
    kept: list[weakref.ref[Mark]] = []

    async def marked() -> object:
        before = _mark.get(None)
        _mark.set(mark := Mark())
        kept.append(weakref.ref(mark))
        await trio.lowlevel.checkpoint()
        return before, trio.lowlevel.current_task()

    async with trio.open_nursery() as nursery:
        loop = TrioLoop(nursery)
        (one, task), (another, same) = [(await called(loop, marked)).value for _ in range(2)]
        gc.collect()
        alive = [found for found in kept if found() is not None]
        nursery.cancel_scope.cancel()
    assert task is same
    assert (one, another, alive) == (None, None, [])
    assert loop.idle == []


async def leaves_a_scope() -> None:
    trio.CancelScope().__enter__()


async def leaves_a_deadline() -> None:
    trio.move_on_after(0).__enter__()


async def leaves_a_nursery() -> None:
    nursery = await trio.open_nursery().__aenter__()
    nursery.start_soon(trio.sleep_forever)


@pytest.mark.parametrize("leave", [leaves_a_scope, leaves_a_deadline, leaves_a_nursery])
async def test_a_step_that_leaves_a_scope_open_fails_and_the_next_one_does_not(leave: Callable[[], Awaitable[Any]]):
    async with trio.open_nursery() as nursery:
        loop = TrioLoop(nursery)
        before = (await called(loop, this_task)).value
        failed = await called(loop, leave)
        after = (await called(loop, this_task)).value
        nursery.cancel_scope.cancel()
    assert isinstance(failed.error, RuntimeError)
    assert "stack corrupted" in str(failed.error)
    assert before is not after


async def test_a_lock_that_a_step_keeps_is_broken_at_its_end():
    lock = trio.Lock()

    async def keep() -> None:
        await lock.acquire()

    async def need() -> None:
        async with lock:
            raise AssertionError("nobody lets it go")

    async with trio.open_nursery() as nursery:
        loop = TrioLoop(nursery)
        await called(loop, keep)
        failed = await called(loop, need)
        nursery.cancel_scope.cancel()
    assert isinstance(failed.error, trio.BrokenResourceError)


async def test_the_next_step_knows_nothing_of_a_cancel():
    began = trio.Event()

    async def wait() -> None:
        began.set()
        await trio.sleep_forever()

    async def give_all_the_same() -> str:
        began.set()
        with trio.CancelScope(shield=True):
            while not loop_scope.cancel_called:
                await trio.lowlevel.checkpoint()
        return "given"

    async with trio.open_nursery() as nursery:
        loop, found = TrioLoop(nursery), list[object]()
        for function in (wait, give_all_the_same):
            async with trio.open_nursery() as callers:
                loop_scope = callers.cancel_scope

                async def call(function: Callable[[], Awaitable[Any]] = function) -> None:
                    found.append((await called(loop, function)).value)

                callers.start_soon(call)
                await began.wait()
                loop_scope.cancel()
            began = trio.Event()
            found.append((await called(loop, this_task)).error)
        nursery.cancel_scope.cancel()
    assert found == [None, "given", None]


async def test_few_tasks_wait_for_more_steps():
    async with trio.open_nursery() as nursery:
        loop = TrioLoop(nursery)
        async with trio.open_nursery() as callers:
            for _ in range(IDLE_MAX_TASKS + 20):
                callers.start_soon(called, loop, this_task)
        left, tasks = len(loop.idle), len(nursery.child_tasks)
        nursery.cancel_scope.cancel()
    assert left == IDLE_MAX_TASKS
    assert tasks == IDLE_MAX_TASKS
