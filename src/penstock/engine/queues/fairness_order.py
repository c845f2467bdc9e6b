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

from penstock.store.rows.flow import BEFORE_ALL, ClaimScan

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


class _Turn:
    """Of one job type."""

    __slots__ = ("after", "closed_until", "cursor", "hinted", "reassign_at", "round_at")

    def __init__(self) -> None:
        self.cursor = ""
        self.after = BEFORE_ALL
        self.round_at = -math.inf  # when a look came to the end of its keys
        self.closed_until = 0.0
        self.reassign_at = 0.0
        self.hinted: dict[str, None] | None = None  # None: the last look came to the end of its keys


class FairnessOrder:
    """Of one engine."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds."""
        self._clock = clock
        self._fairness_order: OrderedDict[str, _Turn] = OrderedDict()  # the one that was looked at last stands last
        self._hints = 0

    def after(self, job_type: str) -> int:
        """The next look is at priorities worse than this: so those that wait behind more full keys of a better one than
        one look comes to are seen, too."""
        turn = self._fairness_order.get(job_type)
        return BEFORE_ALL if turn is None else turn.after

    def cursor(self, job_type: str) -> str:
        """Where the rounds of all priorities go on (`store.rows.flow.ClaimScan`); empty: nowhere yet."""
        turn = self._fairness_order.get(job_type)
        return "" if turn is None else turn.cursor

    def is_open(self, job_type: str) -> bool:
        """Return whether a scan may find something."""
        return self._closed_until(job_type) <= self._clock()

    def next_open_at(self, job_types: Collection[str]) -> float:
        """When a look at one of the types may find something, without a hint."""
        return min((self._closed_until(name) for name in job_types), default=math.inf)

    def next_opening(self, job_types: Collection[str]) -> float:
        """When the first of those types opens that are not open now."""
        now = self._clock()
        return min((at for name in job_types if (at := self._closed_until(name)) > now), default=math.inf)

    def _closed_until(self, job_type: str) -> float:
        turn = self._fairness_order.get(job_type)
        return 0.0 if turn is None else turn.closed_until

    def open(self, job_types: Iterable[str]) -> None:
        """Something happened that may let jobs of these types begin."""
        for name in job_types:
            if (turn := self._fairness_order.get(name)) is not None:
                turn.closed_until = 0.0

    def note(self, job_type: str, scan: ClaimScan, found: int, *, keys_max: int, took_s: float) -> None:
        """A claim looked at ``keys_max`` keys at most and found so many jobs. Where worse priorities wait the next one
        is at these, then from the best on again."""
        turn = self._turn_of(job_type)
        self._fairness_order.move_to_end(job_type)
        more = scan.more(keys_max) or turn.after > BEFORE_ALL
        turn.after = BEFORE_ALL if scan.ended_at is None else scan.ended_at
        if scan.cursor is not None:  # else the queue has no room: nothing was looked at, of its keys nothing is known
            turn.cursor = scan.cursor
            if not more:
                self._forget_hints(turn)
                turn.hinted, turn.round_at = None, self._clock()
            elif turn.hinted is None:
                turn.hinted = {}
        turn.closed_until = 0.0 if found else self._clock() + _pause_s(scan, took_s, more=more)

    def _turn_of(self, job_type: str) -> _Turn:
        turn = self._fairness_order.get(job_type)
        if turn is None:
            turn = self._fairness_order[job_type] = _Turn()
            if len(self._fairness_order) > TYPES_MAX_ITEMS:
                self._forget_hints(self._fairness_order.popitem(last=False)[1])
        return turn

    def hint(self, job_types: Iterable[str], flow_key: str) -> None:
        """Jobs of this key may begin, of types whose keys the last look did not come to the end of."""
        for name in job_types:
            turn = self._fairness_order.get(name)
            if turn is not None and turn.hinted is not None and flow_key not in turn.hinted:
                if self._hints >= KEYS_MAX_ITEMS:  # walks come to them
                    for each in self._fairness_order.values():
                        self._forget_hints(each)
                turn.hinted[flow_key] = None
                self._hints += 1

    def may_be_crowded(self, job_type: str) -> bool:
        """Return whether scans do not come to the end of its keys, or none was made here lately: then others are told
        of keys."""
        turn = self._fairness_order.get(job_type)
        return turn is None or turn.hinted is not None or self._clock() > turn.round_at + ROUND_TRUSTED_S

    def take_hints(self, job_type: str, number: int) -> list[str]:
        """Keys that may have room, the oldest first; they are forgotten here."""
        turn = self._fairness_order.get(job_type)
        if turn is None or turn.hinted is None:
            return []
        taken = [*islice(turn.hinted, number)]
        for key in taken:
            del turn.hinted[key]
        self._hints -= len(taken)
        return taken

    def keep(self, job_type: str, keys: Iterable[str]) -> None:
        """Keys that `take_hints` gave, of which more jobs may begin than did."""
        for key in keys:
            self.hint((job_type,), key)

    def _forget_hints(self, turn: _Turn) -> None:
        if turn.hinted:
            self._hints -= len(turn.hinted)
            turn.hinted.clear()

    def to_reassign(self, job_types: Iterable[str]) -> list[str]:
        """Those of the types that are due to be looked through for jobs without turns; not again for a while."""
        now = self._clock()
        due = [
            name for name in job_types if (turn := self._fairness_order.get(name)) is None or turn.reassign_at <= now
        ]
        for name in due:
            self._turn_of(name).reassign_at = now + REASSIGN_INTERVAL_S
        return due

    def reassign_again(self, job_types: Iterable[str]) -> None:
        """There may be more of them."""
        for name in job_types:
            if (turn := self._fairness_order.get(name)) is not None:
                turn.reassign_at = 0.0


def _pause_s(scan: ClaimScan, took_s: float, *, more: bool) -> float:
    """After a look that found nothing. ``more``: there may be keys that it did not look at, or others had in hand."""
    least_s, most_s = (0.0, WALK_PAUSE_MAX_S) if more else (FRUITLESS_S, FRUITLESS_MAX_S)
    pause_s = min(max(FRUITLESS_SHARE * took_s, least_s), most_s)
    return pause_s if scan.retry_s is None else min(pause_s, max(scan.retry_s, 0.0))
