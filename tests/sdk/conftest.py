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

TEST_TIMEOUT_S = 60


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run an async function to its end under the event loop of the parameter."""

    def run(function: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def bounded() -> Any:
            with anyio.fail_after(TEST_TIMEOUT_S):
                return await function()

        return anyio.run(bounded, backend=request.param)

    return run


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
