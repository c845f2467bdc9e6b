"""Where a look into the queue begins: behind the rows that this engine has taken, whose dead versions lie at its head.

A transaction that somebody holds open keeps those versions from being removed, and every look would walk over them.
Ids in the queue only grow, except that transactions do not commit in the order in which they drew them, and that a job
of a better priority comes before what was taken, and that what is late (`LATE_PLACE`) stands behind all others. So a
floor lies `LOW_WATER_MARGIN_IDS` below the last row that was taken, and all floors are dropped now and then: what lies
below one is found after `SCAN_INTERVAL_S`, or as seldom as its cost asks for. Pure bookkeeping, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from penstock.store.rows.jobs import LATE_PLACE, ClaimedJob, LowWaterMark

LOW_WATER_MARGIN_IDS: Final = 50_000
"""Ids that transactions under way may have drawn: batches of some engines, with all that draws from the sequence."""
SCAN_INTERVAL_S: Final = 1.0
SCAN_SHARE: Final = 20
"""Looks at the whole queue may take a twentieth of the time."""


class LowWaterMarks:
    """By job type (its number); those without a floor are looked at from the start."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds."""
        self._clock = clock
        self._low_water_marks: dict[int, LowWaterMark] = {}
        self._dropped = 0
        self._drop_at = 0.0

    def current(self) -> tuple[Mapping[int, LowWaterMark], int]:
        """The floors, and what `mark_taken` has to be told of them."""
        return self._low_water_marks, self._dropped

    def drop_if_due(self) -> bool:
        """Drop the floors when it is time: then the next look is at the whole queue, and `remember_whole_scan` is told
        of it."""
        if not self._low_water_marks or self._clock() < self._drop_at:
            return False
        self.drop()
        return True

    def drop(self) -> None:
        """The next look is at the whole queue."""
        self._low_water_marks = {}
        self._dropped += 1

    def remember_whole_scan(self, seconds: float) -> None:
        """A look at the whole queue took so long."""
        self._drop_at = self._clock() + max(SCAN_INTERVAL_S, SCAN_SHARE * seconds)

    def mark_taken(self, dropped: int, claimed: Iterable[ClaimedJob]) -> None:
        """What a claim took that began at ``dropped``.

        One that began before the floors were dropped raises none: it did not look at what lay below.
        """
        if dropped != self._dropped:
            return
        last: dict[int, ClaimedJob] = {}
        for row in claimed:
            if row.place >= LATE_PLACE:
                continue  # all that is not late comes before
            before = last.get(row.job_type)
            if before is None or row.ordinal > before.ordinal:
                last[row.job_type] = row
        if last and not self._low_water_marks:
            self._drop_at = max(self._drop_at, self._clock() + SCAN_INTERVAL_S)
        for job_type, row in last.items():
            self._low_water_marks[job_type] = LowWaterMark(row.priority, row.place - LOW_WATER_MARGIN_IDS)
