"""What engines counted and whom they saw, for the console: samples of ten seconds that become sums with age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import msgspec

from penstock.store.db.arrays import floats, ints, texts
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL

HOUR_S: Final = 3_600
DAY_S: Final = 24 * HOUR_S
WEEK_S: Final = 7 * DAY_S
_ROLL_UPS: Final = ((10, 60, HOUR_S), (60, 600, DAY_S))
_PURGE_MAX_ROWS: Final = 1_000
DONE_WITHIN_S: Final = 60
"""As `read_queue_facts` reads."""


class ActivityStep(NamedTuple):
    """What all engines counted from a time on."""

    since: datetime
    started: int
    completed: int
    failed: int
    cancelled: int


class SeenWorker(NamedTuple):
    """A worker, by the name it gave to an engine; how many jobs it had, did and reported as failed."""

    worker: str
    engine: int
    job_types: list[str]
    polled_at: datetime
    leased: int
    done: int
    failed: int


class WorkerNote(NamedTuple):
    """What an engine writes of a worker that it has seen."""

    worker: str
    job_types: Sequence[str]
    ago_s: float
    leased: int
    done: int
    failed: int


class QueueNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an engine writes of a job type: jobs under its leases, jobs done since its last sample, seconds since a
    worker polled."""

    locked: int = 0
    done: int = 0
    polled: float | None = None


class QueueFacts(NamedTuple):
    """What all engines say of a job type. ``done``: within `DONE_WITHIN_S`; ``polled_at``: of the same time."""

    workers: int
    locked: int
    done: int
    polled_at: datetime | None


class DatabaseFacts(NamedTuple):
    """The database, for people. ``since`` is the beginning of its oldest partition of history."""

    version: str
    size_bytes: int
    partitions: int
    since: datetime | None
    oldest_instance: int | None


class KnownEngine(NamedTuple):
    """An engine that lives, or did until lately: then ``left_s`` is negative. ``facts``: JSON, of version 18 on."""

    number: int
    dispatch_mode: str
    description: str
    schema_version: int
    left_s: float
    facts: str | None = None


async def read_clock(connection: TrioConnection) -> datetime:
    """Return the database's time."""
    return cast(datetime, (await connection.fetch(SQL["now"]))[0][0])


async def write_sample(
    connection: TrioConnection,
    engine: int,
    counts: Mapping[str, int],
    workers: Mapping[str, int],
    queues: Mapping[str, QueueNote],
) -> None:
    """What this engine counted since it did so before."""
    columns = [msgspec.json.encode(one).decode() for one in (counts, workers, queues)]
    await connection.fetch(SQL["write_sample"], (engine, *columns))


async def write_workers(connection: TrioConnection, engine: int, seen: Sequence[WorkerNote]) -> None:
    """Of those that polled since the last time."""
    columns = (
        texts(note.worker for note in seen),
        texts(msgspec.json.encode(note.job_types).decode() for note in seen),
        floats(note.ago_s for note in seen),
        ints(note.leased for note in seen),
        ints(note.done for note in seen),
        ints(note.failed for note in seen),
    )
    await connection.fetch(SQL["write_workers"], (engine, *columns))


async def roll_up(connection: TrioConnection) -> None:
    """Sum up what is older, forget what is too old. Any number of engines may do it at once."""
    for span_s, into_s, age_s in _ROLL_UPS:
        await connection.fetch(SQL["roll_up_samples"], (span_s, into_s, age_s))
    await connection.fetch(SQL["purge_samples"], (600, WEEK_S))


async def purge_workers(connection: TrioConnection, after: str) -> str:
    """Forget workers that were not seen for a day, of the next thousand after ``after``; where to go on."""
    rows = await connection.fetch(SQL["purge_workers"], (DAY_S, after, _PURGE_MAX_ROWS))
    return cast(str, rows[0][0] or "")


async def read_steps(connection: TrioConnection, range_s: int, step_s: int) -> list[ActivityStep]:
    """Return the last ``range_s`` seconds; steps in which nothing was counted are missing."""
    return [ActivityStep(*cast(Any, row)) for row in await connection.fetch(SQL["read_samples"], (range_s, step_s))]


async def read_durations(connection: TrioConnection, range_s: int) -> dict[str, int]:
    """How many instances completed within the last ``range_s`` seconds, by the name of the bound of their durations."""
    return dict(cast(Any, await connection.fetch(SQL["read_durations"], (range_s,))))


async def read_queue_facts(connection: TrioConnection) -> dict[str, QueueFacts]:
    """By job type, of those that engines said something of lately."""
    rows = cast(Any, await connection.fetch(SQL["read_queue_facts"]))
    return {name: QueueFacts(*facts) for name, *facts in rows}


async def read_last_polls(connection: TrioConnection, job_types: Sequence[str]) -> dict[str, datetime]:
    """When a worker of a day polled last for each; those for which none did are missing."""
    return dict(cast(Any, await connection.fetch(SQL["read_last_polls"], (texts(job_types),))))


async def read_database(connection: TrioConnection) -> DatabaseFacts:
    """Its size takes a look at each of its files."""
    return DatabaseFacts(*cast(Any, (await connection.fetch(SQL["database_facts"]))[0]))


async def read_worker_counts(connection: TrioConnection) -> dict[str, int]:
    """How many workers poll for each job type."""
    return dict(cast(Any, await connection.fetch(SQL["read_worker_counts"])))


async def read_workers(
    connection: TrioConnection, after: str, limit: int, job_type: str | None = None
) -> list[SeenWorker]:
    """In order of their names; all, or those of a job type."""
    rows = cast(Any, await connection.fetch(SQL["read_workers"], (after, limit, job_type)))
    return [SeenWorker(worker, engine, msgspec.json.decode(types), *rest) for worker, engine, types, *rest in rows]


async def count_open(connection: TrioConnection, limit: int) -> int:
    """Open instances, counted to ``limit``."""
    return cast(int, (await connection.fetch(SQL["count_open"], (limit,)))[0][0])


async def read_engines(connection: TrioConnection) -> list[KnownEngine]:
    """In order of their numbers."""
    return [KnownEngine(*cast(Any, row)) for row in await connection.fetch(SQL["all_engines"])]
