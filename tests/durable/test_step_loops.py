"""Loops for async steps: what asyncio and Trio libraries need is there, and cancels and wrong libraries are told."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import anyio
import pytest
import trio

from penstock.durable import App, RunBlocked, TooSlow, fail_after, step, workflow
from penstock.durable.step_loop import Backend
from penstock.durable.workflow import Workflow

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
    told = str(caught.value)
    assert f"uses {other} at test_step_loops.py:" in told
    assert f"async steps of this App run in {backend}" in told
    assert f"App(…, backend='{other}')" in told


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
