"""Instances: starts of the fast path, reads and lists."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, NamedTuple, cast

import msgspec
import trio
from psycopg.errors import QueryCanceled, UniqueViolation

from penstock.core.rules.search_attributes import Wanted
from penstock.core.rules.state import InstanceStatus
from penstock.errors import Unavailable
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import IdTaken
from penstock.store.db.statements import SQL
from penstock.store.db.vault import PROGRESS, Vault, offloaded, sealed

PLACES_MAX: Final = 20
BEYOND_ALL: Final = 2**63 - 1
"""No instance has this id."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST_US: Final = 2**53
"""Microseconds since 1970 of no time that an instance has: the year 2255."""
WALK_S: Final = 1.0
"""So long a list is walked over for what is rare in it; one piece longer at most."""
KEY_PIECE_ROWS: Final = 2_000
"""Of a list by business key: their rows lie anywhere in the table."""
WALK_PIECE_ROWS: Final = 10_000
"""Takes 10 to 40 ms."""


class FastStart(NamedTuple):
    """A start whose first step is a plain service task."""

    id: int
    definition: int
    variables: bytes
    business_key: str | None
    job_type: int
    direct_to: str | None
    lease_s: float | None
    started_by: str | None = None


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
    failure_code: str | None
    business_key: str | None
    instance_key: str | None
    parent_id: int | None
    variables: str | None
    variables_bytes: int | None
    open_steps: list[int] | None
    waiting: bool
    progress: str | None
    result: str | None
    schedule: str | None
    scheduled_at: datetime | None
    start_at: datetime | None
    """Of one that has not begun."""
    priority: int
    flow_key: str | None
    blocked_since: datetime | None
    blocked_reason: str | None
    """Of a durable run that is blocked."""


class StepPlace(NamedTuple):
    """A step that an instance stands on, with the state of its token; or else the id of the one that failed."""

    step: int | None
    state: int | None
    since: datetime | None
    failed_step: str | None


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
    code: str | None
    child: int | None
    """The instance that this call waits for, or waited for last."""
    item: int | None
    """Of a forEach."""
    items: str | None
    """Of the whole of one: how many there are, and became what; JSON."""


async def start_fast(
    connection: TrioConnection,
    items: Sequence[FastStart],
    *,
    to_outbox: bool = False,
    latest: Collection[tuple[str, int]] = (),
) -> list[Begun]:
    """Start instances; raises IdTaken, and starts none, when an id clashes. One transaction of its own.

    ``to_outbox``: their first jobs wait for the relay, not in the queue. ``latest``: definitions' ids with
    the keys of what have to be their latest versions; where one is not, none is started.
    """
    if len(items) == 1 and items[0].direct_to is not None and not to_outbox:
        return await begin(connection, SQL["start_lone"], _start_values(connection, items[0], latest))
    columns = start_columns(connection, items, to_outbox=to_outbox)
    return await begin(
        connection,
        SQL["start_fast"],
        (*columns, arrays.texts(id for id, _ in latest), arrays.ints(key for _, key in latest)),
    )


def start_columns(connection: TrioConnection, items: Sequence[FastStart], *, to_outbox: bool) -> tuple[Any, ...]:
    """Starts as the statements take them."""
    columns = list(zip(*items, strict=True))
    return (
        arrays.ints(columns[0]),
        arrays.ints(columns[1]),
        arrays.sealed(columns[2], connection.vault),
        arrays.texts(columns[3]),
        arrays.ints(columns[4]),
        arrays.texts(columns[5]),
        arrays.floats(columns[6]),
        to_outbox,
        arrays.texts(columns[7]),
    )


def _start_values(connection: TrioConnection, item: FastStart, latest: Collection[tuple[str, int]]) -> tuple[Any, ...]:
    """A start as the statement for one takes it."""
    id, definition, variables, *others = item
    ((definition_id, key),) = latest or ((None, None),)
    return (id, definition, sealed(variables, connection.vault), *others, definition_id, key)


