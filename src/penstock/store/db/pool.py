"""A small pool of `TrioConnection`.

Connections are made in the task that wants one (no maintenance task to supervise), handed out last-in first-out (so
that the surplus ages and its server memory stays cold), waiters are served first-in first-out. An idle connection is
looked at with one poll(2) before it is handed out, so a restarted server costs no failed statement. Relies on
`connection.py`; must not know the schema.

A statement that the server does not answer is given up, but its session may go on there: it keeps its place in the pool
until the server has ended it. So there are never more sessions than ``max_size``, however many statements hang.
"""

from __future__ import annotations

import math
import os
import select
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Self

import psycopg
import trio
from psycopg import pq

from penstock.store.db.connection import TrioConnection
from penstock.store.db.pool_errors import PoolClosed, PoolTimeout
from penstock.store.db.wait import CLEANUP_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    Configure = Callable[[TrioConnection], Awaitable[None]]


AHEAD_IN_A_ROW = 3
"""So many who go ahead are served before one who does not."""
UNANSWERED_SCAN_S = 0.2
"""Between two looks at sessions that hang, of those who wait for a place."""


class PoolStatistics(NamedTuple):
    """How many connections are where, and what the pool has done since it was made."""

    max_size: int
    idle: int
    busy: int
    unanswered: int
    """Sessions that were left with a statement, and that the server has not ended yet."""
    waiting: int
    """Tasks that wait for a connection now."""
    acquired: int
    """Connections handed out so far."""
    waited: int
    """Those of them that had to be waited for, connecting included."""
    waited_s: float
    """The time spent in these waits, in seconds."""
    made: int
    discarded: int
    """Connections that came back broken or were found so when idle."""
    expired: int
    """Connections that had reached ``max_lifetime_s``."""
    timeouts: int


