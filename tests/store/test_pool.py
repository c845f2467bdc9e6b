from __future__ import annotations

import random
from functools import partial

import psycopg
import pytest
import trio
from psycopg import pq
from trio.testing import MockClock, wait_all_tasks_blocked

from penstock.store.db.connection import TrioConnection
from penstock.store.db.outcome import InDoubt
from penstock.store.db.pool import Pool
from penstock.store.db.pool_errors import PoolClosed, PoolTimeout
from tests.store.proxy import Proxy
from tests.waiting import wait_until


async def backend_of(pool: Pool) -> int:
    async with pool.connection() as connection:
        return connection.pgconn.backend_pid


async def kill(other: TrioConnection, pid: int) -> None:
    """End a backend and wait until it is gone."""
    assert await other.fetch("SELECT pg_terminate_backend($1, 10000)", (pid,)) == [(True,)]


# ------------------------------------------------------------------------------------------------------- handing out


async def test_connections_are_made_when_needed_and_used_again(empty_database_dsn: str) -> None:
    async with Pool(empty_database_dsn, max_size=5) as pool:
        assert pool.statistics().made == 0
        first = await backend_of(pool)
        assert await backend_of(pool) == first
        statistics = pool.statistics()
        assert (statistics.made, statistics.idle, statistics.busy, statistics.acquired) == (1, 1, 0, 2)


async def test_it_opens_with_its_minimum(empty_database_dsn: str) -> None:
    async with Pool(empty_database_dsn, max_size=5, min_size=3) as pool:
        statistics = pool.statistics()
        assert (statistics.made, statistics.idle) == (3, 3)


async def test_never_more_than_its_maximum_are_out(empty_database_dsn: str, other: TrioConnection) -> None:
    most = 0

    async def work(pool: Pool) -> None:
        nonlocal most
        async with pool.connection() as connection:
            most = max(most, pool.statistics().busy)
            await connection.fetch("SELECT pg_sleep(0.002)")

    async with Pool(empty_database_dsn, max_size=3) as pool:
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(work, pool)
        statistics = pool.statistics()
    assert most == 3
    assert (statistics.made, statistics.acquired, statistics.timeouts) == (3, 30, 0)
    assert statistics.waited >= 30 - 3
    assert statistics.waited_s > 0


async def test_who_goes_ahead_is_served_first_but_not_alone(empty_database_dsn: str) -> None:
    order: list[str] = []

    async def work(pool: Pool, name: str) -> None:
        async with pool.connection(ahead=name.startswith("a")):
            order.append(name)
            await trio.lowlevel.checkpoint()

    async with Pool(empty_database_dsn, max_size=1) as pool, trio.open_nursery() as nursery, pool.connection():
        for name in ("r1", "r2", "r3", "a1", "a2", "a3", "a4", "a5"):
            nursery.start_soon(work, pool, name)
            await wait_all_tasks_blocked()
        assert pool.statistics().waiting == 8
    assert order == ["a1", "a2", "a3", "r1", "a4", "a5", "r2", "r3"]


async def test_who_waits_longest_is_served_first(empty_database_dsn: str) -> None:
    order: list[int] = []

    async def work(pool: Pool, n: int) -> None:
        async with pool.connection():
            order.append(n)
            await trio.lowlevel.checkpoint()

    async with Pool(empty_database_dsn, max_size=1) as pool, trio.open_nursery() as nursery, pool.connection():
        for n in range(10):
            nursery.start_soon(work, pool, n)
            await wait_all_tasks_blocked()
        assert pool.statistics().waiting == 10
    assert order == list(range(10))


async def test_a_newcomer_overtakes_no_waiter_with_a_promised_connection(
    empty_database_dsn: str,
) -> None:
    order: list[str] = []

    async def work(pool: Pool, name: str) -> None:
        async with pool.connection():
            order.append(name)

    async with Pool(empty_database_dsn, max_size=1) as pool, trio.open_nursery() as nursery:
        connection = await pool.acquire()
        nursery.start_soon(work, pool, "waiter")
        await wait_all_tasks_blocked()
        await pool.release(connection)
        await work(pool, "newcomer")
    assert order == ["waiter", "newcomer"]


