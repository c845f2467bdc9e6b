"""Jobs under a queue's policy, or with a flow key. One function per statement of ``queries/flow.sql``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.outcome import InDoubt
from penstock.store.db.statements import SQL, Statement
from penstock.store.rows.instances import Begun, FastStart, begin, start_columns
from penstock.store.rows.jobs import AppliedCompletion, ClaimedJob, ClaimSlot, FastItem, fast_columns, readable
from penstock.store.rows.variables import INLINE_VARIABLES_MAX_BYTES

if TYPE_CHECKING:
    from penstock.core.advance.effect import ReleasedSlots

COUNTED_WHOLE: Final = 1
"""In ``token.held``: a place of the queue is taken."""
COUNTED_BY_KEY: Final = 2
"""One of its flow key is."""


BEFORE_ALL: Final = -11
"""A priority: all others are worse."""
OPEN_RUN_LEAD: Final = 10
"""By so much the priority of a run is less that its queue counts as open: it goes before all that have not begun."""


def queue_of(held: int) -> int:
    """The queue whose places a token holds."""
    return held // 4


class WaitsInQueue(IntEnum):
    """Where a job of a type waits."""

    ANYWHERE = 0  # in the queue, or the outbox; with a key of its own in `ready_flow`
    KEYED = 1  # in `ready_flow`
    UNFAIR = 2  # there, without its key


class ClaimScan(NamedTuple):
    """What a claim saw. ``cursor``: the keys after which the next one begins, by priority, as JSON; null: nothing was
    looked at. ``passed``: keys with room whose first job another transaction holds. ``retry_s``: when a rate lets
    something begin, null: no rate keeps anything back. ``left_over``: of the keys that were asked for those that may
    have more. ``ended_at``: the priority at which it had seen enough keys, where worse ones wait."""

    cursor: str | None
    visited: int
    blocked: int
    passed: int
    retry_s: float | None
    left_over: Sequence[str]
    ended_at: int | None

    def more(self, keys_max: int) -> bool:
        """Return whether something may begin that was not looked at, or was in others' hands."""
        return self.visited >= keys_max or self.passed > 0

    def unserved(self, keys: Sequence[str]) -> Sequence[str]:
        """Of the ``keys`` that were asked for: all when nothing could begin."""
        return self.left_over if self.visited else keys


async def claim(
    connection: TrioConnection, slots: Sequence[ClaimSlot], cursor: str, keys_max: int, after: int = BEFORE_ALL
) -> tuple[ClaimScan, list[ClaimedJob]]:
    """Lease jobs of one type to slots, of priorities worse than ``after``, from ``cursor`` on: that of the last
    look, or empty. One transaction of its own; `doubtful` has what it did if that is in doubt."""
    return await _claim(connection, "claim_flow", slots, arrays.texts((str(after), cursor)), keys_max)


async def claim_hinted(
    connection: TrioConnection, slots: Sequence[ClaimSlot], keys: Sequence[str]
) -> tuple[ClaimScan, list[ClaimedJob]]:
    """As `claim`, of these flow keys."""
    return await _claim(connection, "claim_hinted", slots, arrays.texts(keys), len(keys))


async def _claim(
    connection: TrioConnection, name: str, slots: Sequence[ClaimSlot], where: str, keys_max: int
) -> tuple[ClaimScan, list[ClaimedJob]]:
    params = (
        slots[0].job_type,
        len(slots),
        where,
        keys_max,
        arrays.texts(slot.worker for slot in slots),
        arrays.floats(slot.lease_s for slot in slots),
        INLINE_VARIABLES_MAX_BYTES,
    )
    rows = cast(Any, await connection.fetch(SQL[name], params))
    scan = ClaimScan(*rows[0][: len(ClaimScan._fields)])
    return scan, await readable(connection, _claimed(rows))


async def admit(
    connection: TrioConnection,
    job_type: int,
    count: int,
    cursor: str,
    keys_max: int,
    deadline_s: float,
    after: int = BEFORE_ALL,
) -> tuple[ClaimScan, int]:
    """Hand at most ``count`` jobs of a type to the relay, as `claim`; how many. One transaction of its own, safe to
    repeat."""
    where = arrays.texts((str(after), cursor))
    return await _admit(connection, "admit", (job_type, count, where, keys_max, deadline_s))


async def admit_hinted(
    connection: TrioConnection, job_type: int, count: int, keys: Sequence[str], deadline_s: float
) -> tuple[ClaimScan, int]:
    """As `admit`, of these flow keys."""
    return await _admit(connection, "admit_hinted", (job_type, count, arrays.texts(keys), len(keys), deadline_s))


