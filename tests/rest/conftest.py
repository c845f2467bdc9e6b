"""A scripted engine behind the REST application; a real engine process behind a driver."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from itertools import count

import httpx
import pytest

from tests import postgres
from tests.rest.drivers import RestDriver
from tests.rest.scripted import Rest, ScriptedEngine
from tests.runtime.engine_process import EngineProcess

_NUMBERS = count(1)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def rest(engine: ScriptedEngine) -> Rest:
    return Rest(engine)


@pytest.fixture(scope="module")
def engine_process(postgres_server: postgres.Server) -> Generator[EngineProcess]:
    """One for a module: tests keep apart by the names of their definitions and job types."""
    with (
        postgres_server.database(postgres.apply_schema) as dsn,
        EngineProcess(dsn, lease_min_seconds=1) as process,
    ):
        yield process.wait_ready()


@pytest.fixture(params=["rest"])
async def driver(engine_process: EngineProcess, request: pytest.FixtureRequest) -> AsyncGenerator[RestDriver]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{engine_process.port}", timeout=60) as http:
        yield RestDriver(http)


@pytest.fixture
def name() -> str:
    """For a definition and its job types: no other test has it."""
    return f"test-{next(_NUMBERS)}"
