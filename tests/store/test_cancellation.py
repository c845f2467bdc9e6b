"""Cancellation at any point leaves a connection usable or closed: never an answer late, never in a transaction."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress

import psycopg
import pytest
import trio
import trio.testing
from psycopg import pq
from trio.testing import MockClock

from penstock.store.db.connection import RECANCEL_INTERVAL_S, TrioConnection
from penstock.store.db.pool import Pool
from penstock.store.db.wait import CLEANUP_TIMEOUT_S
from tests.store.cancelling import CancelAtStep, cancel_after
from tests.store.proxy import Proxy
from tests.store.test_connection import running
from tests.waiting import wait_until

Operation = Callable[[TrioConnection, int], Awaitable[None]]

PAUSE = ("SELECT pg_sleep(0.0005)", ())
"""Else a server on the same machine has often answered before we begin to wait."""


async def in_transaction(connection: TrioConnection, n: int) -> None:
    async with connection.transaction():
        assert await connection.fetch("SELECT $1::int", (n,)) == [(n,)]
        await connection.fetch("UPDATE account SET amount = amount - $1 WHERE id = 1", (n,))
        await connection.fetch("UPDATE account SET amount = amount + $1 WHERE id = 2", (n,))


async def in_nested_transactions(connection: TrioConnection, n: int) -> None:
    async with connection.transaction():
        await connection.fetch("UPDATE account SET amount = amount - $1 WHERE id = 1", (n,))
        async with connection.transaction():
            await connection.fetch("UPDATE account SET amount = amount + $1 WHERE id = 2", (n,))


async def in_round_trips(connection: TrioConnection, n: int) -> None:
    rows = await connection.roundtrip(
        [("BEGIN", ()), ("SELECT id FROM account ORDER BY id FOR UPDATE", ()), ("SELECT $1::int", (n,)), PAUSE]
    )
    assert rows == [[], [(1,), (2,)], [(n,)], [("",)]]
    await connection.roundtrip(
        [
            ("UPDATE account SET amount = amount - $1 WHERE id = 1", (n,)),
            PAUSE,
            ("UPDATE account SET amount = amount + $1 WHERE id = 2", (n,)),
            ("COMMIT", ()),
        ]
    )


async def in_one_round_trip(connection: TrioConnection, n: int) -> None:
    await connection.roundtrip(
        [
            ("UPDATE account SET amount = amount - $1 WHERE id = 1", (n,)),
            PAUSE,
            ("UPDATE account SET amount = amount + $1 WHERE id = 2", (n,)),
        ]
    )


async def in_a_pipeline(connection: TrioConnection, n: int) -> None:
    async with connection.pipeline():
        await connection.execute("UPDATE account SET amount = amount - $1 WHERE id = 1", (n,))
        await connection.execute("UPDATE account SET amount = amount + $1 WHERE id = 2", (n,))
        cursor = await connection.execute("SELECT $1::int", (n,))
        assert await cursor.fetchone() == (n,)


async def by_executemany(connection: TrioConnection, n: int) -> None:
    await connection.cursor().executemany(
        "UPDATE account SET amount = amount + $1 WHERE id = $2", [(-n, 1), (n, 2), (0, 1), (0, 2)]
    )


async def by_copy(connection: TrioConnection, n: int) -> None:
    async with connection.cursor().copy("COPY copied FROM STDIN") as copy:
        for value in (n, -n):
            await copy.write_row((value,))
            for _ in range(20):
                await copy.write("0\n" * 5000)
    rows = 0
    async with connection.cursor().copy("COPY (SELECT generate_series(1, 5000)) TO STDOUT") as copy:
        while await copy.read_row() is not None:
            rows += 1
            if rows % 500 == 0:
                await trio.lowlevel.checkpoint()
    assert rows == 5000


async def by_streaming(connection: TrioConnection, n: int) -> None:
    rows = 0
    sql = "SELECT pg_sleep(0.00001) FROM generate_series(1, $1::int)"
    async with aclosing(connection.cursor().stream(sql, (50 + n % 7,))) as stream:  # pyright: ignore[reportArgumentType] - a generator
        async for _ in stream:
            rows += 1
            await trio.lowlevel.checkpoint()
    assert rows == 50 + n % 7


async def with_a_server_cursor(connection: TrioConnection, n: int) -> None:
    async with connection.transaction(), connection.cursor("name") as cursor:
        await cursor.execute("SELECT generate_series(1, $1::int)", (50 + n,))
        assert len([row async for row in cursor]) == 50 + n


async def failing(connection: TrioConnection, n: int) -> None:
    with suppress(psycopg.errors.DivisionByZero):
        await connection.roundtrip([("BEGIN", ()), PAUSE, ("SELECT $1::int / 0", (n,)), ("COMMIT", ())])


OPERATIONS = [
    in_transaction, in_nested_transactions, in_round_trips, in_one_round_trip, in_a_pipeline, by_executemany, by_copy,
    by_streaming, with_a_server_cursor, failing,
]  # fmt: skip

ids = [operation.__name__ for operation in OPERATIONS]


async def prepare(pool: Pool) -> None:
    async with pool.connection() as connection:
        await connection.fetch("CREATE TABLE account (id int PRIMARY KEY, amount bigint)")
        await connection.fetch("CREATE TABLE copied (n int)")
        await connection.fetch("INSERT INTO account VALUES (1, 0), (2, 0)")


async def perform(operation: Operation, connection: TrioConnection, n: int) -> None:
    """Whatever becomes of it, the connection is not left in the middle of something."""
    try:
        await operation(connection, n)
    finally:
        if not connection.closed:
            assert connection.pgconn.transaction_status != pq.TransactionStatus.ACTIVE
            assert connection.pgconn.pipeline_status == pq.PipelineStatus.OFF


async def check(pool: Pool, n: int) -> None:
    """The pool's one connection is at home, answers what it is asked, and no transfer was done by half."""
    statistics = pool.statistics()
    assert (statistics.busy, statistics.waiting) == (0, 0)
    async with pool.connection() as connection:
        assert connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        assert connection.pgconn.pipeline_status == pq.PipelineStatus.OFF
        assert await connection.fetch("SELECT $1::int + 1000000", (n,)) == [(n + 1_000_000,)]
        assert await connection.roundtrip([("SELECT $1::int", (n,)), ("SELECT 'b'", ())]) == [[(n,)], [("b",)]]


