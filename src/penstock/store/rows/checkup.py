"""What `penstock doctor` reads of the database: its server, our tables, and what stands in their way."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL


class ServerFacts(NamedTuple):
    """The server, as one statement saw it."""

    version_number: int
    version: str
    encoding: str
    in_recovery: bool
    time_s: float
    """Unix time."""
    settings: dict[str, str]
    """As pg_settings has them: memory in its own units."""
    sessions: int
    """Of all databases of the server."""
    synchronous_standbys: int
    oldest_transaction_age: int
    """Of all databases; 2,000,000,000 ends all writing."""
    own_sessions: int
    """Of this database: those of its engines, and this one."""


class Table(NamedTuple):
    name: str
    owned: bool
    may_write: bool
    alive_rows: int
    dead_rows: int
    size_bytes: int


class Holdup(NamedTuple):
    """A transaction, or a slot, that keeps dead rows alive, or WAL on the disk."""

    what: str
    age_s: float | None
    age_transactions: int | None
    wal_bytes: int | None = None


class Log(NamedTuple):
    """Partitions of one parent."""

    parent: str
    made_for_s: float | None
    """How far ahead; None: there are none."""
    outside: bool
    """Rows lie in the default partition."""


async def server(connection: TrioConnection) -> ServerFacts:
    """Return the server's version, settings and load."""
    return ServerFacts(*cast(Any, (await connection.fetch(SQL["checkup_server"]))[0]))


async def tables(connection: TrioConnection) -> list[Table]:
    """Return all of ours, partitions too."""
    return [Table(*cast(Any, row)) for row in await connection.fetch(SQL["checkup_tables"])]


async def invalid_indexes(connection: TrioConnection) -> list[str]:
    """Names of those that a build left unfinished."""
    return [cast(str, row[0]) for row in await connection.fetch(SQL["checkup_indexes"])]


async def may_create(connection: TrioConnection) -> bool:
    """Return whether we may make tables, which partitions are."""
    return cast(bool, (await connection.fetch(SQL["checkup_may_create"]))[0][0])


async def holdups(connection: TrioConnection) -> list[Holdup]:
    """Open transactions of this database, prepared ones, and slots."""
    return [Holdup(*cast(Any, row)) for row in await connection.fetch(SQL["checkup_horizon"])]


async def logs(connection: TrioConnection) -> list[Log]:
    """History, journal and audit."""
    return [Log(*cast(Any, row)) for row in await connection.fetch(SQL["checkup_partitions"])]
