"""The outbox of Kafka mode: taking rows to publish, deleting published ones, and the switch between the modes.

One function per statement of ``queries/outbox.sql``, which says what a row is worth and in what order locks are had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import TryAgain
from penstock.store.db.statements import SQL
from penstock.store.db.vault import Vault, offloaded
from penstock.store.rows.variables import opened

Statement = tuple[bytes, tuple[object, ...]]

_VOID, _TAKEN = 0, 1  # what a row of `take_outbox` tells


class Outgoing(NamedTuple):
    """A row to publish, its token DISPATCHED by the statement that returned it. ``age_s`` since the row was written."""

    job_type: int
    id: int
    instance: int
    token: int
    seq: int
    entry: int
    attempt: int
    step: int
    failures: int
    entered_at: datetime
    age_s: float
    definition: int
    business_key: str | None
    variables: str | None
    """None: they can't be read for want of a key."""


class OutboxScan(NamedTuple):
    """What a look into the outbox found; ``outgoing`` in order of id. ``scanned`` counts the rows per job type, void
    and locked ones included; ``held`` those whose token another transaction held."""

    outgoing: list[Outgoing]
    scanned: dict[int, int]
    held: dict[int, int]


class PublishedRow(NamedTuple):
    """A row that the broker has."""

    job_type: int
    id: int
    step: int


async def take(
    connection: TrioConnection,
    low_water_marks: Mapping[int, int],
    per_type: int,
    left_out: Collection[int],
    deadline_s: float,
    published: Sequence[PublishedRow],
    *,
    audit: bool,
) -> OutboxScan:
    """Delete the rows ``published``, then mark and fold the next ones. One transaction, one round trip.

    ``low_water_marks`` names the job types to look at, each with the id to look from; ``left_out`` are rows to leave
    out. When its answer is lost, call it again with the same: both halves can be repeated.
    """
    parameters = (
        arrays.ints(low_water_marks),
        per_type,
        arrays.ints(left_out),
        deadline_s,
        arrays.ints(low_water_marks.values()),
    )
    statements: list[Statement] = [(SQL["take_outbox"], parameters)]
    if published:
        statements.insert(0, _deletion(published, audit))
    rows = cast(Any, (await connection.roundtrip(statements))[-1])
    outgoing: list[Outgoing] = []
    scanned: dict[int, int] = {}
    settled: Counter[int] = Counter()
    for what, job_type, *rest in rows:
        if what == _TAKEN:
            outgoing.append(Outgoing(job_type, *rest))
            settled[job_type] += 1
        elif what == _VOID:
            settled[job_type] += rest[0]
        else:
            scanned[job_type] = rest[0]
    vault = connection.vault
    if vault is not None:
        size_bytes = sum(len(row.variables or "") for row in outgoing)
        outgoing = await offloaded(size_bytes, lambda: [_opened(row, vault) for row in outgoing])
    outgoing.sort(key=lambda row: row.id)
    held = {job_type: count - settled[job_type] for job_type, count in scanned.items() if count > settled[job_type]}
    return OutboxScan(outgoing, scanned, held)


def _opened(row: Outgoing, vault: Vault) -> Outgoing:
    return row if row.variables is None else row._replace(variables=opened(vault, row.variables, row.instance))


async def delete_published(connection: TrioConnection, published: Sequence[PublishedRow], *, audit: bool) -> None:
    """Delete rows that the broker has. Safe to repeat."""
    await connection.fetch(*_deletion(published, audit))


def _deletion(published: Sequence[PublishedRow], audit: bool) -> Statement:
    columns = list(zip(*published, strict=True))
    return SQL["delete_published"], (*(arrays.ints(column) for column in columns), audit)


async def types_with_rows(connection: TrioConnection) -> list[int]:
    """The job types that have rows."""
    return [cast(int, row[0]) for row in await connection.fetch(SQL["outbox_types"])]


