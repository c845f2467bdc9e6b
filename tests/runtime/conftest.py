"""Engine processes on the run's PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from tests.runtime.engine_process import EngineProcess

StartEngine = Callable[..., EngineProcess]


@pytest.fixture
def start_engine(database_dsn: str) -> Generator[StartEngine]:
    """Starts engines on one database; all are killed at the end."""
    running: list[EngineProcess] = []

    def start(*arguments: str, dsn: str | None = database_dsn, **settings: object) -> EngineProcess:
        engine = EngineProcess(dsn, *arguments, **settings)
        running.append(engine)
        return engine

    yield start
    for engine in running:
        engine.__exit__()
