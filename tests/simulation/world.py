"""A seeded scheduler with virtual time: what is to happen, in the order of its time; the seed breaks ties.

Nothing else in a simulation knows what time it is or throws dice of its own, so one seed is one history, for ever.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

Action = Callable[[], None]


class World:
    """``now`` is in seconds since the start."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self._due: list[tuple[float, float, int, Action]] = []
        self._count = 0

    def after(self, seconds: float, action: Action) -> None:
        """Do something so much later; of two things at the same time either may come first."""
        self._count += 1
        heapq.heappush(self._due, (self.now + max(0.0, seconds), self.chance.random(), self._count, action))

    def between(self, least_s: float, most_s: float) -> float:
        """Some time, the short ones likelier."""
        return least_s + (most_s - least_s) * self.chance.random() ** 3

    def one_in(self, number: int) -> bool:
        """True once in so many times."""
        return self.chance.randrange(number) == 0

    def run(self, steps_max: int) -> bool:
        """Until nothing is left to do; False when that did not come to pass."""
        while self._due:
            self.steps += 1
            if self.steps > steps_max:
                return False
            self.now, _, _, action = heapq.heappop(self._due)
            action()
        return True
