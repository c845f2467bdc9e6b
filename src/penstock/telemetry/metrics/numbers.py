"""What counters and histograms (`plain`) keep their numbers in. Beside them, and compiled: theirs are the library's
classes. Who counts on every job holds one of these: no step of Python's in between."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Number:
    """A sum. As the library's children have it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def get(self) -> float:
        """For the library's samples."""
        return self.value

    def get_exemplar(self) -> None:
        """There are none."""


class Distribution:
    """How many numbers lie between bounds, and their sum."""

    __slots__ = ("_bounds", "buckets", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds``: the greatest of each bucket, ascending; the last is infinite."""
        self._bounds = [float(bound) for bound in bounds]
        self.sum = Number()
        self.buckets = [Number() for _ in bounds]

    def observe(self, amount: float) -> None:
        """Count one of that size."""
        self.sum.value += amount
        self.buckets[bisect_left(self._bounds, amount)].value += 1.0

    def observe_all(self, amounts: list[float]) -> None:
        """Count one of each size."""
        for amount in amounts:
            self.sum.value += amount
            self.buckets[bisect_left(self._bounds, amount)].value += 1.0
