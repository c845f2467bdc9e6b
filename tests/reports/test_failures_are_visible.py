"""What failed is told: by the log with the user's traceback, in the journal, and by `penstock runs show`."""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio
from typer.testing import CliRunner

from penstock.cli.app import app as command_line
from penstock.durable import App, RunBlocked, RunFailed, StepFailed, receive, step, workflow
from penstock.durable.failure import describe, traceback_of
from penstock.durable.run import Run
from penstock.durable.signature import Parameters
from tests.waiting import wait_until

BOUND_S = 60.0


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def bank(amount: int) -> int:
    raise ConnectionError(f"the bank does not answer: {amount}")


@step(retries=1, first="10 ms")
async def charge(amount: int) -> int:
    return bank(amount)


@workflow
async def order(amount: int) -> int:
    return await charge(amount)


@workflow
async def careless(items: list[int]) -> int:
    return pick(items)


def pick(items: list[int]) -> int:
    return items[7]


@workflow
async def careful(amount: int) -> str:
    try:
        await charge(amount)
    except StepFailed:
        return "no matter"
    raise AssertionError


@step
async def before() -> None: ...


@step
async def instead_of_it() -> None: ...


@workflow(name="changing")
async def as_begun() -> None:
    await before()
    await receive("go", str)


@workflow(name="changing")
async def as_deployed() -> None:
    await instead_of_it()
    await receive("go", str)


async def fail(app: App, run: Run[Any]) -> str:
    with pytest.raises(RunFailed) as failed:
        await run.result(BOUND_S)
    return failed.value.reason


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


async def test_the_last_attempt_and_the_end_are_logged(at: str, caplog: pytest.LogCaptureFixture):
    async with App(order, careful, at=at, name="shop") as app:
        await fail(app, await app.start(order, 5, id="17"))
        step_reported, run_reported = errors(caplog)
        assert step_reported.startswith(
            "run 17: step 'charge' at /0 failed and is not retried, attempt 2 of 2: ConnectionError: the bank does not"
            f" answer: 5 (test_failures_are_visible.py:{line_of(bank, 'raise')})\nTraceback"
        )
        assert f"line {line_of(charge.function, 'return')}, in charge" in step_reported
        assert "penstock/durable" not in step_reported, "our frames tell the user nothing"
        assert step_reported.endswith("ConnectionError: the bank does not answer: 5")
        assert run_reported.startswith(
            "run 17 failed: StepFailed: ConnectionError: the bank does not answer: 5 (test_fail"
        )
        assert f"line {line_of(order.function, 'await charge')}, in order" in run_reported
        caplog.clear()
        assert await (await app.start(careful, 5, id="18")).result(BOUND_S) == "no matter"
        [reported] = errors(caplog)
        assert "step 'charge' at /0 failed and is not retried" in reported, "what a run dealt with is told once"


async def test_the_functions_own_error_is_in_the_journal(at: str, caplog: pytest.LogCaptureFixture):
    async with App(careless, at=at, name="shop") as app:
        run = await app.start(careless, [1], id="17")
        where = f"test_failures_are_visible.py:{line_of(pick, 'items[7]')}"
        assert await fail(app, run) == f"IndexError: list index out of range ({where})"
        [record] = [record async for record in run.history()]
        assert (record["kind"], record["payload"]["type_name"]) == ("error", "IndexError")
        assert f"line {line_of(pick, 'items[7]')}, in pick" in record["payload"]["traceback"]
        await run.retry("end")
        await fail(app, run)
        assert [record["kind"] async for record in run.history()] == ["error"], "a retry forgets it"
        assert len(errors(caplog)) == 2


@pytest.mark.slow(reason="a program on a database for each question")
async def test_penstock_runs_show_tells_reason_and_traceback(database_dsn: str):
    async with App(order, careless, at=database_dsn) as app:
        await fail(app, await app.start(order, 5, id="17"))
        await fail(app, await app.start(careless, [1], id="18"))

    def shown(*words: str) -> str:
        done = CliRunner().invoke(command_line, ["runs", *words, "--at", database_dsn])
        assert done.exit_code == 0, done.output
        return done.output

    reported = await trio.to_thread.run_sync(shown, "show", "17")
    assert "because StepFailed: ConnectionError: the bank does not answer: 5" in reported
    assert "step charge at /0 raised:" in reported
    assert "    ConnectionError: the bank does not answer: 5" in reported
    assert "the workflow function raised:" in reported
    assert f"line {line_of(order.function, 'await charge')}, in order" in reported
    reported = await trio.to_thread.run_sync(shown, "show", "18")
    assert "because IndexError: list index out of range" in reported
    assert f"line {line_of(pick, 'items[7]')}, in pick" in reported
    found = json.loads(await trio.to_thread.run_sync(shown, "show", "18", "--json"))
    assert [error["type"] for error in found["errors"]] == ["IndexError"]


