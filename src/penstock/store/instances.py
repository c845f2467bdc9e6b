"""Instances: starts of the narrow lane, reads and lists."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from psycopg.errors import UniqueViolation

from penstock.core.state import InstanceStatus
from penstock.store import arrays
from penstock.store.connection import TrioConnection
from penstock.store.database import IdTaken
from penstock.store.statements import SQL


class NarrowStart(NamedTuple):
    """A start whose first step is a plain service task."""

    id: int
    definition: int
    variables: bytes
    business_key: str | None
    job_type: int
    hand_off: str | None
    lease_s: float | None


class Begun(NamedTuple):
    """A started instance with its first execution. ``lease_until`` is set when it was handed off."""

    id: int
    seq: int
    entered_at: datetime
    lease_until: datetime | None
    started_at: datetime


class InstanceRow(NamedTuple):
    """An instance and what of its tokens clients see, in one snapshot. ``open_steps`` may repeat a step."""

    id: int
    definition: int
    status: int
    started_at: datetime
    ended_at: datetime | None
    failure: str | None
    business_key: str | None
    instance_key: str | None
    parent_id: int | None
    variables: str
    open_steps: list[int] | None
    waiting: bool
    progress: str | None


class HistoryEntry(NamedTuple):
    """One history row or, with ``kind`` None, one open execution; in order of entry."""

    token: int
    seq: int
    step: int
    kind: int | None
    started_at: datetime
    ended_at: datetime | None
    claimed_at: datetime | None
    attempt: int
    worker: str | None
    reason: str | None
    position: int | None


async def start_narrow(connection: TrioConnection, items: Sequence[NarrowStart]) -> list[Begun]:
    """Start instances; raises IdTaken, and starts none, when an id clashes. One transaction of its own."""
    columns = list(zip(*items, strict=True))
    params = (
        arrays.ints(columns[0]),
        arrays.ints(columns[1]),
        arrays.documents(columns[2]),
        arrays.texts(columns[3]),
        arrays.ints(columns[4]),
        arrays.texts(columns[5]),
        arrays.floats(columns[6]),
    )
    try:
        return [Begun(*cast(Any, row)) for row in await connection.fetch(SQL["start_narrow"], params)]
    except UniqueViolation as error:
        raise IdTaken(str(error)) from error


async def started(connection: TrioConnection, ids: Sequence[int]) -> dict[int, Begun]:
    """Those of the instances that exist and still stand on their first execution."""
    rows = cast(Any, await connection.fetch(SQL["started"], (arrays.ints(ids),)))
    return {row[0]: Begun(*row[:5]) for row in rows}


async def view(connection: TrioConnection, ids: Sequence[int]) -> dict[int, InstanceRow]:
    """Instances as they are now; unknown ids are left out."""
    rows = await connection.fetch(SQL["view"], (arrays.ints(ids),))
    return {row.id: row for row in (InstanceRow(*cast(Any, row)) for row in rows)}


async def exists(connection: TrioConnection, id: int) -> bool:
    """Whether there is such an instance."""
    return bool(await connection.fetch(SQL["instance_exists"], (id,)))


async def find_ids(
    connection: TrioConnection,
    *,
    definitions: Sequence[int] | None,
    status: str | None,
    business_key: str | None,
    limit: int,
    offset: int,
) -> list[int]:
    """Ids, newest first. ``status`` is one of the wire's, None for any."""
    keys = None if definitions is None else arrays.ints(definitions)
    params: tuple[object, ...] = (keys, business_key, limit, offset)
    match status:
        case None:
            name = "list_all"
        case "COMPLETED":
            name = "list_completed"
        case "ACTIVE" | "WAITING":
            name, params = "list_open", (*params, status == "WAITING")
        case _:
            name, params = "list_ended", (*params, int(InstanceStatus[status]))
    *_, rows, _ = await connection.roundtrip(
        [(SQL["begin"], ()), (SQL["plan_for_values"], ()), (SQL[name], params), (SQL["commit"], ())]
    )
    return [cast(int, row[0]) for row in rows]


async def estimate(connection: TrioConnection) -> int:
    """About how many instances there are, from the statistics of the table."""
    return cast(int, (await connection.fetch(SQL["estimate_instances"]))[0][0])


async def history(connection: TrioConnection, id: int) -> tuple[int, list[HistoryEntry]] | None:
    """The definition key of an instance and its history; None when there is no such instance."""
    found, rows = await connection.roundtrip([(SQL["definition_of"], (id,)), (SQL["history"], (id,))])
    if not found:
        return None
    return cast(int, found[0][0]), [HistoryEntry(*cast(Any, row)) for row in rows]