async def check_sums(pool: Pool, operation: Operation) -> None:
    async with pool.connection() as connection:
        [(copied,)] = await connection.fetch("SELECT coalesce(sum(n), 0) FROM copied")
        [(total,)] = await connection.fetch("SELECT sum(amount) FROM account")
    assert copied == 0
    if operation not in (in_a_pipeline, by_executemany):  # several transactions if interrupted: psycopg syncs there
        assert total == 0


@pytest.mark.parametrize("operation", OPERATIONS, ids=ids)
async def test_cancelled_at_each_of_its_waits(operation: Operation, empty_database_dsn: str) -> None:
    async with Pool(empty_database_dsn, max_size=1) as pool:
        await prepare(pool)
        steps = 0
        while True:
            with CancelAtStep(steps) as scope:
                async with pool.connection() as connection:
                    await perform(operation, connection, steps)
            await check(pool, steps)
            if not scope.cancelled_caught:
                break
            steps += 1 if steps < 100 else 25  # COPY and streams wait hundreds of times, alike
        assert steps > 0
        await check_sums(pool, operation)


@pytest.mark.slow(reason="hundreds of cancellations")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("operation", OPERATIONS, ids=ids)
async def test_cancelled_at_any_time(operation: Operation, seed: int, empty_database_dsn: str) -> None:
    chance = random.Random(seed)
    cancelled = 0
    takes_s = 0.0
    async with Pool(empty_database_dsn, max_size=1) as pool:
        await prepare(pool)
        for _ in range(2):
            started = trio.current_time()
            async with pool.connection() as connection:
                await operation(connection, 0)
            takes_s = trio.current_time() - started
        n = 0
        while n < 60 or cancelled <= 5:  # each one that finishes brings the next cancels nearer: it ends
            finished = False
            started = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_after, nursery.cancel_scope, chance.random() * takes_s)
                async with pool.connection() as connection:
                    await perform(operation, connection, n)
                finished = True
                nursery.cancel_scope.cancel()
            cancelled += not finished
            # aim at its whole duration, whatever the machine did while it was measured
            takes_s = min(takes_s, trio.current_time() - started) * 0.9 if finished else takes_s * 1.1
            await check(pool, n)
            n += 1
        await check_sums(pool, operation)


async def test_a_cancelled_statement_stops_on_the_server_and_connections_survive(
    connection: TrioConnection, other: TrioConnection
) -> None:
    pid = connection.pgconn.backend_pid
    for statement in ("SELECT pg_sleep(60)", "SELECT count(*) FROM generate_series(1, 1e12::bigint)"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.fetch, statement)
            await wait_until(lambda: running(other, connection))
            nursery.cancel_scope.cancel()
        assert not await running(other, connection)
        assert await connection.fetch("SELECT pg_backend_pid()") == [(pid,)]


