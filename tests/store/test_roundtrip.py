"""Several statements in one network round trip."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors as pg_errors
from psycopg import pq

from penstock.store.db.connection import TrioConnection
from tests.store.proxy import Proxy


@pytest.fixture
async def table(connection: TrioConnection) -> None:
    await connection.fetch("CREATE TABLE t (n int PRIMARY KEY)")


async def test_each_statement_gives_its_rows(connection: TrioConnection) -> None:
    assert await connection.roundtrip(
        [
            ("BEGIN", ()),
            ("SELECT $1::int, $2::text", (1, "one")),
            ("SELECT generate_series(1, 3)", ()),
            ("SELECT 1 WHERE false", ()),
            ("COMMIT", ()),
        ]
    ) == [[], [(1, "one")], [(1,), (2,), (3,)], [], []]
    assert connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
    assert connection.pgconn.pipeline_status == pq.PipelineStatus.OFF


async def test_no_statements_are_no_rows(connection: TrioConnection) -> None:
    assert await connection.roundtrip([]) == []


async def test_all_statements_leave_in_one_packet(proxy: Proxy) -> None:
    async with await TrioConnection.connect(proxy.dsn) as connection:
        link = await proxy.wait_link(0)
        before = len(link.sent)
        await connection.roundtrip([("BEGIN", ()), ("SELECT $1::int", (1,)), ("SELECT 2", ()), ("COMMIT", ())])
        assert len(link.sent) == before + 1


async def test_a_transaction_spans_two_round_trips(
    connection: TrioConnection, other: TrioConnection, table: None
) -> None:
    await connection.roundtrip([("BEGIN", ()), ("INSERT INTO t VALUES (1)", ())])
    assert await other.fetch("SELECT n FROM t") == []
    await connection.roundtrip([("INSERT INTO t VALUES (2)", ()), ("COMMIT", ())])
    assert await other.fetch("SELECT n FROM t") == [(1,), (2,)]


async def test_without_begin_it_is_one_transaction_of_its_own(
    connection: TrioConnection, other: TrioConnection, table: None
) -> None:
    await connection.roundtrip([("INSERT INTO t VALUES (1)", ()), ("INSERT INTO t VALUES (2)", ())])
    with pytest.raises(pg_errors.UniqueViolation):
        await connection.roundtrip([("INSERT INTO t VALUES (3)", ()), ("INSERT INTO t VALUES (1)", ())])
    assert await other.fetch("SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    assert connection.pgconn.transaction_status == pq.TransactionStatus.IDLE


async def test_nothing_after_the_first_error_is_executed(
    connection: TrioConnection, other: TrioConnection, table: None
) -> None:
    with pytest.raises(pg_errors.DivisionByZero):
        await connection.roundtrip(
            [
                ("BEGIN", ()),
                ("INSERT INTO t VALUES (1)", ()),
                ("SELECT 1/0", ()),
                ("SELECT 'x'::int", ()),
                ("COMMIT", ()),
            ]
        )
    assert connection.pgconn.transaction_status == pq.TransactionStatus.INERROR
    await connection.rollback()
    assert await other.fetch("SELECT n FROM t") == []


async def test_a_commit_that_rolled_back_is_an_error(connection: TrioConnection, table: None) -> None:
    with pytest.raises(pg_errors.UniqueViolation):
        await connection.roundtrip([("BEGIN", ()), ("INSERT INTO t VALUES (1), (1)", ())])
    with pytest.raises(pg_errors.InFailedSqlTransaction, match="rolled it back"):
        await connection.roundtrip([(" commit", ())])
    with pytest.raises(pg_errors.UniqueViolation):
        await connection.roundtrip([("BEGIN", ()), ("INSERT INTO t VALUES (1), (1)", ())])
    assert await connection.roundtrip([("ROLLBACK", ())]) == [[]]


async def test_a_statement_not_prepared_after_an_error_works_later(connection: TrioConnection, table: None) -> None:
    statement = ("INSERT INTO t VALUES ($1) RETURNING n", (7,))
    with pytest.raises(pg_errors.DivisionByZero):
        await connection.roundtrip([("SELECT 1/0", ()), statement, statement])
    assert await connection.roundtrip([statement]) == [[(7,)]]
    assert await connection.fetch("INSERT INTO t VALUES ($1) RETURNING n", (8,)) == [(8,)]


async def test_a_bad_parameter_sends_and_changes_nothing(connection: TrioConnection, table: None) -> None:
    statement = ("INSERT INTO t VALUES ($1) RETURNING n", (7,))
    with pytest.raises(psycopg.DataError, match="NUL"):
        await connection.roundtrip([statement, ("SELECT $1::text", ("a\0b",))])
    assert await connection.fetch("SELECT n FROM t") == []
    assert await connection.roundtrip([statement]) == [[(7,)]]


async def test_it_needs_autocommit(empty_database_dsn: str) -> None:
    async with await TrioConnection.connect(empty_database_dsn, autocommit=False) as connection:
        with pytest.raises(psycopg.ProgrammingError, match="autocommit"):
            await connection.roundtrip([("SELECT 1", ())])


async def test_on_a_closed_connection_it_is_an_operational_error(connection: TrioConnection) -> None:
    await connection.close()
    with pytest.raises(psycopg.OperationalError):
        await connection.roundtrip([("SELECT 1", ())])


async def test_a_backend_killed_meanwhile_is_an_operational_error(
    connection: TrioConnection, other: TrioConnection
) -> None:
    with pytest.raises(psycopg.OperationalError):
        await connection.roundtrip(
            [("BEGIN", ()), ("SELECT pg_terminate_backend(pg_backend_pid(), 10000)", ()), ("COMMIT", ())]
        )
    assert connection.closed
    assert await other.fetch("SELECT 1") == [(1,)]
