"""What we rely on psycopg for, driven by Trio: the contract test to run before its version is changed."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest
import trio
from psycopg import errors as pg_errors
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from trio.testing import MockClock, wait_all_tasks_blocked

from penstock.store.db.connection import COMMIT_TIMEOUT_S, TrioConnection
from penstock.store.db.cursor import TrioCursor
from penstock.store.db.wait import CLEANUP_TIMEOUT_S
from tests.store.proxy import Proxy
from tests.waiting import wait_until

IDLE = pq.TransactionStatus.IDLE


async def running(other: TrioConnection, connection: TrioConnection) -> bool:
    """Whether the connection's backend executes something, seen anew also within a transaction of ``other``."""
    await other.fetch("SELECT pg_stat_clear_snapshot()")
    rows = await other.fetch(
        "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND state = 'active'", (connection.pgconn.backend_pid,)
    )
    return bool(rows)


# ------------------------------------------------------------------------------------------------------- connecting


async def test_a_cancel_does_not_block_the_event_loop() -> None:
    assert psycopg.capabilities.has_cancel_safe(), "libpq 17 or newer: cancelling must not block"


async def test_a_statement_has_postgres_own_placeholders_and_gives_rows(connection: TrioConnection) -> None:
    cursor = await connection.execute("SELECT $1::int, $2::jsonb", (1, '{"a": 1}'))
    assert isinstance(cursor, TrioCursor)
    assert await cursor.fetchone() == (1, {"a": 1})
    assert await connection.fetch("SELECT generate_series(1, 3)") == [(1,), (2,), (3,)]
    assert await connection.fetch("CREATE TABLE t (n int)") == []


async def test_it_connects_by_host_name_trying_its_addresses_in_turn(proxy: Proxy) -> None:
    async with await TrioConnection.connect(proxy.dsn) as connection:
        assert await connection.fetch("SELECT 1") == [(1,)]


async def test_it_goes_on_to_the_next_host_when_one_refuses(empty_database_dsn: str) -> None:
    host = conninfo_to_dict(empty_database_dsn)["host"]
    async with await TrioConnection.connect(empty_database_dsn, host=f"/nonexistent,{host}") as connection:
        assert await connection.fetch("SELECT 1") == [(1,)]


async def test_the_error_tells_of_all_hosts_when_none_answers() -> None:
    with pytest.raises(psycopg.OperationalError, match="/nonexistent2") as raised:
        await TrioConnection.connect("host=/nonexistent1,/nonexistent2")
    assert "/nonexistent1" in raised.value.__notes__[0]


async def test_a_host_that_does_not_exist_is_an_operational_error() -> None:
    with pytest.raises(psycopg.OperationalError, match="resolve"):
        await TrioConnection.connect("host=no-such-host.invalid")


