"""`run.ask` on a database and on an engine: what it answers, and what becomes of calls that nobody can serve."""

from __future__ import annotations

import json

import pytest
import trio
from typer.testing import CliRunner

from penstock.cli.app import app as commands
from penstock.client import Conflict, IdempotencyConflict, NotFound, TimedOut
from penstock.durable import (
    App,
    UpdateFailed,
    UpdateRefused,
    UpdateUnanswered,
    continue_as_new,
    receive,
    sleep,
    step,
    update,
    workflow,
)

ENOUGH_S = 60
booked: list[trio.Event] = []


@step
async def book(value: int) -> int:
    booked.pop().set()
    return value * 10


@workflow
async def account(limit: int = 10, rounds: int = 0) -> int:
    @update
    async def set_limit(value: int) -> int:
        nonlocal limit
        limit, before = value, limit
        return before

    @set_limit.validator
    def check(value: int) -> None:
        if value < limit:
            raise ValueError(f"{value} is less than {limit}")

    @update
    async def slow(value: int) -> int:
        booked = await book(value)
        await receive("go on", bool)
        return booked

    @update
    def broken() -> None:
        raise LookupError("no such thing")

    again = await receive("end", bool)
    if again:
        continue_as_new(limit, rounds + 1)
    return limit


@pytest.mark.slow(reason="an App and an engine")
async def test_calls_are_answered_refused_and_failed(at: str):
    with trio.fail_after(ENOUGH_S):
        async with App(account, at=at) as app:
            run = await app.start(account, 10, id="a-1")
            assert await run.ask("set_limit", 15, id="first") == 10
            assert await run.ask("set_limit", value=20) == 15
            with pytest.raises(UpdateRefused, match="'set_limit' was refused: 5 is less than 20"):
                await run.ask("set_limit", 5, id="refused")
            with pytest.raises(UpdateRefused, match="value: Expected `int`, got `str`"):
                await run.ask("set_limit", "many")
            with pytest.raises(UpdateFailed, match="no such thing") as failed:
                await run.ask("broken")
            assert failed.value.type_name == "LookupError"

            assert await run.ask("set_limit", 15, id="first") == 10, "the same id has the same answer"
            with pytest.raises(IdempotencyConflict, match="another call was made with it"):
                await run.ask("set_limit", 16, id="first")
            with pytest.raises(UpdateRefused, match="5 is less than 20"):
                await run.ask("set_limit", 5, id="refused")

            kinds = [record["kind"] async for record in run.history()]
            assert kinds == ["asked", "accepted", "answered"] * 3, "those that were refused leave no record"
            await run.send("end", False)
            assert await run.result() == 20
            assert await run.ask("set_limit", 15, id="first") == 10, "also when it has ended"
            with pytest.raises(Conflict, match="the run has ended: it is COMPLETED"):
                await run.ask("set_limit", 30)


@pytest.mark.slow(reason="an App and an engine")
async def test_the_run_waits_for_calls_that_have_begun(at: str):
    booked.append(begun := trio.Event())
    with trio.fail_after(ENOUGH_S):
        async with App(account, at=at) as app, trio.open_nursery() as nursery:
            run = await app.start(account, id="a-2")
            answers: list[int] = []

            async def ask() -> None:
                answers.append(await run.ask("slow", 4))

            nursery.start_soon(ask)
            await begun.wait()
            await run.send("end", False)
            with pytest.raises(TimedOut):
                await run.ask("slow", 5, id="late", timeout_s=0.5)
            await run.send("go on", True)
            assert await run.result() == 10
            with pytest.raises(UpdateUnanswered, match="'slow' was not answered: the run is COMPLETED"):
                await run.ask("slow", 5, id="late")
        assert answers == [40]


@pytest.mark.slow(reason="an App and an engine")
async def test_a_run_that_continues_serves_calls_that_came_before(at: str):
    with trio.fail_after(ENOUGH_S):
        async with App(account, at=at) as app:
            run = await app.start(account, id="a-3")
            assert await run.ask("set_limit", 11) == 10
            await run.send("end", True)
            assert await run.ask("set_limit", 12) == 11
            await run.send("end", False)
            assert await run.result() == 12


@workflow
async def cancelled() -> None:
    @update
    async def wait() -> None:
        await sleep("1h")

    await sleep("1h")


@pytest.mark.slow(reason="an App and an engine")
async def test_calls_of_a_run_that_is_cancelled_get_an_error(at: str):
    with trio.fail_after(ENOUGH_S):
        async with App(cancelled, at=at) as app:
            run = await app.start(cancelled, id="a-4")
            with pytest.raises(TimedOut):
                await run.ask("wait", id="w", timeout_s=0.5)
            await run.cancel()
            with pytest.raises(UpdateFailed, match="the run was cancelled"):
                await run.ask("wait", id="w")


@pytest.mark.slow(reason="an App on a database, twice")
async def test_a_call_that_nobody_serves_is_kept(database_dsn: str):
    with trio.fail_after(ENOUGH_S):
        async with App(account, at=database_dsn) as app:
            await app.start(account, id="a-5")
        async with App(at=database_dsn) as client:
            run = await client.get("a-5")
            with pytest.raises(TimedOut, match=r"run a-5 has not answered update 'set_limit' within 0\.3 s"):
                await run.ask("set_limit", 11, id="kept", timeout_s=0.3)
        async with App(account, at=database_dsn) as app:
            run = await app.get("a-5")
            assert await run.ask("set_limit", 11, id="kept") == 10
            assert [record["kind"] async for record in run.history()] == ["asked", "accepted", "answered"]


@pytest.mark.slow(reason="an App")
async def test_a_call_of_no_run_is_not_found(database_dsn: str):
    async with App(account, at=database_dsn) as app:
        run = await app.start(account, id="a-6")
        run.instance_id = f"{int(run.instance_id, 16) + 1:x}"
        with pytest.raises(NotFound):
            await run.ask("set_limit", 11)


@pytest.mark.slow(reason="an App and an engine")
async def test_a_terminal_calls_updates(at: str):
    with trio.fail_after(ENOUGH_S):
        async with App(account, at=at) as app:
            await app.start(account, 10, id="a-9")

            async def ask(*words: str) -> tuple[int, str, str]:
                arguments = ["runs", "ask", "a-9", *words, "--at", at]
                done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(commands, arguments))
                return done.exit_code, done.stdout, done.stderr

            assert await ask("set_limit", "15") == (0, "10\n", "")
            refused = await ask("set_limit", "5")
            assert refused == (1, "", "penstock: update set_limit was refused: 5 is less than 15\n")
            code, printed, _ = await ask("set_limit", "20", "--update-id", "u-1", "--json")
            answer = {"id": "u-1", "status": "DONE", "value": 15, "reason": None}
            assert (code, json.loads(printed)) == (0, answer)
            code, printed, _ = await ask("set_limit", "5", "--update-id", "u-2", "--json")
            answer = {"id": "u-2", "status": "REFUSED", "value": None, "reason": "5 is less than 20"}
            assert (code, json.loads(printed)) == (1, answer)
            await (await app.get("a-9", account)).send("end", False)