async def begin(connection: TrioConnection, statement: bytes, params: tuple[Any, ...]) -> list[Begun]:
    """Start instances by a statement. Raises IdTaken."""
    try:
        return [Begun(*cast(Any, row)) for row in await connection.fetch(statement, params)]
    except UniqueViolation as error:
        raise IdTaken(str(error)) from error


async def started(connection: TrioConnection, ids: Sequence[int]) -> dict[int, tuple[Begun, str | None, int]]:
    """Return those of the instances that exist, with the last holder of their root token, and the key of their
    definition. ``lease_until`` is set while the lease of a direct dispatch is that holder's."""
    rows = cast(Any, await connection.fetch(SQL["started"], (arrays.ints(ids),)))
    return {row[0]: (Begun(*row[:5]), row[5], row[6]) for row in rows}


async def started_by(connection: TrioConnection, id: int) -> str | None:
    """The caller that was proved when an instance was started."""
    rows = await connection.fetch(SQL["started_by"], (id,))
    return cast("str | None", rows[0][0]) if rows else None


async def view(
    connection: TrioConnection, ids: Sequence[int], variables_max_bytes: int | None = sys.maxsize
) -> list[InstanceRow]:
    """Instances as they are now, in the order asked for; unknown ids are left out. Their variables as long as these
    have no more than ``variables_max_bytes`` together, None for none of them."""
    rows = await connection.fetch(SQL["view"], (arrays.ints(ids), variables_max_bytes))
    found = [InstanceRow(*cast(Any, row)) for row in rows]
    vault = connection.vault
    if vault is not None:
        size_bytes = sum(len(row.variables or "") + len(row.result or "") + len(row.progress or "") for row in found)
        found = await offloaded(size_bytes, lambda: [_opened(row, vault) for row in found])
    connection.remember_row_size(
        max((row.variables_bytes or 0 for row in found if row.variables is not None), default=0)
    )
    return found


def _opened(row: InstanceRow, vault: Vault) -> InstanceRow:
    """Raises KeyMissing."""
    variables = None if row.variables is None else vault.open(row.variables)
    progress = row.progress
    if progress is not None:
        noted = msgspec.json.decode(progress, type=list[tuple[int, msgspec.Raw]])
        opened = [(step, msgspec.Raw(vault.open_value(bytes(value).decode(), PROGRESS))) for step, value in noted]
        progress = msgspec.json.encode(opened).decode()
    result = None if row.result is None else vault.open(row.result)
    return row._replace(variables=variables, progress=progress, result=result)


async def places(connection: TrioConnection, ids: Sequence[int]) -> dict[int, list[StepPlace]]:
    """Where instances stand, in order of entry, or at which step they failed; `PLACES_MAX` of each."""
    found: dict[int, list[StepPlace]] = {}
    for id, *place in cast(Any, await connection.fetch(SQL["places"], (arrays.ints(ids), PLACES_MAX))):
        found.setdefault(id, []).append(StepPlace(*place))
    return found


async def exists(connection: TrioConnection, id: int) -> bool:
    """Return whether there is such an instance."""
    return bool(await connection.fetch(SQL["instance_exists"], (id,)))


DELAYED: Final = "DELAYED"
"""In place of a status: those ACTIVE ones that have not begun."""
BLOCKED: Final = "BLOCKED"
"""In place of a status: those WAITING ones that are durable runs which no code could go on with."""
OPEN: Final = "OPEN"
"""In place of a status, of a bulk operation or at a step: those that have not ended."""