async def test_the_connection_used_last_is_handed_out_first(empty_database_dsn: str) -> None:
    async with Pool(empty_database_dsn, max_size=3, min_size=3) as pool:
        connections = [await pool.acquire() for _ in range(3)]
        for connection in connections:
            await pool.release(connection)
        assert [await pool.acquire() for _ in range(3)] == connections[::-1]
        for connection in connections:
            await pool.release(connection)


async def test_each_connection_is_configured_once_before_it_is_handed_out(empty_database_dsn: str) -> None:
    configured: list[TrioConnection] = []

    async def configure(connection: TrioConnection) -> None:
        await connection.fetch("SET enable_seqscan = off")
        configured.append(connection)

    async with Pool(empty_database_dsn, max_size=2, configure=configure) as pool:
        async with pool.connection() as one, pool.connection() as two:
            assert configured == [one, two]
            assert await two.fetch("SHOW enable_seqscan") == [("off",)]
        async with pool.connection():
            assert len(configured) == 2


async def test_statements_are_prepared_only_if_the_pool_says_so(empty_database_dsn: str) -> None:
    for threshold, prepared in ((0, True), (None, False)):
        pool = Pool(empty_database_dsn, max_size=1, prepare_threshold=threshold)
        async with pool, pool.connection() as connection:
            await connection.fetch("SELECT 42")
            rows = await connection.fetch("SELECT name FROM pg_prepared_statements WHERE statement = 'SELECT 42'")
            assert bool(rows) is prepared


async def test_a_pool_that_cannot_hold_its_minimum_is_refused() -> None:
    for sizes in ((0, 0), (2, 3), (3, -1)):
        with pytest.raises(ValueError, match="connections"):
            Pool("", max_size=sizes[0], min_size=sizes[1])


# -------------------------------------------------------------------------------------------------------- taking back


async def test_a_transaction_left_open_is_rolled_back(empty_database_dsn: str, other: TrioConnection) -> None:
    await other.fetch("CREATE TABLE t (n int)")
    async with Pool(empty_database_dsn, max_size=1) as pool:
        async with pool.connection() as connection:
            await connection.roundtrip([("BEGIN", ()), ("INSERT INTO t VALUES (1)", ())])
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with pool.connection() as connection:
                await connection.roundtrip([("BEGIN", ()), ("SELECT 1/0", ())])
        async with pool.connection() as connection:
            assert connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
            assert await connection.fetch("SELECT n FROM t") == []
        assert pool.statistics().made == 1


async def test_a_transaction_is_rolled_back_though_its_task_is_cancelled(proxy: Proxy, other: TrioConnection) -> None:
    await other.fetch("CREATE TABLE t (n int)")
    async with Pool(proxy.dsn, max_size=1) as pool:
        with trio.CancelScope() as scope:
            async with pool.connection() as connection:
                await connection.roundtrip([("BEGIN", ()), ("INSERT INTO t VALUES (1)", ())])
                scope.cancel()
                await trio.sleep_forever()
        async with pool.connection() as connection:
            assert connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        assert pool.statistics().made == 1
        assert len(proxy.links) == 1  # no connection to cancel the ROLLBACK
    assert await other.fetch("SELECT n FROM t") == []


async def test_a_connection_returned_in_the_middle_is_closed(empty_database_dsn: str) -> None:
    async with Pool(empty_database_dsn, max_size=1) as pool:
        async with pool.connection() as connection:
            connection.pgconn.send_query(b"SELECT 1")
        assert connection.closed
        assert await backend_of(pool)
        assert pool.statistics().discarded == 1


async def test_a_backend_killed_while_idle_is_replaced_unnoticed(
    empty_database_dsn: str, other: TrioConnection
) -> None:
    async with Pool(empty_database_dsn, max_size=2, min_size=2) as pool:
        await kill(other, await backend_of(pool))
        async with pool.connection() as one, pool.connection() as two:
            assert await one.fetch("SELECT 1") == await two.fetch("SELECT 1") == [(1,)]
        statistics = pool.statistics()
        assert (statistics.made, statistics.discarded) == (3, 1)


