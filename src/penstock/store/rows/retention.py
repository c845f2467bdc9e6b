"""Partitions of `history`, `journal` and `audit`, and the removal of what is older than the retention.

History and journals are dropped by the partition. A partition goes when no instance that started in its range is left:
variables of an open instance are folded from its history, however old. Instances themselves are removed row by row, one
each, in small transactions, and only as they were when they were selected: one that was retried, edited or migrated
since then is selected again when its time has come. History is deleted by the row only of instances that a rule removes
before their partition goes; journals are where a partition has to stay, as a run has many large ones. Where a rule
keeps some longer than their partition, their rows of history move to one of their own. Relies on `retention.sql`; a
caller's connection is outside a transaction.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import msgspec
from psycopg import errors

from penstock.store.db.arrays import floats, ints
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import DataError
from penstock.store.db.statements import SQL

REMOVE_MAX_ROWS: Final = 1_000
"""Instances that one transaction removes: some ten milliseconds."""

JOURNALS_MAX: Final = 100
"""Runs whose journals one transaction deletes: each may have many records."""

_REMOVALS: Final = (
    "remove_abnormal_ends",
    "remove_signals",
    "remove_signal_ids",
    "remove_instance_keys",
    "remove_journals",
    "remove_edits",
    "remove_called",
    "remove_search_attributes",
    "remove_maps",
    "remove_compensations",
    "remove_item_outputs",
    "remove_undoing",
    "remove_attempts",
    "remove_versions",
    "remove_scheduled",
    "remove_traces",
)

_HOLD: Final = {"history": "hold_history", "journal": "hold_journal", "audit": "hold_audit"}


class Partition(NamedTuple):
    """A range of time of one table. ``moved``: it has only what is kept for longer."""

    name: str
    since: datetime
    until: datetime
    moved: bool = False


class Selected(NamedTuple):
    """An instance that is to be removed, as it was when that was decided: ``changed`` is of its row's last change."""

    id: int
    changed: int


class Exceptions(NamedTuple):
    """Versions of definitions whose instances are kept for another time than others: by version and status, days."""

    versions: Sequence[int] = ()
    statuses: Sequence[int] = ()
    days: Sequence[float] = ()


NO_EXCEPTIONS: Final = Exceptions()
SLICE_MAX_ROWS: Final = 200
"""Instances that one transaction removes with their history."""
WALK_MAX_ROWS: Final = 2_000
"""Instances of a version that one statement looks at."""


class Left(NamedTuple):
    """Instances that keep a partition; counted to 1,000."""

    instances: int
    oldest: int | None


class Prepared(NamedTuple):
    """What `prepare` did: partitions made, and why others could not be."""

    made: list[str]
    refused: list[str]


async def prepare(connection: TrioConnection, partition_days: float) -> Prepared:
    """Make the partitions for now and for the two ranges that follow. Idempotent; safe with several engines at once.

    A partition that can't be made (no right to, or its rows lie in the default partition already) is no error:
    rows go to the default partition then, from which nothing is dropped. One that has to wait too long is wanted again
    in the next round, and so are those behind it: none is made before one that it follows.
    """
    made: list[str] = []
    refused: list[str] = []
    late: set[str] = set()
    for parent, since, until, is_near in cast(Any, await connection.fetch(SQL["partitions_wanted"], (partition_days,))):
        if parent in late:
            continue
        try:
            made.append(await _add(connection, parent, since, until, is_near=is_near))
        except errors.UniqueViolation:  # another engine, since it was asked what is wanted
            continue
        except (errors.InsufficientPrivilege, errors.CheckViolation, errors.LockNotAvailable) as error:
            if isinstance(error, errors.LockNotAvailable):
                late.add(parent)
            refused.append(f"{parent} from {since:%Y-%m-%d}: {str(error).splitlines()[0]}")
    return Prepared(made, refused)


async def _add(connection: TrioConnection, parent: str, since: datetime, until: datetime, *, is_near: bool) -> str:
    """Make one partition, after others that another engine makes.

    ``is_near``: writers have to be waited for, and to wait. One that writes to the default partition, and comes to it
    while this is made, is refused by PostgreSQL: the row is of another partition then. It is seldom: in a new database,
    and after a time without engines; else partitions are made long before rows come to them.
    """
    async with connection.transaction():
        await connection.fetch(SQL["short_locks"])
        await connection.fetch(SQL["wait_for_retention_turn"])
        if is_near:
            await connection.fetch(SQL[_HOLD[parent]])
        return cast(str, (await connection.fetch(SQL["add_partition"], (parent, since, until)))[0][0])


async def over(connection: TrioConnection, parent: str, days: float) -> list[Partition]:
    """Partitions of ``parent`` that end more than ``days`` ago, oldest first."""
    return [Partition(*cast(Any, row)) for row in await connection.fetch(SQL["partitions_over"], (parent, days))]


async def retired(
    connection: TrioConnection, partition: Partition, days: float, after: int, exceptions: Exceptions = NO_EXCEPTIONS
) -> list[Selected]:
    """Return the next instances of the partition's range that ended more than ``days`` ago, in order of id from
    ``after``."""
    excepted = {f"{version} {status}": days for version, status, days in zip(*exceptions, strict=True)}
    params = (partition.since, partition.until, after, days, REMOVE_MAX_ROWS, msgspec.json.encode(excepted).decode())
    return [Selected(*cast(Any, row)) for row in await connection.fetch(SQL["retired_instances"], params)]


