"""What an error says of the transaction: the server's ERROR is a proof that it was undone, all else is in doubt."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable

import psycopg
import pytest
import trio
from psycopg import errors as pg_errors

from penstock.store.db.connection import TrioConnection
from penstock.store.db.outcome import InDoubt
from tests.store.proxy import Proxy, messages

MARK = b"mark-of-this-test"
INSERT = (b"INSERT INTO t VALUES ($1) RETURNING x", (MARK.decode(),))
BEGIN, COMMIT = (b"BEGIN", ()), (b"COMMIT", ())


async def single(connection: TrioConnection) -> object:
    return await connection.fetch(*INSERT)


async def known(connection: TrioConnection) -> object:
    """One that the session has prepared, which goes another way (`TrioConnection._fetch_gen`)."""
    await connection.fetch(INSERT[0], ("before",))
    await connection.fetch("DELETE FROM t WHERE x = 'before'")
    return await connection.fetch(*INSERT)


async def implicit(connection: TrioConnection) -> object:
    return await connection.roundtrip([INSERT, (b"SELECT 1", ())])


async def explicit(connection: TrioConnection) -> object:
    return await connection.roundtrip([BEGIN, INSERT, COMMIT])


async def block(connection: TrioConnection) -> object:
    async with connection.transaction():
        return await connection.fetch(*INSERT)


OPERATIONS = [single, known, implicit, explicit, block]


@pytest.fixture
async def eyes(empty_database_dsn: str) -> AsyncGenerator[TrioConnection]:
    async with await TrioConnection.connect(empty_database_dsn) as connection:
        await connection.fetch("CREATE TABLE t (x text, UNIQUE (x) DEFERRABLE INITIALLY DEFERRED)")
        yield connection


@pytest.mark.parametrize("fatal", [True, False], ids=["terminated", "reset"])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_session_that_ends_within_the_answer_leaves_a_doubt(
    proxy: Proxy, eyes: TrioConnection, fatal: bool, operation: Callable[[TrioConnection], Awaitable[object]]
) -> None:
    """Wherever the answer breaks off, although the server has committed."""
    pattern = b"COMMIT\0" if operation is block else MARK
    for received in itertools.count():
        await eyes.fetch("DELETE FROM t")
        cut = proxy.cut_at(pattern, committed=True, received=received, fatal=fatal)
        async with await TrioConnection.connect(proxy.dsn) as connection:
            doubt: InDoubt | None = None
            try:
                await operation(connection)
            except InDoubt as error:
                doubt = error
            parts = messages(cut.answer)
            if doubt is None:
                assert received == len(parts)
                return
            assert connection.closed
            assert isinstance(doubt.__cause__, psycopg.Error)
            if operation is not block:  # of which psycopg says something of its own
                assert ("administrator" in str(doubt)) is fatal
            if operation in (single, known) and fatal:  # its rows are whole once its CommandComplete has come
                assert bool(doubt.rows) is any(part.startswith(b"C") for part in parts[:received])
        assert await eyes.fetch("SELECT count(*) FROM t") == [(1,)]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_server_error_is_proof_even_for_a_commit(
    eyes: TrioConnection, empty_database_dsn: str, operation: Callable[[TrioConnection], Awaitable[object]]
) -> None:
    """The constraint is looked at when the transaction commits."""
    await eyes.fetch(*INSERT)
    async with await TrioConnection.connect(empty_database_dsn) as connection:
        with pytest.raises(pg_errors.UniqueViolation):
            await operation(connection)
        assert not connection.closed
        assert await connection.fetch("SELECT count(*) FROM t") == [(1,)]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_session_terminated_within_a_statement_leaves_a_doubt(
    eyes: TrioConnection, empty_database_dsn: str, operation: Callable[[TrioConnection], Awaitable[object]]
) -> None:
    """The error is what the administrator did, not what could not be tidied up after it."""
    await eyes.fetch("BEGIN")
    await eyes.fetch("LOCK TABLE t")
    async with await TrioConnection.connect(empty_database_dsn) as connection, trio.open_nursery() as nursery:
        doubts: list[InDoubt] = []

        async def operate() -> None:
            with pytest.raises(InDoubt) as raised:
                await operation(connection)
            doubts.append(raised.value)

        nursery.start_soon(operate)
        while not await eyes.fetch(
            "SELECT FROM pg_locks WHERE NOT granted AND pid = $1", (connection.pgconn.backend_pid,)
        ):
            await trio.lowlevel.checkpoint()
        await eyes.fetch("SELECT pg_terminate_backend($1)", (connection.pgconn.backend_pid,))
    assert isinstance(doubts[0].__cause__, pg_errors.AdminShutdown)
    assert connection.closed
    await eyes.fetch("ROLLBACK")


async def test_an_error_after_the_commit_is_no_proof(eyes: TrioConnection, empty_database_dsn: str) -> None:
    async with await TrioConnection.connect(empty_database_dsn) as connection:
        with pytest.raises(InDoubt, match="division"):
            await connection.roundtrip([BEGIN, INSERT, COMMIT, (b"SELECT 1 / 0", ())])
    assert await eyes.fetch("SELECT count(*) FROM t") == [(1,)]


async def test_parameters_that_can_not_be_sent_leave_no_doubt(connection: TrioConnection) -> None:
    with pytest.raises(psycopg.DataError):
        await connection.fetch("SELECT $1::text", ("\0",))
    assert not connection.closed


async def test_a_connection_lost_before_the_commit_is_an_error(proxy: Proxy, eyes: TrioConnection) -> None:
    """psycopg leaves the block in silence then, and nothing is committed."""
    async with await TrioConnection.connect(proxy.dsn) as connection:
        with pytest.raises(psycopg.OperationalError, match="before the COMMIT"):
            async with connection.transaction():
                await connection.fetch(*INSERT)
                connection.close_nowait()


async def test_a_failed_statement_nobody_minded_is_an_error(connection: TrioConnection) -> None:
    with pytest.raises(pg_errors.InFailedSqlTransaction):
        async with connection.transaction():
            with pytest.raises(pg_errors.DivisionByZero):
                await connection.fetch("SELECT 1 / 0")
    assert await connection.fetch("SELECT 1") == [(1,)]


async def test_a_session_that_takes_no_writes_is_left(connection: TrioConnection) -> None:
    await connection.fetch("SET default_transaction_read_only = on")
    with pytest.raises(pg_errors.ReadOnlySqlTransaction):
        await connection.fetch("CREATE TABLE t ()")
    assert connection.closed
    assert connection.takes_no_writes
