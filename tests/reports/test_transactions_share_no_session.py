"""What a transactional step sets in its session is gone when another step gets the connection.

On d6953df1: after `tx.row_factory = dict_row` in one step the next one, of whatever run, got dictionaries; after `SET
timezone` it got other times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from penstock.durable import App, sleep, step, workflow
from tests.reports.test_transactions_whose_session_ends import place

__all__ = ["place"]

BOUND_S = 60.0
TRIES = 50
SETTINGS = """SELECT pg_backend_pid(), current_setting('timezone'), current_setting('statement_timeout'), current_user,
  current_setting('search_path'),
  (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
  (SELECT count(*) FROM pg_listening_channels()), to_regclass('pg_temp.kept') IS NULL,
  (SELECT count(*) FROM pg_cursors WHERE name = 'kept')"""


class Named(psycopg.Cursor[Any]):
    """A cursor of the program's own."""


def set_factories(tx: psycopg.Connection[Any]) -> None:
    tx.row_factory = dict_row
    tx.cursor_factory = Named


LEAVES: dict[str, Callable[[psycopg.Connection[Any]], object]] = {
    "factories": set_factories,
    "time zone": lambda tx: tx.execute("SET timezone = 'America/Lima'"),
    "time limit": lambda tx: tx.execute("SELECT set_config('statement_timeout', '59s', false)"),
    "schema": lambda tx: tx.execute("SET search_path = public, information_schema"),
    "advisory lock": lambda tx: tx.execute("SELECT pg_advisory_lock(17)"),
    "channel": lambda tx: tx.execute("LISTEN kept"),
    "temporary table": lambda tx: tx.execute("CREATE TEMP TABLE kept (a int)"),
    "cursor": lambda tx: tx.execute("DECLARE kept CURSOR WITH HOLD FOR SELECT 1"),
}


@pytest.mark.parametrize("what", LEAVES)
async def test_what_a_step_leaves_in_its_session_is_gone(place: tuple[str, str | None], what: str):
    @step.transaction(at=place[1])
    def read_settings(tx: psycopg.Connection[Any]) -> list[Any]:
        cursor = tx.execute(SETTINGS)
        row = cursor.fetchone()
        return [type(row).__name__, type(cursor).__name__, *row] if isinstance(row, tuple) else [type(row).__name__]

    @step.transaction(at=place[1])
    def leave(tx: psycopg.Connection[Any]) -> int:
        LEAVES[what](tx)
        return tx.info.backend_pid

    @workflow
    async def body() -> list[list[Any]]:
        before = await read_settings()
        for _ in range(TRIES):  # a step that has ended gives its connection back a moment later
            session = await leave()
            await sleep("50 ms")
            after = await read_settings()
            if session in after:
                return [before, after]
        raise AssertionError("another session each time")

    async with App(body, at=place[0]) as app:
        before, after = await (await app.start(body)).result(BOUND_S)
    assert before[:2] == after[:2] == ["tuple", "Cursor"]
    assert before[3:] == after[3:]
    assert before[7:] == [0, 0, True, 0]


async def test_an_idle_session_that_ended_costs_no_attempt(place: tuple[str, str | None]):
    pids: list[int] = []

    @step.transaction(at=place[1])
    def note(tx: psycopg.Connection[Any]) -> int:
        pids.append(tx.info.backend_pid)
        return len(pids)

    @step
    async def end() -> None:
        with psycopg.connect(place[1] or place[0], autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 30000)", (pids[-1],))

    @workflow
    async def body() -> list[int]:
        first = await note()
        await end()
        return [first, await note()]

    async with App(body, at=place[0]) as app:
        assert await (await app.start(body)).result(BOUND_S) == [1, 2]
    assert len(set(pids)) == 2
