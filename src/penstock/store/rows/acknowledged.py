"""Rows of "Needs attention" that somebody has acknowledged. One function per statement of its file in ``queries``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.rows import audit as audit_store

READ_MAX: Final = 1_000


class AcknowledgedRow(NamedTuple):
    """One acknowledgement. ``failures``: how many the row told of; with more it needs attention again."""

    key: str
    failures: int
    actor: str | None
    note: str | None
    at: datetime
    until: datetime


async def acknowledge(
    connection: TrioConnection,
    key: str,
    count: int,
    note: str | None,
    *,
    lasts_s: float,
    actor: str | None,
    audit: bool,
) -> None:
    """Acknowledge a row for ``lasts_s`` seconds; a second time: from now on."""
    async with connection.transaction():
        await connection.fetch(SQL["acknowledge"], (key, count, actor, note, lasts_s))
        if audit:
            about = f"{key}: {note}" if note else key
            await connection.fetch(*audit_store.add(None, None, "ATTENTION_ACKNOWLEDGED", actor, about))


async def withdraw(connection: TrioConnection, key: str, *, actor: str | None, audit: bool) -> bool:
    """Let a row need attention again. False: it is not acknowledged."""
    async with connection.transaction():
        found = bool(await connection.fetch(SQL["withdraw_acknowledgement"], (key,)))
        if found and audit:
            await connection.fetch(*audit_store.add(None, None, "ATTENTION_WITHDRAWN", actor, key))
    return found


async def read(connection: TrioConnection) -> dict[str, AcknowledgedRow]:
    """Return those that hold, by key."""
    rows = await connection.fetch(SQL["read_acknowledged"], (READ_MAX,))
    return {row.key: row for row in (AcknowledgedRow(*cast(Any, each)) for each in rows)}
