"""The engine's way to PostgreSQL: the pool, its session settings, and which errors mean what.

Relies on `pool.py`. Must not know operations; those are in the noun modules beside it.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg
import trio
from psycopg import errors as pg_errors
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import Unavailable
from penstock.store.db.connection import TrioConnection
from penstock.store.db.pool import Pool, PooledConnection
from penstock.store.db.pool_errors import PoolTimeout
from penstock.store.db.statements import SQL
from penstock.store.db.vault import Vault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

PREPARED_MAX: Final = 2 * len(SQL)
"""More than all statements there are, also with those of two forms: none is ever evicted and parsed again."""

LOCK_WAIT_MS = 100
"""How long a statement waits for a row. Ordinary transactions hold theirs for less; a statement waits for all that its
batch carries, and it is also how much shorter than asked for a lease can be whose time was read before the wait."""
TRANSACTION_IDLE_MS = 5_000
"""The server ends a transaction of ours that says nothing for so long: its engine was stopped, or cut off. A busy event
loop may be silent for a second."""

STATEMENT_MS = 60_000
"""The server ends a statement of ours that takes so long."""
STATEMENT_TIMEOUT_S = STATEMENT_MS / 1000 + 5
"""Past this a statement hangs: the server would have ended it."""

# The statements say themselves how they find their rows (queries/jobs.sql). These are a second net: generic plans made
# while the tables were empty would seq-scan or hash for ever; nested loops over keys are right for every hot statement,
# at any size; no key comes twice in a batch, so memoizing never pays, nor does JIT.
SESSION_SETTINGS = (
    b"SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off; SET jit = off;"
    b" SET enable_memoize = off;"
    b" SET plan_cache_mode = force_generic_plan; SET statement_timeout = %d;"
    b" SET idle_in_transaction_session_timeout = %d; SET lock_timeout = %d; SET timezone = 'UTC'"
    % (STATEMENT_MS, TRANSACTION_IDLE_MS, LOCK_WAIT_MS)
)

CONNECTION_DEFAULTS = {
    "application_name": "penstock",
    # A server that vanished without a word is noticed after 19 s, not after the kernel's two hours.
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""Of a conninfo that doesn't say otherwise."""

REPLICATION_TIMEOUT_S = 2.0
PING_TIMEOUT_S = 5.0

DatabaseError = psycopg.Error
"""Anything that PostgreSQL or the way to it has to complain about."""

DataError = psycopg.DataError
"""A value that PostgreSQL can't hold."""

REPEATABLE = (pg_errors.DeadlockDetected, pg_errors.SerializationFailure)
"""The transaction was rolled back for the sake of another; it can be repeated at once."""

LOCKED = pg_errors.LockNotAvailable
"""Another transaction holds what the statement needs, for longer than `LOCK_WAIT_MS`; ours was rolled back. An
operational error, and so in `AWAY` too: to be caught first."""

CLASH = pg_errors.UniqueViolation
"""Such a row is there already. For ids that we made `is_id_taken` holds: the transaction can be repeated with new ones.
"""
_QUOTED: Final = re.compile('".*"', re.DOTALL)
_PORTS: Final = re.compile("[0-9,]*")
_MADE_IDS = frozenset({"instance_pkey", "token_pkey", "instance_key_instance_id_key"})

TOO_LARGE = pg_errors.ProgramLimitExceeded
"""A value is beyond what PostgreSQL can hold in one piece. An operational error, and so in `AWAY` too: to be caught
first, as waiting does not help."""

BAD_DATA = (psycopg.DataError, psycopg.IntegrityError, psycopg.InternalError, pg_errors.RaiseException, TOO_LARGE)
"""The statement met a row that it can't handle: trying again does not help, leaving out that row may."""

READ_ONLY = pg_errors.ReadOnlySqlTransaction
"""The server takes no writes: a standby, or it was told so."""

AWAY = (psycopg.OperationalError, psycopg.InterfaceError, READ_ONLY)
"""The database can't be reached or can't write now (also: no connection in time, disk full, read-only, shutdown), or
what it did is `InDoubt`. Who writes takes all of it for in doubt, and looks."""


AWAY_REASON: Final = "the database is away"
LATE_REASON: Final = (
    "the call had no turn in time, though no statement has failed: the engine or its database has too much to do, or"
    " too little CPU"
)


def away_reason(error: BaseException) -> str:
    """What a caller is told of one of `AWAY`: no connection had become free is no outage."""
    return LATE_REASON if isinstance(error, PoolTimeout) and error.all_in_use else AWAY_REASON


@contextmanager
def unavailable_when_away() -> Generator[None]:
    """Raise `Unavailable`, with the reason, for one of `AWAY`: for operations whose callers try again."""
    try:
        yield
    except AWAY as error:
        raise Unavailable(f"{away_reason(error)}: {first_line(error)}") from error


class TryAgain(psycopg.OperationalError):
    """What was looked for is between two states: the caller's batch is tried again, as in an outage."""


class IdTaken(pg_errors.SerializationFailure):
    """A new id exists already: another engine has our number, or the clock went back. Take new ones and repeat."""


class RefusedWithin(pg_errors.SerializationFailure):
    """An item was refused in the middle of its transaction, which is repeated without it."""


class Outdated(pg_errors.SerializationFailure):
    """What this engine remembered is not true any more, and the statement did nothing: it is repeated."""


class WrittenApart(pg_errors.SerializationFailure):
    """A transaction was given up so that something could be committed before it; it is repeated."""


def is_id_taken(error: DatabaseError) -> bool:
    """Return whether the statement was refused for an id that we made: as `IdTaken`, which says it already."""
    return isinstance(error, CLASH) and error.diag.constraint_name in _MADE_IDS


