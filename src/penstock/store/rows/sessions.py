"""Sessions of people at the console, in the database: hashes of their cookies, never the cookies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.rows.api_tokens import CHANGED
from penstock.store.rows.engines import notify

PURGE_MAX_ROWS: Final = 1_000


class NewSession(NamedTuple):
    """As it is stored."""

    digest: bytes
    id: str
    name: str
    key: str
    permissions: list[str]
    job_types: list[str] | None
    expires_at: float


class StoredSession(NamedTuple):
    """One that has not expired."""

    digest: bytes
    name: str
    key: str
    permissions: list[str]
    job_types: list[str] | None
    expires_at: float


class SessionsVersion(NamedTuple):
    """``ended`` grows with each session that ends before its time. ``server``: when it was started."""

    server: str
    ended: int


class ListedSession(NamedTuple):
    """As people see it."""

    id: str
    name: str
    created_at: datetime
    expires_at: datetime


async def version(connection: TrioConnection) -> SessionsVersion:
    """Another one after every session that ends before its time, and on another server."""
    return SessionsVersion(*cast(Any, (await connection.fetch(SQL["sessions_version"]))[0]))


async def insert(connection: TrioConnection, new: NewSession, *, most: int, most_of_key: int) -> bool:
    """Open a session; the oldest of the same person end for it. False when there are too many of all."""
    async with connection.transaction():
        await connection.fetch(SQL["forget_expired_sessions"], (PURGE_MAX_ROWS,))
        if await connection.fetch(SQL["forget_oldest_sessions"], (new.key, most_of_key - 1)):
            await _changed(connection)
        if not await connection.fetch(SQL["insert_session"], (*new, most)):
            return False
        await connection.fetch(SQL["audit_session"], ("SIGNED_IN", new.name, new.id))
    return True


async def find(connection: TrioConnection, digest: bytes) -> StoredSession | None:
    """The session of a cookie, if it counts."""
    rows = await connection.fetch(SQL["find_session"], (digest,))
    return StoredSession(*cast(Any, rows[0])) if rows else None


async def left(connection: TrioConnection, digests: Sequence[bytes]) -> set[bytes]:
    """Those of them that there are still."""
    return {bytes(cast(bytes, row[0])) for row in await connection.fetch(SQL["sessions_left"], (list(digests),))}


async def everything(connection: TrioConnection) -> list[ListedSession]:
    """Return all that count, the oldest first."""
    return [ListedSession(*cast(Any, row)) for row in await connection.fetch(SQL["list_sessions"])]


async def end(connection: TrioConnection, *, digest: bytes = b"", id: str = "", by: str | None = None) -> str | None:
    """Let a session count no longer; whose it was, None when there was none. ``by``: somebody else than that."""
    async with connection.transaction():
        rows = await connection.fetch(SQL["end_session"], (digest, id))
        if not rows:
            return None
        found, name = cast("tuple[str, str]", rows[0])
        await connection.fetch(SQL["audit_session"], ("SIGNED_OUT", by or name, f"{found} {name}" if by else found))
        await _changed(connection)
    return name


async def purge(connection: TrioConnection) -> None:
    """Those that have expired go."""
    await connection.fetch(SQL["forget_expired_sessions"], (PURGE_MAX_ROWS,))


async def _changed(connection: TrioConnection) -> None:
    await connection.fetch(SQL["sessions_ended"])
    await notify(connection, CHANGED)
