"""Queues in the database: their policies, and how they stand. What they let begin is claimed in `store.rows.flow`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from penstock.core.time.duration import parse_duration
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.rows import audit as audit_store
from penstock.store.rows.definitions import ensure_job_types, job_type_ids
from penstock.store.rows.engines import notify
from penstock.wire.queue import QueuePolicy, Rate, burst_of, each_period

CHANGED: Final = "cli f"
"""The wake-up that tells engines of a change; see `runtime.membership`."""
COUNTED_MAX_ITEMS: Final = 100_000
"""Jobs that are counted, and flow keys that are looked at, to show how a queue stands."""


class TooManyQueues(Exception):
    """No program may make one more."""


class TypesTaken(Exception):
    """Job types that are in another queue: (type, queue)."""

    def __init__(self, taken: Sequence[tuple[str, str]]) -> None:
        super().__init__(taken)
        self.taken = taken


class StoredQueue(NamedTuple):
    """A queue. Where its policy stands nothing is said of its job types."""

    id: int
    name: str
    policy: QueuePolicy


class KeyedType(NamedTuple):
    """A job type whose jobs wait for turns; ``policy`` None: it is in no queue."""

    id: int
    name: str
    queue: str | None
    policy: QueuePolicy | None


class QueueState(NamedTuple):
    """How a queue stands. ``running``, ``open_runs`` None: nothing counts them."""

    running: int | None
    waiting: int
    oldest_s: float | None
    open_runs: int | None


class QueueLimits(NamedTuple):
    """What a queue counts where a token waits. ``open_runs`` None: the token is one of them; a wait None: no rate."""

    token: int
    queue: str
    policy: QueuePolicy
    flow_key: str
    running: int
    running_of_key: int
    open_runs: int | None
    rate_wait_s: float | None
    key_rate_wait_s: float | None


_WINDOW_SLACK: Final = 2e-6
"""The statements let an attempt begin by a millionth of a pace before its time, or by a microsecond: what floats and
whole microseconds lose. A window's pace is longer by more than that, so that no period sees one more than its limit."""


class _StoredRate(msgspec.Struct, rename="camel", omit_defaults=True):
    limit: int
    period: str
    burst: int
    pace_micros: float
    window: bool = False


class _Stored(msgspec.Struct, rename="camel", omit_defaults=True):
    """What the statements read: everything as a number."""

    paused: bool = False
    concurrency: int | None = None
    concurrency_per_key: int | None = None
    rate: _StoredRate | None = None
    rate_per_key: _StoredRate | None = None
    fair: bool = True
    weights: dict[str, int] = {}
    runs: int | None = None


def _stored(policy: QueuePolicy) -> bytes:
    return msgspec.json.encode(_stored_policy(policy))


def _stored_policy(policy: QueuePolicy) -> _Stored:
    return _Stored(
        bool(policy.paused),
        policy.concurrency,
        policy.concurrency_per_key,
        _stored_rate(policy.rate),
        _stored_rate(policy.rate_per_key),
        policy.fair,
        policy.weights,
        policy.runs,
    )


def _audited(policy: QueuePolicy) -> str:
    """Return the policy with its job types, which come last, as they may be many."""
    types: dict[str, Any] = {"jobTypes": sorted(policy.job_types)} if policy.job_types else {}
    return msgspec.json.encode(msgspec.to_builtins(_stored_policy(policy)) | types).decode()


def _stored_rate(rate: Rate | None) -> _StoredRate | None:
    if rate is None:
        return None
    period_micros, each = parse_duration(rate.period) * 1e6, float(each_period(rate))
    if rate.window:
        period_micros, each = period_micros + 1, each - _WINDOW_SLACK
    return _StoredRate(rate.limit, rate.period, burst_of(rate), period_micros / each, rate.window)


_read_stored = msgspec.json.Decoder(_Stored).decode


def _policy(text: str, job_types: Sequence[str]) -> QueuePolicy:
    found = _read_stored(text)
    return QueuePolicy(
        [*job_types],
        found.paused or None,
        found.concurrency,
        found.concurrency_per_key,
        _rate(found.rate),
        _rate(found.rate_per_key),
        found.fair,
        found.weights,
        found.runs,
    )


