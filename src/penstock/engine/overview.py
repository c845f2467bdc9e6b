"""The console's first page: what happens, and what needs somebody, in words.

Reads samples and small tables, never counts rows; one reading serves all who ask within a second or two. Must not
decide anything: what it says is told, not acted on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec
import trio

from penstock.engine.activity import Activity, Depth
from penstock.engine.causes import cause_of
from penstock.engine.instance_filter import InstanceFilter
from penstock.engine.instances import Instances
from penstock.engine.looks import Looks
from penstock.engine.paging import CAUSE_MAX_CHARS
from penstock.errors import BadRequest
from penstock.store import activity as store
from penstock.wire.model import Instance
from penstock.wire.page import Page

RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "15m": (900, 10),
    "1h": (3_600, 60),
    "24h": (86_400, 900),
    "7d": (604_800, 7_200),
}
"""(seconds, seconds of a step) by name."""
KEPT_S: Final = 2.0
"""So old an answer may be."""
OPEN_MAX: Final = 10_000
FAILURES_MAX: Final = 200
"""The newest of them are looked at for common causes."""
QUEUES_MAX: Final = 100
WORKERS_MAX: Final = 200
JOB_TYPES_MAX: Final = 1_000
LAG_S: Final = 0.5
"""So late the event loop is when nothing is as it should be: calls are answered later than that."""
_GROWS_OVER: Final = 30
"""Measurements: five minutes."""
_GROWS_FROM_JOBS: Final = 100
_GROWS_AGE_S: Final = 60.0
_NO_WORKER_AGE_S: Final = 5.0


class Rate(msgspec.Struct, frozen=True, rename="camel"):
    """How many within the range, and per second."""

    in_range: int
    per_second: float


class OpenCount(msgspec.Struct, frozen=True):
    """Open instances; not exact beyond `OPEN_MAX`."""

    count: int
    exact: bool


class Series(msgspec.Struct, frozen=True, rename="camel"):
    """Counts per step of time, beginning at ``since``."""

    step_seconds: int
    since: datetime
    started: list[int]
    completed: list[int]
    failed: list[int]


class QueueRow(msgspec.Struct, frozen=True, rename="camel"):
    """A job type with jobs that wait (exact to 100,000), or with workers. ``series``: 15 minutes of what waited."""

    job_type: str
    waiting: int
    oldest_seconds: float
    workers: int
    series: list[int]


class Attention(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Something that needs somebody. ``query`` leads to it in the list of instances."""

    kind: str
    severity: str
    text: str
    detail: str = ""
    count: int = 0
    since: datetime | None = None
    job_type: str | None = None
    query: dict[str, str] = {}


