"""Schedules: their rows, what became of their times, and which instances they started."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from penstock.core.time.schedule import RunOutcome
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import offloaded, sealed

RUNS_KEPT: Final = 100
"""Of each schedule."""


class ScheduleRow(NamedTuple):
    """A schedule as people see it. ``spec`` and ``backfill`` are JSON, ``variables`` too; ``now``: when it was read."""

    id: int
    name: str
    spec: str
    variables: str
    definition_id: str
    done_until: datetime
    fire_at: datetime | None
    buffered: list[datetime]
    last_instance: int | None
    paused: bool
    note: str | None
    backfill: str | None
    missed: int
    now: datetime


class RunRow(NamedTuple):
    """What became of a time."""

    at: datetime
    instance: int | None
    outcome: int
    reason: str | None


class LockedSchedule(NamedTuple):
    """A schedule under its lock. ``is_open``: the run that it started last; ``started``: times of its latest runs,
    while a backfill is under way. ``variables``: as they are stored."""

    id: int
    name: str
    spec: str
    variables: str
    definition_id: str
    done_until: datetime
    buffered: list[datetime]
    last_instance: int | None
    paused: bool
    backfill: str | None
    is_open: bool
    started: frozenset[datetime]


class Moved(NamedTuple):
    """Where a schedule stands after a look. ``pauses``: why it is paused from now on."""

    id: int
    done_until: datetime
    fire_at: datetime | None
    buffered: Sequence[datetime]
    last_instance: int | None
    backfill: bytes | None
    missed: int
    pauses: str | None


class NewRun(NamedTuple):
    """What became of a time of a schedule."""

    schedule: int
    at: datetime
    outcome: RunOutcome
    instance: int | None = None
    reason: str | None = None


class Scheduled(NamedTuple):
    """An instance that a schedule starts."""

    instance: int
    schedule: str
    at: datetime
    watched: bool


async def put(
    connection: TrioConnection,
    name: str,
    *,
    spec: bytes,
    variables: bytes,
    definition_id: str,
    paused: bool | None,
    timeless: Sequence[str],
) -> None:
    """Make a schedule, or change it. ``timeless``: fields of ``spec`` that say nothing about its times."""
    params = (name, spec.decode(), sealed(variables, connection.vault), definition_id, paused, arrays.texts(timeless))
    await connection.fetch(SQL["put_schedule"], params)


async def pause(connection: TrioConnection, name: str, note: str | None) -> bool:
    """False: there is no such schedule."""
    return bool(await connection.fetch(SQL["pause_schedule"], (name, note)))


async def resume(connection: TrioConnection, name: str) -> bool:
    """False: there is no such schedule."""
    return bool(await connection.fetch(SQL["resume_schedule"], (name,)))


async def begin_backfill(connection: TrioConnection, name: str, backfill: bytes) -> bool:
    """False: one is under way."""
    return bool(await connection.fetch(SQL["begin_backfill"], (name, backfill.decode())))


async def delete(connection: TrioConnection, name: str) -> bool:
    """False: there is no such schedule."""
    return bool(await connection.fetch(SQL["delete_schedule"], (name,)))


async def read(
    connection: TrioConnection, *, after: str = "", limit: int = 1, name: str | None = None
) -> list[ScheduleRow]:
    """By name, or the one."""
    rows = [ScheduleRow(*cast(Any, row)) for row in await connection.fetch(SQL["list_schedules"], (after, limit, name))]
    vault = connection.vault
    if vault is None:
        return rows
    size_bytes = sum(len(row.variables) for row in rows)
    return await offloaded(size_bytes, lambda: [row._replace(variables=vault.open(row.variables)) for row in rows])


async def exists(connection: TrioConnection, schedule: int) -> bool:
    """Return whether it was not deleted meanwhile."""
    return bool(await connection.fetch(SQL["schedule_exists"], (schedule,)))


async def runs(connection: TrioConnection, schedules: Sequence[int], limit: int) -> dict[int, list[RunRow]]:
    """What became of their times, the latest first, at most ``limit`` of each."""
    found: dict[int, list[RunRow]] = {schedule: [] for schedule in schedules}
    for schedule, *row in cast(Any, await connection.fetch(SQL["schedule_runs"], (arrays.ints(schedules), limit))):
        found[schedule].append(RunRow(*row))
    return found


async def due(connection: TrioConnection, limit: int) -> tuple[list[int], float | None]:
    """What is due, oldest first; and in how many seconds the next one is."""
    rows = cast("list[tuple[int, float]]", await connection.fetch(SQL["due_schedules"], (limit,)))
    later = [left_s for _, left_s in rows if left_s > 0]
    return [id for id, left_s in rows if left_s <= 0][:limit], later[0] if later else None


async def reckon(connection: TrioConnection) -> None:
    """Have the next time of each found anew."""
    await connection.fetch(SQL["reckon_schedules"])


async def lock(connection: TrioConnection, ids: Sequence[int], asked: Sequence[int]) -> list[LockedSchedule]:
    """Those that are due, and those ``asked`` for; none that others hold."""
    columns = arrays.ints(sorted(ids)), arrays.ints(asked)
    rows, standing = cast(
        Any,
        await connection.roundtrip(
            [(SQL["lock_schedules"], columns), (SQL["schedules_stand"], (arrays.ints(ids),))],
        ),
    )
    stand = {id: (is_open, frozenset(started or ())) for id, is_open, started in standing}
    return [LockedSchedule(*cast(Any, (*row, *stand[row[0]]))) for row in rows]


async def times_from(connection: TrioConnection, schedule: int, since: datetime, limit: int) -> set[datetime]:
    """Return those that something became of."""
    params = schedule, since.isoformat(), limit
    return {cast(datetime, at) for (at,) in await connection.fetch(SQL["schedule_times_from"], params)}


async def open_variables(connection: TrioConnection, stored: str) -> bytes:
    """Clear ones. Raises KeyMissing."""
    vault = connection.vault
    if vault is None:
        return stored.encode()
    return (await offloaded(len(stored), lambda: vault.open(stored))).encode()


def writes(
    moved: Sequence[Moved], new_runs: Sequence[NewRun], started: Sequence[Scheduled], overtaken: Sequence[int]
) -> list[Statement]:
    """What a look at schedules writes beside the instances."""
    ints, texts, times = arrays.ints, arrays.texts, arrays.times
    found: list[Statement] = []
    if moved:
        id, done, fire_at, buffered, last, backfill, missed, pauses = zip(*moved, strict=True)
        params = (
            ints(id), times(done), times(fire_at), texts(times(each) for each in buffered), ints(last),
            arrays.documents(backfill), ints(missed), arrays.bools(why is not None for why in pauses), texts(pauses),
        )  # fmt: skip
        found.append((SQL["move_schedules"], params))
    if new_runs:
        schedule, at, outcome, instance, reason = zip(*new_runs, strict=True)
        found += [
            (SQL["forget_schedule_runs"], (ints(schedule), times(at))),
            (SQL["insert_schedule_runs"], (ints(schedule), times(at), ints(instance), ints(outcome), texts(reason))),
            (SQL["prune_schedule_runs"], (ints(set(schedule)), RUNS_KEPT)),
        ]
    if started:
        instances, names, nominal, watched = zip(*started, strict=True)
        columns = ints(instances), texts(names), times(nominal), arrays.bools(watched)
        found.append((SQL["insert_scheduled"], columns))
    if overtaken:
        found.append((SQL["overtake_runs"], (ints(overtaken),)))
    return found


def notification(ended: Iterable[int]) -> Statement:
    """Tells the schedules of these instances that they have ended, where they want to know."""
    return SQL["tell_schedules"], (arrays.ints(ended),)


async def run_ended(connection: TrioConnection, instance: int, failure: str) -> bool:
    """Have a schedule looked at, as its run has ended; ``failure`` is the note of one that is paused by that."""
    return bool(await connection.fetch(SQL["run_ended"], (instance, failure)))
