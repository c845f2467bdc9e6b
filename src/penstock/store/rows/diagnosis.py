"""Where instances stand, for people: bounded reads of one snapshot that end after two seconds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from psycopg.errors import QueryCanceled

from penstock.errors import Unavailable
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.db.vault import offloaded
from penstock.store.rows.instances import HistoryEntry
from penstock.store.rows.jobs import JobKey

TOKENS_MAX: Final = 200
BEFORE_ALL: Final = 0
BEYOND_ALL: Final = 2**63 - 1
"""No row of history has this position."""


class OpenExecution(NamedTuple):
    """An open execution. ``reason``: of its last attempt's end; ``progress``: JSON, as its worker told it last."""

    token: int
    seq: int
    step: int
    state: int
    entered_at: datetime
    attempt: int
    failures: int
    worker: str | None
    claimed_at: datetime | None
    lease_until: datetime | None
    reason: str | None
    progress: str | None
    message_key: str | None


class ArmedTimer(NamedTuple):
    """An armed timer of a token."""

    token: int
    timer: int
    fire_at: datetime


class LastFailure(NamedTuple):
    """What ended an instance."""

    step: int
    attempt: int
    reason: str | None
    at: datetime
    position: int


class Passage(NamedTuple):
    """An execution as a way through the definition: positions at which it was entered and closed."""

    token: int
    entered_at: int
    step: int
    kind: int | None
    closed_at: int | None


class WrittenOutput(NamedTuple):
    """What an execution wrote: None when it is too large, or nothing; and its size in the database."""

    output: str | None
    bytes: int | None


@asynccontextmanager
async def brief_read(connection: TrioConnection) -> AsyncGenerator[None]:
    """Reads within the block see one moment of the database. Raises Unavailable when one takes too long."""
    try:
        async with connection.transaction():
            await connection.fetch(SQL["one_snapshot"])
            await connection.fetch(SQL["look_briefly"])
            yield
    except QueryCanceled as error:
        raise Unavailable("the database is too busy for this list: try again") from error


async def tokens(connection: TrioConnection, instance: int) -> list[OpenExecution]:
    """Return the open executions, in order of entry."""
    rows = await connection.fetch(SQL["standing_tokens"], (instance, TOKENS_MAX))
    return [OpenExecution(*cast(Any, row)) for row in rows]


async def is_dead_end(connection: TrioConnection, instance: int) -> bool:
    """Return whether nothing of the open instance goes on by itself."""
    [(ended,)] = await connection.fetch(SQL["standing_dead_end"], (instance,))
    return bool(ended)


async def timers(connection: TrioConnection, of: Sequence[OpenExecution]) -> list[ArmedTimer]:
    """Theirs, those due first first."""
    params = arrays.ints(token.token for token in of), arrays.ints(token.seq for token in of)
    return [ArmedTimer(*cast(Any, row)) for row in await connection.fetch(SQL["standing_timers"], params)]


async def failure(connection: TrioConnection, instance: int) -> LastFailure | None:
    """Return the failure that ended an instance."""
    rows = await connection.fetch(SQL["standing_failure"], (instance,))
    return LastFailure(*cast(Any, rows[0])) if rows else None


async def signals(connection: TrioConnection, instance: int) -> int:
    """Return how many signals are kept for an instance."""
    return cast(int, (await connection.fetch(SQL["standing_signals"], (instance,)))[0][0])


async def passages(connection: TrioConnection, instance: int, most: int) -> tuple[list[Passage], bool]:
    """The executions that closed last, at most so many, and those that are open; whether that is all of them."""
    rows = cast(Any, await connection.fetch(SQL["passages"], (instance, most)))
    found = [Passage(*row) for row in rows]
    return found, len({passage.closed_at for passage in found if passage.closed_at is not None}) < most


async def children(connection: TrioConnection, instance: int, most: int) -> list[int]:
    """The newest instances that one has started."""
    return [cast(int, row[0]) for row in await connection.fetch(SQL["children"], (instance, most))]


def _entry(row: Any) -> HistoryEntry:
    """Between a row of history and its child stand what it wrote, and the size of that."""
    fields: Any = (*row[:12], *row[14:])
    return HistoryEntry(*fields)


async def open_history(connection: TrioConnection, instance: int) -> list[HistoryEntry]:
    """Open executions, with the attempts that ended of them."""
    rows = await connection.fetch(SQL["history_open"], (instance,))
    return [_entry(cast(Any, row)) for row in rows]


async def history_slice(
    connection: TrioConnection, instance: int, *, before: int, most: int, output_max_bytes: int | None
) -> list[tuple[HistoryEntry, WrittenOutput]]:
    """Return the ``most`` executions that closed last before a position, with their attempts; with what each wrote, up
    to ``output_max_bytes``."""
    params = (instance, before, most, output_max_bytes is not None, output_max_bytes or 0)
    found: list[tuple[HistoryEntry, WrittenOutput]] = []
    for row in cast(Any, await connection.fetch(SQL["history_slice"], params)):
        output = row[12] if row[12] is None or connection.vault is None else connection.vault.open(row[12])
        found.append((_entry(row), WrittenOutput(output, row[13])))
    return found


async def closed_at(connection: TrioConnection, key: JobKey) -> tuple[int, int] | None:
    """Return the position at which an execution closed, and its step; None for one that is open, or none."""
    rows = await connection.fetch(SQL["closed_at"], key)
    return cast("tuple[int, int]", rows[0]) if rows else None


async def variables_as_of(
    connection: TrioConnection, instance: int, position: int, max_bytes: int
) -> tuple[str | None, int, list[str]]:
    """The variables after a position, None if they have more bytes than that; how many they have; and the names of
    those that were written there."""
    rows = cast(Any, await connection.fetch(SQL["variables_as_of"], (instance, position, max_bytes)))
    text, size_bytes, changed = rows[0]
    if text is not None and (vault := connection.vault) is not None:
        text = await offloaded(size_bytes, lambda: vault.open(text))
    return text, size_bytes, changed