async def test_a_backend_killed_in_use_is_replaced(empty_database_dsn: str, other: TrioConnection) -> None:
    async with Pool(empty_database_dsn, max_size=1) as pool:
        with pytest.raises(psycopg.OperationalError):
            async with pool.connection() as connection:
                await kill(other, connection.pgconn.backend_pid)
                await connection.fetch("SELECT 1")
        async with pool.connection() as connection:
            assert await connection.fetch("SELECT 1") == [(1,)]
        statistics = pool.statistics()
        assert (statistics.made, statistics.discarded, statistics.busy) == (2, 1, 0)


async def test_a_connection_is_replaced_at_the_end_of_its_life(empty_database_dsn: str, mock_clock: MockClock) -> None:
    async with Pool(empty_database_dsn, max_size=1, max_lifetime_s=100) as pool:
        first = await backend_of(pool)
        mock_clock.jump(99)
        assert await backend_of(pool) == first
        mock_clock.jump(2)
        assert await backend_of(pool) != first
        assert pool.statistics().expired == 1


# --------------------------------------------------------------------------------------------------- when there is none


async def test_waiting_ends_at_the_timeout(empty_database_dsn: str, autojump_clock: MockClock) -> None:
    async with Pool(empty_database_dsn, max_size=1, acquire_timeout_s=7) as pool:
        connection = await _acquire_in_real_time(pool, autojump_clock)
        started = trio.current_time()
        with pytest.raises(PoolTimeout, match="1 of 1 in use"):
            await pool.acquire()
        assert trio.current_time() - started == pytest.approx(7)
        assert isinstance(PoolTimeout(""), psycopg.OperationalError)
        statistics = pool.statistics()
        assert (statistics.timeouts, statistics.waiting, statistics.busy) == (1, 0, 1)
        autojump_clock.autojump_threshold = float("inf")
        await pool.release(connection)
        assert await backend_of(pool)


async def _acquire_in_real_time(pool: Pool, clock: MockClock) -> TrioConnection:
    clock.autojump_threshold = float("inf")
    connection = await pool.acquire()
    clock.autojump_threshold = 0
    return connection


async def test_the_timeout_covers_a_server_that_does_not_answer(proxy: Proxy, mock_clock: MockClock) -> None:
    proxy.hold_new = True
    pool = Pool(proxy.dsn, max_size=1, acquire_timeout_s=7)
    errors: list[Exception] = []

    async def acquire() -> None:
        try:
            await pool.acquire()
        except PoolTimeout as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(acquire)
        await (await proxy.wait_link(0)).held.wait()
        mock_clock.jump(7.1)
    assert len(errors) == 1
    proxy.hold_new = False
    assert await backend_of(pool)  # its place was given back
    await pool.close(0)


async def test_what_connecting_raises_is_raised_and_the_place_given_back(empty_database_dsn: str) -> None:
    pool = Pool("host=/nonexistent", max_size=1)
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError, match="/nonexistent"):
            await pool.acquire()
    with pytest.raises(psycopg.OperationalError, match="/nonexistent"):
        await Pool("host=/nonexistent", max_size=2, min_size=1).open()
    assert pool.statistics().busy == 0


async def test_an_unconfigurable_connection_is_closed_and_its_place_freed(
    empty_database_dsn: str,
) -> None:
    made: list[TrioConnection] = []

    async def configure(connection: TrioConnection) -> None:
        made.append(connection)
        if len(made) < 3:
            await connection.fetch("SET no_such_setting = 1")

    async with Pool(empty_database_dsn, max_size=1, configure=configure) as pool:
        for _ in range(2):
            with pytest.raises(psycopg.errors.UndefinedObject):
                await pool.acquire()
        assert await backend_of(pool)
    assert all(connection.closed for connection in made)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_whoever_is_cancelled_no_place_is_lost(empty_database_dsn: str, seed: int) -> None:
    chance = random.Random(seed)

    async def work(pool: Pool) -> None:
        with trio.move_on_after(chance.uniform(0, 0.02)):
            async with pool.connection() as connection:
                await connection.fetch("SELECT pg_sleep($1)", (chance.uniform(0, 0.004),))

    async with Pool(empty_database_dsn, max_size=3) as pool:
        for _ in range(5):
            async with trio.open_nursery() as nursery:
                for _ in range(25):
                    nursery.start_soon(work, pool)
            statistics = pool.statistics()
            assert (statistics.busy, statistics.waiting) == (0, 0)
            connections = [await pool.acquire() for _ in range(3)]
            for connection in connections:
                assert await connection.fetch("SELECT 1") == [(1,)]
                await pool.release(connection)


