"""Instance keys, which users choose: unique among the open instances of a definition id."""

from __future__ import annotations

from typing import cast

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL


async def claim(
    connection: TrioConnection, definition_id: str, key: str, instance: int, *, kept: bool
) -> tuple[int, bool]:
    """Take an instance key for ``instance``, to be ``kept`` after its end. The instance that has it now, and whether
    something was written."""
    while True:
        rows = await connection.fetch(SQL["claim_instance_key"], (definition_id, key, instance, kept))
        if rows:
            return cast(int, rows[0][0]), True
        holder = await find(connection, definition_id, key)
        if holder is not None:
            return holder, False


async def find(connection: TrioConnection, definition_id: str, key: str) -> int | None:
    """The instance that has an instance key: the open one, or the one that keeps it."""
    rows = await connection.fetch(SQL["find_instance_key"], (definition_id, key))
    return cast(int, rows[0][0]) if rows else None


async def reclaim(connection: TrioConnection, instance: int) -> int | None:
    """Take the key of a failed instance again, if it has one; else the open instance that has it now."""
    _, rows = await connection.roundtrip(
        [(SQL["reclaim_instance_key"], (instance,)), (SQL["other_holder"], (instance,))]
    )
    return cast(int, rows[0][0]) if rows else None
