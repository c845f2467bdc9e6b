"""The PostgreSQL of our own test runs: what `penstock.testing` ships for everybody's, and where the repository is."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from penstock.testing.postgres import FAST_SETTINGS, MEMORY, PostgresServer, apply_schema, run_directory, shared_server

__all__ = [
    "FAST_SETTINGS",
    "MEMORY",
    "REPOSITORY",
    "SERVER_DSN",
    "PostgresServer",
    "apply_schema",
    "run_directory",
    "run_server",
    "shared_server",
]

REPOSITORY = Path(__file__).resolve().parents[1]
SERVER_DSN = "PENSTOCK_TESTS_SERVER_DSN"
"""Names a server in place of the embedded one; `tests.servers` sets it."""


@contextmanager
def run_server() -> Generator[PostgresServer]:
    """The server of this test run, without fsync."""
    dsn = os.environ.get(SERVER_DSN)
    if dsn is None:
        with shared_server(run_directory(durable=False), durable=False) as server:
            yield server
        return
    server = PostgresServer(Path(str(conninfo_to_dict(dsn)["host"])), dsn)
    try:
        yield server
    finally:
        server.close()