def _rate(stored: _StoredRate | None) -> Rate | None:
    return None if stored is None else Rate(stored.limit, stored.period, stored.burst, stored.window)


async def version(connection: TrioConnection) -> str:
    """Another one after every change."""
    rows = await connection.fetch(SQL["queues_version"])
    return cast(str, rows[0][0]) if rows else ""


async def keyed_types(connection: TrioConnection) -> list[KeyedType]:
    """The job types that are in a queue, or had a job with a flow key."""
    return [
        KeyedType(id, name, queue, None if policy is None else _policy(policy, ()))
        for id, name, queue, policy in cast(Any, await connection.fetch(SQL["keyed_types"]))
    ]


async def page(connection: TrioConnection, after: str, limit: int) -> list[StoredQueue]:
    """Queues in order of their names, after one of them."""
    rows = await connection.fetch(SQL["list_queues"], (after, limit, None))
    return [StoredQueue(id, name, _policy(policy, types)) for id, name, policy, types in cast(Any, rows)]


async def find(connection: TrioConnection, name: str) -> StoredQueue | None:
    """Return a queue by its name."""
    rows = await connection.fetch(SQL["list_queues"], ("", 1, name))
    return next((StoredQueue(id, name, _policy(policy, types)) for id, name, policy, types in cast(Any, rows)), None)


async def put(connection: TrioConnection, name: str, policy: QueuePolicy, *, actor: str | None, audit: bool) -> None:
    """Make a queue, or give it another policy; a pause stays where that says nothing of it. Raises TypesTaken, and
    changes nothing then."""
    await ensure_job_types(connection, policy.job_types)
    types = arrays.texts(policy.job_types)
    async with connection.transaction():
        await connection.roundtrip([(SQL["patient_locks"], ()), (SQL["lock_queues"], ())])
        taken = await connection.fetch(SQL["types_of_other_queues"], (name, types))
        if taken:
            raise TypesTaken(cast(Any, taken))
        before = await find(connection, name) if audit else None
        old = None if before is None else _audited(before.policy)
        text = _stored(policy).decode()
        id = (await connection.fetch(SQL["put_queue"], (name, text, policy.paused is None)))[0][0]
        await connection.fetch(SQL["assign_job_types"], (id, types))
        await _changed(connection, "QUEUE_CHANGED", f"{name}: {_audited(policy)[:1000]}", actor, audit=audit, old=old)


async def join(
    connection: TrioConnection, name: str, job_type: str, queues_max: int, *, actor: str | None, audit: bool
) -> None:
    """Put a job type into a queue, which is made without limits where it is not there; one that somebody placed stays
    where it is. Raises TooManyQueues."""
    await ensure_job_types(connection, [job_type])
    async with connection.transaction():
        await connection.roundtrip([(SQL["patient_locks"], ()), (SQL["lock_queues"], ())])
        free, found, count = cast(Any, (await connection.fetch(SQL["may_join"], (job_type, name)))[0])
        if not free:
            return
        if not found and count >= queues_max:
            raise TooManyQueues
        id = (await connection.fetch(SQL["make_queue"], (name,)))[0][0]
        if await connection.fetch(SQL["join_queue"], (id, job_type)):
            await _changed(connection, "QUEUE_JOINED", f"{name}: {job_type}", actor, audit=audit)


async def pause(connection: TrioConnection, name: str, paused: bool, *, actor: str | None, audit: bool) -> bool:
    """Let nothing begin, or let it begin again; False: there is no such queue."""
    async with connection.transaction():
        await connection.roundtrip([(SQL["patient_locks"], ()), (SQL["lock_queues"], ())])
        if not await connection.fetch(SQL["pause_queue"], (name, paused)):
            return False
        await _changed(connection, "QUEUE_PAUSED" if paused else "QUEUE_RESUMED", name, actor, audit=audit)
    return True