class Listed(NamedTuple):
    """Which rows a list has: of some versions of definitions (their keys), in a status of the wire's, `DELAYED` or
    `BLOCKED`, with a business key, or with one that begins so; None for any. ``since`` and ``until`` are ids. ``cause``
    and ``step`` are of failures; the latter needs definitions."""

    definitions: Sequence[int] | None = None
    status: str | None = None
    business_key: str | None = None
    since: int = 0
    until: int = BEYOND_ALL
    cause: str | None = None
    step: str | None = None
    key_prefix: str | None = None
    parent: int | None = None
    """Which started them."""
    flow_key: str | None = None
    """Not with ``cause``, ``step``, ``parent`` or ``attributes``."""
    error_contains: str | None = None
    """A part of the error code or the reason, in any case. Needs the status FAILED, and no ``cause`` or ``parent``."""
    bulk: int | None = None
    """The bulk operation that was done to them."""
    at_step: Sequence[int] | None = None
    """On which they stand: its number in each of ``definitions``. With the status ACTIVE, WAITING or `OPEN`."""
    attributes: Sequence[Wanted] = ()
    """What their search attributes are to be; the first one leads."""

    @property
    def by_index(self) -> bool:
        """Return whether it has an index of its own, so that no walk over all of a status finds more."""
        led = self.cause, self.step, self.parent, self.bulk
        return bool(self.attributes) or any(value is not None for value in led)


class IdPage(NamedTuple):
    """Part of a list. ``total``: how many there are in all, counted up to a limit, or, with ``complete`` False, as far
    as there was time to look: then ``ids`` may be too few as well."""

    ids: list[int]
    total: int
    complete: bool


async def find_ended(connection: TrioConnection, ids: Sequence[int]) -> list[int]:
    """Those of the instances that have ended, or are not there."""
    return [cast(int, row[0]) for row in await connection.fetch(SQL["find_ended"], (arrays.ints(ids),))]


@cache
def oldest_first(statement: bytes) -> bytes:
    """Return a list's statement, or `walk`, in the other direction: by the same indexes, backwards."""
    return statement.replace(b" DESC LIMIT ", b" ASC LIMIT ").replace(b"SELECT min(id) FROM", b"SELECT max(id) FROM")


async def find_ids(
    connection: TrioConnection,
    listed: Listed,
    *,
    limit: int,
    offset: int = 0,
    before: int = BEYOND_ALL,
    oldest: bool = False,
) -> list[int]:
    """Ids below ``before``, newest first, or ``oldest`` first. Raises QueryCanceled when there are too few of them
    among too many, and the transaction is rolled back: then `_walk`.
    """
    keys = None if listed.definitions is None else arrays.ints(listed.definitions)
    before = min(before, listed.until)
    params: tuple[object, ...] = (keys, listed.business_key, limit, offset, before, listed.since)
    name, params = _list_of(listed, params)
    statement = oldest_first(SQL[name]) if oldest else SQL[name]
    settings = [(SQL["begin"], ()), (SQL["plan_for_values"], ()), (SQL["give_up_soon"], ())]
    try:
        *_, rows, _ = await connection.roundtrip([*settings, (statement, params), (SQL["commit"], ())])
    except QueryCanceled as error:
        await connection.rollback()
        if listed.by_index:
            raise Unavailable("the database is too busy for this list: try again") from error
        raise
    return [cast(int, row[0]) for row in rows]


_PLAIN_LISTS: Final[Mapping[str | None, str]] = {
    None: "list_all",
    "COMPLETED": "list_completed",
    "ACTIVE": "list_active",
    DELAYED: "list_delayed",
    BLOCKED: "list_blocked",
}