async def test_a_server_that_accepts_and_says_nothing_times_out(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    outcome: list[BaseException] = []

    async def connect() -> None:
        try:
            await TrioConnection.connect(f"host=127.0.0.1 port={port} connect_timeout=7")
        except psycopg.OperationalError as error:
            outcome.append(error)

    async with trio.open_nursery() as connecting:
        connecting.start_soon(connect)
        silent, _ = await listener.accept()
        await silent.recv(1)  # its first packet: it waits for an answer from now on
        await wait_all_tasks_blocked(0.01)
        mock_clock.jump(7.1)
    assert isinstance(outcome[0], pg_errors.ConnectionTimeout)
    silent.close()
    listener.close()


# ------------------------------------------------------------------------------------------- parameters, preparation


@pytest.mark.parametrize(
    "values",
    [
        [1, 70_000, 2**40, None],
        [1.5, 2, None],
        [datetime(2026, 1, 1, tzinfo=UTC), None],
        [True, False, None],
        ["a", None],
    ],
    ids=["integers", "numbers", "times", "booleans", "texts"],
)
async def test_one_statement_is_prepared_once_whatever_its_values(
    connection: TrioConnection, values: list[object]
) -> None:
    column = {"int": "bigint", "float": "float8", "datetime": "timestamptz", "bool": "boolean", "str": "text"}
    await connection.fetch(b"CREATE TABLE t (v %s)" % column[type(values[0]).__name__].encode())
    for value in values:
        assert await connection.fetch("INSERT INTO t VALUES ($1) RETURNING v", (value,)) == [(value,)]
    assert await connection.fetch("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT%'") == [
        (1,)
    ]


async def test_a_statement_is_prepared_at_its_first_use(connection: TrioConnection) -> None:
    await connection.fetch("SELECT 42")
    assert await connection.fetch("SELECT count(*) FROM pg_prepared_statements WHERE statement = 'SELECT 42'") == [(1,)]


async def test_a_known_statement_gives_what_a_cursor_gives(connection: TrioConnection) -> None:
    """It is executed without one."""
    values = (7, 2.5, None, 'ä"', True, datetime(2026, 1, 1, tzinfo=UTC), b"\0\xff", '{"a": [1]}', "{1,NULL}")
    sql = (
        "SELECT $1::int, $2::float8, $3::text, $4::text, $5::bool, $6::timestamptz, $7::bytea, $8::jsonb, $9::bigint[]"
        " FROM generate_series(1, 2)"
    )
    by_cursor = await (await connection.execute(sql, values)).fetchall()
    assert await connection.fetch(sql, values) == by_cursor
    assert by_cursor[1] == (*values[:7], {"a": [1]}, [1, None])
    for _ in range(2):
        assert await connection.fetch("SELECT WHERE $1", (False,)) == []
        assert await connection.fetch("CREATE TEMPORARY TABLE IF NOT EXISTS t (n int)") == []


async def test_an_error_of_a_known_statement_is_the_servers(connection: TrioConnection) -> None:
    sql = "SELECT 1 / $1::int, $2::text"
    assert await connection.fetch(sql, (1, "a")) == [(1, "a")]
    for _ in range(2):
        with pytest.raises(pg_errors.DivisionByZero):
            await connection.fetch(sql, (0, "a"))
        with pytest.raises(psycopg.DataError, match="NUL"):
            await connection.fetch(sql, (1, "\0"))
        with pytest.raises(pg_errors.ProtocolViolation):
            await connection.fetch(sql, (1,))
        assert await connection.fetch(sql, (1, "b")) == [(1, "b")]


async def test_errors_of_a_known_statement_leave_it_prepared(connection: TrioConnection) -> None:
    """Prepared anew after each, the server would keep them all."""
    sql = "SELECT 1 / $1::int"
    for _ in range(3):
        assert await connection.fetch(sql, (1,)) == [(1,)]
        with pytest.raises(pg_errors.DivisionByZero):
            await connection.fetch(sql, (0,))
    kept = "SELECT count(*) FROM pg_prepared_statements WHERE statement = $1"
    assert await connection.fetch(kept, (sql,)) == [(1,)]


async def test_statements_that_psycopg_forgets_are_prepared_again(connection: TrioConnection) -> None:
    """As it does after ROLLBACK, as the server may have none of them."""
    assert await connection.fetch("SELECT 42") == [(42,)]
    await connection.fetch("BEGIN")
    await connection.fetch("ROLLBACK")
    assert await connection.fetch("SELECT count(*) FROM pg_prepared_statements WHERE statement = 'SELECT 42'") == [(0,)]
    for _ in range(2):
        assert await connection.fetch("SELECT 42") == [(42,)]


async def test_a_statement_out_of_date_fails_once(connection: TrioConnection) -> None:
    """As when a newer engine changes a type while this one is connected."""
    await connection.fetch("CREATE TEMPORARY TABLE t (n int)")
    assert await connection.fetch("SELECT n FROM t") == await connection.fetch("SELECT n FROM t") == []
    await connection.fetch("DO $$ BEGIN ALTER TABLE t ALTER n TYPE text; END $$")
    with pytest.raises(pg_errors.FeatureNotSupported):
        await connection.fetch("SELECT n FROM t")
    assert await connection.fetch("SELECT n FROM t") == []
    kept = "SELECT count(*) FROM pg_prepared_statements WHERE statement = 'SELECT n FROM t'"
    assert await connection.fetch(kept) == [(1,)]
    await connection.fetch("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
    with pytest.raises(pg_errors.InvalidSqlStatementName):
        await connection.fetch("SELECT n FROM t")
    assert await connection.fetch("SELECT n FROM t") == []


async def test_without_a_threshold_nothing_is_prepared(empty_database_dsn: str) -> None:
    async with await TrioConnection.connect(empty_database_dsn, prepare_threshold=None) as connection:
        await connection.fetch("SELECT $1::int", (1,))
        await connection.roundtrip([("SELECT $1::int", (1,))])
        assert await connection.fetch("SELECT count(*) FROM pg_prepared_statements") == [(0,)]


# ---------------------------------------------------------------------------------------------------- what psycopg can


async def test_a_transaction_commits_at_its_end_or_rolls_back(
    connection: TrioConnection, other: TrioConnection
) -> None:
    await connection.fetch("CREATE TABLE t (n int)")
    async with connection.transaction():
        await connection.fetch("INSERT INTO t VALUES (1)")
        assert await other.fetch("SELECT n FROM t") == []
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction():
                await connection.fetch("INSERT INTO t VALUES (2)")
                raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        async with connection.transaction():
            await connection.fetch("INSERT INTO t VALUES (3)")
            raise ZeroDivisionError
    async with connection.transaction():
        await connection.fetch("INSERT INTO t VALUES (4)")
        raise psycopg.Rollback
    assert await other.fetch("SELECT n FROM t") == [(1,)]
    assert connection.pgconn.transaction_status == IDLE


async def test_copy_moves_rows_in_and_out(connection: TrioConnection) -> None:
    await connection.fetch("CREATE TABLE t (n int, filler text)")
    cursor = connection.cursor()
    async with cursor.copy("COPY t FROM STDIN") as copy_in:
        for n in range(5000):
            await copy_in.write_row((n, "x" * 100))
    assert cursor.rowcount == 5000
    async with connection.cursor().copy("COPY t TO STDOUT") as copy_out:
        assert sum([int(row[0]) async for row in copy_out.rows()]) == 5000 * 4999 // 2


async def test_executemany_streams_and_server_cursors_work(connection: TrioConnection) -> None:
    await connection.fetch("CREATE TABLE t (n int)")
    await connection.cursor().executemany("INSERT INTO t VALUES ($1)", [(n,) for n in range(100)])
    streamed = [row[0] async for row in connection.cursor().stream("SELECT n FROM t ORDER BY n")]
    assert streamed == list(range(100))
    async with connection.transaction(), connection.cursor("name") as cursor:
        await cursor.execute("SELECT n FROM t WHERE n >= $1 ORDER BY n", (40,))
        assert await cursor.fetchmany(2) == [(40,), (41,)]


async def test_pipeline_mode_gives_each_statement_its_result(connection: TrioConnection) -> None:
    async with connection.pipeline():
        cursors = [await connection.execute("SELECT $1::int", (n,)) for n in range(10)]
        assert [await cursor.fetchone() for cursor in cursors] == [(n,) for n in range(10)]
    assert connection.pgconn.pipeline_status == pq.PipelineStatus.OFF


async def test_a_transaction_within_a_pipeline_is_refused(connection: TrioConnection) -> None:
    async with connection.pipeline():
        with pytest.raises(psycopg.NotSupportedError, match="roundtrip"):
            async with connection.transaction():
                raise AssertionError("entered")
    assert await connection.fetch("SELECT 1") == [(1,)]


async def test_two_tasks_on_one_connection_take_turns(connection: TrioConnection) -> None:
    answers: list[tuple[int]] = []

    async def ask(n: int) -> None:
        answers.extend(await connection.fetch("SELECT $1::int FROM pg_sleep(0.001)", (n,)))

    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(ask, n)
    assert sorted(answers) == [(n,) for n in range(20)]


async def test_a_large_answer_and_a_large_parameter_arrive_whole(connection: TrioConnection) -> None:
    text = "0123456789" * 1_000_000
    assert await connection.fetch("SELECT $1::text, length($1)", (text,)) == [(text, len(text))]
    assert await connection.roundtrip([("SELECT $1::text", (text,)), ("SELECT $1::text", (text,))]) == [[(text,)]] * 2


# ---------------------------------------------------------------------------------------------------- LISTEN and NOTIFY


async def test_notifications_arrive_in_order_with_their_payloads(
    connection: TrioConnection, other: TrioConnection
) -> None:
    await connection.fetch("LISTEN channel")
    received: list[str] = []

    async def listen() -> None:
        received.extend([notify.payload async for notify in connection.notifies(stop_after=100)])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        for n in range(100):
            await other.fetch("SELECT pg_notify('channel', $1)", (str(n),))
    assert received == [str(n) for n in range(100)]


async def test_a_notification_that_comes_while_nobody_listens_is_kept(
    connection: TrioConnection, other: TrioConnection
) -> None:
    await connection.fetch("LISTEN channel")
    await other.fetch("NOTIFY channel, 'early'")
    await connection.fetch("SELECT 1")  # reads it off the socket
    assert [notify.payload async for notify in connection.notifies(timeout=0)] == ["early"]


@pytest.mark.skipif(not hasattr(pg_errors, "_WaitTimeout"), reason="psycopg < 3.3.6 has no such time-out; nor have we")
async def test_listening_ends_at_its_timeout(connection: TrioConnection) -> None:
    await connection.fetch("LISTEN channel")
    assert [notify async for notify in connection.notifies(timeout=0.01)] == []
    assert await connection.fetch("SELECT 1") == [(1,)]


async def test_cancelled_listening_leaves_the_connection_usable(
    connection: TrioConnection, other: TrioConnection
) -> None:
    await connection.fetch("LISTEN channel")
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            async for _ in connection.notifies():
                nursery.cancel_scope.cancel()

        nursery.start_soon(listen)
        await other.fetch("NOTIFY channel")
    assert not connection.closed
    assert await connection.fetch("SELECT 1") == [(1,)]


async def test_an_idle_listener_is_never_woken(connection: TrioConnection, mock_clock: MockClock) -> None:
    await connection.fetch("LISTEN channel")
    steps = 0

    class CountSteps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal steps
            steps += task.name.endswith("listen")

    async def listen() -> None:
        async for _ in connection.notifies():
            raise AssertionError("nobody notified")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await wait_all_tasks_blocked(0.01)
        trio.lowlevel.add_instrument(counter := CountSteps())
        for _ in range(10):
            mock_clock.jump(3600)
            await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(counter)
        nursery.cancel_scope.cancel()
    assert steps == 0


# ------------------------------------------------------------------------------------------------ when things go wrong


async def test_closing_under_a_waiter_wakes_it_with_an_operational_error(
    connection: TrioConnection, other: TrioConnection
) -> None:
    errors: list[psycopg.OperationalError] = []

    async def wait() -> None:
        try:
            await connection.fetch("SELECT pg_sleep(60)")
        except psycopg.OperationalError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_until(lambda: running(other, connection))
        await connection.close()
    assert "closed by another task" in str(errors[0])
    assert connection.closed


async def test_a_killed_backend_is_an_operational_error(connection: TrioConnection, other: TrioConnection) -> None:
    await other.fetch("SELECT pg_terminate_backend($1, 10000)", (connection.pgconn.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        await connection.fetch("SELECT 1")
    assert connection.closed
    with pytest.raises(psycopg.OperationalError):
        await connection.fetch("SELECT 1")


async def test_a_killed_backend_does_not_hang_a_transactions_exit(
    connection: TrioConnection, other: TrioConnection
) -> None:
    with pytest.raises(psycopg.OperationalError):
        async with connection.transaction():
            await other.fetch("SELECT pg_terminate_backend($1, 10000)", (connection.pgconn.backend_pid,))
            await connection.fetch("SELECT 1")
    assert connection.closed


async def test_a_connection_whose_block_is_left_in_disorder_is_closed(empty_database_dsn: str) -> None:
    connection = await TrioConnection.connect(empty_database_dsn)
    with pytest.raises(psycopg.OperationalError, match="in progress"):
        async with connection:
            connection.pgconn.send_query(b"SELECT 1")
    assert connection.closed


async def test_a_commit_without_an_answer_has_an_unknown_outcome(proxy: Proxy, mock_clock: MockClock) -> None:
    async with await TrioConnection.connect(proxy.dsn) as connection:
        link = await proxy.wait_link(0)
        errors: list[psycopg.OperationalError] = []

        async def commit() -> None:
            try:
                async with connection.transaction():
                    await connection.fetch("SELECT 1")
                    link.hold()
                    proxy.hold_new = True
            except psycopg.OperationalError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await link.held.wait()
            mock_clock.jump(COMMIT_TIMEOUT_S + 0.1)  # the server is asked to cancel it, and does not answer that either
            await (await proxy.wait_link(1)).held.wait()
            mock_clock.jump(CLEANUP_TIMEOUT_S + 0.1)
        assert "took longer" in str(errors[0])
        assert connection.closed
        link.release()


async def test_begin_without_an_answer_is_an_error(proxy: Proxy, mock_clock: MockClock) -> None:
    async with await TrioConnection.connect(proxy.dsn) as connection:
        link = await proxy.wait_link(0)
        link.hold()
        proxy.hold_new = True
        errors: list[psycopg.OperationalError] = []

        async def begin() -> None:
            try:
                async with connection.transaction():
                    raise AssertionError("entered")
            except psycopg.OperationalError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin)
            await link.held.wait()
            mock_clock.jump(CLEANUP_TIMEOUT_S + 0.1)
            await (await proxy.wait_link(1)).held.wait()
            mock_clock.jump(CLEANUP_TIMEOUT_S + 0.1)
        assert "BEGIN" in str(errors[0])
        assert connection.closed
        link.release()
