"""`penstock migrate`: its exit code, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio
from psycopg.conninfo import make_conninfo

from penstock.access.roles import Role, grant_of
from penstock.runtime import api_tokens
from penstock.runtime.database_start import DatabaseStart
from penstock.runtime.migrate import Applied, run
from penstock.settings import Secret, Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.schema import SCHEMA_VERSION
from penstock.store.db.statements import SQL
from tests.postgres import PostgresServer
from tests.runtime.engine_process import REPOSITORY
from tests.store.populate import left_by
from tests.waiting import wait_until


def migrate(dsn: str | None, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WE_")}
    environment |= {"PYTHONPATH": str(REPOSITORY / "src")} | ({} if dsn is None else {"WE_POSTGRES_DSN": dsn})
    command = [sys.executable, "-m", "penstock", "migrate", "--config", os.devnull, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]


def tables(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname IN ('public', 'penstock')"
        ).fetchall()
    return {name for (name,) in found}


def test_an_empty_database_gets_the_schema(empty_database_dsn: str) -> None:
    code, lines = migrate(empty_database_dsn)
    assert (code, lines[-1]["message"]) == (0, "schema applied")
    assert {"instance", "token", "ready", "timer", "history", "penstock_schema"} <= tables(empty_database_dsn)


@pytest.mark.slow(reason="runs the command in a process")
def test_a_database_gets_only_its_missing_partitions(database_dsn: str) -> None:
    before = tables(database_dsn)
    migrate(database_dsn)
    made = tables(database_dsn) - before
    assert {name.rsplit("_", 2)[0] for name in made} == {"history", "journal", "audit"}
    before |= made
    code, lines = migrate(database_dsn)
    assert (code, lines[-1]["message"]) == (0, "the schema is up to date")
    assert tables(database_dsn) == before


def test_a_schema_of_another_version_is_refused_and_left_alone(database_dsn: str) -> None:
    with psycopg.connect(database_dsn) as connection:
        connection.execute("UPDATE penstock_schema SET version = 7000")
    code, lines = migrate(database_dsn)
    assert code == 1
    assert "schema version 7000" in lines[-1]["error"]


async def test_the_command_and_a_start_upgrade_in_turn(postgres_server: PostgresServer) -> None:
    async def nothing() -> None:
        pass

    with left_by(postgres_server, 2) as dsn:
        settings = Settings(postgres_dsn=Secret(dsn))
        start = DatabaseStart(settings, Database(dsn, max_connections=1), nothing)
        applied: list[Applied | None] = []

        def run_command() -> None:
            applied.append(run(settings))

        async def both_wait() -> bool:
            here = "(SELECT oid FROM pg_database WHERE datname = current_database())"
            waiting = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = {here}"
            return rows(dsn, waiting) == [(2,)]

        async with await TrioConnection.connect(dsn) as third, trio.open_nursery() as nursery:
            await third.fetch(SQL["lock_schema"])  # as whoever upgrades now
            nursery.start_soon(start.run, nothing)
            nursery.start_soon(trio.to_thread.run_sync, run_command)
            await wait_until(both_wait)
            assert rows(dsn, "SELECT max(version) FROM penstock_schema") == [(2,)]
            await third.fetch(SQL["unlock_schema"])
        assert [each and each.version for each in applied] == [SCHEMA_VERSION]
        versions = rows(dsn, "SELECT version FROM penstock_schema ORDER BY 1")
        assert versions == [(version,) for version in range(2, SCHEMA_VERSION + 1)]


def test_a_token_that_comes_first_leaves_the_audit_its_partitions(empty_database_dsn: str) -> None:
    api_tokens.new(Settings(postgres_dsn=Secret(empty_database_dsn)), "ops", grant_of([Role.VIEWER], None), None)
    assert rows(empty_database_dsn, "SELECT count(*) FROM penstock.audit") == [(1,)]
    assert rows(empty_database_dsn, "SELECT count(*) FROM penstock.audit_other") == [(0,)]


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query.encode()).fetchall()


@pytest.mark.slow(reason="runs the command in a process")
def test_a_database_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    code, lines = migrate(f"host={tmp_path} dbname=x")
    assert (code, lines[-1]["level"]) == (1, "error")


@pytest.mark.slow(reason="runs the command in a process")
def test_an_unreadable_dsn_is_an_error_without_its_password() -> None:
    code, lines = migrate("postgresql://u:geh@eim@h/x")
    assert (code, lines[-1]["level"]) == (1, "error")
    assert "eim" not in str(lines)


@pytest.mark.slow(reason="runs the command in a process")
def test_a_database_of_another_encoding_is_refused_and_left_alone(empty_database_dsn: str) -> None:
    latin_dsn = make_conninfo(empty_database_dsn, dbname="latin")
    with psycopg.connect(empty_database_dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        try:
            code, lines = migrate(latin_dsn)
            assert tables(latin_dsn) == set()
        finally:
            connection.execute("DROP DATABASE latin WITH (FORCE)")
    assert code == 1
    assert "encoding LATIN1" in lines[-1]["error"]


def test_an_account_without_rights_is_told_what_to_do(empty_database_dsn: str) -> None:
    with psycopg.connect(empty_database_dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE may_create_nothing LOGIN")
        try:
            code, lines = migrate(make_conninfo(empty_database_dsn, user="may_create_nothing"))
        finally:
            connection.execute("DROP ROLE may_create_nothing")
    assert code == 1
    assert "permission denied" in lines[-1]["error"]
    assert "`penstock migrate` with an account that may create tables" in lines[-1]["error"]


@pytest.mark.slow(reason="runs the command in a process")
def test_two_at_once_apply_the_schema_once(empty_database_dsn: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "WE_POSTGRES_DSN": empty_database_dsn}
    command = [sys.executable, "-m", "penstock", "migrate", "--config", os.devnull]
    both = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = "".join(process.communicate(timeout=120)[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert (said.count("schema applied"), said.count("the schema is up to date")) == (1, 1)


@pytest.mark.slow(reason="a PostgreSQL of its own")
def test_the_embedded_database_is_migrated_too(data_dir: Path) -> None:
    for said in ("schema applied", "the schema is up to date"):  # then that its PostgreSQL stopped
        code, lines = migrate(None, "--data-dir", str(data_dir))
        assert code == 0
        assert said in [line["message"] for line in lines]
