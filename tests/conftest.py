"""Shared by all tests: one PostgreSQL per run and a fresh database per test (see `tests/postgres.py`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from tests import postgres
from tests.logs import plain_tracebacks, restored_logging

# Hypothesis measures its examples by the clock on the wall, and calls a test flaky when one took 200 ms once, or when
# drawing the first few took a second: on a busy machine both happen to any test. pytest's own timeout ends a hang.
# Everybody's examples are the same, so that a red run is the change's; `make explore` draws new ones.
settings.register_profile(
    "penstock",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="PENSTOCK_EXPLORE" not in os.environ,
)
settings.load_profile("penstock")
plain_tracebacks()


@pytest.fixture(autouse=True)
def logging_as_before() -> Generator[None]:
    """Logging is one per process: a command or an engine that a test runs in its own process sets it up."""
    with restored_logging():
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Generator[postgres.PostgresServer]:
    """The run's server without fsync."""
    with postgres.run_server() as server:
        yield server


@pytest.fixture(scope="session")
def durable_postgres_server() -> Generator[postgres.PostgresServer]:
    """The run's server with fsync, started only if a test asks for it."""
    with postgres.shared_server(postgres.run_directory(durable=True), durable=True) as server:
        yield server


@pytest.fixture(scope="session")
def server_major(postgres_server: postgres.PostgresServer) -> int:
    """The major version of the run's PostgreSQL."""
    with psycopg.connect(postgres_server.dsn) as connection:
        return connection.info.server_version // 10_000


@pytest.fixture
def needs_server(server_major: int, leave_out: Callable[[str], None]) -> Callable[[int, str], None]:
    """Leaves a test out on a PostgreSQL before this major version, with what it lacks (see `tests.servers`)."""

    def probe(major: int, lacks: str) -> None:
        if server_major < major:
            leave_out(f"PostgreSQL {server_major} has no {lacks}")

    return probe


@pytest.fixture
def database_dsn(postgres_server: postgres.PostgresServer) -> Generator[str]:
    """A database with the project's schema."""
    with postgres_server.database(postgres.apply_schema) as dsn:
        yield dsn


@pytest.fixture
def empty_database_dsn(postgres_server: postgres.PostgresServer) -> Generator[str]:
    """A database with nothing in it."""
    with postgres_server.database() as dsn:
        yield dsn


@pytest.fixture
def durable_database_dsn(durable_postgres_server: postgres.PostgresServer) -> Generator[str]:
    """As `database_dsn`, on a server that loses nothing when it crashes (fsync on)."""
    with durable_postgres_server.database(postgres.apply_schema) as dsn:
        yield dsn
