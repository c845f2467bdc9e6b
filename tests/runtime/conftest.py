"""Engine processes on the run's PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock.runtime import membership
from tests.runtime.embedded_engine import data_directory
from tests.runtime.engine_process import EngineProcess
from tests.runtime.local_engine import LocalEngine

StartEngine = Callable[..., EngineProcess]
StartLocal = Callable[..., Awaitable[LocalEngine]]


@pytest.fixture
def start_engine(database_dsn: str) -> Generator[StartEngine]:
    """Starts engines on one database; all are killed at the end."""
    running: list[EngineProcess] = []

    def start(*arguments: str, dsn: str | None = database_dsn, **settings: Any) -> EngineProcess:
        engine = EngineProcess(dsn, *arguments, **settings)
        running.append(engine)
        return engine

    yield start
    for engine in running:
        engine.__exit__()


@pytest.fixture
def data_dir() -> Generator[Path]:
    """For an embedded PostgreSQL."""
    with data_directory() as directory:
        yield directory


@pytest.fixture
async def start_local(
    database_dsn: str, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[StartLocal]:
    """Starts engines in this process, on one database; without their loops if ``services`` is False. They look for each
    other ten times a second: tests of several would wait a second each."""
    monkeypatch.setattr(membership, "POLL_INTERVAL_S", 0.1)
    running: list[LocalEngine] = []

    async def start(*, services: bool = True, dsn: str = database_dsn, **settings: object) -> LocalEngine:
        engine = LocalEngine(dsn, **settings)
        await nursery.start(partial(engine.serve, services=services))
        running.append(engine)
        return engine

    yield start
    with trio.CancelScope(shield=True):
        for engine in running:
            await engine.crash()
