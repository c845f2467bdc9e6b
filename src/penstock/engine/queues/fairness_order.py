"""Where claims go on among the jobs that wait for turns: the place in the round, and when a look is worth its while.

Pure bookkeeping, no I/O, by job type. Hints only: what may begin is decided by the rows, and without any hint a walk
comes to every key.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final

from penstock.store.rows.flow import BEFORE_ALL

FRUITLESS_S: Final = 0.2
"""A look that found nothing is repeated after so long, if nothing happened that may have made room."""
FRUITLESS_SHARE: Final = 8
"""Or after as many times as long as it took,"""
FRUITLESS_MAX_S: Final = 1.0
"""but after this at most."""
WALK_PAUSE_MAX_S: Final = 0.05
"""Where there are keys that it did not look at the walk goes on after so long at most: what nobody told of is found
after this for each look of a round, and what the looks take."""
ROUND_TRUSTED_S: Final = 10.0
"""So long ago a look came to the end of a type's keys at most: others may look at them since, and not come round."""
REASSIGN_INTERVAL_S: Final = 1.0
"""Between two looks for jobs that came to the queue of those without turns."""
TYPES_MAX_ITEMS: Final = 20_000
"""Of more those are forgotten that were not looked at for longest."""
KEYS_MAX_ITEMS: Final = 100_000
"""That may have room, of all types."""


class FairnessOrder:
    """Of one engine."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds."""
        self._clock = clock
        self._cursors: OrderedDict[str, str] = OrderedDict()
        self._after: dict[str, int] = {}
        self._round_at: dict[str, float] = {}  # when a look came to the end of its keys; not of those in `_hinted`
        self._closed: dict[str, float] = {}
        self._adopt_at: dict[str, float] = {}
        self._fairness_order: dict[str, dict[str, None]] = {}
        self._hints = 0

    def after(self, job_type: str) -> int:
        """The next look is at priorities worse than this: so those that wait behind more full keys of a better one than
        one look comes to are seen, too."""
        return self._after.get(job_type, BEFORE_ALL)

    def cursor(self, job_type: str) -> str:
        """Where the rounds of all priorities go on (`store.rows.flow.ClaimScan`); empty: nowhere yet."""
        return self._cursors.get(job_type, "")

    def is_open(self, job_type: str) -> bool:
        """Whether a scan may find something."""
        return self._closed.get(job_type, 0.0) <= self._clock()

    def next_open_at(self, job_types: Collection[str]) -> float:
        """When a look at one of the types may find something, without a hint."""
        return min((self._closed.get(name, 0.0) for name in job_types), default=math.inf)

    def next_opening(self, job_types: Collection[str]) -> float:
        """When the first of those types opens that are not open now."""
        now = self._clock()
        return min((at for name in job_types if (at := self._closed.get(name, 0.0)) > now), default=math.inf)

    def open(self, job_types: Iterable[str]) -> None:
        """Something happened that may let jobs of these types begin."""
        for name in job_types:
            self._closed.pop(name, None)

    def note(
        self,
        job_type: str,
        *,
        cursor: str | None,
        found: int,
        more: bool,
        retry_s: float | None,
        took_s: float,
        ended_at: int | None = None,
    ) -> None:
        """A claim went on to ``cursor`` and found so many jobs. ``more``: there are keys that it did not look at, or
        found in others' hands. ``retry_s``: when a rate lets something begin. ``ended_at``: the priority at which
        it had seen enough keys, if worse ones wait: the next one is at these, then from the best on again."""
        after = self._after.pop(job_type, BEFORE_ALL)
        if ended_at is not None and len(self._after) < TYPES_MAX_ITEMS:
            self._after[job_type] = ended_at
        more = more or after > BEFORE_ALL
        if cursor is None:
            pass  # nothing was looked at: the queue has no room, and of its keys nothing is known
        elif not more:
            self._hints -= len(self._fairness_order.pop(job_type, ()))
            if len(self._round_at) > TYPES_MAX_ITEMS:
                self._round_at.clear()
            self._round_at[job_type] = self._clock()
        elif len(self._fairness_order) < TYPES_MAX_ITEMS:
            self._fairness_order.setdefault(job_type, {})
        if cursor is not None:
            self._cursors[job_type] = cursor
            self._cursors.move_to_end(job_type)
            if len(self._cursors) > TYPES_MAX_ITEMS:
                self._cursors.popitem(last=False)
        if found:
            self._closed.pop(job_type, None)
            return
        least_s, most_s = (0.0, WALK_PAUSE_MAX_S) if more else (FRUITLESS_S, FRUITLESS_MAX_S)
        pause_s = min(max(FRUITLESS_SHARE * took_s, least_s), most_s)
        if retry_s is not None:
            pause_s = min(pause_s, max(retry_s, 0.0))
        if len(self._closed) > TYPES_MAX_ITEMS:
            self._closed.clear()
        self._closed[job_type] = self._clock() + pause_s

    def hint(self, job_types: Iterable[str], flow_key: str) -> None:
        """Jobs of this key may begin, of types whose keys the last look did not come to the end of."""
        for name in job_types:
            keys = self._fairness_order.get(name)
            if keys is not None and flow_key not in keys:
                if self._hints >= KEYS_MAX_ITEMS:  # walks come to them
                    self._forget_hints()
                keys[flow_key] = None
                self._hints += 1

    def may_be_crowded(self, job_type: str) -> bool:
        """Return whether scans do not come to the end of its keys, or none was made here lately: then others are told of
        keys."""
        return (
            job_type in self._fairness_order
            or self._clock() > self._round_at.get(job_type, -math.inf) + ROUND_TRUSTED_S
        )

    def take_hints(self, job_type: str, number: int) -> list[str]:
        """Keys that may have room, the oldest first; they are forgotten here."""
        keys = self._fairness_order.get(job_type, {})
        taken = [*islice(keys, number)]
        for key in taken:
            del keys[key]
        self._hints -= len(taken)
        return taken

    def keep(self, job_type: str, keys: Iterable[str]) -> None:
        """Keys that `take_hints` gave, of which more jobs may begin than did."""
        for key in keys:
            self.hint((job_type,), key)

    def _forget_hints(self) -> None:
        for keys in self._fairness_order.values():
            keys.clear()
        self._hints = 0

    def to_reassign(self, job_types: Iterable[str]) -> list[str]:
        """Those of the types that are due to be looked through for jobs without turns; not again for a while."""
        now = self._clock()
        due = [name for name in job_types if self._adopt_at.get(name, 0.0) <= now]
        if len(self._adopt_at) > TYPES_MAX_ITEMS:
            self._adopt_at.clear()
        self._adopt_at.update((name, now + REASSIGN_INTERVAL_S) for name in due)
        return due

    def reassign_again(self, job_types: Iterable[str]) -> None:
        """There may be more of them."""
        for name in job_types:
            self._adopt_at.pop(name, None)
