"""The queue that all jobs of a world are in: places as a whole and by flow key, pauses, and polls that wait for room.

The counters go by what is said of attempts: a claim takes a place, and `Effects.released`, or the end of a lease, gives
it back. They have to be those of the tokens at every moment (`History`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.store.rows.flow import COUNTED_BY_KEY, COUNTED_WHOLE
from tests.simulation.world import World

QUEUE = 1
POLL_INTERVAL_S = 10.0
"""A poll that waits for room looks so often, whatever it hears."""


class Queue:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.limit = world.chance.choice((1, 2, 4, 100))
        self.per_key = world.chance.choice((1, 2, 100))
        self.counts: Counter[str] = Counter()
        """Places that are taken, by flow key; those of the whole under an empty one."""
        self.paused = False
        self.overruns = 0
        self.kept_back = 0
        self.holding: list[Callable[[], int]] = []
        """Of each instance: how many places its tokens hold."""
        self._waiting: list[Callable[[], None]] = []

    def pause(self) -> None:
        """For some time."""
        self.paused = True
        self._world.after(self._world.between(1, 100), self._resume)

    def _resume(self) -> None:
        self.paused = False
        self._hint()

    def room(self, flow_key: str | None) -> bool:
        """Whether a job with that key may begin."""
        return (
            not self.paused and self.counts[""] < self.limit and (not flow_key or self.counts[flow_key] < self.per_key)
        )

    def take(self, flow_key: str | None, *, unasked: bool = False) -> int:
        """What the token holds then. ``unasked``: by a late heartbeat, of what runs."""
        if not self.room(flow_key):
            assert unasked, "a limit is exceeded"
            self.overruns += 1
        self.counts[""] += 1
        if flow_key:
            self.counts[flow_key] += 1
        return 4 * QUEUE + COUNTED_WHOLE + (COUNTED_BY_KEY if flow_key else 0)

    def give_back(self, held: int, flow_key: str) -> None:
        """An attempt has ended."""
        assert held // 4 == QUEUE
        self.counts[""] -= held & COUNTED_WHOLE
        if held & COUNTED_BY_KEY:
            self.counts[flow_key] -= 1
        assert min(self.counts.values()) >= 0, "a place is given back twice"
        self._hint()

    def check(self) -> None:
        """The counter is that of the tokens."""
        assert self.counts[""] == sum(count() for count in self.holding), "the counter is not the tokens'"

    def wait(self, poll: Callable[[], None]) -> None:
        """Have it look again when there may be room: when one hears of it, and at intervals."""
        self.kept_back += 1
        self._waiting.append(poll)
        self._world.after(POLL_INTERVAL_S, lambda: self._scan(poll))

    def _scan(self, poll: Callable[[], None]) -> None:
        if poll in self._waiting:
            self._waiting.remove(poll)
            poll()

    def _hint(self) -> None:
        """Now and then it is lost."""
        if self._world.one_in(4):
            return
        for poll in self._waiting[:]:
            self._world.after(self._world.between(0, 0.5), lambda poll=poll: self._scan(poll))