async def _admit(connection: TrioConnection, name: str, params: tuple[object, ...]) -> tuple[ClaimScan, int]:
    rows = cast(Any, await connection.fetch(SQL[name], params))
    *scan, admitted = rows[0]
    return ClaimScan(*scan), admitted


def doubtful(doubt: InDoubt) -> list[ClaimedJob]:
    """What a claim in doubt has leased, if it was committed; payloads as they are stored."""
    return _claimed(doubt.rows)


def _claimed(rows: Iterable[Sequence[Any]]) -> list[ClaimedJob]:
    jobs = (row[len(ClaimScan._fields) :] for row in rows)
    return [ClaimedJob(*cast(Any, job)) for job in jobs if job[0] is not None]


async def reassign(connection: TrioConnection, job_types: Sequence[int], limit: int) -> int:
    """Move jobs of these types to those with keys, at most ``limit`` of each; how many were looked at."""
    rows = await connection.fetch(SQL["adopt"], (arrays.ints(job_types), limit))
    return cast(int, rows[0][0])


class MovedFlow(NamedTuple):
    """An applied completion, what its attempt held, its flow key, and that of the next job."""

    moved: AppliedCompletion
    held: int | None
    flow_key: str | None
    next_key: str | None


async def complete(
    connection: TrioConnection, items: Sequence[FastItem], waits: Sequence[WaitsInQueue], *, to_outbox: bool
) -> list[MovedFlow]:
    """As `jobs.complete_fast`. ``waits``: where the next jobs do."""
    params = (*fast_columns(connection, items), to_outbox, arrays.ints(waits))
    rows = cast(Any, await connection.fetch(SQL["complete_flow"], params))
    return [MovedFlow(AppliedCompletion(*row[:-3]), *row[-3:]) for row in rows]


class FlowStart(NamedTuple):
    """A start with what its jobs have of the flow."""

    start: FastStart
    priority: int | None
    flow_key: str | None
    waits: WaitsInQueue


async def start(connection: TrioConnection, items: Sequence[FlowStart], *, to_outbox: bool) -> list[Begun]:
    """As `instances.start_fast`."""
    starts, priorities, flow_keys, waits = zip(*items, strict=True)
    columns = start_columns(connection, starts, to_outbox=to_outbox)
    flow = arrays.ints(priorities), arrays.texts(flow_keys), arrays.ints(waits)
    return await begin(connection, SQL["start_flow"], (*columns, *flow))


class MovedJob(NamedTuple):
    """A waiting job that gets another priority."""

    job_type: int
    before: int
    priority: int
    flow_key: str | None
    place: int
    token: int


async def instance_priority(connection: TrioConnection, instance: int) -> int | None:
    """Of its jobs, where it has one of its own."""
    rows = await connection.fetch(SQL["instance_priority"], (instance,))
    return cast("int | None", rows[0][0]) if rows else None


def set_priority(
    instance: int, priority: int, tokens: Sequence[tuple[int, int]], moved: Sequence[MovedJob]
) -> list[Statement]:
    """Give an instance, whose tokens are locked, and some of these (by id) other priorities."""
    ints, texts = arrays.ints, arrays.texts
    statements: list[Statement] = [(SQL["set_instance_priority"], (instance, priority))]
    if tokens:
        ids, priorities = zip(*sorted(tokens), strict=True)
        statements.append((SQL["set_token_priorities"], (ints(ids), ints(priorities))))
    for flow in (False, True):
        jobs = sorted(job for job in moved if (job.flow_key is not None) == flow)
        if not jobs:
            continue
        types, before, after, keys, places, owners = zip(*jobs, strict=True)
        own = (texts(keys),) if flow else ()
        name = "ready_flow" if flow else "ready"
        statements.append((SQL[f"delete_{name}"], (ints(types), ints(before), *own, ints(places))))
        statements.append((SQL[f"insert_{name}"], (ints(types), ints(after), *own, ints(places), ints(owners))))
    return statements


def give_back(released: Iterable[ReleasedSlots]) -> list[Statement]:
    """What attempts held that ended; none without any."""
    counts: Counter[tuple[int, str]] = Counter()
    runs: Counter[tuple[int, str]] = Counter()
    for slots in released:
        if slots.run_queue is not None:
            runs[slots.run_queue, ""] += 1
        queue = queue_of(slots.held)
        if slots.held & COUNTED_WHOLE:
            counts[queue, ""] += 1
        if slots.held & COUNTED_BY_KEY:
            counts[queue, slots.flow_key] += 1
    rows = sorted({*counts, *runs})
    if not rows:
        return []
    queues, keys = zip(*rows, strict=True)
    numbers = arrays.ints(counts[row] for row in rows), arrays.ints(runs[row] for row in rows)
    return [(SQL["release_slots"], (arrays.ints(queues), arrays.texts(keys), *numbers))]
