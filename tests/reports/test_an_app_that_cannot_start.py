"""What keeps an App from starting is one line that says what to do, not the groups of our nurseries."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import trio
from psycopg import conninfo, sql

from penstock.durable import App, workflow
from penstock.errors import PenstockError
from tests.postgres import REPOSITORY

PROGRAM = """
import sys
from penstock.durable import App, workflow

@workflow
async def order() -> str:
    return "done"

app = App(order, at={at!r}, name="shop", **{options!r})
app.main() if sys.argv[1] == "main" else app.run(order)
"""


def failing(tmp_path: Path, verb: str, at: str, **options: object) -> str:
    """What the program says last; nothing else but lines of the log stands before."""
    (tmp_path / "program.py").write_text(PROGRAM.format(at=at, options=options))
    done = subprocess.run(
        [sys.executable, "program.py", verb], cwd=tmp_path, text=True, capture_output=True, timeout=120, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": f"{REPOSITORY / 'src'}",
             "WE_OUTAGE_WAIT_SECONDS": "1"},
    )  # fmt: skip
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr, done.stderr
    assert "Group" not in done.stderr, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("penstock: the App can't start: "), done.stderr
    return last.removeprefix("penstock: the App can't start: ")


@pytest.fixture
def powerless(database_dsn: str) -> str:
    """A role that may connect and do nothing else."""
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS powerless")
        connection.execute("CREATE ROLE powerless LOGIN")
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO powerless").format(name))
    return conninfo.make_conninfo(database_dsn, user="powerless")


@pytest.mark.slow(reason="a program for each cause")
@pytest.mark.parametrize("verb", ["main", "run"])
def test_the_last_line_says_what_to_do(tmp_path: Path, database_dsn: str, verb: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reported = failing(tmp_path, verb, database_dsn, rest_port=port)
        assert str(port) in reported
        assert "taken by another process" in reported


@pytest.mark.slow(reason="a program for each cause")
def test_a_role_without_rights_is_named(tmp_path: Path, database_dsn: str, powerless: str):
    reported = failing(tmp_path, "main", powerless)
    assert reported.startswith("permission denied for "), reported
    assert reported.endswith(
        "the role 'powerless' does not own Penstock's tables. Connect as the role that owns them: the one that ran"
        " `penstock migrate`"
    )
    with psycopg.connect(database_dsn, autocommit=True) as connection:  # it may look, and no more
        connection.execute("GRANT pg_read_all_data TO powerless")
    assert "the role 'powerless' does not own" in failing(tmp_path, "run", powerless)


@pytest.mark.slow(reason="a program for each cause")
def test_no_tables_and_no_database_are_reported(tmp_path: Path, empty_database_dsn: str):
    assert failing(tmp_path, "main", empty_database_dsn).startswith("the database has none of Penstock's tables: run")
    nowhere = conninfo.make_conninfo(empty_database_dsn, dbname="no_such_database")
    assert '"no_such_database" does not exist' in failing(tmp_path, "main", nowhere)


async def test_an_error_at_the_start_comes_alone(powerless: str):
    """In a program of its own loop and in a thread, too: raised, without groups around it."""

    @workflow
    async def order() -> None: ...

    with pytest.raises(PenstockError, match="the role 'powerless' does not own Penstock's tables"):
        async with App(order, at=powerless, name="shop"):
            pass

    def in_thread() -> None:
        with App(order, at=powerless, name="shop").in_thread():
            pass

    with pytest.raises(PenstockError, match="the role 'powerless' does not own Penstock's tables"):
        await trio.to_thread.run_sync(in_thread)
