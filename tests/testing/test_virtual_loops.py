"""Async steps of `run_workflow` and `explore` run in asyncio or Trio, on a clock that jumps: an hour takes no time."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
import trio

from penstock.durable import TooSlow, each, step, workflow
from penstock.durable.step_loop import Backend, WrongLibrary
from penstock.testing import explore, run_workflow

BOUND_S = 30.0
"""Real time that is far from an hour."""
Body = Callable[[], Coroutine[Any, Any, Any]]


async def sleep_in_asyncio() -> str:
    await asyncio.sleep(3_600)
    return "slept"


async def time_out_in_asyncio() -> str:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3_600):
            await asyncio.Event().wait()
    return "timed out"


async def group_in_asyncio() -> list[str]:
    found: list[str] = []

    async def late(name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        found.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(late("second", 7_200))
        group.create_task(late("first", 3_600))
    return found


async def work_in_asyncio() -> list[str]:
    async with asyncio.timeout(60):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('work')", stdout=-1)
        out, _ = await process.communicate()
        silent = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
        await silent.wait()
        return [out.decode().strip(), await asyncio.to_thread(lambda: "thread")]


async def serve_in_asyncio() -> str:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"a line\n")
        async with asyncio.timeout(60):
            found = (await reader.read()).decode()
        writer.close()
        return found


async def sleep_in_trio() -> str:
    await trio.sleep(3_600)
    return "slept"


async def time_out_in_trio() -> str:
    with trio.move_on_after(3_600):
        await trio.sleep_forever()
    return "timed out"


async def sleep_in_anyio() -> str:
    with anyio.move_on_after(3_600):
        await anyio.sleep_forever()
    return "anyio"


@pytest.mark.parametrize(
    ("use", "backend", "found"),
    [
        (sleep_in_asyncio, "asyncio", "slept"),
        (time_out_in_asyncio, "asyncio", "timed out"),
        (group_in_asyncio, "asyncio", ["first", "second"]),
        (work_in_asyncio, "asyncio", ["work", "thread"]),
        (serve_in_asyncio, "asyncio", "a line\n"),
        (sleep_in_anyio, "asyncio", "anyio"),
        (sleep_in_trio, "trio", "slept"),
        (time_out_in_trio, "trio", "timed out"),
        (sleep_in_anyio, "trio", "anyio"),
    ],
)
def test_time_in_a_step_is_virtual(use: Body, backend: Backend, found: object):
    began = time.monotonic()
    assert run_workflow(body_of(use), backend=backend).result() == found
    explore(body_of(use), backend=backend)
    assert time.monotonic() - began < BOUND_S


def body_of(use: Body, **options: Any) -> Any:
    asked = step(**options)(use)

    @workflow(name="body")
    async def body() -> Any:
        return await asked()

    return body


def test_plain_tests_have_asyncio():
    assert run_workflow(body_of(sleep_in_asyncio)).result() == "slept"


async def test_tests_in_trio_have_trio():
    assert run_workflow(body_of(sleep_in_trio)).result() == "slept"
    assert run_workflow(body_of(sleep_in_asyncio), backend="asyncio").result() == "slept"


def test_tests_in_asyncio_have_asyncio():
    async def test() -> None:
        assert run_workflow(body_of(sleep_in_asyncio)).result() == "slept"
        assert run_workflow(body_of(sleep_in_trio), backend="trio").result() == "slept"

    asyncio.run(test())


@pytest.mark.parametrize(("use", "backend"), [(sleep_in_trio, "asyncio"), (sleep_in_asyncio, "trio")])
def test_the_wrong_library_is_reported(use: Body, backend: Backend):
    other = "trio" if backend == "asyncio" else "asyncio"
    with pytest.raises(WrongLibrary, match=rf"uses {other} at test_virtual_loops.py:\d+") as caught:
        run_workflow(body_of(use), backend=backend)
    assert f"run_workflow(…, backend='{other}')" in str(caught.value)
    with pytest.raises(WrongLibrary):
        explore(body_of(use), backend=backend)


@pytest.mark.parametrize(("use", "backend"), [(sleep_in_asyncio, "asyncio"), (sleep_in_trio, "trio")])
def test_the_time_limit_of_a_step_is_kept_to(use: Body, backend: Backend):
    run = run_workflow(body_of(use, timeout="1 min", retries=1), backend=backend)
    assert isinstance(run.error, TooSlow)
    assert [call.attempt for call in run.calls] == [1, 2]


def test_the_outcome_of_a_step_over_its_time_stands():
    async def stubborn() -> str:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            return "went on"
        return "slept"

    async def fails() -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            raise TimeoutError("its own") from None

    assert run_workflow(body_of(stubborn, timeout="1 min")).result() == "went on"
    assert str(run_workflow(body_of(fails, timeout="1 min", raises=[TimeoutError])).error) == "its own"


def test_a_step_that_cancels_itself_fails():
    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    assert run_workflow(body_of(cancels)).error is not None


def test_each_step_has_a_loop_of_its_own():
    @step
    async def wait(seconds: int) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(seconds)
        return loop.time() - began

    @workflow
    async def body() -> list[float]:
        return await each(wait, [1, 86_400])

    assert run_workflow(body).result() == [1, 86_400]


def test_no_other_backend_is_known():
    with pytest.raises(ValueError, match="backend is 'asyncio' or 'trio', not 'curio'"):
        run_workflow(body_of(sleep_in_asyncio), backend="curio")  # type: ignore[call-overload]