def with_defaults(dsn: str) -> str:
    """Return the conninfo with our defaults. Raises DatabaseError for one that is none; it shows no part of a
    password."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:  # libpq quotes what it did not understand, often a part of the password
        reason = _QUOTED.sub("***", first_line(error))
        raise psycopg.ProgrammingError(f"the DSN is neither postgresql://… nor name=value pairs: {reason}") from None
    host, port = (str(given.get(name) or "") for name in ("host", "port"))
    if "@" in host[1:] or not _PORTS.fullmatch(port):  # errors would show them, and they are parts of a password
        raise psycopg.ProgrammingError(
            "the DSN has no valid host and port; in a URL, write @ / : % of the password as %40 %2F %3A %25"
        )
    missing: dict[str, Any] = {name: value for name, value in CONNECTION_DEFAULTS.items() if name not in given}
    return make_conninfo(dsn, **missing)


async def is_starting(dsn: str) -> bool:
    """Return whether a server is there that takes no connections now: it starts, recovers or stops. Told by no other
    means, as an error in connecting has no code, and its text the server's language."""
    with trio.move_on_after(PING_TIMEOUT_S):
        status = await trio.to_thread.run_sync(pq.PGconn.ping, dsn.encode(), abandon_on_cancel=True)
        return status == pq.Ping.REJECT
    return False


async def wait_replicated(connection: TrioConnection) -> None:
    """Wait until a synchronous standby has all that can be seen here now; returns at once where there is none.

    A session that ends while its COMMIT waits for the standby leaves what it did visible on this server only, to all
    who look. So this comes before what was in doubt is looked up, and before a call is answered by what was seen (it
    was done already, the lease is another's) instead of by a commit of its own. Raises TryAgain on a standby, and where
    the standby does not answer within ``REPLICATION_TIMEOUT_S``.
    """
    with trio.move_on_after(REPLICATION_TIMEOUT_S):
        if await connection.fetch(SQL["wait_replicated"]):
            return
        connection.leave_server("the server is a standby")
        raise TryAgain("the server is a standby")
    raise TryAgain(f"the synchronous standby did not answer within {REPLICATION_TIMEOUT_S} s")


async def configure(connection: TrioConnection) -> None:
    """Session settings of a new connection."""
    connection.prepared_max = PREPARED_MAX
    async with connection.cursor() as cursor:
        for statement in SESSION_SETTINGS.split(b"; "):
            await cursor.execute(statement)


async def locked_tables(connection: TrioConnection) -> frozenset[str]:
    """Those of our tables that somebody holds against writers: a migration by hand, an index that is being made."""
    return frozenset(cast(str, name) for (name,) in await connection.fetch(SQL["locked_tables"]))


class Database:
    """One database: pooled connections that are set up for the engine's statements. Times in seconds."""

    def __init__(
        self,
        dsn: str,
        *,
        max_connections: int,
        min_connections: int = 0,
        acquire_timeout_s: float = 10.0,
        max_lifetime_s: float = 3600.0,
        answer_timeout_s: float = 10.0,
        vault: Vault | None = None,
    ) -> None:
        self.dsn = with_defaults(dsn)
        self.vault = vault
        self.on_other_server: Callable[[TrioConnection], Awaitable[None]] | None = None
        """Called with the first connection to a server that is another than the one before, or was started again:
        commits that were seen may be missing there, as after a failover to a standby that is not a synchronous one."""
        self._server_started: object = None
        self._meeting = trio.Lock()
        self._statement_timeout_s = max(answer_timeout_s, STATEMENT_TIMEOUT_S)
        self.pool = Pool(
            self.dsn,
            max_size=max_connections,
            min_size=min_connections,
            acquire_timeout_s=acquire_timeout_s,
            max_lifetime_s=max_lifetime_s,
            answer_within_s=answer_timeout_s,
            configure=self._configure,
        )

    def use(self, dsn: str) -> None:
        """Connect with this from now on: the same database, other settings of the session (`placement`)."""
        self.dsn = with_defaults(dsn)
        self.pool.connect_with(self.dsn)

    async def _configure(self, connection: TrioConnection) -> None:
        connection.vault = self.vault
        await configure(connection)
        await self._meet(connection)

    async def _meet(self, connection: TrioConnection) -> None:
        """Nobody works on a server before `on_other_server` was done with it. Each is noted, also before anybody is to
        be told: the connections that there are by then may be all until the server is another one."""
        ((started,),) = await connection.fetch(SQL["server_started"])
        async with self._meeting:
            if started != self._server_started:
                if self._server_started is not None and self.on_other_server is not None:
                    await self.on_other_server(connection)
                self._server_started = started

    def connection(self, *, patient: bool = False, ahead: bool = False) -> PooledConnection:
        """``async with database.connection() as connection``. Never take a second one inside: the pool is bounded.

        A statement that has no answer within ``answer_timeout_s`` is `InDoubt`. ``patient``: for services whose
        statements may take as long as the server lets them. ``ahead``: for group-commit queues and services, whose
        number is bounded: a crowd of callers who read holds up no work.
        """
        return self.pool.connection(answer_within_s=self._statement_timeout_s if patient else None, ahead=ahead)

    async def fetch(self, name: str, params: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Run one named statement on a connection of the pool."""
        async with self.pool.connection() as connection:
            return await connection.fetch(SQL[name], params)

    async def close(self, grace_s: float) -> None:
        """Close the pool; see `Pool.close`."""
        await self.pool.close(grace_s)


def first_line(error: BaseException) -> str:
    """What of an error goes into a log line or an answer: the server's details and hints may hold data."""
    return str(error).split("\n", 1)[0][:300]
