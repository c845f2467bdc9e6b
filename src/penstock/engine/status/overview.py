"""The console's first page: what happens, and what needs somebody, in words.

Reads samples and small tables, and of the rows of what stands failed the newest; one reading serves all who ask within
a second or two. Must not decide anything: what it says is told, not acted on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
import trio

from penstock.engine.definitions.definitions import Definitions
from penstock.engine.queues.activity import TOOK, Activity, Depth
from penstock.engine.queues.queues import Queues, first_kept_back
from penstock.engine.requests import ids
from penstock.engine.requests.read_pool import ReadPool
from penstock.engine.runs.origins import Origins
from penstock.engine.status import attention
from penstock.engine.status.acknowledgements import Acknowledgements, marked
from penstock.engine.status.attention import EMPTY, NOBODY, FailuresOfDefinition
from penstock.errors import BadRequest
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import activity as store
from penstock.store.rows import instances as instance_store
from penstock.store.rows.activity import DONE_WITHIN_S, QueueFacts
from penstock.telemetry.metrics.registry import DURATION_BUCKETS
from penstock.wire.attention import AcknowledgeBody, Attention, AttentionList
from penstock.wire.error_code import failure_text
from penstock.wire.open_work import QueueRow, WorkerView
from penstock.wire.overview import (
    Counted,
    DatabaseView,
    Durations,
    EngineList,
    EngineReport,
    EngineView,
    OpenCount,
    OverviewView,
    Series,
)
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
FAILURES_MAX: Final = 10_000
"""The newest of them are looked at for common causes."""
FULL_SCANS_MAX: Final = 20
"""Job types of which it is asked what keeps them back, those first that wait longest."""
QUEUES_MAX: Final = 100
WORKERS_MAX: Final = 200
JOB_TYPES_MAX: Final = 1_000
COUNTED_MAX: Final = 100_000
"""Jobs that wait are counted so far."""
LAST_POLLS_MAX: Final = 20
"""Of queues that nobody polls, those that wait longest."""
DATABASE_KEPT_S: Final = 30.0
"""So old the size of the database may be."""


class _Kept(NamedTuple):
    until: float
    answer: OverviewView


class Overview:
    """Reads for people."""

    def __init__(
        self,
        read_pool: ReadPool,
        definitions: Definitions,
        activity: Activity,
        queues: Queues,
        retention_days: float | None,
        origins: Origins,
        acknowledgements: Acknowledgements,
    ) -> None:
        self.origins = origins
        self._acknowledgements = acknowledgements
        self._read_pool = read_pool
        self._queues_known = queues
        self._retention_days = retention_days
        self._database: tuple[float, DatabaseView] | None = None
        self._definitions = definitions
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

    async def attention(self) -> AttentionList:
        """What needs somebody now."""
        return AttentionList((await self.read(next(iter(RANGES)))).attention)

    async def acknowledge(self, key: str, body: AcknowledgeBody) -> None:
        """Acknowledge a row by its key. Raises BadRequest."""
        await self._acknowledgements.acknowledge(key, body)
        self._kept.clear()

    async def withdraw(self, key: str) -> None:
        """Let a row need attention again. Raises NotFound."""
        await self._acknowledgements.withdraw(key)
        self._kept.clear()

    async def workers(self, after: str | None, limit: int, job_type: str | None = None) -> Page[WorkerView]:
        """By name, after a cursor; all, or those that polled for a job type."""
        limit = min(max(limit, 1), WORKERS_MAX)
        async with self._read_pool.connection() as connection:
            found = await store.read_workers(connection, after or "", limit, job_type)
        items = [
            WorkerView(row.worker, row.job_types, row.polled_at, row.leased, row.done, row.failed, row.engine)
            for row in found
        ]
        return Page(items=items, next=items[-1].id if len(items) == limit else None)

    async def job_types(self) -> list[QueueRow]:
        """Those with jobs that wait or are under lease, or with workers that poll, those first that wait longest."""
        async with self._read_pool.connection() as connection:
            facts = await store.read_queue_facts(connection)
            last_polls = await self._last_polls(connection, facts)
        return self._queues(facts, last_polls, JOB_TYPES_MAX)

    async def engines(self) -> EngineList:
        """By number."""
        async with self._read_pool.connection() as connection:
            found = await store.read_engines(connection)
            database = await self._read_database(connection)
        return EngineList([_engine(row) for row in found], database)

    async def _read_database(self, connection: TrioConnection) -> DatabaseView:
        now = trio.current_time()
        if self._database is None or self._database[0] <= now:
            facts = await store.read_database(connection)
            oldest = None if facts.oldest_instance is None else ids.show_instance(facts.oldest_instance)
            view = DatabaseView(facts.version, facts.size_bytes, facts.partitions, facts.since, oldest)
            self._database = now + DATABASE_KEPT_S, view
        return self._database[1]

    def forget(self) -> None:
        """Read anew the next time."""
        self._kept.clear()
        self._database = None

    async def _read(self, range_s: int, step_s: int) -> OverviewView:
        async with self._read_pool.connection() as connection:
            now = await store.read_clock(connection)
            steps = await store.read_steps(connection, range_s, step_s)
            took = await store.read_durations(connection, range_s)
            facts = await store.read_queue_facts(connection)
            last_polls = await self._last_polls(connection, facts)
            open_count = await store.count_open(connection, OPEN_MAX + 1)
            engines = await store.read_engines(connection)
            needs = [
                *attention.of_this_engine(self._activity.away(), self._activity.worst_lag_s()),
                *attention.of_engines(engines, now),
                *await self._kept_back(connection, facts, last_polls, now),
                *await self.origins.attention(connection),
                *await self._failures(connection),
                *attention.of_retention(self._activity.overdue, self._retention_days, now),
            ]
            needs = attention.sorted_by_reach(await marked(connection, needs))
        return OverviewView(
            at=now,
            started=_rate(steps, "started", range_s),
            completed=_rate(steps, "completed", range_s),
            failed=_rate(steps, "failed", range_s),
            cancelled=_rate(steps, "cancelled", range_s),
            durations=_durations(took),
            open=OpenCount(min(open_count, OPEN_MAX), open_count <= OPEN_MAX),
            series=_series(steps, now, range_s, step_s),
            queues=self._queues(facts, last_polls),
            attention=needs,
            engines=sum(engine.left_s > 0 for engine in engines),
        )

    async def _failures(self, connection: TrioConnection) -> list[Attention]:
        """Of all that stand failed: whenever that was, it needs somebody."""
        found, exact = await instance_store.failures_alike(connection, FAILURES_MAX, attention.CAUSES_MAX)
        failed: list[FailuresOfDefinition] = []
        for one in found:
            about = await self._definitions.by_key(connection, one.definition)
            text = failure_text(one.reason, one.code)
            failed.append(FailuresOfDefinition(about.definition.id, about.version, one.instances, text, one.since))
        return attention.of_failures(failed, exact=exact)

    async def _kept_back(
        self,
        connection: TrioConnection,
        facts: Mapping[str, QueueFacts],
        last_polls: Mapping[str, datetime],
        now: datetime,
    ) -> list[Attention]:
        """Queues that are paused, full, not served or fall behind, the cause of each once."""
        queues, depths = self._queues_known, self._depths()
        names = attention.held_long(depths, queues.limited, facts)[:FULL_SCANS_MAX]
        kept = await first_kept_back(connection, names)

        def held(name: str) -> str | None:
            return queues.queue_of(name) if name in kept else queues.paused(name)

        return [
            *attention.of_pauses(depths, queues.paused)[:QUEUES_MAX],
            *attention.of_full(depths, kept, queues.queue_of),
            *attention.of_queues(self._activity.depths, facts, last_polls, now, held)[:QUEUES_MAX],
        ]

    def _depths(self) -> Mapping[str, Depth]:
        return self._activity.depths[-1] if self._activity.depths else {}

    async def _last_polls(self, connection: TrioConnection, facts: Mapping[str, QueueFacts]) -> dict[str, datetime]:
        """Of queues that nobody polls now, when somebody did within a day."""
        names = attention.unserved(self._depths(), facts)[:LAST_POLLS_MAX]
        return await store.read_last_polls(connection, names) if names else {}

    def _queues(
        self, facts: Mapping[str, QueueFacts], last_polls: Mapping[str, datetime], limit: int = QUEUES_MAX
    ) -> list[QueueRow]:
        """Return those that wait longest first."""
        depths = self._depths()
        names = sorted({*depths, *facts}, key=lambda name: (-depths.get(name, EMPTY).oldest_s, name))[:limit]
        rows: list[QueueRow] = []
        for name in names:
            depth, known = depths.get(name, EMPTY), facts.get(name, NOBODY)
            rows.append(
                QueueRow(
                    name,
                    depth.waiting,
                    depth.waiting < COUNTED_MAX,
                    depth.oldest_s,
                    known.locked,
                    known.workers,
                    round(known.done / DONE_WITHIN_S, 2),
                    [measured.get(name, EMPTY).waiting for measured in self._activity.depths],
                    known.polled_at or last_polls.get(name),
                )
            )
        return rows


def check_range(name: str) -> None:
    """Raises BadRequest for a range that there is not."""
    if name not in RANGES:
        raise BadRequest(f"range: must be one of {', '.join(RANGES)}")


def _rate(steps: Sequence[store.ActivityStep], name: str, range_s: int) -> Counted:
    total = sum(getattr(step, name) for step in steps)
    return Counted(total, round(total / range_s, 3))


def _series(steps: Sequence[store.ActivityStep], now: datetime, range_s: int, step_s: int) -> Series:
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


def _engine(row: store.KnownEngine) -> EngineView:
    report: EngineReport | None = None
    if row.facts is not None:
        try:
            report = msgspec.json.decode(row.facts, type=EngineReport)
        except msgspec.MsgspecError:  # another version's
            report = None
    return EngineView(row.number, row.description, row.dispatch_mode, row.schema_version, row.left_s > 0, report)


def _durations(took: Mapping[str, int]) -> Durations:
    """From counts by the bound of their bucket."""
    buckets = sorted((float(name.removeprefix(TOOK)), count) for name, count in took.items())
    if not buckets:
        return Durations()
    (p50, p50_at_most), (p99, p99_at_most) = (_percentile(buckets, share) for share in (0.5, 0.99))
    return Durations(p50, p99, p50_at_most, p99_at_most)


def _percentile(buckets: Sequence[tuple[float, int]], share: float) -> tuple[float, float | None]:
    """As if those of a bucket lay evenly between its bound and the one below it; and that bound, if it has one."""
    wanted = share * sum(count for _, count in buckets)
    seen = 0
    for bound, count in buckets:
        if seen + count >= wanted:
            below = max((one for one in DURATION_BUCKETS if one < bound), default=0.0)
            upper = below if math.isinf(bound) else bound
            return round(below + (upper - below) * (wanted - seen) / count, 3), None if math.isinf(bound) else bound
        seen += count
    return buckets[-1][0], None