@pytest.mark.slow(reason="a program on a database for each question")
async def test_people_see_that_a_run_is_blocked_and_why(database_dsn: str):
    async with App(as_begun, at=database_dsn) as app:
        run = await app.start(as_begun, id="17")

        async def waits() -> bool:
            return bool((await run.tree())["status"] == "WAITING")

        await wait_until(waits)
    async with App(as_deployed, at=database_dsn) as app:
        run = await app.get("17", as_deployed)
        await run.send("go", "on")
        with pytest.raises(RunBlocked) as blocked:
            await run.result(BOUND_S)
    reason = blocked.value.reason
    assert "instead_of_it" in reason

    def shown(*words: str) -> str:
        done = CliRunner().invoke(command_line, ["runs", *words, "--at", database_dsn])
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    reported = await trio.to_thread.run_sync(shown, "show", "17")
    assert re.match(r"17 changing@1 BLOCKED since [0-9-]+ [0-9:]+(Z|[+-][0-9:]+) waits for other code: ", reported)
    assert reason in reported
    reported = await trio.to_thread.run_sync(shown, "list", "--blocked")
    assert "BLOCKED" in reported
    assert reason in reported
    found = json.loads(await trio.to_thread.run_sync(shown, "list", "changing", "--blocked", "--json"))
    assert [(row["status"], row["blocked"], row["blockedReason"]) for row in found] == [("WAITING", True, reason)]


def raised(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_line_is_the_innermost_one_of_the_users_file():
    bound = Parameters(charge.function)

    def wrong_call() -> object:
        return bound.bound((1, 2, 3), {})

    def bad_json() -> object:
        return json.loads("{")

    def through_a_library() -> object:
        return max([1, 2], key=bank)

    def in_a_library() -> object:
        return textwrap.wrap("text", -1)

    for function in (wrong_call, bad_json, in_a_library):
        line = line_of(function, "return")
        assert describe(raised(function)).endswith(f"(test_failures_are_visible.py:{line})"), function
    assert describe(raised(through_a_library)).endswith(f"(test_failures_are_visible.py:{line_of(bank, 'raise')})")


def test_an_installed_service_is_the_users_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a container the service is among the libraries, as what it calls is."""
    monkeypatch.setattr("penstock.durable.failure._LIBRARIES", (f"{tmp_path}/",))

    def module(package: str, text: str) -> ModuleType:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "code.py").write_text(text)
        made = ModuleType(package)
        exec(compile(text, str(folder / "code.py"), "exec"), made.__dict__)
        monkeypatch.setitem(sys.modules, package, made)
        return made

    module("http_library", "def get():\n    raise OSError('no route')\n")
    shop = module("shop", "import http_library\n\ndef charge():\n    return http_library.get()\n")
    line = line_of(raised, "function()")
    assert describe(raised(shop.charge)).endswith(f"(test_failures_are_visible.py:{line})")
    outermost = raised(shop.charge)
    assert outermost.__traceback__ is not None
    outermost.__traceback__ = outermost.__traceback__.tb_next  # as a step's, which we call
    assert describe(outermost) == "OSError: no route (code.py:4)"


def test_a_traceback_never_fails_and_hides_secrets():
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def rude() -> object:
        raise Rude

    def connect() -> object:
        raise OSError("postgresql://ann:secret@db/shop is away")

    assert "Rude" in traceback_of(raised(rude)) or "not told" in traceback_of(raised(rude))
    assert "secret@" not in traceback_of(raised(connect))
    group = ExceptionGroup("two", [raised(connect), raised(rude)])
    assert "OSError" in traceback_of(group) or "not told" in traceback_of(group)
