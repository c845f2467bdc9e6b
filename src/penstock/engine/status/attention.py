"""What needs somebody, in words: failures by cause, queues that nobody serves, engines that went, what is held back.

Pure. Must not decide anything: what it says is told, not acted on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from penstock.engine.instances.causes import cause_of
from penstock.engine.queues.activity import Depth, OverdueHistory
from penstock.engine.queues.queues import KeptBack
from penstock.engine.requests.ids import show_instance
from penstock.engine.requests.paging import CAUSE_MAX_CHARS
from penstock.store.rows.activity import KnownEngine, QueueFacts
from penstock.store.rows.engines import NUMBER_LEASE_S
from penstock.wire.attention import Attention

CAUSES_MAX: Final = 10
LAG_S: Final = 0.5
"""So late the event loop is when nothing is as it should be: calls are answered later than that."""
HELD_RETENTIONS: Final = 2
"""Old history is told of from twice the retention on: what ended within the retention started no earlier, unless it ran
for as long."""
_HELD_MAX: Final = 1_000
_GROWS_OVER: Final = 30
"""Measurements: five minutes."""
_GROWS_FROM_JOBS: Final = 100
_GROWS_AGE_S: Final = 60.0
_NO_WORKER_AGE_S: Final = 5.0
SILENT_S: Final = 10.0
"""An engine tells of itself every five seconds."""
FULL_AGE_S: Final = 300.0
"""Limits are there to keep jobs back, but not for so long."""
Paused = Callable[[str], str | None]
"""Names the queue that keeps a job type back, if one does."""
NOBODY: Final = QueueFacts(0, 0, 0, None)
EMPTY: Final = Depth(0, 0.0)


class FailuresOfDefinition(NamedTuple):
    """Instances of one definition that stand failed for one cause."""

    definition: str
    version: int
    instances: int
    reason: str
    since: datetime


def of_failures(failures: Sequence[FailuresOfDefinition], *, exact: bool) -> list[Attention]:
    """Return one for each cause, whenever they failed."""
    return [_of_cause(one, exact=exact) for one in failures]


def _of_cause(failed: FailuresOfDefinition, *, exact: bool) -> Attention:
    count, reason = failed.instances, failed.reason
    noun = "1 instance" if count == 1 and exact else f"{count:,}{'' if exact else '+'} instances"
    query = {"status": "FAILED", "definitionId": failed.definition}
    if reason:
        query["cause"] = reason[:CAUSE_MAX_CHARS]
    text = f"{noun} of {failed.definition} v{failed.version} failed"
    cause = hashlib.blake2b(cause_of(reason).encode(), digest_size=6).hexdigest()
    key = f"failures:{failed.definition}:{failed.version}:{cause}"
    return Attention("failures", "critical", text, reason, count, failed.since, query=query, exact=exact, key=key)


def unserved(depths: Mapping[str, Depth], facts: Mapping[str, QueueFacts]) -> list[str]:
    """Job types whose jobs wait while nobody polls for them, those first that wait longest."""
    waiting = sorted(depths.items(), key=lambda row: -row[1].oldest_s)
    return [
        name for name, depth in waiting if depth.oldest_s >= _NO_WORKER_AGE_S and not facts.get(name, NOBODY).workers
    ]


def of_queues(
    measured: Sequence[Mapping[str, Depth]],
    facts: Mapping[str, QueueFacts],
    last_polls: Mapping[str, datetime],
    now: datetime,
    paused: Paused,
) -> list[Attention]:
    """Queues without workers, and those that grow though nobody keeps them back; those first that wait longest.
    ``measured``: the latest last."""
    depths: Mapping[str, Depth] = measured[-1] if measured else {}
    nobody_polls = set(unserved(depths, facts))
    found: list[Attention] = []
    for name, depth in sorted(depths.items(), key=lambda row: -row[1].oldest_s):
        jobs = _jobs_wait(depth.waiting)
        if name in nobody_polls:
            polled = last_polls.get(name)
            ago = "" if polled is None else f"; the last poll was {in_words((now - polled).total_seconds())} ago"
            detail = f"{jobs}, the oldest for {in_words(depth.oldest_s)}{ago}"
            found.append(_of_type("no-worker", "critical", f"No workers for {name}", detail, depth.waiting, name))
        elif paused(name) is None and _grows(measured, name, depth):
            before = measured[-_GROWS_OVER].get(name, EMPTY).waiting
            detail = f"{jobs}, {before:,} five minutes ago; the oldest for {in_words(depth.oldest_s)}"
            found.append(_of_type("queue-grows", "warning", f"{name} falls behind", detail, depth.waiting, name))
    return found


def of_pauses(depths: Mapping[str, Depth], paused: Paused) -> list[Attention]:
    """Paused queues in which jobs wait, those first that wait longest."""
    held: dict[str, list[tuple[str, Depth]]] = {}
    for name, depth in sorted(depths.items(), key=lambda row: -row[1].oldest_s):
        queue = paused(name)
        if queue is not None and depth.waiting:
            held.setdefault(queue, []).append((name, depth))
    found: list[Attention] = []
    for queue, each in held.items():
        waiting, (first, oldest) = sum(depth.waiting for _, depth in each), each[0]
        detail = f"{_jobs_wait(waiting)}, the oldest for {in_words(oldest.oldest_s)}"
        text = f"The queue {queue} is paused"
        found.append(_of_type("queue-paused", "warning", text, detail, waiting, first, queue))
    return found


def held_long(depths: Mapping[str, Depth], limited: Collection[str], facts: Mapping[str, QueueFacts]) -> list[str]:
    """Job types with limits whose jobs have waited for long though somebody polls, those first that wait longest."""
    nobody_polls = set(unserved(depths, facts))
    waiting = sorted(depths.items(), key=lambda row: -row[1].oldest_s)
    return [
        name for name, depth in waiting if depth.oldest_s >= FULL_AGE_S and name in limited and name not in nobody_polls
    ]


def of_full(depths: Mapping[str, Depth], kept: Mapping[str, KeptBack], queue_of: Paused) -> list[Attention]:
    """Queues whose limits have kept jobs back for long, of job types as `held_long` found them."""
    held: dict[str, list[str]] = {}
    for name, why in kept.items():
        queue = queue_of(name)
        if queue is not None and why.code != "queue-paused":
            held.setdefault(queue, []).append(name)
    found: list[Attention] = []
    for queue, names in held.items():
        first, waiting = names[0], sum(depths.get(name, EMPTY).waiting for name in names)
        why, oldest = kept[first], in_words(depths.get(first, EMPTY).oldest_s)
        text = f"The queue {queue} {'is full' if why.code == 'queue-full' else 'is slower than its jobs come'}"
        detail = f"{_jobs_wait(waiting)}, the oldest for {oldest}: {why.text}"
        found.append(_of_type("queue-full", "warning", text, detail, waiting, first, queue))
    return found


def _of_type(
    kind: str, severity: str, text: str, detail: str, count: int, job_type: str, queue: str | None = None
) -> Attention:
    """A row about a job type, or about the queue that it is in."""
    key = f"{kind}:{queue or job_type}"
    return Attention(kind, severity, text, detail, count, job_type=job_type, key=key)


def _jobs_wait(count: int) -> str:
    return f"{count:,} {'job waits' if count == 1 else 'jobs wait'}"


def _grows(measured: Sequence[Mapping[str, Depth]], name: str, depth: Depth) -> bool:
    if len(measured) < _GROWS_OVER or depth.waiting < _GROWS_FROM_JOBS or depth.oldest_s < _GROWS_AGE_S:
        return False
    return depth.waiting > 1.2 * measured[-_GROWS_OVER].get(name, EMPTY).waiting


def of_engines(engines: Sequence[KnownEngine], now: datetime) -> list[Attention]:
    """Those that went away, and those that have said nothing for a while."""
    silent = [
        Attention(
            "engine-silent",
            "warning",
            f"Engine {engine.number}: No heartbeat since {now - timedelta(seconds=silent_s):%H:%M:%S} UTC",
            f"{engine.description}. It is gone, stands still, or is cut off from the database. Unless it comes back, "
            f"others go on with its work in {in_words(engine.left_s)}, or as soon as it is known to be dead.",
            key=f"engine-silent:{engine.number}",
        )
        for engine in engines
        if engine.left_s > 0 and (silent_s := NUMBER_LEASE_S - engine.left_s) >= SILENT_S
    ]
    return silent + [
        Attention(
            "engine-gone",
            "warning",
            f"Engine {engine.number}: Lost (last heartbeat {in_words(NUMBER_LEASE_S - engine.left_s)} ago)",
            f"{engine.description}. Others go on with its work.",
            key=f"engine-gone:{engine.number}",
        )
        for engine in engines
        if engine.left_s <= 0
    ]


def of_this_engine(away: Sequence[str], lag_s: float) -> list[Attention]:
    """What the engine that answers has to do without, and how late its event loop is."""
    found = [
        Attention(
            "degraded",
            "critical",
            f"{name} is unavailable",
            "As the engine that answers sees it. Work that needs it waits.",
            key=f"degraded:{name}",
        )
        for name in away
    ]
    if lag_s >= LAG_S:
        text = "An engine does too much at once"
        found.append(
            Attention("lag", "warning", text, f"Its event loop was {lag_s:.1f} s late within a minute", key="lag")
        )
    return found


def of_retention(held: OverdueHistory | None, retention_days: float | None, now: datetime) -> list[Attention]:
    """History that is kept for much longer than it is to be."""
    if held is None or retention_days is None or held.until > now - timedelta(days=HELD_RETENTIONS * retention_days):
        return []
    some = f"{held.instances:,}" if held.instances < _HELD_MAX else f"{_HELD_MAX:,} or more"
    noun = "instance keeps" if held.instances == 1 else "instances keep"
    return [
        Attention(
            "retention",
            "warning",
            f"{some} {noun} old history",
            f"Nothing that started before {held.until:%Y-%m-%d} can go: they are open, or ended lately."
            f" The oldest is {show_instance(held.oldest)}.",
            held.instances,
            query={"startedBefore": held.until.isoformat()},
            key="retention",
        )
    ]


_FIRST: Final = ("degraded", "engine-silent", "engine-gone", "lag", "no-worker", "queue-full", "two-origins",
                 "queue-paused", "queue-grows")  # fmt: skip
"""What concerns all work, or all of a job type, stands above single failures."""


def sorted_by_reach(found: Sequence[Attention]) -> list[Attention]:
    """Rows in the order in which they are shown: what concerns more work first, what is acknowledged last."""
    ranks = {kind: rank for rank, kind in enumerate(_FIRST)}
    return sorted(found, key=lambda one: (one.acknowledged is not None, ranks.get(one.kind, len(ranks))))


def in_words(seconds: float) -> str:
    """Return the greatest unit of it."""
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {name}"
    return f"{max(0, int(seconds))} s"
