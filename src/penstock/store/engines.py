"""Engine processes on one database: their numbers, who lives, wake-ups between them, the schema's version."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import psycopg

from penstock.errors import PenstockError
from penstock.store.connection import TrioConnection
from penstock.store.database import first_line
from penstock.store.schema import schema_sql
from penstock.store.statements import SQL

SCHEMA_VERSION = 1


class SchemaMismatch(PenstockError):
    """The database has a schema that this version can't work with."""


class OtherEngine(NamedTuple):
    """Another engine with a valid lease on its number. ``connected``: its session lock is held."""

    number: int
    dispatch_mode: str
    description: str
    connected: bool
    left_s: float


async def ensure_schema(connection: TrioConnection) -> bool:
    """Apply ``schema.sql`` to an empty database; True if it was.

    Raises SchemaMismatch, and PenstockError when this account may not create tables.
    Safe when several engines start at once: a session lock is held meanwhile.
    """
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":  # any text that it lacks would fail in the middle of the work
        raise SchemaMismatch(f"the database has the encoding {encoding}; Penstock needs one with UTF8")
    await connection.fetch(SQL["lock_schema"])
    try:
        if (await connection.fetch(SQL["schema_exists"]))[0][0]:
            version = (await connection.fetch(SQL["schema_version"]))[0][0]
            if version != SCHEMA_VERSION:
                raise SchemaMismatch(
                    f"the database has schema version {version}, this penstock works with {SCHEMA_VERSION}"
                )
            return False
        # a client cursor uses the simple protocol, which takes one text with many statements
        async with connection.transaction(), psycopg.AsyncClientCursor(connection) as cursor:
            try:
                await cursor.execute(schema_sql().encode())
            except psycopg.errors.InsufficientPrivilege as error:
                raise PenstockError(
                    f"{first_line(error)}: run `penstock migrate` with an account that may create tables"
                ) from error
        return True
    finally:
        await connection.fetch(SQL["unlock_schema"])


async def claim_number(
    connection: TrioConnection, holder: str, lease_s: float, dispatch_mode: str, description: str
) -> int:
    """Lease a number for ids; asks again while others take the same one."""
    for _ in range(100):
        rows = await connection.fetch(SQL["claim_number"], (holder, lease_s, dispatch_mode, description))
        if rows:
            return cast(int, rows[0][0])
    raise PenstockError("no free engine number: 1,024 engines have one on this database")


async def renew_number(connection: TrioConnection, number: int, holder: str, lease_s: float) -> bool:
    """Extend the lease; False when the number was taken over."""
    return bool(await connection.fetch(SQL["renew_number"], (number, holder, lease_s)))


async def leave(connection: TrioConnection, number: int, holder: str) -> None:
    """Give the number back."""
    await connection.fetch(SQL["leave"], (number, holder))


async def listen_and_hold(connection: TrioConnection, number: int) -> bool:
    """Listen to wake-ups and take the session lock of the number, for as long as the connection lives.

    False when another session has the lock: one of ours, as a rule, whose end the server has not noticed yet.
    """
    await connection.fetch(SQL["listen"])
    return bool((await connection.fetch(SQL["hold_number"], (number,)))[0][0])


async def others(connection: TrioConnection, holder: str) -> list[OtherEngine]:
    """The other engines."""
    return [OtherEngine(*cast(Any, row)) for row in await connection.fetch(SQL["others"], (holder,))]


async def notify(connection: TrioConnection, payload: str) -> None:
    """Wake the other engines. A hint: it may be lost."""
    await connection.fetch(SQL["notify"], (payload,))