async def versions(connection: TrioConnection) -> dict[int, str]:
    """Return the keys of all versions of definitions, with their ids."""
    return dict(cast(Any, await connection.fetch(SQL["versions_kept"])))


async def walk(
    connection: TrioConnection, version: int, after: int, days: Sequence[float]
) -> tuple[list[Selected], int | None]:
    """Of the next instances of a version those that ended, COMPLETED, FAILED or CANCELLED, more than so many ``days``
    ago; and the last one that was looked at, None at the end."""
    params = (version, after, min(days), floats(days), WALK_MAX_ROWS)
    rows = cast(Any, await connection.fetch(SQL["walk_version"], params))
    return [Selected(id, changed) for id, changed, due in rows if due], rows[-1][0] if len(
        rows
    ) == WALK_MAX_ROWS else None


async def remove_instances(connection: TrioConnection, instances: Sequence[Selected]) -> list[int] | None:
    """Remove instances that are as they were selected; those that went. None when another engine is at it."""
    async with _removing(connection):
        return await _remove(connection, instances)


async def remove_with_history(
    connection: TrioConnection, instances: Sequence[Selected]
) -> tuple[list[int], int] | None:
    """As `remove_instances`, and what a partition would take with it; those that went, and how many rows of history."""
    async with _removing(connection):
        removed = await _remove(connection, instances)
        if not removed:
            return None if removed is None else ([], 0)
        bounds = (ints(removed), min(removed), max(removed))
        deleted = await connection.roundtrip([(SQL["remove_history"], bounds), (SQL["remove_own_journals"], bounds)])
    return removed, cast(int, deleted[0][0][0])


@asynccontextmanager
async def _removing(connection: TrioConnection) -> AsyncGenerator[None]:
    """A transaction. What takes longer than a statement may is as bad as bad data: fewer rows may be removed."""
    try:
        async with connection.transaction():
            yield
    except errors.QueryCanceled as error:
        raise DataError(f"it takes too long to remove: {error}") from error


async def _remove(connection: TrioConnection, instances: Sequence[Selected]) -> list[int] | None:
    await connection.fetch(SQL["short_locks"])
    if not await _my_turn(connection):
        return None
    ids = ints([each.id for each in instances])
    await connection.fetch(SQL["lock_abnormal_ends"], (ids,))
    as_selected = (ids, ints([each.changed for each in instances]))
    removed = [cast(int, row[0]) for row in await connection.fetch(SQL["remove_instances"], as_selected)]
    await connection.roundtrip([(SQL[name], (ints(removed),)) for name in _REMOVALS])
    return removed


async def move_kept(connection: TrioConnection, partition: Partition, max_rows: int) -> bool | None:
    """Let what is kept of a partition of history have one of its own, and the rest go: its disk is free then. None when
    more than ``max_rows`` would move, or it takes too long; False when a lock was not had, or another engine is at it.

    Who writes to the partition waits meanwhile: instances that are open since then, or are retried."""
    try:
        async with connection.transaction():
            await connection.fetch(SQL["short_locks"])
            if not await _my_turn(connection):
                return False
            if (await connection.fetch(SQL["kept_rows"], (partition.since, partition.until, max_rows)))[0][0]:
                return None
            await connection.fetch(SQL["move_kept"], (partition.name,))
    except (errors.LockNotAvailable, errors.NoDataFound, errors.InsufficientPrivilege, errors.UndefinedTable):
        return False
    except errors.QueryCanceled:  # it takes longer than a statement may
        return None
    return True


async def remove_journals(connection: TrioConnection, partition: Partition) -> bool:
    """Delete journals of the partition whose instances are removed; True when there may be more."""
    async with connection.transaction():
        await connection.fetch(SQL["short_locks"])
        if not await _my_turn(connection):
            return False
        params = (partition.since, partition.until, JOURNALS_MAX)
        rows = await connection.fetch(SQL["remove_orphaned_journals"], params)
    return cast(int, rows[0][0]) == JOURNALS_MAX


async def left(connection: TrioConnection, partition: Partition) -> Left:
    """Return the instances that keep a partition of history."""
    return Left(*cast(Any, (await connection.fetch(SQL["instances_left"], (partition.since, partition.until)))[0]))


async def drop(connection: TrioConnection, partition: Partition) -> bool:
    """Drop a partition; False when it was locked, another engine is at it, or an instance of it is there: try later."""
    try:
        async with connection.transaction():
            await connection.fetch(SQL["short_locks"])
            if not await _my_turn(connection):
                return False
            if not await connection.fetch(SQL["drop_partition"], (partition.name,)):
                return False
    except (errors.LockNotAvailable, errors.NoDataFound, errors.InsufficientPrivilege):
        return False
    # after it: nobody waits for the lock on the parent meanwhile, though a walk over many dead rows takes a while
    await connection.fetch(SQL["remove_lost_traces"], (partition.since, partition.until))
    return True


async def _my_turn(connection: TrioConnection) -> bool:
    return bool((await connection.fetch(SQL["retention_turn"]))[0][0])