def _list_of(listed: Listed, params: tuple[object, ...]) -> tuple[str, tuple[object, ...]]:
    """Return the name of a list's statement and its parameters; ``params`` are those that all have."""
    match listed.status:
        case _ if listed.attributes:
            name, params = "list_attributed", (*params, listed.status, *_attributes(listed.attributes))
        case "WAITING" if listed.at_step is not None:
            name, params = "list_waiting_at_step", (*params, arrays.ints(listed.at_step))
        case _ if listed.at_step is not None:
            name, params = "list_at_step", (*params, arrays.ints(listed.at_step), listed.status)
        case _ if listed.bulk is not None:
            name, params = "list_bulk_done", (*params, listed.bulk, listed.status)
        case _ if listed.parent is not None:
            name, params = "list_children", (*params, listed.parent, listed.status)
        case "FAILED" if listed.cause is not None:
            name, params = "list_caused", (*params, listed.cause, listed.step)
        case "FAILED" if listed.step is not None:
            name, params = "list_failed_at", (*params, listed.step)
        case _ if listed.status in _PLAIN_LISTS:
            name = _PLAIN_LISTS[listed.status]
        case "WAITING" if listed == Listed(None, "WAITING", None, listed.since, listed.until):
            return "list_waiting", params[2:]
        case "WAITING":
            name = "list_waiting_of"
        case _:
            name, params = "list_ended", (*params, int(InstanceStatus[listed.status or ""]))
    params = (*params, listed.key_prefix, *(() if listed.by_index else (listed.flow_key,)))
    return name, (*params, listed.error_contains) if name in ("list_ended", "list_failed_at") else params


def _attributes(wanted: Sequence[Wanted]) -> tuple[object, ...]:
    first, others = wanted[0], wanted[1:]
    names, texts = arrays.texts([each.name for each in others]), arrays.texts([each.text for each in others])
    bounds = arrays.floats([each.low for each in others]), arrays.floats([each.high for each in others])
    return *first, names, texts, *bounds


async def _walk(
    connection: TrioConnection, listed: Listed, limit: int, before: int, *, oldest: bool = False
) -> tuple[list[int], int | None]:
    """Up to ``limit`` ids below ``before``, as many as `WALK_S` suffices for, and below which id there may be more; or,
    ``oldest`` first, above which."""
    keys = None if listed.definitions is None else arrays.ints(listed.definitions)
    steps = None if listed.at_step is None else arrays.ints(listed.at_step)
    statement = oldest_first(SQL["walk"]) if oldest else SQL["walk"]
    found: list[int] = []
    before, since = min(before, listed.until), listed.since
    deadline = trio.current_time() + WALK_S
    while True:
        params = (keys, listed.business_key, limit - len(found), listed.status, before, WALK_PIECE_ROWS, since,
                  listed.key_prefix, listed.flow_key, listed.error_contains, steps)  # fmt: skip
        statements = [(SQL["begin"], ()), (SQL["plan_for_values"], ()), (statement, params), (SQL["commit"], ())]
        *_, rows, _ = await connection.roundtrip(statements)
        scanned, last, ids = cast(tuple[int, int, list[int]], rows[0])
        found += ids
        if len(found) == limit:
            return found, found[-1]
        if scanned < WALK_PIECE_ROWS:
            return found, None
        before, since = (before, last + 1) if oldest else (last, since)
        if trio.current_time() >= deadline:
            return found, last


async def find_page(connection: TrioConnection, listed: Listed, *, limit: int, offset: int, count_max: int) -> IdPage:
    """Return a page, newest first, counted up to ``count_max``. Takes seconds at most, however many there are to look
    at."""
    try:
        page = await find_ids(connection, listed, limit=limit, offset=offset)
    except QueryCanceled:
        found, more = await _walk(connection, listed, max(count_max, offset + limit), BEYOND_ALL)
        complete = more is None or len(found) >= count_max
        return IdPage(found[offset : offset + limit], min(len(found), count_max) + (not complete), complete)
    if len(page) < limit and (page or not offset):
        return IdPage(page, min(offset + len(page), count_max), complete=True)
    try:
        return IdPage(page, len(await find_ids(connection, listed, limit=count_max)), complete=True)
    except QueryCanceled:
        return IdPage(page, min(offset + len(page) + 1, count_max), complete=False)


