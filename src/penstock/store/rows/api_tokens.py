"""API tokens in the database: hashes, never the tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple, cast

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.rows.engines import notify

CHANGED = "cli k"
"""The wake-up that tells engines of a change; see `runtime.membership`."""


class AliveToken(NamedTuple):
    """A token that counts."""

    id: str
    name: str
    digest: bytes
    roles: str
    expires_at: float | None


class ListedToken(NamedTuple):
    """A token as people see it."""

    id: str
    name: str
    roles: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None


async def version(connection: TrioConnection) -> str:
    """Another one after every change, and on another server."""
    ((version,),) = await connection.fetch(SQL["api_tokens_version"])
    return cast(str, version)


async def alive(connection: TrioConnection, max_count: int) -> list[AliveToken]:
    """Return those that count, the oldest first."""
    return [AliveToken(*cast(Any, row)) for row in await connection.fetch(SQL["api_tokens_alive"], (max_count,))]


async def everything(connection: TrioConnection) -> list[ListedToken]:
    """Return those that count no longer, too, for a year."""
    return [ListedToken(*cast(Any, row)) for row in await connection.fetch(SQL["api_tokens_all"])]


async def insert(
    connection: TrioConnection, *, id: str, name: str, digest: bytes, roles: str, by: str, expires_s: float | None
) -> datetime | None:
    """Make a token count; when it expires."""
    async with connection.transaction():
        await connection.fetch(SQL["api_tokens_changed"])
        await connection.fetch(SQL["forget_api_tokens"])
        rows = await connection.fetch(SQL["insert_api_token"], (id, name, digest, roles, by, expires_s))
        await connection.fetch(SQL["audit_api_token"], ("TOKEN_CREATED", by, f"{id} {name}: {roles[:1000]}"))
        await notify(connection, CHANGED)
    return cast("datetime | None", rows[0][0])


async def revoke(connection: TrioConnection, id: str, by: str) -> str | None:
    """Let a token count no longer; its name, None when there was none."""
    async with connection.transaction():
        await connection.fetch(SQL["api_tokens_changed"])
        rows = await connection.fetch(SQL["revoke_api_token"], (id,))
        if not rows:
            return None
        name = cast(str, rows[0][0])
        await connection.fetch(SQL["audit_api_token"], ("TOKEN_REVOKED", by, f"{id} {name}"))
        await notify(connection, CHANGED)
    return name
