"""A scripted engine behind the REST application; a real engine process behind a driver."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from itertools import count

import grpc
import httpx
import pytest

from tests import postgres
from tests.rest.drivers import Driver, RestDriver
from tests.rest.grpc_driver import GrpcDriver
from tests.rest.scripted import Rest, ScriptedEngine
from tests.rpc.conftest import Google, google
from tests.runtime.engine_process import EngineProcess

__all__ = ["google"]  # pytest finds the fixture here

_NUMBERS = count(1)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def rest(engine: ScriptedEngine) -> Rest:
    return Rest(engine)


@pytest.fixture(
    scope="module",
    params=[
        "native",
        pytest.param("hypercorn", marks=pytest.mark.slow(reason="the same requests through the other server")),
    ],
)
def engine_process(
    postgres_server: postgres.PostgresServer, request: pytest.FixtureRequest
) -> Generator[EngineProcess]:
    """One for a module: tests keep apart by the names of their definitions and job types."""
    with (
        postgres_server.database(postgres.apply_schema) as dsn,
        EngineProcess(dsn, lease_min_seconds=1, http_server=request.param, cors_origins="*") as process,
    ):
        yield process.wait_ready()


@pytest.fixture
async def rest_driver(engine_process: EngineProcess) -> AsyncGenerator[RestDriver]:
    # There is no TLS to verify, and to read this machine's authorities would take 30 ms.
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{engine_process.port}", timeout=60, verify=False) as http:
        yield RestDriver(http)


@pytest.fixture(params=["rest", "grpc"])
async def driver(
    engine_process: EngineProcess, rest_driver: RestDriver, google: Google, request: pytest.FixtureRequest
) -> AsyncGenerator[Driver]:
    """For scenarios, which hold whatever the way in. Modules about REST itself put `rest_driver` in its place."""
    if request.param == "rest":
        yield rest_driver
        return
    with grpc.insecure_channel(f"127.0.0.1:{engine_process.grpc_port}") as channel:
        yield GrpcDriver(google, channel)


@pytest.fixture
def name() -> str:
    """For a definition and its job types: no other test has it."""
    return f"test-{next(_NUMBERS)}"
