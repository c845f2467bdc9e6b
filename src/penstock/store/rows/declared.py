"""Schedules and queues as the code of workflows has them. One function per statement of ``queries/declared.sql``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.db.vault import KeyMissing, offloaded


class Declared(NamedTuple):
    """A declaration. ``body``: JSON, as the code has it; None where no code has it any more. ``applied``: what was put
    because of it. ``stored``: the body as it is kept, with `variables` encrypted where there are keys. Without the key
    ``body`` and ``applied`` are as they are kept, too, and ``is_readable`` says so of the body."""

    kind: str
    name: str
    workflow: str
    version: int
    body: str | None
    applied: str | None
    seen_at: datetime
    stored: str | None
    is_readable: bool


async def lock(connection: TrioConnection, kind: str, name: str) -> None:
    """Keep others from declaring the same until the transaction ends."""
    await connection.fetch(SQL["lock_declared"], (kind, name))


async def declare(
    connection: TrioConnection, kind: str, name: str, workflow: str, version: int, body: str
) -> str | None:
    """Keep what code has. Answers with it as it is kept; None: a higher version has said otherwise."""
    rows = await connection.fetch(SQL["declare"], (kind, name, workflow, version, await _seal(connection, body)))
    return cast(str, rows[0][0]) if rows else None


async def undeclare(connection: TrioConnection, workflow: str, version: int, kind: str, but: str | None) -> None:
    """Keep that a workflow has nothing of a kind any more, but what has that name."""
    await connection.fetch(SQL["undeclare"], (workflow, version, kind, but))


async def applied(connection: TrioConnection, kind: str, name: str, stored: str) -> bool:
    """Keep that it was put, as it is kept. False: another one was declared meanwhile."""
    return bool(await connection.fetch(SQL["applied"], (kind, name, stored)))


async def find(connection: TrioConnection, kind: str, name: str) -> Declared | None:
    """Return one of them."""
    rows = await connection.fetch(SQL["list_declared"], ("", "", 1, kind, name))
    return await _opened(connection, rows[0]) if rows else None


async def page(connection: TrioConnection, after: tuple[str, str], limit: int) -> list[Declared]:
    """Return those after a kind and a name, in order."""
    rows = await connection.fetch(SQL["list_declared"], (*after, limit, None, None))
    return [await _opened(connection, row) for row in rows]


async def _opened(connection: TrioConnection, row: Any) -> Declared:
    kind, name, workflow, version, body, applied, seen_at = row
    opened, is_readable = await _open(connection, body)
    put, _ = await _open(connection, applied)
    return Declared(kind, name, workflow, version, opened, put, seen_at, body, is_readable)


async def _seal(connection: TrioConnection, body: str) -> str:
    vault = connection.vault
    return body if vault is None else await offloaded(len(body), lambda: _with(body, vault.seal))


async def _open(connection: TrioConnection, body: str | None) -> tuple[str | None, bool]:
    """Return a body, and whether it could be read: as it is kept where the engine lacks its key."""
    vault = connection.vault
    if vault is None or body is None:
        return body, True

    def opened() -> str:
        return _with(body, lambda variables: vault.open(variables.decode()).encode())

    try:
        return await offloaded(len(body), opened), True
    except KeyMissing:
        return body, False


def _with(body: str, act: Callable[[bytes], bytes]) -> str:
    """Return a body with other variables, where it has some."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    given = fields.get("variables")
    if given is None or not bytes(given).lstrip().startswith(b"{"):
        return body
    return msgspec.json.encode(fields | {"variables": msgspec.Raw(act(bytes(given)))}).decode()


async def placed_types(connection: TrioConnection, queue: str) -> list[str]:
    """Return the job types that somebody has placed in a queue."""
    return [cast(str, name) for (name,) in await connection.fetch(SQL["placed_types"], (queue,))]