async def find_slice(
    connection: TrioConnection, listed: Listed, *, limit: int, before: int, oldest: bool = False
) -> tuple[list[int], int | None]:
    """Up to ``limit`` ids below ``before``, newest first, or ``oldest`` first, and below or above which id there may be
    more.

    Takes seconds at most: of what is rare among very many there may be fewer in a slice, also none, and more behind it.
    """
    try:
        found = await find_ids(connection, listed, limit=limit + 1, before=before, oldest=oldest)
    except QueryCanceled:
        return await _walk(connection, listed, limit, before, oldest=oldest)
    return found[:limit], found[limit - 1] if len(found) > limit else None


class KeyPlace(NamedTuple):
    """Where a list by business key goes on: after this key, of this instance."""

    key: str = ""
    id: int = 0


async def find_by_key(
    connection: TrioConnection, listed: Listed, after: KeyPlace, limit: int
) -> tuple[list[int], KeyPlace | None]:
    """Up to ``limit`` ids of instances that have a business key, by it, and after which place there may be more. As
    long as `find_slice`. ``listed`` has neither what has an index of its own nor a part of an error."""
    keys, steps = (None if each is None else arrays.ints(each) for each in (listed.definitions, listed.at_step))
    found: list[int] = []
    size, deadline = limit + 1, trio.current_time() + WALK_S
    while True:
        params = (*after, size, listed.key_prefix, keys, listed.flow_key, listed.status, steps, listed.since,
                  listed.until)  # fmt: skip
        statements = [
            (SQL["begin"], ()),
            (SQL["plan_for_values"], ()),
            (SQL["list_by_key"], params),
            (SQL["commit"], ()),
        ]
        *_, rows, _ = await connection.roundtrip(statements)
        for id, key, matches in cast("list[tuple[int, str, bool]]", rows):
            after = KeyPlace(key, id)
            if matches:
                found.append(id)
                if len(found) == limit:
                    return found, after
        if len(rows) < size:
            return found, None
        if trio.current_time() >= deadline:
            return found, after
        size = min(4 * size, KEY_PIECE_ROWS)


class TimePlace(NamedTuple):
    """Where a list by a time goes on: behind this time, of this instance. Latest first."""

    at_us: int = LATEST_US
    """Microseconds since 1970."""
    id: int = BEYOND_ALL


async def find_by_time(
    connection: TrioConnection, listed: Listed, after: TimePlace, limit: int, *, most: int, ended: bool
) -> tuple[list[int], TimePlace | None] | None:
    """Up to ``limit`` ids, those that ended last first, or, without ``ended``, those that changed last; and behind
    which place there may be more. None when more than ``most`` are to be sorted. As long as `find_slice`."""
    found, more = await find_slice(connection, listed, limit=most, before=BEYOND_ALL)
    if more is not None:
        return None
    params = (arrays.ints(found), *after, limit + 1)
    rows = cast("list[tuple[int, int]]", await connection.fetch(SQL["sort_ended" if ended else "sort_changed"], params))
    place = TimePlace(rows[limit - 1][1], rows[limit - 1][0]) if len(rows) > limit else None
    return [id for id, _ in rows[:limit]], place


async def changed_at(connection: TrioConnection, ids: Sequence[int]) -> dict[int, datetime]:
    """When each of the instances that exist last changed."""
    rows = await connection.fetch(SQL["sort_changed"], (arrays.ints(ids), *TimePlace(), len(ids)))
    return {id: EPOCH + timedelta(microseconds=at_us) for id, at_us in cast("list[tuple[int, int]]", rows)}


async def count(connection: TrioConnection, listed: Listed, most: int) -> tuple[int, bool]:
    """How many there are, to ``most``, and whether that is exact. Takes seconds at most."""
    try:
        found = len(await find_ids(connection, listed, limit=most + 1))
    except QueryCanceled:
        walked, more = await _walk(connection, listed, most + 1, BEYOND_ALL)
        return min(len(walked), most), more is None and len(walked) <= most
    return min(found, most), found <= most


