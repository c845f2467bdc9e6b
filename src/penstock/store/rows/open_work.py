"""What is open, as people look at it: jobs by state, timers to come. Reads only, and not for long."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from psycopg.errors import DataError, QueryCanceled

from penstock.core.rules.state import TokenState
from penstock.errors import BadRequest, Unavailable
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement

SCAN_ROWS: Final = 2_000
"""Timers that are looked at for a page of one kind."""


class OpenJob(NamedTuple):
    """An open job. ``since`` it is in its state; ``worker`` and ``lease_until`` of one that is under a lease."""

    priority: int
    place: int
    token: int
    instance: int
    seq: int
    step: int
    attempt: int
    failures: int
    since: datetime
    worker: str | None
    lease_until: datetime | None
    definition: int
    progress: str | None = None
    flow_key: str | None = None


class TimerKey(NamedTuple):
    """A timer's place in the order of time."""

    fire_at: datetime
    token: int
    seq: int
    place: int


class ComingTimer(NamedTuple):
    """A timer with the execution that it belongs to; ``step`` None: that is closed, the timer garbage."""

    fire_at: datetime
    token: int
    seq: int
    place: int
    instance: int
    step: int | None
    attempt: int | None
    failures: int | None
    since: datetime | None
    job_type: int | None
    definition: int | None
    priority: int | None
    flow_key: str | None


class QueuePlace(NamedTuple):
    """Where a job waits among those of its type."""

    priority: int
    place: int
    flow_key: str


async def waiting(
    connection: TrioConnection, job_type: int, after: QueuePlace, limit: int
) -> tuple[list[OpenJob], QueuePlace | None]:
    """Jobs in the queue of a type by priority and flow key, of each those first that will be taken first; and where to
    go on, None: nowhere."""
    rows = await _read(connection, (SQL["waiting_jobs"], (job_type, *after[:2], limit + 1, after.flow_key)))
    last = QueuePlace(rows[limit - 1][0], rows[limit - 1][1], rows[limit - 1][-1] or "") if len(rows) > limit else None
    jobs = [OpenJob(*row) for row in rows[:limit] if row[2] is not None]
    return jobs, last


async def leased(connection: TrioConnection, job_type: int | None, limit: int, state: TokenState) -> list[OpenJob]:
    """Jobs that workers have (LOCKED) or Kafka has (DISPATCHED), those first that they have longest. Walks over all
    tokens."""
    statement = (SQL["leased_jobs"], (job_type, limit, int(state)))
    return [OpenJob(*row) for row in await _read(connection, statement, walk=True)]


async def timers(
    connection: TrioConnection, after: TimerKey, indexes: Sequence[int], *, boundary: bool, most: int | None
) -> list[ComingTimer]:
    """Return those among the next `SCAN_ROWS` with one of the indexes, or of boundary events; next first, at most so
    many."""
    params = (*after, arrays.ints(indexes), boundary, SCAN_ROWS, most)
    return [ComingTimer(*row) for row in await _read(connection, (SQL["next_timers"], params))]


async def end_of_scan(connection: TrioConnection, after: TimerKey) -> TimerKey | None:
    """Return the last of the next `SCAN_ROWS` timers; None when there are fewer."""
    rows = await _read(connection, (SQL["timer_at"], (*after, SCAN_ROWS)))
    return TimerKey(*rows[0]) if rows else None


async def holder(connection: TrioConnection, token: int, seq: int) -> tuple[str, int] | None:
    """(worker, attempt) of a job under a lease."""
    rows = cast(Any, await connection.fetch(SQL["lease_holder"], (token, seq)))
    return rows[0] if rows else None


async def _read(connection: TrioConnection, statement: Statement, *, walk: bool = False) -> list[Any]:
    settings: list[Statement] = [(SQL["begin"], ()), (SQL["look_briefly"], ())]
    if walk:
        settings.append((SQL["allow_sequential_scan"], ()))
    try:
        *_, rows, _ = await connection.roundtrip([*settings, statement, (SQL["commit"], ())])
    except QueryCanceled:
        await connection.rollback()
        raise Unavailable("reading the list takes longer than two seconds at the moment; try again later") from None
    except DataError:  # a cursor that somebody made up: a column has less room than its numbers
        await connection.rollback()
        raise BadRequest("cursor: is not a `next` of this list") from None
    return cast("list[Any]", rows)