async def depth(connection: TrioConnection) -> list[tuple[str, int, float | None]]:
    """Per job type: how many rows wait, and the age in seconds of the oldest."""
    return [cast(tuple[str, int, float | None], row) for row in await connection.fetch(SQL["outbox_depth"])]


async def requeue_dispatched(
    connection: TrioConnection,
    job_types: Sequence[int] | None,
    *,
    after: int,
    limit: int,
    to_outbox: bool,
    by: str,
    audit: bool,
) -> tuple[int, int | None]:
    """Bring dispatched jobs back before their deadline: up to ``limit``, of tokens above ``after``. How many came, and
    the token to go on after; None when there is nothing more."""
    types = None if job_types is None else arrays.ints(job_types)
    rows = await connection.fetch(SQL["requeue_dispatched"], (types, after, limit, to_outbox, by, audit))
    count, last = cast(Any, rows[0])
    return count, last


async def migrate_dispatch(
    connection: TrioConnection, limit: int, left_out: Collection[int], *, to_outbox: bool
) -> int:
    """Move up to ``limit`` jobs that another mode left behind to where this one looks, without those of the tokens
    ``left_out``; how many rows went."""
    name = "queue_to_outbox" if to_outbox else "outbox_to_queue"
    _, rows = await connection.roundtrip([(SQL["lock_migration"], ()), (SQL[name], (limit, arrays.ints(left_out)))])
    return cast(int, rows[0][0])


async def first_leftover(connection: TrioConnection, left_out: Collection[int], *, to_outbox: bool) -> int | None:
    """The token of the job that `migrate_dispatch` would move first."""
    rows = await connection.fetch(SQL["first_to_outbox" if to_outbox else "first_to_queue"], (arrays.ints(left_out),))
    return cast(int, rows[0][0]) if rows else None


async def first_outgoing(
    connection: TrioConnection, job_type: int, floor: int, left_out: Collection[int]
) -> int | None:
    """The id of the row that `take` would take first."""
    rows = await connection.fetch(SQL["first_outgoing"], (job_type, floor, arrays.ints(left_out)))
    return cast(int, rows[0][0]) if rows else None


async def anything_left(connection: TrioConnection, *, to_outbox: bool) -> bool:
    """Return whether another mode left anything behind."""
    return bool((await connection.fetch(SQL["outbox_left"], (not to_outbox,)))[0][0])


async def dispatched_types(connection: TrioConnection) -> list[str]:
    """Return the names of the job types that need a topic, sorted."""
    *_, rows, _ = await connection.roundtrip(
        [
            (SQL["begin"], ()),
            (SQL["allow_sequential_scan"], ()),
            (SQL["dispatched_types"], ()),
            (SQL["commit"], ()),
        ]
    )
    return sorted(cast(str, row[0]) for row in rows if row[0])


async def switch_mode(connection: TrioConnection, mode: str) -> str | None:
    """Record the dispatch mode; the one before when it was another."""
    rows = await connection.fetch(SQL["switch_mode"], (mode,))
    return cast(str, rows[0][0]) if rows else None


async def mode(connection: TrioConnection) -> str | None:
    """Return the recorded dispatch mode."""
    rows = await connection.fetch(SQL["dispatch_mode"])
    return cast(str, rows[0][0]) if rows else None


async def end_when_idle(connection: TrioConnection, after_s: float) -> None:
    """Have the server end this session, and its locks with it, when it was not heard of for so long."""
    await connection.fetch(SQL["end_idle_session"], (f"{round(after_s * 1000)}ms",))


async def lead(connection: TrioConnection) -> bool:
    """Try to become the one relay, for as long as this session lives."""
    return bool((await connection.fetch(SQL["lead"]))[0][0])


async def still_leading(connection: TrioConnection) -> None:
    """Keep the session; raises when the server has ended it, or takes no writes any more."""
    if not (await connection.fetch(SQL["still_leading"]))[0][0]:
        raise TryAgain("the server takes no writes any more")
