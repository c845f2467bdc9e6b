"""Schedules and queues as the code of workflows has them. One function per statement of ``queries/declared.sql``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple, cast

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL


class Declared(NamedTuple):
    """A declaration. ``body``: JSON, as the code has it; None where no code has it any more. ``applied``: what was put
    because of it."""

    kind: str
    name: str
    workflow: str
    version: int
    body: str | None
    applied: str | None
    seen_at: datetime


async def lock(connection: TrioConnection, kind: str, name: str) -> None:
    """Keep others from declaring the same until the transaction ends."""
    await connection.fetch(SQL["lock_declared"], (kind, name))


async def declare(connection: TrioConnection, kind: str, name: str, workflow: str, version: int, body: str) -> bool:
    """Keep what code has. False: a higher version has said otherwise."""
    return bool(await connection.fetch(SQL["declare"], (kind, name, workflow, version, body)))


async def undeclare(connection: TrioConnection, workflow: str, version: int, kind: str, but: str | None) -> None:
    """Keep that a workflow has nothing of a kind any more, but what has that name."""
    await connection.fetch(SQL["undeclare"], (workflow, version, kind, but))


async def applied(connection: TrioConnection, kind: str, name: str, body: str) -> bool:
    """Keep that it was put. False: another one was declared meanwhile."""
    return bool(await connection.fetch(SQL["applied"], (kind, name, body)))


async def find(connection: TrioConnection, kind: str, name: str) -> Declared | None:
    """Return one of them."""
    rows = await connection.fetch(SQL["list_declared"], ("", "", 1, kind, name))
    return Declared(*cast(Any, rows[0])) if rows else None


async def page(connection: TrioConnection, after: tuple[str, str], limit: int) -> list[Declared]:
    """Return those after a kind and a name, in order."""
    rows = await connection.fetch(SQL["list_declared"], (*after, limit, None, None))
    return [Declared(*cast(Any, row)) for row in rows]


async def placed_types(connection: TrioConnection, queue: str) -> list[str]:
    """Return the job types that somebody has placed in a queue."""
    return [cast(str, name) for (name,) in await connection.fetch(SQL["placed_types"], (queue,))]
