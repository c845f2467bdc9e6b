"""Test databases refuse a change of state that the table of transitions lacks."""

from __future__ import annotations

import psycopg
import pytest

from penstock.core.rules.state import TokenState
from penstock.testing.machine import REFUSED

ATTEMPT = """
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  RETURN NULL;
EXCEPTION WHEN others THEN
  RETURN SQLSTATE;
END $$"""


@pytest.fixture
def connection(database_dsn: str):
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO token (id, instance_id, step, seq, entered_at, state) VALUES (1, 1, 0, 1, now(), 2)"
        )
        connection.execute("INSERT INTO instance (id, started_at, definition, vars) VALUES (1, now(), 1, '{}')")
        connection.execute(ATTEMPT)
        yield connection


def refused(connection, statement: str) -> bool:
    found = connection.execute("SELECT error FROM attempt(%s) AS error", (statement,)).fetchone()[0]
    assert found in (None, REFUSED)
    return found is not None


def test_a_token_stays_within_its_execution_by_the_table(connection):
    assert refused(connection, "UPDATE token SET state = 4")  # PARKED to BACKOFF
    assert connection.execute("SELECT state FROM token").fetchone() == (TokenState.PARKED,)
    assert not refused(connection, "UPDATE token SET state = 6")


def test_a_token_enters_a_step_by_the_table(connection):
    assert refused(connection, "UPDATE token SET seq = 2, state = 4")
    assert not refused(connection, "UPDATE token SET seq = 2, state = 0")


def test_a_token_comes_to_be_in_few_states(connection):
    born = "INSERT INTO token (id, instance_id, step, seq, entered_at, state) VALUES ({0}, 1, 0, {0}, now(), {1})"
    assert refused(connection, born.format(2, int(TokenState.BACKOFF)))
    assert refused(connection, born.format(2, int(TokenState.DISPATCHED)))
    assert not refused(connection, born.format(2, int(TokenState.READY)))


def test_an_instance_comes_to_be_active(connection):
    born = (
        "INSERT INTO instance (id, started_at, ended_at, definition, vars, status) VALUES (2, now(), now(), 1, '{}', 1)"
    )
    assert refused(connection, born)


def test_nothing_leads_out_of_a_completed_instance(connection):
    assert not refused(connection, "UPDATE instance SET status = 1, ended_at = now()")
    assert refused(connection, "UPDATE instance SET status = 0, ended_at = NULL")
