"""What this engine did lately, in memory: instances counted, workers seen, queues as they were measured.

Pure bookkeeping, no I/O. The counts are differences of the metrics, so that nothing is added where jobs are served but
for what is noted of a worker: that it polled (0.2 us), that it did a job (0.3 us). Bounded: of more workers than fit,
those that came later are not told apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from penstock.engine.queues.waiters import Waiters
from penstock.store.rows.activity import QueueNote, WorkerNote
from penstock.telemetry.metrics import Metrics
from penstock.wire.overview import EngineReport

WORKERS_MAX: Final = 2_000
TYPES_MAX: Final = 50
"""Job types noted of one worker."""
SEEN_MIN_S: Final = 10.0
SEEN_MAX_S: Final = 90.0
SEEN_GAPS: Final = 3.0
"""A worker is there until it has stayed away for three times what it stays away between two polls, within these."""
REPORTED_GAP_S: Final = 5.0
"""Between two polls of a worker that has no poll parked and reports jobs: a stream asks by granting credit."""
MINUTES_KEPT: Final = 15
"""For which what each worker did is told."""
DEPTHS_MAX_TYPES: Final = 500
LAGS_KEPT: Final = 60
"""Looks at how late the loop is: a minute of them."""
DEPTHS_KEPT: Final = 90
"""Of the queues: 15 minutes of measurements every ten seconds."""


TOOK: Final = "took "
"""Before the bound of a duration, in the names of counts."""


class Depth(NamedTuple):
    """A queue as it was measured."""

    waiting: int
    oldest_s: float


class WorkerSighting:
    """A worker that is not in the middle of a poll. ``gap_s``: how long it stays away between two polls: its work, or
    its pause."""

    __slots__ = ("at", "gap_s", "types")

    def __init__(self, at: float, types: Sequence[str], gap_s: float) -> None:
        self.at = at
        self.types = types
        self.gap_s = gap_s

    def until(self) -> float:
        """When it is taken for gone."""
        return self.at + min(max(SEEN_GAPS * self.gap_s, SEEN_MIN_S), SEEN_MAX_S)


class OverdueHistory(NamedTuple):
    """Instances that keep history for longer than it is to be kept: they started before ``until``, the oldest is
    ``oldest``. Counted to 1,000."""

    instances: int
    oldest: int
    until: datetime


class _Tally:
    """What a worker did: in this round, and minute by minute."""

    __slots__ = ("done", "failed", "minutes")

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0
        self.minutes: deque[tuple[int, int, int]] = deque(maxlen=MINUTES_KEPT)

    def add_up(self, minute: int) -> tuple[int, int]:
        """Begin a new round; what was done and failed within `MINUTES_KEPT`."""
        while self.minutes and self.minutes[0][0] <= minute - MINUTES_KEPT:
            self.minutes.popleft()
        done, failed = self.done, self.failed
        self.done = self.failed = 0
        if self.minutes and self.minutes[-1][0] == minute:
            _, done_before, failed_before = self.minutes.pop()
            done, failed = done + done_before, failed + failed_before
        if done or failed:
            self.minutes.append((minute, done, failed))
        return sum(row[1] for row in self.minutes), sum(row[2] for row in self.minutes)


class Activity:
    """See the module."""

    def __init__(self, metrics: Metrics, waiters: Waiters, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds."""
        self._metrics = metrics
        self._waiters = waiters
        self._clock = clock
        self._seen: dict[str, WorkerSighting] = {}
        self._written_at = clock()
        self._before = self._totals()
        self._began = datetime.now(UTC)
        self._batches = (clock(), *metrics.batch_totals())
        self._done: dict[str, int] = {}
        self._tallies: dict[str, _Tally] = {}
        self.overdue: OverdueHistory | None = None
        """What stands in the way of the retention, as this engine saw it last."""
        self._lags_s: deque[float] = deque(maxlen=LAGS_KEPT)
        self.away: Callable[[], Sequence[str]] = tuple
        """Names what this engine has to do without."""
        self.depths: deque[Mapping[str, Depth]] = deque(maxlen=DEPTHS_KEPT)
        """By job type; the latest last."""

    def observe_poll(self, worker: str, types: Sequence[str], now: float | None = None) -> None:
        """A worker asks for jobs. ``now``: of the clock, if it is known."""
        before = self._seen.get(worker)
        if now is None:
            now = self._clock()
        if before is not None:
            before.gap_s = max(now - before.at, before.gap_s / 2)
            before.at, before.types = now, types
        elif len(self._seen) < WORKERS_MAX:
            self._seen[worker] = WorkerSighting(now, types, 0.0)

    def observe_answered(self, worker: str) -> None:
        """Its poll has ended."""
        seen = self._seen.get(worker)
        if seen is not None:
            seen.at = self._clock()

    def observe_report(self, worker: str, job_type: str, *, failed: bool) -> None:
        """A worker has done a job, or reported that it could not."""
        tally = self._tallies.get(worker)
        if tally is None:
            if len(self._tallies) >= WORKERS_MAX:
                return
            tally = self._tallies[worker] = _Tally()
        if failed:
            tally.failed += 1
            return
        tally.done += 1
        done = self._done.get(job_type)
        if done is not None or len(self._done) < DEPTHS_MAX_TYPES:
            self._done[job_type] = (done or 0) + 1

    def observe_depths(self, depths: Sequence[tuple[str, int, float]]) -> None:
        """(job type, waiting, age of the oldest in seconds) of all queues with jobs."""
        longest = sorted(depths, key=lambda row: row[1], reverse=True)[:DEPTHS_MAX_TYPES]
        self.depths.append({name: Depth(waiting, oldest_s) for name, waiting, oldest_s in longest})

    def observe_lag(self, seconds: float) -> None:
        """So late the event loop was."""
        self._lags_s.append(seconds)

    def worst_lag_s(self) -> float:
        """Of the last minute or so."""
        return max(self._lags_s, default=0.0)

    def take_counts(self) -> dict[str, int]:
        """What was counted since this was asked for before; nothing where nothing was."""
        now, before = self._totals(), self._before
        self._before = now
        return {name: total - before.get(name, 0) for name, total in now.items() if total > before.get(name, 0)}

    def _totals(self) -> dict[str, int]:
        took = {f"{TOOK}{bound:g}": count for bound, count in self._metrics.duration_totals().items()}
        return {**self._metrics.instance_totals(), **took}

    def take_workers(self, leased: Mapping[str, int]) -> list[WorkerNote]:
        """Of those that polled or reported since this was asked for before. ``leased``: the jobs that each has."""
        now, since = self._clock(), self._written_at
        self._written_at = now
        self._observe_present(now)
        self._seen = {name: seen for name, seen in self._seen.items() if seen.at > now - SEEN_MAX_S}
        did = {name: tally.add_up(int(now // 60)) for name, tally in self._tallies.items()}
        self._tallies = {name: tally for name, tally in self._tallies.items() if tally.minutes}
        return [
            WorkerNote(name, seen.types[:TYPES_MAX], now - seen.at, leased.get(name, 0), *did.get(name, (0, 0)))
            for name, seen in self._seen.items()
            if seen.at > since
        ]

    def _observe_present(self, now: float) -> None:
        """Those whose polls are parked, and streams, which don't poll: they wait, or report what they did."""
        waiting: dict[str, set[str]] = {}
        for name, workers in self._waiters.by_type(DEPTHS_MAX_TYPES):
            for worker in workers:
                waiting.setdefault(worker, set()).add(name)
        working = {name for name, tally in self._tallies.items() if tally.done or tally.failed}
        for worker in waiting.keys() | working:
            types, before = waiting.get(worker, set()), self._seen.get(worker)
            if before is not None:
                known = before.types if types.issubset(before.types) else sorted(types.union(before.types))
                self._seen[worker] = WorkerSighting(now, known, max(before.gap_s, REPORTED_GAP_S))
            elif types and len(self._seen) < WORKERS_MAX:
                self._seen[worker] = WorkerSighting(now, sorted(types), REPORTED_GAP_S)

    def take_queues(self, locked: Mapping[str, int]) -> dict[str, QueueNote]:
        """By job type, what was done since this was asked for before, and when it was asked for last. ``locked``: the
        jobs of each that are under lease."""
        now = self._clock()
        done, self._done = self._done, {}
        polled: dict[str, float] = {}
        for seen in self._seen.values():
            for name in seen.types[:TYPES_MAX]:
                polled[name] = max(polled.get(name, seen.at), seen.at)
        for name, _ in self._waiters.by_type(DEPTHS_MAX_TYPES):
            polled[name] = now
        names = [*done, *locked, *(name for name, at in polled.items() if now - at < SEEN_MAX_S)]
        return {
            name: QueueNote(
                locked.get(name, 0),
                done.get(name, 0),
                round(now - polled[name], 1) if name in polled else None,
            )
            for name in list(dict.fromkeys(names))[:DEPTHS_MAX_TYPES]
        }

    def report(self, version: str, database_connections: int, leased_jobs: int) -> EngineReport:
        """What this engine says of itself; its batches since this was asked for before."""
        now = self._clock()
        at, batches, items = self._batches
        self._batches = now, *self._metrics.batch_totals()
        new, new_items = self._batches[1] - batches, self._batches[2] - items
        return EngineReport(
            version,
            self._began,
            database_connections,
            self._metrics.clients(),
            len(self._waiters),
            leased_jobs,
            round(new / max(now - at, 0.001), 1),
            round(new_items / new, 1) if new else 0.0,
            round(self.worst_lag_s(), 3),
        )

    def workers(self) -> dict[str, int]:
        """How many workers are there for each job type: those that polled lately or wait."""
        now = self._clock()
        found: dict[str, set[str]] = {}
        for worker, seen in self._seen.items():
            if seen.until() > now:
                for name in seen.types[:TYPES_MAX]:
                    found.setdefault(name, set()).add(worker)
        for name, pending in self._waiters.by_type(DEPTHS_MAX_TYPES):
            found.setdefault(name, set()).update(pending)
        return {name: len(workers) for name, workers in found.items()}
