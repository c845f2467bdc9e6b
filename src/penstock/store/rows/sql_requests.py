"""Requests of the SQL functions `start`, `send`, `signal`, `publish` and `cancel` (`schema.sql`): rows that committed
transactions left, which engines carry out, each once, and delete."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from psycopg.errors import UniqueViolation

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.rows.engines import require_version

REQUESTS_VERSION: Final = 22
"""Of the schema: engines from it on carry out requests."""
EVERYTHING: Final = ""
"""In place of a definition's id: a role may ask for everything."""


class KeyTaken(Exception):
    """Another request waits with the instance key of this one."""


class ClaimedRequest(NamedTuple):
    """A request that this engine carries out. ``request`` and ``body`` are JSON; ``is_started``: its instance is there,
    so an earlier try carried it out."""

    id: int
    transaction: str
    operation: str
    instance: int | None
    request: str
    body: str | None
    role: str
    tries: int
    is_started: bool


class RequestRow(NamedTuple):
    """A request as people see it; ``request`` is JSON, without variables."""

    id: int
    operation: str
    instance: int | None
    definition_id: str | None
    instance_key: str | None
    request: str
    size_bytes: int
    role: str
    asked_at: datetime
    tries: int
    due_at: datetime | None
    failed_at: datetime | None
    error: str | None
    reason: str | None


class RequestCounts(NamedTuple):
    """How many requests there are."""

    waiting: int
    failed: int
    oldest_s: float
    """How long the oldest one waits."""


async def claim(connection: TrioConnection, transactions: int, requests: int, size_bytes: int) -> list[ClaimedRequest]:
    """Lock requests, in order, up to so many transactions' and so many. Within a transaction, whose end releases
    them."""
    rows = await connection.fetch(SQL["claim_sql_requests"], (transactions, requests, size_bytes))
    if rows:
        await connection.fetch(SQL["keep_sql_requests"])
    return [ClaimedRequest(*cast(Any, row)) for row in rows]


async def finish(
    connection: TrioConnection,
    done: Sequence[int],
    failed: Sequence[tuple[int, str, str]],
    delayed: Sequence[tuple[int, float]],
) -> None:
    """Write what became of claimed requests: ``failed`` are id, code and reason, ``delayed`` id and seconds. In the
    transaction that claimed them."""
    if done:
        await connection.fetch(SQL["finish_sql_requests"], (arrays.ints(done),))
    if failed:
        numbers, codes, reasons = zip(*failed, strict=True)
        params = arrays.ints(numbers), arrays.texts(codes), arrays.texts(reasons)
        await connection.fetch(SQL["fail_sql_requests"], params)
    if delayed:
        numbers, seconds = zip(*delayed, strict=True)
        await connection.fetch(SQL["delay_sql_requests"], (arrays.ints(numbers), arrays.floats(seconds)))


async def read(connection: TrioConnection, after: int, limit: int, *, failed: bool) -> list[RequestRow]:
    """Requests that failed, or those that wait, by number."""
    rows = await connection.fetch(SQL["list_sql_requests"], (after, limit, failed))
    return [RequestRow(*cast(Any, row)) for row in rows]


async def retry(connection: TrioConnection, number: int) -> bool:
    """Let a failed request wait again. False: it did not fail, or there is none. Raises KeyTaken."""
    try:
        return bool(await connection.fetch(SQL["retry_sql_request"], (number,)))
    except UniqueViolation as error:
        raise KeyTaken from error


async def drop(connection: TrioConnection, number: int) -> bool:
    """Forget a failed request. False: it did not fail, or there is none."""
    return bool(await connection.fetch(SQL["drop_sql_request"], (number,)))


async def has_failed(connection: TrioConnection, number: int) -> bool | None:
    """Return whether a request has failed; None: there is none."""
    rows = await connection.fetch(SQL["sql_request_state"], (number,))
    return cast(bool, rows[0][0]) if rows else None


async def count(connection: TrioConnection, most: int) -> RequestCounts:
    """How many wait and failed, ``most`` at most."""
    return RequestCounts(*cast(Any, (await connection.fetch(SQL["count_sql_requests"], (most,)))[0]))


async def purge(connection: TrioConnection, days: float, most: int) -> None:
    """Forget up to ``most`` requests that failed more than ``days`` days ago."""
    await connection.fetch(SQL["purge_sql_requests"], (days, most))


async def allow(connection: TrioConnection, role: str, definitions: Sequence[str] = ()) -> None:
    """Let a role of the database call the functions, and engines of versions before no more join. With
    ``definitions`` only for instances of these; it replaces what the role might before.

    Raises Conflict while such an engine lives, DatabaseError where there is no such role; nothing is changed then.
    """
    async with connection.transaction():
        await require_version(connection, REQUESTS_VERSION)
        await connection.fetch(SQL["name_grantee"], (role,))
        await connection.fetch(SQL["allow_requests"])
        await connection.fetch(SQL["forget_rights"], (role,))
        await connection.fetch(SQL["allow_definitions"], (role, arrays.texts(definitions or [EVERYTHING])))