# ------------------------------------------------------------------------------------------------------------ closing


async def test_a_closed_pool_refuses_and_has_closed_its_connections(empty_database_dsn: str) -> None:
    pool = Pool(empty_database_dsn, max_size=2)
    connection = await pool.acquire()
    await pool.release(connection)
    await pool.close(1)
    await pool.close(1)
    assert connection.closed
    with pytest.raises(PoolClosed):
        await pool.acquire()
    assert isinstance(PoolClosed(""), psycopg.OperationalError)


async def test_closing_waits_for_connections_that_are_out(empty_database_dsn: str) -> None:
    pool = Pool(empty_database_dsn, max_size=2)
    connection = await pool.acquire()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.close, 1000)
        await wait_all_tasks_blocked()
        assert await connection.fetch("SELECT 1") == [(1,)]
        with pytest.raises(PoolClosed):
            await pool.acquire()
        await pool.release(connection)
    assert connection.closed


async def test_closing_refuses_those_that_wait(empty_database_dsn: str) -> None:
    pool = Pool(empty_database_dsn, max_size=1)
    connection = await pool.acquire()
    refused = 0

    async def wait() -> None:
        nonlocal refused
        with pytest.raises(PoolClosed):
            await pool.acquire()
        refused += 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        nursery.start_soon(pool.close, 1000)
        await wait_all_tasks_blocked()
        assert refused == 3
        await pool.release(connection)


async def test_closing_during_a_connect_leaves_nothing_open(proxy: Proxy) -> None:
    proxy.hold_new = True
    pool = Pool(proxy.dsn, max_size=1)
    refused: list[PoolClosed] = []

    async def acquire() -> None:
        try:
            await pool.acquire()
        except PoolClosed as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(acquire)
        link = await proxy.wait_link(0)
        await link.held.wait()
        await pool.close(0)
        link.release()
    assert len(refused) == 1
    await link.ended.wait()


async def test_past_the_grace_connections_are_closed_under_their_users(
    empty_database_dsn: str, other: TrioConnection, mock_clock: MockClock
) -> None:
    pool = Pool(empty_database_dsn, max_size=1)
    errors: list[psycopg.OperationalError] = []

    async def work() -> None:
        try:
            async with pool.connection() as connection:
                await connection.fetch("SELECT pg_sleep(60)")
        except psycopg.OperationalError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        while not pool.statistics().busy:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(partial(pool.close, grace_s=9))
        await wait_all_tasks_blocked()
        assert errors == []
        mock_clock.jump(9.1)
    assert len(errors) == 1
    assert pool.statistics().busy == 0


async def test_a_session_that_hangs_keeps_its_place_until_it_ends(proxy: Proxy) -> None:
    async with Pool(proxy.dsn, max_size=1, answer_within_s=20) as pool:
        assert await backend_of(pool)
        link = await proxy.wait_link(0)
        link.hold()
        with pytest.raises(InDoubt, match="no answer within"):
            async with pool.connection(answer_within_s=0.2) as connection:
                await connection.fetch("SELECT 1")
        assert (pool.statistics().unanswered, pool.statistics().busy, pool.statistics().idle) == (1, 0, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend_of, pool)

            async def waits() -> bool:
                return pool.statistics().waiting == 1

            await wait_until(waits)
            link.release()
        assert pool.statistics().unanswered == 0
