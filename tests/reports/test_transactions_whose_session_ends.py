"""A step that is a transaction ends, also when its function or the server ends the transaction first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator

import psycopg
import pytest

from penstock.durable import App, Step, step, transaction, workflow
from penstock.durable.transaction import STEP_TABLE
from penstock.durable.workflow import Workflow
from tests.postgres import PostgresServer, apply_schema
from tests.shares import mostly_slow

BOUND_S = 60.0


@pytest.fixture(params=["journals", "another database"])
def place(
    request: pytest.FixtureRequest, database_dsn: str, postgres_server: PostgresServer
) -> Generator[tuple[str, str | None]]:
    """Where the runs are, and where the step's transaction is; there is a table ``noted`` in it."""
    if request.param == "journals":
        make_table(database_dsn)
        yield database_dsn, None
        return
    with postgres_server.database(apply_schema) as other:
        make_table(other)
        yield database_dsn, other


def make_table(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE noted (what text)")
        connection.execute(STEP_TABLE.encode())


def noted(place: tuple[str, str | None]) -> list[str]:
    with psycopg.connect(place[1] or place[0], autocommit=True) as connection:
        return [what for (what,) in connection.execute("SELECT what FROM noted ORDER BY what").fetchall()]


Ends = Callable[[psycopg.Connection], object]
"""What a function does with the transaction that it was given."""


def note_step(place: tuple[str, str | None], ends: Ends, calls: list[int], *, retries: int = 0) -> Step[[], str]:
    @step.transaction(at=place[1], retries=retries, first="1 ms")
    def note(tx: psycopg.Connection) -> str:
        calls.append(len(calls) + 1)
        tx.execute("INSERT INTO noted VALUES ('within')")
        ends(tx)
        return "noted"

    return note


def body_of(note: Step[[], str]) -> Workflow[[], str]:
    @workflow
    async def body() -> str:
        try:
            return await note()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return body


async def result_of(place: tuple[str, str | None], note: Step[[], str]) -> str:
    body = body_of(note)
    async with App(body, at=place[0]) as app:
        return await (await app.start(body)).result(BOUND_S)


def commit_and_raise(tx: psycopg.Connection) -> None:
    tx.execute("COMMIT")
    raise OSError("the mail server is away")


ENDED: dict[str, tuple[Ends, list[str]]] = {
    "close": (lambda tx: tx.close(), []),
    "close and go on": (lambda tx: (tx.close(), tx.execute("SELECT 1")), []),
    "ROLLBACK": (lambda tx: tx.execute("ROLLBACK"), []),
    "COMMIT": (lambda tx: tx.execute("COMMIT"), ["within"]),
    "COMMIT and work": (
        lambda tx: (tx.execute("COMMIT"), tx.execute("INSERT INTO noted VALUES ('z behind')")),
        ["within", "z behind"],
    ),
    "COMMIT, BEGIN": (lambda tx: (tx.execute("COMMIT"), tx.execute("BEGIN")), ["within"]),
    "ROLLBACK, BEGIN": (lambda tx: (tx.execute("ROLLBACK"), tx.execute("BEGIN")), []),
    "COMMIT AND CHAIN": (lambda tx: tx.execute("COMMIT AND CHAIN"), ["within"]),
    "one message": (lambda tx: tx.execute("COMMIT; BEGIN; INSERT INTO noted VALUES ('z undone')"), ["within"]),
    "commit and raise": (commit_and_raise, ["within"]),
}


@pytest.mark.parametrize("what", mostly_slow(ENDED, quick=[*ENDED][::3], reason="a run for each way to end"))
async def test_a_function_that_ends_its_transaction_fails_at_once(place: tuple[str, str | None], what: str):
    ends, left = ENDED[what]
    calls: list[int] = []
    found = await result_of(place, note_step(place, ends, calls, retries=3))
    assert "note (test_transactions_whose_session_ends.py:" in found
    assert "ended the transaction that Penstock had opened for it" in found
    assert (calls, noted(place)) == ([1], left)


async def test_savepoints_and_settings_are_the_functions_own(place: tuple[str, str | None]):
    def use(tx: psycopg.Connection) -> None:
        with tx.transaction():
            tx.execute("SET LOCAL timezone = 'Asia/Kolkata'")
        tx.execute("SAVEPOINT s")
        tx.execute("INSERT INTO noted VALUES ('undone')")
        tx.execute("ROLLBACK TO SAVEPOINT s")
        tx.execute("SET timezone = 'America/Lima'")

    calls: list[int] = []
    assert await result_of(place, note_step(place, use, calls)) == "noted"
    assert (calls, noted(place)) == ([1], ["within"])


def idle(tx: psycopg.Connection) -> None:
    """The server ends this session before the function is done."""
    tx.execute("SET LOCAL idle_in_transaction_session_timeout = '1ms'")
    with psycopg.connect(tx.info.dsn, password=tx.info.password, autocommit=True) as other:
        while other.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (tx.info.backend_pid,)).fetchone():
            pass


def swallow(tx: psycopg.Connection) -> None:
    with pytest.raises(psycopg.OperationalError):
        tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")


SERVER_ENDS: dict[str, Ends] = {
    "idle too long": idle,
    "terminated": lambda tx: tx.execute("SELECT pg_terminate_backend(pg_backend_pid())"),
    "terminated and swallowed": swallow,
}


@pytest.mark.parametrize("what", SERVER_ENDS)
async def test_a_session_ended_each_time_fails_the_step(
    place: tuple[str, str | None], what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(transaction, "PAUSE_S", 0.01)
    monkeypatch.setattr(transaction, "LOST_MAX_S", 0.2)
    calls: list[int] = []
    with caplog.at_level(logging.WARNING, "penstock.durable"):
        found = await result_of(place, note_step(place, SERVER_ENDS[what], calls, retries=1))
    assert found.startswith("StepFailed: ")
    assert noted(place) == []
    lines = [record.getMessage() for record in caplog.records]
    lost = [line for line in lines if "the session of transaction 'note' at /0 ended before its COMMIT" in line]
    assert len(lost) >= 2
    assert len([line for line in lines if "failed, attempt 1 of 2" in line]) == 1
    assert len(calls) == len(lost) + 2


async def test_a_commit_that_ends_its_session_fails_the_step(
    place: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
):
    with psycopg.connect(place[1] or place[0], autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
        )
        connection.execute(
            "CREATE CONSTRAINT TRIGGER ends AFTER INSERT ON noted DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION ends()"
        )
    monkeypatch.setattr(transaction, "PAUSE_S", 0.01)
    monkeypatch.setattr(transaction, "LOST_MAX_S", 0.2)
    calls: list[int] = []
    found = await result_of(place, note_step(place, lambda tx: None, calls))
    assert found.startswith("StepFailed: ")
    assert len(calls) > 1
    assert noted(place) == []