class FailureRow(NamedTuple):
    """An instance that failed."""

    id: int
    definition: int
    step: str | None
    reason: str | None
    code: str | None
    ended_at: datetime


async def fill_causes(connection: TrioConnection, after: int, most: int) -> int | None:
    """Give a cause to failures that have none, or one of older rules, of the next ``most`` after an instance; the last
    one looked at, None at the end."""
    count, last = cast("tuple[int, int | None]", (await connection.fetch(SQL["fill_causes"], (after, most)))[0])
    return last if count == most else None


async def newest_failures(
    connection: TrioConnection, definitions: Sequence[int] | None, since: int, most: int
) -> list[FailureRow]:
    """Instances begun since an id that failed, newest first."""
    keys = None if definitions is None else arrays.ints(definitions)
    statements = [(SQL["begin"], ()), (SQL["plan_for_values"], ()), (SQL["newest_failures"], (keys, most, since))]
    *_, rows, _ = await connection.roundtrip([*statements, (SQL["commit"], ())])
    return [FailureRow(*cast(Any, row)) for row in rows]


async def failure_behind(connection: TrioConnection, since: int, scanned: int) -> int | None:
    """The instance that failed behind the newest ``looked``, if it has begun since an id."""
    rows = await connection.fetch(SQL["failure_behind"], (scanned, since))
    return cast(int, rows[0][0]) if rows else None


class FailuresAlike(NamedTuple):
    """Instances of one definition that stand failed for one cause. ``since``: when the first of them failed."""

    definition: int
    instances: int
    reason: str | None
    code: str | None
    since: datetime


async def failures_alike(connection: TrioConnection, scanned: int, most: int) -> tuple[list[FailuresAlike], bool]:
    """The most frequent ones of the newest ``looked`` that failed; whether these are all."""
    rows = cast(Any, await connection.fetch(SQL["failures_alike"], (scanned, most)))
    return [FailuresAlike(*row[:5]) for row in rows], all(row[5] < scanned for row in rows)


async def estimate(connection: TrioConnection) -> int:
    """About how many instances there are, from the statistics of the table."""
    return cast(int, (await connection.fetch(SQL["estimate_instances"]))[0][0])


async def history_count(connection: TrioConnection, id: int) -> int:
    """Return how many history rows an instance has."""
    return cast(int, (await connection.fetch(SQL["history_count"], (id,)))[0][0])


class DefinitionOf(NamedTuple):
    """The key of an instance's definition; and of one that was migrated, from which position on which one, with the
    numbers that its steps have now (-1: none), by theirs."""

    key: int
    versions: Sequence[tuple[int, int, list[int] | None]] = ()


async def history(connection: TrioConnection, id: int) -> tuple[DefinitionOf, list[HistoryEntry]] | None:
    """Return the definition of an instance and its history; None when there is no such instance. In `one_snapshot`."""
    found, rows = await connection.roundtrip([(SQL["definition_of"], (id,)), (SQL["history"], (id,))])
    if not found:
        return None
    return _definition_of(found[0]), [HistoryEntry(*cast(Any, row)) for row in rows]


async def definition_of(connection: TrioConnection, id: int) -> DefinitionOf | None:
    """Return the definition of an instance; None when there is no such instance."""
    rows = await connection.fetch(SQL["definition_of"], (id,))
    return _definition_of(rows[0]) if rows else None


def _definition_of(row: Any) -> DefinitionOf:
    key, _, versions = row
    return DefinitionOf(
        key, () if versions is None else msgspec.json.decode(versions, type=list[tuple[int, int, list[int] | None]])
    )


@asynccontextmanager
async def one_snapshot(connection: TrioConnection) -> AsyncGenerator[None]:
    """Reads within the block see one moment of the database."""
    async with connection.transaction():
        await connection.fetch(SQL["one_snapshot"])
        yield
