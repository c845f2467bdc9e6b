"""`async with app` in a program of asyncio: calls are awaited, steps that await run in the program's own loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
import trio.lowlevel

from penstock.durable import App, RunFailed, move_on_after, receive, send, set_view, step, step_info, workflow
from tests.durable.programs import Program, ended, own_directory, until

BOUND_S = 50.0
seen: list[object] = []


@step
async def ask_bank(amount: int) -> int:
    await asyncio.sleep(0)
    seen.append((asyncio.get_running_loop(), threading.current_thread(), step_info().attempt))
    return amount * 2


@step
def count_threads() -> bool:
    return threading.current_thread() is threading.main_thread()


@workflow
async def order(amount: int) -> str:
    paid = await ask_bank(amount)
    plain_in_main = await count_threads()
    set_view({"paid": paid})
    return f"{paid} {plain_in_main} {await receive('approved', str)}"


def test_steps_run_in_the_programs_own_loop(database_dsn: str):
    async def main() -> str:
        async with App(order, at=database_dsn) as shop:
            run = await shop.start(order, 21, id="o-1")
            assert (await shop.get("o-1", order)).instance_id == run.instance_id
            await run.send("approved", "by ann", dedup="1")
            result = await run.result(BOUND_S)
            assert await run.status() == "COMPLETED"
            assert await run.view() == {"paid": 42}
            assert [each.id for each in await shop.find(order)] == ["o-1"]
            kinds = sorted([record["kind"] async for record in run.history()])
            assert kinds == ["done", "done", "message", "view"]
            assert seen == [(asyncio.get_running_loop(), threading.main_thread(), 1)]
        return result

    seen.clear()
    assert asyncio.run(main()) == "42 False by ann"


def test_a_caller_that_gives_up_leaves_the_run_alone(database_dsn: str):
    async def main() -> str:
        async with App(order, at=database_dsn) as shop:
            run = await shop.start(order, 1)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(run.result(), 0.05)
            ticks = 0
            waiting = asyncio.create_task(run.result(BOUND_S))
            while not waiting.done():  # the loop is free meanwhile
                await asyncio.sleep(0)
                ticks += 1
                if ticks == 10:
                    await run.send("approved", "late")
            assert ticks > 10
            return await waiting

    assert asyncio.run(main()) == "2 False late"


def test_a_cancelled_step_is_cancelled_in_its_loop(database_dsn: str):
    cancelled: list[str] = []

    @step
    async def endless() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            cancelled.append("stopped")
            raise
        return "never"

    @step
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("went on")
        return "what it gave counts"

    @workflow
    async def body() -> list[str]:
        found: list[str] = []
        for each in (endless, stubborn):
            with move_on_after("1 s"):
                found.append(await each())
        return found

    async def main() -> tuple[list[str], list[str]]:
        async with App(body, at=database_dsn) as app:
            run = await app.start(body)
            result = await run.result(BOUND_S)
            return result, [record["kind"] async for record in run.history() if record.get("path")]

    assert asyncio.run(main()) == (["what it gave counts"], ["stopped", "done"])
    assert cancelled == ["stopped", "went on"]


def test_a_step_that_fails_in_its_loop_is_an_answer(database_dsn: str):
    class Declined(Exception):
        pass

    @step(raises=[Declined])
    async def charge() -> None:
        await asyncio.sleep(0)
        raise Declined("no money")

    @workflow
    async def receiver() -> str:
        return await receive("note", str)

    @workflow
    async def body() -> None:
        await send("receiver-1", "note", "on the way")  # a step of ours: it runs in the app's loop
        await charge()

    async def main() -> str:
        async with App(body, receiver, at=database_dsn) as app:
            other = await app.start(receiver, id="receiver-1")
            run = await app.start(body)
            with pytest.raises(RunFailed, match="Declined: no money"):
                await run.result(BOUND_S)
            return await other.result(BOUND_S)

    assert asyncio.run(main()) == "on the way"


def test_what_ends_the_engine_cancels_the_block(database_dsn: str):
    async def main() -> None:
        async with App(order, at=database_dsn) as shop:
            assert shop.portal is not None

            async def broken() -> None:
                def ends() -> None:
                    raise KeyError("the engine is gone")

                trio.lowlevel.current_trio_token().run_sync_soon(ends)

            await shop.portal.call(broken)
            await asyncio.wait_for(asyncio.Event().wait(), BOUND_S)
            raise AssertionError("nobody told")

    with pytest.raises(trio.TrioInternalError):
        asyncio.run(main())


def test_after_a_fork_calls_are_refused(database_dsn: str, monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        async with App(order, at=database_dsn) as shop:
            run = await shop.start(order, 1)
            with monkeypatch.context() as patch:
                patch.setattr(os, "getpid", lambda: 1)
                with pytest.raises(RuntimeError, match="of which this one is a fork"):
                    await shop.start(order, 2)
                with pytest.raises(RuntimeError, match="of which this one is a fork"):
                    await run.status()

    asyncio.run(main())


def test_a_closed_app_says_so(database_dsn: str):
    async def main() -> None:
        async with App(order, at=database_dsn) as shop:
            run = await shop.start(order, 1)
        with pytest.raises(RuntimeError, match="this app is not open"):
            await shop.start(order, 2)
        with pytest.raises(RuntimeError, match="this app does not serve any more"):
            await run.status()

    asyncio.run(main())


SERVES = """
import asyncio, os, pathlib
from penstock.durable import App, step, workflow

here = pathlib.Path(__file__).parent

@step
async def first() -> str:
    with (here / "first").open("a") as file:
        file.write("x")
    return "first"

@step
async def slow() -> str:
    if not (here / "slow").exists():
        (here / "slow").touch()
        await asyncio.sleep(600)
    return "slow"

@workflow
async def body() -> str:
    return await first() + await slow()

async def main() -> None:
    async with App(body) as app:
        run = await app.start(body, id="b-1")
        print(await run.result(50))

asyncio.run(main())
"""


@pytest.fixture
def directory() -> Generator[Path]:
    yield from own_directory()


def test_a_killed_program_of_asyncio_goes_on(directory: Path):
    program = Program(directory, SERVES)
    process = program.start()
    until((directory / "slow").exists, process)
    process.kill()
    process.communicate()
    assert process.returncode == -9
    code, said, errors = ended(program.start())
    assert (code, said) == (0, "firstslow\n"), errors
    assert (directory / "first").read_text() == "x"
