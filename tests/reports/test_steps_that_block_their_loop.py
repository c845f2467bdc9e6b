"""A step that blocks its loop for longer than the lease is executed once: the engine has a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import sniffio
import trio

from penstock.durable import App, step, workflow
from penstock.durable.workflow import Workflow

LEASE_S = 1.5
BLOCKED_S = 3 * LEASE_S
BOUND_S = 60.0
MODES = ["asyncio", "trio", "thread", "trio in a thread", "trio beside asyncio", "asyncio beside trio"]


def blocking(executed: list[tuple[str, int]]) -> Workflow[[], str]:
    @step
    async def block_the_loop() -> str:
        executed.append((sniffio.current_async_library(), threading.get_ident()))
        time.sleep(BLOCKED_S)  # noqa: ASYNC251 - the fault that is tried
        return "done"

    @step
    async def beside() -> str:
        return "done"

    @workflow
    async def body() -> str:
        return await block_the_loop() + await beside()

    return body


def result_of(mode: str, app: App, body: Workflow[[], str]) -> str:
    async def entered() -> str:
        async with app:
            return await (await app.start(body)).result(BOUND_S)

    if mode in ("asyncio", "trio beside asyncio"):
        return asyncio.run(entered())
    if mode in ("trio", "asyncio beside trio"):
        return trio.run(entered)
    with app.in_thread() as blocking_app:
        return blocking_app.start(body).result(BOUND_S)


OPTIONS: dict[str, Any] = {
    "trio in a thread": {"backend": "trio"},
    "trio beside asyncio": {"backend": "trio"},
    "asyncio beside trio": {"backend": "asyncio"},
}
EXPECTED: dict[str, str] = {"trio": "trio", "trio in a thread": "trio", "trio beside asyncio": "trio"}


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DEFAULT", "MIN"):
        monkeypatch.setenv(f"WE_LEASE_{name}_SECONDS", str(LEASE_S))


@pytest.mark.slow(reason="a step outlives its lease")
@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_blocks_its_loop_is_executed_once(
    database_dsn: str, short_lease: None, caplog: pytest.LogCaptureFixture, mode: str
):
    executed: list[tuple[str, int]] = []
    body = blocking(executed)
    app = App(body, at=database_dsn, **OPTIONS.get(mode, {}))
    with caplog.at_level(logging.WARNING, "penstock.durable"):
        assert result_of(mode, app, body) == "donedone"
    [(library, thread)] = executed
    assert library == EXPECTED.get(mode, "asyncio")
    assert (thread == threading.get_ident()) == (mode in ("asyncio", "trio"))
    reported = [record.getMessage() for record in caplog.records if "blocks the loop" in record.getMessage()]
    assert len(reported) == 1
    assert "Make it a plain def" in reported[0]
    assert "in block_the_loop" in reported[0], "it has the stack"
    assert not [record for record in caplog.records if "executed again" in record.getMessage()]


def test_a_backend_has_a_name():
    with pytest.raises(ValueError, match="backend is 'asyncio' or 'trio', not 'curio'"):
        App(backend="curio")  # type: ignore[arg-type]  # as a user might


ERRORS: dict[str, Callable[[], BaseException]] = {"exit": lambda: SystemExit(3), "error": lambda: OSError("away")}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ERRORS)
def test_what_a_step_raises_ends_no_loop(database_dsn: str, mode: str, kind: str):
    @step
    async def fails() -> None:
        raise ERRORS[kind]()

    @step
    async def goes_on() -> str:
        return "it goes on"

    @workflow
    async def body() -> str:
        try:
            await fails()
        except Exception as error:
            return f"{type(error).__name__}, {await goes_on()}"
        return "not reached"

    app = App(body, at=database_dsn, **OPTIONS.get(mode, {}))
    assert result_of(mode, app, body) == "StepFailed, it goes on"