class OverviewView(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of `GET /v1/overview`."""

    at: datetime
    started: Rate
    completed: Rate
    failed: Rate
    cancelled: Rate
    open: OpenCount
    series: Series
    queues: list[QueueRow]
    attention: list[Attention]
    engines: int


class WorkerView(msgspec.Struct, frozen=True, rename="camel"):
    """A worker that an engine has seen within a day."""

    id: str
    job_types: list[str]
    last_poll_at: datetime
    engine: int


class EngineView(msgspec.Struct, frozen=True, rename="camel"):
    """An engine that lives, or did within a day."""

    number: int
    host: str
    mode: str
    schema_version: int
    alive: bool


class _Kept(NamedTuple):
    until: float
    answer: OverviewView


class Overview:
    """Reads for people."""

    def __init__(self, looks: Looks, instances: Instances, activity: Activity) -> None:
        self._looks = looks
        self._instances = instances
        self._activity = activity
        self._kept: dict[str, _Kept] = {}
        self._reading = trio.Lock()

    async def read(self, range_name: str) -> OverviewView:
        """Raises BadRequest for a range that there is not."""
        check_range(range_name)
        async with self._reading:  # the second one in line finds the first one's answer
            kept = self._kept.get(range_name)
            if kept is None or trio.current_time() >= kept.until:
                answer = await self._read(*RANGES[range_name])
                kept = self._kept[range_name] = _Kept(trio.current_time() + KEPT_S, answer)
            return kept.answer

    async def workers(self, after: str | None, limit: int, job_type: str | None = None) -> Page[WorkerView]:
        """By name, after a cursor; all, or those that polled for a job type."""
        limit = min(max(limit, 1), WORKERS_MAX)
        async with self._looks.connection() as connection:
            found = await store.read_workers(connection, after or "", limit, job_type)
        items = [WorkerView(row.worker, row.job_types, row.polled_at, row.engine) for row in found]
        return Page(items=items, next=items[-1].id if len(items) == limit else None)

    async def job_types(self) -> list[QueueRow]:
        """Those with jobs that wait or workers that poll, those first that wait longest."""
        async with self._looks.connection() as connection:
            workers = await store.read_worker_counts(connection)
        return self._queues(self._activity.depths[-1] if self._activity.depths else {}, workers, JOB_TYPES_MAX)

    async def engines(self) -> list[EngineView]:
        """By number."""
        async with self._looks.connection() as connection:
            found = await store.read_engines(connection)
        return [
            EngineView(row.number, row.description, row.dispatch_mode, row.schema_version, row.left_s > 0)
            for row in found
        ]

    def forget(self) -> None:
        """Read anew the next time."""
        self._kept.clear()

    async def _read(self, range_s: int, step_s: int) -> OverviewView:
        async with self._looks.connection() as connection:
            now = await store.read_clock(connection)
            steps = await store.read_steps(connection, range_s, step_s)
            workers = await store.read_worker_counts(connection)
            open_count = await store.count_open(connection, OPEN_MAX + 1)
            engines = await store.read_engines(connection)
        failures = await self._failures(now - timedelta(seconds=range_s))
        depths: Mapping[str, Depth] = self._activity.depths[-1] if self._activity.depths else {}
        attention = [
            *_causes(failures),
            *self._queues_in_need(depths, workers),
            *(_gone(engine) for engine in engines if engine.left_s <= 0),
            *self._own_troubles(),
        ]
        return OverviewView(
            at=now,
            started=_rate(steps, "started", range_s),
            completed=_rate(steps, "completed", range_s),
            failed=_rate(steps, "failed", range_s),
            cancelled=_rate(steps, "cancelled", range_s),
            open=OpenCount(min(open_count, OPEN_MAX), open_count <= OPEN_MAX),
            series=_series(steps, now, range_s, step_s),
            queues=self._queues(depths, workers),
            attention=attention,
            engines=sum(engine.left_s > 0 for engine in engines),
        )

    async def _failures(self, since: datetime) -> list[Instance]:
        """Of the newest failed instances those that ended later."""
        found = await self._instances.find_slice(InstanceFilter(status="FAILED"), None, FAILURES_MAX)
        summaries = await self._instances.summarize(found.items)
        return [one for one in summaries if one.completed_at is not None and one.completed_at >= since]

    def _queues(
        self, depths: Mapping[str, Depth], workers: Mapping[str, int], limit: int = QUEUES_MAX
    ) -> list[QueueRow]:
        """Those that wait longest first."""
        names = sorted({*depths, *workers}, key=lambda name: (-depths.get(name, _EMPTY).oldest_s, name))[:limit]
        return [
            QueueRow(
                name,
                depths.get(name, _EMPTY).waiting,
                depths.get(name, _EMPTY).oldest_s,
                workers.get(name, 0),
                [measured.get(name, _EMPTY).waiting for measured in self._activity.depths],
            )
            for name in names
        ]

    def _queues_in_need(self, depths: Mapping[str, Depth], workers: Mapping[str, int]) -> list[Attention]:
        found: list[Attention] = []
        for name, depth in sorted(depths.items(), key=lambda row: -row[1].oldest_s):
            jobs = f"{depth.waiting:,} {'job waits' if depth.waiting == 1 else 'jobs wait'}"
            if not workers.get(name) and depth.oldest_s >= _NO_WORKER_AGE_S:
                text = f"Nobody polls for {name}"
                detail = f"{jobs}, the oldest for {_in_words(depth.oldest_s)}"
                found.append(Attention("no-worker", "critical", text, detail, depth.waiting, job_type=name))
            elif self._grows(name, depth):
                before = self._activity.depths[-_GROWS_OVER].get(name, _EMPTY).waiting
                detail = f"{jobs}, {before:,} five minutes ago; the oldest for {_in_words(depth.oldest_s)}"
                text = f"{name} falls behind"
                found.append(Attention("queue-grows", "warning", text, detail, depth.waiting, job_type=name))
        return found[:QUEUES_MAX]

    def _own_troubles(self) -> list[Attention]:
        """Of the engine that answers."""
        lag_s = self._activity.worst_lag_s()
        found = [
            Attention(
                "degraded", "critical", f"{name} is away", "As the engine that answers sees it; work waits for it."
            )
            for name in self._activity.away()
        ]
        if lag_s >= LAG_S:
            text = "An engine does too much at once"
            found.append(Attention("lag", "warning", text, f"Its event loop was {lag_s:.1f} s late within a minute"))
        return found

    def _grows(self, name: str, depth: Depth) -> bool:
        measured = self._activity.depths
        if len(measured) < _GROWS_OVER or depth.waiting < _GROWS_FROM_JOBS or depth.oldest_s < _GROWS_AGE_S:
            return False
        return depth.waiting > 1.2 * measured[-_GROWS_OVER].get(name, _EMPTY).waiting


_EMPTY: Final = Depth(0, 0.0)


def check_range(name: str) -> None:
    """Raises BadRequest for a range that there is not."""
    if name not in RANGES:
        raise BadRequest(f"range: must be one of {', '.join(RANGES)}")


def _causes(failures: Sequence[Instance]) -> list[Attention]:
    """One for each cause, the most frequent first."""
    groups: dict[tuple[str, int, str], list[Instance]] = {}
    for one in failures:
        key = one.definition_id, one.definition_version, cause_of(one.failure_reason or "")
        groups.setdefault(key, []).append(one)
    found: list[Attention] = []
    counts = Counter({key: len(group) for key, group in groups.items()})
    for (definition, version, _), count in counts.most_common(10):
        group = groups[definition, version, _]
        ends = [one.completed_at for one in group if one.completed_at is not None]
        noun = "1 instance" if count == 1 else f"{count} instances"
        found.append(
            Attention(
                "failures",
                "critical",
                f"{noun} of {definition} v{version} failed",
                group[0].failure_reason or "",
                count,
                min(ends),
                query={
                    "status": "FAILED",
                    "definitionId": definition,
                    **({"cause": reason[:CAUSE_MAX_CHARS]} if (reason := group[0].failure_reason) else {}),
                },
            )
        )
    return found


def _gone(engine: store.KnownEngine) -> Attention:
    detail = f"{engine.description}, {_in_words(-engine.left_s)} ago. Others go on with its work."
    return Attention("engine-gone", "warning", f"Engine {engine.number} went away without a word", detail)


def _rate(steps: Sequence[store.Step], name: str, range_s: int) -> Rate:
    total = sum(getattr(step, name) for step in steps)
    return Rate(total, round(total / range_s, 3))


def _series(steps: Sequence[store.Step], now: datetime, range_s: int, step_s: int) -> Series:
    """Every step of the range, those without a sample as 0."""
    last = int(now.timestamp() // step_s) * step_s
    times = range(last - range_s + step_s, last + step_s, step_s)
    by_time = {int(step.since.timestamp()) // step_s * step_s: step for step in steps}
    found = [by_time.get(at) for at in times]
    return Series(
        step_s,
        datetime.fromtimestamp(times[0], UTC),
        [0 if step is None else step.started for step in found],
        [0 if step is None else step.completed for step in found],
        [0 if step is None else step.failed for step in found],
    )


def _in_words(seconds: float) -> str:
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {name}"
    return f"{int(seconds)} s"
