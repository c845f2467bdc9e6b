"""A test has a database of its own, and waits neither for its making nor for its end."""

from __future__ import annotations

import time
from collections.abc import Generator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.testing.postgres import PostgresServer, apply_schema
from tests.waiting import WAIT_TIMEOUT_S


@pytest.fixture
def server(penstock_postgres: PostgresServer) -> Generator[PostgresServer]:
    """The run's server, as another process of this run sees it."""
    server = PostgresServer(penstock_postgres.directory, penstock_postgres.dsn)
    yield server
    server.close()


def databases(server: PostgresServer) -> set[str]:
    with psycopg.connect(server.dsn) as connection:
        return {name for (name,) in connection.execute("SELECT datname FROM pg_database").fetchall()}


def name_of(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["dbname"])


def test_no_test_waits_for_the_end_of_its_database(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn) as other:
        with server.database() as dsn:
            other.execute("LOCK TABLE pg_database IN SHARE MODE")  # each drop waits for its end
        assert name_of(dsn) in databases(server)
    server.close()
    assert name_of(dsn) not in databases(server)


def test_the_next_database_is_made_before_it_is_asked_for(server: PostgresServer) -> None:
    with server.database(), server.database():
        ahead = server._ahead[None]
        assert ahead is not None
        name = ahead.result(WAIT_TIMEOUT_S)
        with psycopg.connect(server.dsn) as other:
            other.execute("LOCK TABLE pg_database IN SHARE MODE")  # none is made before its end
            with server.database() as dsn:
                assert name_of(dsn) == name


def test_a_database_that_does_not_go_is_reported(penstock_postgres: PostgresServer) -> None:
    server = PostgresServer(penstock_postgres.directory, penstock_postgres.dsn)
    with server.database() as dsn, psycopg.connect(server.dsn, autocommit=True) as other:
        other.execute(f"DROP DATABASE {name_of(dsn)}".encode())
    with pytest.raises(psycopg.errors.InvalidCatalogName):
        server.close()


def test_a_new_database_need_not_look_through_its_catalogs(server: PostgresServer) -> None:
    # PostgreSQL leaves the file out for one whose catalogs another session changes meanwhile, as others here do
    end = time.monotonic() + 45
    while not _has_catalogs_written_down(server):
        assert time.monotonic() < end


def _has_catalogs_written_down(server: PostgresServer) -> bool:
    with server.database(apply_schema) as dsn, psycopg.connect(server.dsn) as other:
        written = other.execute(
            "SELECT (pg_stat_file(format('base/%%s/pg_internal.init', oid), true)).size FROM pg_database"
            " WHERE datname = %s",
            (name_of(dsn),),
        ).fetchone()
    assert written is not None
    return (written[0] or 0) > 0