async def delete(connection: TrioConnection, name: str, *, actor: str | None, audit: bool) -> bool:
    """Forget a queue: its jobs are free; False: there is none."""
    async with connection.transaction():
        await connection.roundtrip([(SQL["patient_locks"], ()), (SQL["lock_queues"], ())])
        if not await connection.fetch(SQL["delete_queue"], (name,)):
            return False
        await _changed(connection, "QUEUE_DELETED", name, actor, audit=audit)
    return True


async def unmarked_types(connection: TrioConnection) -> dict[str, int]:
    """Job types with jobs that have flow keys, and that nobody has marked so (ids by name)."""
    return {name: id for id, name in cast(Any, await connection.fetch(SQL["unmarked_types"]))}


async def mark_keyed(connection: TrioConnection, job_types: Sequence[int]) -> None:
    """Jobs of these types come with flow keys from now on."""
    async with connection.transaction():
        await connection.roundtrip([(SQL["patient_locks"], ()), (SQL["lock_queues"], ())])
        await connection.fetch(SQL["mark_keyed"], (arrays.ints(job_types),))
        await _changed(connection, "", "", None, audit=False)


async def _changed(
    connection: TrioConnection, kind: str, detail: str, actor: str | None, *, audit: bool, old: str | None = None
) -> None:
    await connection.fetch(SQL["queues_changed"])
    if audit:
        await connection.fetch(*audit_store.add(None, None, kind, actor, detail, old))
    await notify(connection, CHANGED)


async def state(connection: TrioConnection, queue: StoredQueue) -> QueueState:
    """How a queue stands."""
    types = await job_type_ids(connection, queue.policy.job_types)
    rows = await connection.fetch(SQL["queue_state"], (queue.id, arrays.ints(types.values()), COUNTED_MAX_ITEMS))
    whole, by_key, waiting, oldest_s, open_runs = cast(Any, rows[0])
    running = whole if queue.policy.concurrency is not None else None
    if running is None and queue.policy.concurrency_per_key is not None:
        running = int(by_key or 0)
    return QueueState(running, waiting, oldest_s, open_runs if queue.policy.runs is not None else None)


async def measure(connection: TrioConnection, queues_max: int, waiting_max: int) -> list[tuple[str, int | None, int]]:
    """(queue, running, waiting) of the first queues; running None: nothing counts it."""
    rows = await connection.fetch(SQL["measure_queues"], (queues_max, waiting_max))
    return [cast(tuple[str, int | None, int], row) for row in rows]


async def limits(connection: TrioConnection, tokens: Sequence[int]) -> list[QueueLimits]:
    """Of those of the tokens that wait for a job to begin whose type is in a queue."""
    rows = await connection.fetch(SQL["queue_limits"], (arrays.ints(tokens),))
    return [QueueLimits(token, name, _policy(policy, ()), *rest) for token, name, policy, *rest in cast(Any, rows)]


async def first_in_line(connection: TrioConnection, job_types: Sequence[str]) -> dict[str, int]:
    """The token of the first job in line of each of these job types, which have limits."""
    return dict(cast(Any, await connection.fetch(SQL["first_in_line"], (arrays.texts(job_types),))))


async def keys(connection: TrioConnection, queue: StoredQueue, limit: int) -> list[tuple[str, int, int]]:
    """(flow key, running, waiting) of the keys with most under way, and of those first in line."""
    types = await job_type_ids(connection, queue.policy.job_types)
    rows = await connection.fetch(SQL["queue_keys"], (queue.id, arrays.ints(types.values()), limit, COUNTED_MAX_ITEMS))
    return [cast(tuple[str, int, int], row) for row in rows]


async def purge_slots(
    connection: TrioConnection, after: tuple[int, str], limit: int
) -> tuple[tuple[int, str], int] | None:
    """Forget rows of slots that count nothing, of at most ``limit`` after one: the last one that was looked at, and how
    many went; None: there are no more."""
    rows = await connection.fetch(SQL["purge_slots"], (*after, limit))
    if not rows:
        return None
    queue, key, count = cast(Any, rows[0])
    return (queue, key), count
