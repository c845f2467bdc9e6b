"""What engines counted and whom they saw, for the console: samples of ten seconds that become sums with age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import msgspec

from penstock.store.arrays import floats, texts
from penstock.store.connection import TrioConnection
from penstock.store.statements import SQL

HOUR_S: Final = 3_600
DAY_S: Final = 24 * HOUR_S
WEEK_S: Final = 7 * DAY_S
_ROLL_UPS: Final = ((10, 60, HOUR_S), (60, 600, DAY_S))
_PURGE_MAX_ROWS: Final = 1_000


class Step(NamedTuple):
    """What all engines counted from a time on."""

    since: datetime
    started: int
    completed: int
    failed: int
    cancelled: int


class SeenWorker(NamedTuple):
    """A worker, by the name it gave to an engine."""

    worker: str
    engine: int
    job_types: list[str]
    polled_at: datetime


class KnownEngine(NamedTuple):
    """An engine that lives, or did until lately: then ``left_s`` is negative."""

    number: int
    dispatch_mode: str
    description: str
    schema_version: int
    left_s: float


async def read_clock(connection: TrioConnection) -> datetime:
    """The database's time."""
    return cast(datetime, (await connection.fetch(SQL["now"]))[0][0])


async def write_sample(
    connection: TrioConnection, engine: int, counts: Mapping[str, int], workers: Mapping[str, int]
) -> None:
    """What this engine counted since it did so before."""
    encode = msgspec.json.encode
    await connection.fetch(SQL["write_sample"], (engine, encode(counts).decode(), encode(workers).decode()))


async def write_workers(
    connection: TrioConnection, engine: int, seen: Sequence[tuple[str, Sequence[str], float]]
) -> None:
    """(worker, job types, seconds ago) of those that polled since the last time."""
    columns = (
        texts(name for name, _, _ in seen),
        texts(msgspec.json.encode(types).decode() for _, types, _ in seen),
        floats(ago for _, _, ago in seen),
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


async def read_steps(connection: TrioConnection, range_s: int, step_s: int) -> list[Step]:
    """The last ``range_s`` seconds; steps in which nothing was counted are missing."""
    return [Step(*cast(Any, row)) for row in await connection.fetch(SQL["read_samples"], (range_s, step_s))]


async def read_worker_counts(connection: TrioConnection) -> dict[str, int]:
    """How many workers poll for each job type."""
    return dict(cast(Any, await connection.fetch(SQL["read_worker_counts"])))


async def read_workers(
    connection: TrioConnection, after: str, limit: int, job_type: str | None = None
) -> list[SeenWorker]:
    """In order of their names; all, or those of a job type."""
    rows = cast(Any, await connection.fetch(SQL["read_workers"], (after, limit, job_type)))
    return [SeenWorker(worker, engine, msgspec.json.decode(types), at) for worker, engine, types, at in rows]


async def count_open(connection: TrioConnection, limit: int) -> int:
    """Open instances, counted to ``limit``."""
    return cast(int, (await connection.fetch(SQL["count_open"], (limit,)))[0][0])


async def read_engines(connection: TrioConnection) -> list[KnownEngine]:
    """In order of their numbers."""
    return [KnownEngine(*cast(Any, row)) for row in await connection.fetch(SQL["all_engines"])]
