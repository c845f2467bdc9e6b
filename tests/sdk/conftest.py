"""Fixtures of the SDK's tests: both event loops, and a scripted server."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.sdk.loops import Run
from tests.sdk.running_engine import RunningEngine
from tests.sdk.scripted_engine import ScriptedEngine
from tests.sdk.virtual_time import StillTime

TEST_TIMEOUT_S = 240


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run an async function to its end under the event loop of the parameter."""

    def run(function: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def bounded() -> Any:
            with anyio.fail_after(TEST_TIMEOUT_S):
                return await function()

        return anyio.run(bounded, backend=request.param)

    return run


@pytest.fixture(params=["asyncio", "trio"])
def run_at_once(request: pytest.FixtureRequest) -> Run:
    """As `run`, where all that waits for a time gets it at once. Not with sockets, threads or processes."""
    return StillTime(request.param, jumps=True).run


@pytest.fixture(params=["asyncio", "trio"])
def still(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StillTime:
    """The event loop of the parameter, in time that the test lets pass, and whoever pauses."""
    time = StillTime(request.param)
    monkeypatch.setattr(anyio, "sleep", time.sleep)
    return time


@pytest.fixture
def scripted() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


@pytest.fixture
def engine(database_dsn: str, tmp_path: Path) -> Iterator[RunningEngine]:
    """A running engine on an empty database."""
    running = RunningEngine(database_dsn, tmp_path / "engine.log")
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def other_engine(database_dsn: str, tmp_path: Path) -> Iterator[RunningEngine]:
    """Another on the same database, not started yet."""
    running = RunningEngine(database_dsn, tmp_path / "other-engine.log")
    yield running
    running.close()