class Pool:
    """At most ``max_size`` connections to ``dsn``, in autocommit mode.

    ``configure`` is called with each new connection and has to leave it idle (no open transaction).
    ``prepare_threshold`` 0 prepares statements at their first use; None for PgBouncer in transaction mode. Times in
    seconds. Acquiring raises `PoolTimeout`, `PoolClosed`, or what connecting raises: all are
    `psycopg.OperationalError`.
    """

    def __init__(
        self,
        dsn: str,
        *,
        max_size: int,
        min_size: int = 0,
        acquire_timeout_s: float = 30.0,
        max_lifetime_s: float = 3600.0,
        answer_within_s: float = math.inf,
        prepare_threshold: int | None = 0,
        configure: Configure | None = None,
    ) -> None:
        if not 0 <= min_size <= max_size or max_size < 1:
            raise ValueError(f"a pool of {min_size} to {max_size} connections")
        self._dsn = dsn
        self._max_size = max_size
        self._min_size = min_size
        self._acquire_timeout_s = acquire_timeout_s
        self._max_lifetime_s = max_lifetime_s
        self._answer_within_s = answer_within_s
        self._prepare_threshold = prepare_threshold
        self._configure = configure
        self._idle: deque[TrioConnection] = deque()
        self._busy: set[TrioConnection] = set()
        self._unanswered: list[int] = []
        self._permits = max_size
        """Connections that may still go out: max_size less those out, unanswered, being made, or promised to a woken
        waiter."""
        self.servers_left = 0
        """How often a server was left that takes no writes: sessions elsewhere may be on it, too."""
        self._waiters = trio.lowlevel.ParkingLot()
        self._ahead = trio.lowlevel.ParkingLot()
        self._ahead_in_a_row = 0
        self._pending = 0  # in these two
        self._closed = False
        self._returned = trio.lowlevel.ParkingLot()
        self._acquired = self._waited = self._made = self._discarded = self._expired = self._timeouts = 0
        self._waited_s = 0.0

    async def open(self) -> None:
        """Make the first ``min_size`` connections. Raises what connecting raises; none is left then."""
        try:
            with trio.move_on_after(self._acquire_timeout_s) as scope:
                while len(self._idle) + len(self._busy) < self._min_size:
                    self._idle.append(await self._make())
        except BaseException:
            self._close_idle()
            raise
        if scope.cancelled_caught:
            self._close_idle()
            raise self._timeout()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.CancelScope(shield=True):
            await self.close(CLEANUP_TIMEOUT_S)

    def connect_with(self, dsn: str) -> None:
        """New connections are made with this."""
        self._dsn = dsn

    def connection(self, *, answer_within_s: float | None = None, ahead: bool = False) -> PooledConnection:
        """``async with pool.connection() as connection``: one for the block, rolled back if left in a transaction.

        Entering is a checkpoint only if it waits: what is then done with the connection is one. ``answer_within_s``:
        for this block another patience with its statements. ``ahead``: served before those who are not, but for every
        fourth time, so that neither waits for all of the others.
        """
        return PooledConnection(self, answer_within_s, ahead)

    async def acquire(self, *, ahead: bool = False) -> TrioConnection:
        """A connection that is to be given back with `release`. Cancelled, it holds none."""
        self._check_open()
        if self._permits and (connection := self._pop_idle()) is not None:
            self._permits -= 1
        else:
            connection = await self._wait_connection(self._ahead if ahead else self._waiters)
        self._busy.add(connection)
        self._acquired += 1
        connection.answer_within_s = self._answer_within_s
        return connection

    async def release(self, connection: TrioConnection) -> None:
        """Take a connection back. Not cancelled: a transaction left open is rolled back, in bounded time."""
        try:
            if not connection.closed and connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
                await _make_clean(connection)
        finally:
            self._busy.discard(connection)
            if connection.closed:
                self._discarded += 1
                if connection.takes_no_writes:  # nor do the others: they may all be of a primary that was replaced
                    self.servers_left += 1
                    self._close_idle()
            elif self._closed or connection.created_at == -math.inf:
                connection.close_nowait()
            else:
                self._idle.append(connection)
            if connection.unanswered is not None and not self._closed:
                self._unanswered.append(connection.unanswered)
            else:
                if connection.unanswered is not None:
                    os.close(connection.unanswered)
                self._free_permit()
            self._free_ended()
            if self._closed:  # who closes it waits
                self._returned.unpark_all()

    async def close(self, grace_s: float) -> None:
        """Refuse who wants a connection from now on, wait ``grace_s`` seconds for those out, close all.

        A connection still out then is closed under its user, who gets `psycopg.OperationalError`. Idempotent.
        """
        self._closed = True
        self._waiters.unpark_all()
        self._ahead.unpark_all()
        self._close_idle()
        with trio.move_on_after(grace_s):
            while self._busy:
                await self._returned.park()
        while self._unanswered:
            os.close(self._unanswered.pop())
        for connection in self._busy:
            connection.discard(f"the pool was closed and it did not come back within {grace_s} s")

    def statistics(self) -> PoolStatistics:
        """Return a snapshot. Cheap."""
        return PoolStatistics(
            max_size=self._max_size,
            idle=len(self._idle),
            busy=len(self._busy),
            unanswered=len(self._unanswered),
            waiting=len(self._waiters) + len(self._ahead),
            acquired=self._acquired,
            waited=self._waited,
            waited_s=self._waited_s,
            made=self._made,
            discarded=self._discarded,
            expired=self._expired,
            timeouts=self._timeouts,
        )

    async def _wait_connection(self, lot: trio.lowlevel.ParkingLot) -> TrioConnection:
        """Wait for a slot and take an idle connection or make one, all within the time-out."""
        started = trio.current_time()
        self._waited += 1
        self._free_ended()
        try:
            with trio.move_on_after(self._acquire_timeout_s):
                await self._wait_permit(lot)
                try:
                    return self._pop_idle() or await self._make()
                except BaseException:
                    self._free_permit()
                    raise
        finally:
            self._waited_s += trio.current_time() - started
        self._timeouts += 1
        raise self._timeout()

    async def _wait_permit(self, lot: trio.lowlevel.ParkingLot) -> None:
        while not self._permits:
            self._pending += 1
            try:
                with trio.move_on_after(UNANSWERED_SCAN_S if self._unanswered else math.inf):
                    await lot.park()  # woken by `_free_permit`, which leaves its slot to us, or by `close`
                    self._check_open()
                    return
            finally:
                self._pending -= 1
            self._free_ended()
        self._permits -= 1

    def _free_permit(self) -> None:
        if not self._pending:
            self._permits += 1
            return
        lots = [self._ahead, self._waiters]
        if self._ahead_in_a_row >= AHEAD_IN_A_ROW:
            lots.reverse()
        for lot in lots:
            if lot.unpark():
                self._ahead_in_a_row = self._ahead_in_a_row + 1 if lot is self._ahead else 0
                return
        self._permits += 1

    def _free_ended(self) -> None:
        """Take back the places of sessions that were left with a statement and have ended since."""
        if not self._unanswered:
            return
        for fd in [fd for fd in self._unanswered if _has_input(fd)]:
            self._unanswered.remove(fd)
            os.close(fd)
            self._free_permit()

    def _pop_idle(self) -> TrioConnection | None:
        """The idle connection used last that is still good."""
        while self._idle:
            connection = self._idle.pop()
            if connection.closed or _has_input(connection.pgconn.socket):
                self._discarded += 1
            elif trio.current_time() - connection.created_at > self._max_lifetime_s:
                self._expired += 1
            else:
                return connection
            connection.close_nowait()
        return None

    async def _make(self) -> TrioConnection:
        connection = await TrioConnection.connect(self._dsn, prepare_threshold=self._prepare_threshold)
        try:
            if self._configure is not None:
                await self._configure(connection)
                assert connection.pgconn.transaction_status == pq.TransactionStatus.IDLE, "configure left it in use"
            self._check_open()
        except BaseException:
            connection.close_nowait()
            raise
        self._made += 1
        return connection

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close_nowait()

    def _check_open(self) -> None:
        if self._closed:
            raise PoolClosed("the connection pool is closed")

    def _timeout(self) -> PoolTimeout:
        return PoolTimeout(
            f"no connection to the database within {self._acquire_timeout_s} s"
            f" ({len(self._busy)} of {self._max_size} in use, {len(self._unanswered)} without an answer)",
            all_in_use=len(self._busy) >= self._max_size and not self._unanswered,
        )


class PooledConnection:
    """What `Pool.connection` gives: the connection for a block. A class, as a generator would cost 5 µs more."""

    __slots__ = ("_ahead", "_answer_within_s", "_connection", "_pool")

    _connection: TrioConnection

    def __init__(self, pool: Pool, answer_within_s: float | None, ahead: bool) -> None:
        self._pool = pool
        self._ahead = ahead
        self._answer_within_s = answer_within_s

    async def __aenter__(self) -> TrioConnection:
        self._connection = await self._pool.acquire(ahead=self._ahead)
        if self._answer_within_s is not None:
            self._connection.answer_within_s = self._answer_within_s
        return self._connection

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self._pool.release(self._connection)


async def _make_clean(connection: TrioConnection) -> None:
    """Roll back; close the connection if that is not possible at once."""
    status = connection.pgconn.transaction_status
    if status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
        with trio.move_on_after(CLEANUP_TIMEOUT_S, shield=True):
            try:
                await connection.rollback()
            except psycopg.Error:
                connection.discard("its transaction could not be rolled back")
    if not connection.closed and connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
        connection.discard("given back in the middle of something")


def _has_input(fd: int) -> bool:
    """Return whether an idle connection has something to say: the end of the connection as a rule, nothing we want
    ever."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
