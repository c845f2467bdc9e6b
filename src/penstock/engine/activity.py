"""What this engine did lately, in memory: instances counted, workers seen, queues as they were measured.

Pure bookkeeping, no I/O. The counts are differences of the metrics, so that nothing is added where jobs are served; of
a poll its worker is noted (0.2 us). Bounded: of more workers than fit, those that came later are not told apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.engine.waiters import Waiters
from penstock.metrics import Metrics

WORKERS_MAX: Final = 2_000
TYPES_MAX: Final = 50
"""Job types noted of one worker."""
SEEN_MIN_S: Final = 10.0
SEEN_MAX_S: Final = 90.0
SEEN_GAPS: Final = 3.0
"""A worker is there until it has stayed away for three times what it stays away between two polls, within these."""
DEPTHS_MAX_TYPES: Final = 500
LAGS_KEPT: Final = 60
"""Looks at how late the loop is: a minute of them."""
DEPTHS_KEPT: Final = 90
"""Of the queues: 15 minutes of measurements every ten seconds."""


class Depth(NamedTuple):
    """A queue as it was measured."""

    waiting: int
    oldest_s: float


class Seen(NamedTuple):
    """A worker that is not in the middle of a poll."""

    at: float
    types: Sequence[str]
    gap_s: float
    """How long it stays away between two polls: its work, or its pause."""

    def until(self) -> float:
        """When it is taken for gone."""
        return self.at + min(max(SEEN_GAPS * self.gap_s, SEEN_MIN_S), SEEN_MAX_S)


class Activity:
    """See the module."""

    def __init__(self, metrics: Metrics, waiters: Waiters, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds."""
        self._metrics = metrics
        self._waiters = waiters
        self._clock = clock
        self._seen: dict[str, Seen] = {}
        self._written_at = clock()
        self._before = metrics.instance_totals()
        self._lags_s: deque[float] = deque(maxlen=LAGS_KEPT)
        self.away: Callable[[], Sequence[str]] = tuple
        """Names what this engine has to do without."""
        self.depths: deque[Mapping[str, Depth]] = deque(maxlen=DEPTHS_KEPT)
        """By job type; the latest last."""

    def note_poll(self, worker: str, types: Sequence[str]) -> None:
        """A worker asks for jobs."""
        now, before = self._clock(), self._seen.get(worker)
        if before is not None:
            self._seen[worker] = Seen(now, types, max(now - before.at, before.gap_s / 2))
        elif len(self._seen) < WORKERS_MAX:
            self._seen[worker] = Seen(now, types, 0.0)

    def note_answered(self, worker: str) -> None:
        """Its poll has ended."""
        seen = self._seen.get(worker)
        if seen is not None:
            self._seen[worker] = seen._replace(at=self._clock())

    def note_depths(self, depths: Sequence[tuple[str, int, float]]) -> None:
        """(job type, waiting, age of the oldest in seconds) of all queues with jobs."""
        longest = sorted(depths, key=lambda row: row[1], reverse=True)[:DEPTHS_MAX_TYPES]
        self.depths.append({name: Depth(waiting, oldest_s) for name, waiting, oldest_s in longest})

    def note_lag(self, seconds: float) -> None:
        """So late the event loop was."""
        self._lags_s.append(seconds)

    def worst_lag_s(self) -> float:
        """Of the last minute or so."""
        return max(self._lags_s, default=0.0)

    def take_counts(self) -> dict[str, int]:
        """What was counted since this was asked for before; nothing where nothing was."""
        now, before = self._metrics.instance_totals(), self._before
        self._before = now
        return {name: total - before.get(name, 0) for name, total in now.items() if total > before.get(name, 0)}

    def take_workers(self) -> list[tuple[str, list[str], float]]:
        """(worker, job types, seconds ago) of those that polled since this was asked for before."""
        now, since = self._clock(), self._written_at
        self._written_at = now
        self._seen = {name: seen for name, seen in self._seen.items() if seen.at > now - SEEN_MAX_S}
        return [
            (name, list(seen.types[:TYPES_MAX]), now - seen.at) for name, seen in self._seen.items() if seen.at >= since
        ]

    def workers(self) -> dict[str, int]:
        """How many workers are there for each job type: those that polled lately or wait."""
        now = self._clock()
        found: dict[str, set[str]] = {}
        for worker, seen in self._seen.items():
            if seen.until() > now:
                for name in seen.types[:TYPES_MAX]:
                    found.setdefault(name, set()).add(worker)
        for name, parked in self._waiters.by_type(DEPTHS_MAX_TYPES):
            found.setdefault(name, set()).update(parked)
        return {name: len(workers) for name, workers in found.items()}