async def test_a_wait_for_a_lock_is_stopped_on_the_server(connection: TrioConnection, other: TrioConnection) -> None:
    await other.fetch("CREATE TABLE t (n int)")
    async with other.transaction():
        await other.fetch("LOCK TABLE t")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.roundtrip, [("BEGIN", ()), ("INSERT INTO t VALUES (1)", ()), ("COMMIT", ())])  # pyright: ignore[reportArgumentType] - a list of statements
            await wait_until(lambda: running(other, connection))
            nursery.cancel_scope.cancel()
    await connection.rollback()
    assert await other.fetch("SELECT n FROM t") == []


async def test_a_cancel_between_preparing_and_executing_is_repeated(proxy: Proxy, mock_clock: MockClock) -> None:
    async with await TrioConnection.connect(proxy.dsn) as connection:
        link = await proxy.wait_link(0)
        link.hold()  # the answer to PREPARE: the server is idle when the cancel comes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.fetch, "SELECT pg_sleep(60)")
            await link.held.wait()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await (await proxy.wait_link(1)).ended.wait()
                link.release()
                async with await TrioConnection.connect(proxy.dsn) as other:
                    await wait_until(lambda: running(other, connection))
                mock_clock.jump(RECANCEL_INTERVAL_S + 0.01)
        assert await connection.fetch("SELECT 1") == [(1,)]


async def test_a_connection_whose_statement_cannot_be_cancelled_is_closed(proxy: Proxy, mock_clock: MockClock) -> None:
    connection = await TrioConnection.connect(proxy.dsn)
    link = await proxy.wait_link(0)
    link.hold()
    proxy.hold_new = True
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.fetch, "SELECT 1")
            await link.held.wait()
            scope.cancel()
            with trio.CancelScope(shield=True):
                await (await proxy.wait_link(1)).held.wait()
                mock_clock.jump(CLEANUP_TIMEOUT_S + 0.1)
    assert scope.cancelled_caught
    assert connection.closed
    link.release()


async def test_a_transaction_cancelled_in_its_block_is_rolled_back(
    connection: TrioConnection, other: TrioConnection
) -> None:
    await connection.fetch("CREATE TABLE t (n int)")
    with trio.CancelScope() as scope:
        async with connection.transaction():
            await connection.fetch("INSERT INTO t VALUES (1)")
            scope.cancel()
            await trio.sleep_forever()
    assert connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
    assert await other.fetch("SELECT n FROM t") == []


async def test_a_transaction_left_before_the_cancel_is_committed(
    connection: TrioConnection, other: TrioConnection
) -> None:
    await connection.fetch("CREATE TABLE t (n int)")
    with trio.CancelScope() as scope:
        async with connection.transaction():
            await connection.fetch("INSERT INTO t VALUES (1)")
            scope.cancel()
    assert await other.fetch("SELECT n FROM t") == [(1,)]


async def test_a_commit_that_takes_its_time_is_not_abandoned(connection: TrioConnection, other: TrioConnection) -> None:
    await connection.fetch("CREATE TABLE t (n int)")
    await connection.fetch(
        "CREATE FUNCTION check_slowly() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'"
    )
    await connection.fetch(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION check_slowly()"
    )

    async def insert() -> None:
        async with connection.transaction():
            await connection.fetch("INSERT INTO t VALUES (1)")

    async def in_commit() -> bool:
        sql = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND query = 'COMMIT' AND wait_event = 'advisory'"
        return bool(await other.fetch(sql, (connection.pgconn.backend_pid,)))

    await other.fetch("SELECT pg_advisory_lock(1)")  # so long the COMMIT takes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(insert)
        await wait_until(in_commit)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            await other.fetch("SELECT pg_advisory_unlock(1)")
    assert await other.fetch("SELECT n FROM t") == [(1,)]


async def test_a_cancelled_copy_writes_nothing(connection: TrioConnection, other: TrioConnection) -> None:
    await connection.fetch("CREATE TABLE t (n int)")
    with trio.CancelScope() as scope:
        async with connection.cursor().copy("COPY t FROM STDIN") as copy:
            await copy.write("1\n" * 100_000)
            scope.cancel()
            await trio.sleep_forever()
    assert await other.fetch("SELECT n FROM t") == []
    assert connection.closed or await connection.fetch("SELECT 1") == [(1,)]


async def test_a_cancelled_connect_leaves_no_socket(empty_database_dsn: str) -> None:
    await (await TrioConnection.connect(empty_database_dsn)).close()  # whatever is opened once is open from here on
    before = len(os.listdir("/proc/self/fd"))
    steps = 0
    while True:
        with CancelAtStep(steps) as scope:
            await (await TrioConnection.connect(empty_database_dsn)).close()
        if not scope.cancelled_caught:
            break
        steps += 1
    assert steps > 2
    assert len(os.listdir("/proc/self/fd")) == before
