"""Jobs that their workers' own transactions completed, by the SQL function `complete` (`schema.sql`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.rows.engines import require_version

RECORDED_VERSION: Final = 18
"""Of the schema: engines from it on take up what the function writes."""


async def read(connection: TrioConnection, instance: int, token: int, seq: int) -> bytes | None:
    """Return the variables that one brought, a JSON object; None: none. Under the lock of its token."""
    rows = await connection.fetch(SQL["read_recorded"], (instance, token, seq))
    return cast(str, rows[0][0]).encode() if rows else None


def forget(instances: Sequence[int]) -> Statement:
    """Deletes what jobs brought that are closed now; behind what closes them."""
    return SQL["forget_recorded"], (arrays.ints(instances),)


async def allow(connection: TrioConnection, role: str) -> None:
    """Let a role of the database call the function, and engines of versions before no more join.

    Raises Conflict while such an engine lives, DatabaseError where there is no such role; nothing is changed then.
    """
    async with connection.transaction():
        await require_version(connection, RECORDED_VERSION)
        await connection.fetch(SQL["name_grantee"], (role,))
        await connection.fetch(SQL["allow_completions"])


async def record_encryption(connection: TrioConnection) -> None:
    """Variables are encrypted here from now on: the function takes none."""
    await connection.fetch(SQL["record_encryption"])
