"""Instances: starts of the narrow lane, reads and lists."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from psycopg.errors import QueryCanceled, UniqueViolation

from penstock.core.state import InstanceStatus
from penstock.store import arrays
from penstock.store.connection import TrioConnection
from penstock.store.database import IdTaken
from penstock.store.statements import SQL

BEYOND_ALL: Final = 2**63 - 1
"""No instance has this id."""


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
    """An instance and what of its tokens clients see, in one snapshot. ``open_steps`` may repeat a step. ``variables``
    None: they were not asked for, or have too many bytes."""

    id: int
    definition: int
    status: int
    started_at: datetime
    ended_at: datetime | None
    failure: str | None
    business_key: str | None
    instance_key: str | None
    parent_id: int | None
    variables: str | None
    variables_bytes: int | None
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


async def start_narrow(
    connection: TrioConnection, items: Sequence[NarrowStart], *, to_outbox: bool = False
) -> list[Begun]:
    """Start instances; raises IdTaken, and starts none, when an id clashes. One transaction of its own.

    ``to_outbox``: their first jobs wait for the relay, not in the queue.
    """
    columns = list(zip(*items, strict=True))
    params = (
        arrays.ints(columns[0]),
        arrays.ints(columns[1]),
        arrays.documents(columns[2]),
        arrays.texts(columns[3]),
        arrays.ints(columns[4]),
        arrays.texts(columns[5]),
        arrays.floats(columns[6]),
        to_outbox,
    )
    try:
        return [Begun(*cast(Any, row)) for row in await connection.fetch(SQL["start_narrow"], params)]
    except UniqueViolation as error:
        raise IdTaken(str(error)) from error


async def started(connection: TrioConnection, ids: Sequence[int]) -> dict[int, tuple[Begun, str | None]]:
    """Those of the instances that exist, with the last holder of their root token. ``lease_until`` is set while the
    lease of a hand-off at birth is that holder's."""
    rows = cast(Any, await connection.fetch(SQL["started"], (arrays.ints(ids),)))
    return {row[0]: (Begun(*row[:5]), row[5]) for row in rows}


async def view(
    connection: TrioConnection, ids: Sequence[int], variables_max_bytes: int | None = sys.maxsize
) -> list[InstanceRow]:
    """Instances as they are now, in the order asked for; unknown ids are left out. Their variables as long as these
    have no more than ``variables_max_bytes`` together, None for none of them."""
    rows = await connection.fetch(SQL["view"], (arrays.ints(ids), variables_max_bytes))
    found = [InstanceRow(*cast(Any, row)) for row in rows]
    connection.note_read(max((row.variables_bytes or 0 for row in found if row.variables is not None), default=0))
    return found


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
    offset: int = 0,
    before: int = BEYOND_ALL,
    by_scan: bool = False,
) -> list[int]:
    """Ids below ``before``, newest first. ``status`` is one of the wire's, None for any. ``by_scan``: open ones by a
    walk over all tokens; else raises QueryCanceled when there are too few of them among too many, and the transaction
    is rolled back.
    """
    keys = None if definitions is None else arrays.ints(definitions)
    params: tuple[object, ...] = (keys, business_key, limit, offset, before)
    match status:
        case None:
            name = "list_all"
        case "COMPLETED":
            name = "list_completed"
        case "ACTIVE" | "WAITING":
            name, params = "scan_open" if by_scan else "list_open", (*params, status == "WAITING")
        case _:
            name, params = "list_ended", (*params, int(InstanceStatus[status]))
    bound = {"list_open": [(SQL["give_up_soon"], ())], "scan_open": [(SQL["plan_for_a_scan"], ())]}.get(name, [])
    statements = [(SQL["begin"], ()), (SQL["plan_for_values"], ()), *bound, (SQL[name], params), (SQL["commit"], ())]
    try:
        *_, rows, _ = await connection.roundtrip(statements)
    except QueryCanceled:
        await connection.rollback()
        raise
    return [cast(int, row[0]) for row in rows]


async def find_page(
    connection: TrioConnection,
    *,
    definitions: Sequence[int] | None,
    status: str | None,
    business_key: str | None,
    limit: int,
    offset: int,
    count_max: int,
) -> tuple[list[int], int]:
    """Ids as of `find_ids`, and how many there are in all, counted up to ``count_max``. Takes seconds at most, however
    many instances are open."""

    async def find(limit: int, offset: int, by_scan: bool) -> list[int]:
        return await find_ids(
            connection, definitions=definitions, status=status, business_key=business_key, limit=limit, offset=offset,
            by_scan=by_scan,
        )  # fmt: skip

    by_scan = False
    try:
        page = await find(limit, offset, by_scan)
    except QueryCanceled:
        by_scan = True
        page = await find(limit, offset, by_scan)
    try:
        return page, len(await find(count_max, 0, by_scan))
    except QueryCanceled:
        return page, len(await find(count_max, 0, True))


async def find_slice(
    connection: TrioConnection,
    *,
    definitions: Sequence[int] | None,
    status: str | None,
    business_key: str | None,
    limit: int,
    before: int,
) -> tuple[list[int], int | None]:
    """Up to ``limit`` ids below ``before`` as of `find_ids`, and below which id there may be more."""

    async def find(by_scan: bool) -> list[int]:
        return await find_ids(
            connection, definitions=definitions, status=status, business_key=business_key, limit=limit + 1,
            before=before, by_scan=by_scan,
        )  # fmt: skip

    try:
        found = await find(False)
    except QueryCanceled:
        found = await find(True)
    return found[:limit], found[limit - 1] if len(found) > limit else None


async def estimate(connection: TrioConnection) -> int:
    """About how many instances there are, from the statistics of the table."""
    return cast(int, (await connection.fetch(SQL["estimate_instances"]))[0][0])


async def history_count(connection: TrioConnection, id: int) -> int:
    """How many history rows an instance has."""
    return cast(int, (await connection.fetch(SQL["history_count"], (id,)))[0][0])


async def history(connection: TrioConnection, id: int) -> tuple[int, list[HistoryEntry]] | None:
    """The definition key of an instance and its history; None when there is no such instance."""
    found, rows = await connection.roundtrip([(SQL["definition_of"], (id,)), (SQL["history"], (id,))])
    if not found:
        return None
    return cast(int, found[0][0]), [HistoryEntry(*cast(Any, row)) for row in rows]
