"""What the generator counts and times, shared with the measuring process while it runs."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable, MutableSequence, Sequence


class Count(enum.IntEnum):
    """Positions in the shared array of one generator process."""

    STARTED = 0
    """Instances started."""
    POLLS = 1
    """Polls answered, empty ones included."""
    JOBS = 2
    """Jobs received."""
    COMPLETED = 3
    """Jobs whose completion was confirmed."""
    CALLS = 4
    """Requests answered."""
    ERRORS = 5
    """Answers that were not the expected ones."""
    ENDED = 6
    """Instances whose last job was completed."""


Counts = MutableSequence[int]


class Samples:
    """Durations with the moment of their end, by kind. Times are `time.monotonic()` seconds."""

    def __init__(self) -> None:
        self._times: dict[str, tuple[array[float], array[float]]] = {}

    def of(self, kind: str) -> tuple[array[float], array[float]]:
        """The arrays to append to: moments and durations."""
        return self._times.setdefault(kind, (array("d"), array("d")))

    def merge(self, other: Samples) -> None:
        """Take over another process's samples."""
        for kind, (moments, durations) in other._times.items():
            mine = self.of(kind)
            mine[0].extend(moments)
            mine[1].extend(durations)

    def kinds(self) -> list[str]:
        return list(self._times)

    def between(self, kind: str, since: float, until: float) -> list[float]:
        """Durations that ended within the window, sorted."""
        moments, durations = self.of(kind)
        return sorted(d for at, d in zip(moments, durations, strict=True) if since <= at <= until)

    def by_second(self, kind: str, origin: float) -> dict[int, list[float]]:
        """Durations by the second after ``origin`` in which they ended."""
        seconds: dict[int, list[float]] = {}
        for at, duration in zip(*self.of(kind), strict=True):
            seconds.setdefault(int(at - origin), []).append(duration)
        return seconds


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which ``share`` of the sorted values lie; None when there are none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def total(rows: Iterable[Sequence[int]]) -> list[int]:
    """Counts of several processes added up."""
    return [sum(column) for column in zip(*rows, strict=True)]
