"""What a schedule does when it is looked at: which of its times are started, kept for later, left out or missed.

Pure: the caller has the schedule's row under its lock, tells how it stands and what time it is, and writes what comes
out in the transaction that makes the instances. The mark (`done_until`) moves over every time that was decided about,
whatever became of it, so that no time is decided about twice.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from penstock.core.time.schedule_times import Times

SCAN_MAX_TIMES: Final = 1_000
"""Times that one look decides about; with `catchUp` ALL the next look goes on."""
BUFFER_MAX: Final = 1_000
"""Times that wait until the open run has ended."""
RUNS_MAX: Final = 100
"""Times that were missed are recorded one by one up to here at a look; more are counted."""
WAITING_SCAN_S: Final = 10.0
"""How often a schedule is looked at in which something waits for the end of a run. As a rule it hears of it before."""
ON_TIME_S: Final = 10.0
"""A time that is looked at so long after it was due is no late one."""
CATCH_UP_WINDOW_DEFAULT: Final = "P365D"


class Overlap(enum.StrEnum):
    """What is done with a time while the last run is open."""

    SKIP = "SKIP"
    BUFFER_ONE = "BUFFER_ONE"
    BUFFER_ALL = "BUFFER_ALL"
    ALLOW = "ALLOW"
    CANCEL_OTHER = "CANCEL_OTHER"


class CatchUp(enum.StrEnum):
    """What is done with times that passed while nobody fired."""

    LAST = "LAST"
    ALL = "ALL"
    NONE = "NONE"


class RunOutcome(enum.IntEnum):
    """What became of a time. The numbers stand in `schedule_run`."""

    STARTED = 0
    BUFFERED = 1  # waits until the open run has ended; another row of the same time takes its place
    SKIPPED = 2  # left out: the last run was open
    MISSED = 3  # it passed while nobody fired, and is not caught up
    FAILED = 4  # the instance could not be started


class Backfill(NamedTuple):
    """Times of the past that somebody asked for: those after ``mark`` and not after ``until`` are to come."""

    mark: datetime
    until: datetime
    overlap: Overlap


class ScheduleState(NamedTuple):
    """How a schedule stands. ``is_open``: whether the run that it started last is open. ``started``: the times of its
    latest runs, which a backfill leaves out."""

    done_until: datetime
    buffered: Sequence[datetime]
    is_open: bool
    backfill: Backfill | None = None
    trigger: tuple[datetime, Overlap] | None = None
    paused: bool = False
    started: frozenset[datetime] = frozenset()


class Decision(NamedTuple):
    """What is to be written. ``fire_at``: when to look again; None: not before somebody changes something.
    ``passed``: how many times were missed that are not in ``runs``, at least. ``cancels``: the run that is open is to
    be cancelled."""

    starts: list[datetime]
    cancels: bool
    runs: list[tuple[datetime, RunOutcome]]
    buffered: list[datetime]
    done_until: datetime
    backfill: Backfill | None
    fire_at: datetime | None
    passed: int


class Rules(NamedTuple):
    """What a schedule says about its times."""

    name: str
    times: Times
    overlap: Overlap
    catch_up: CatchUp
    window_s: float


class _ScheduleScan:
    """One look at one schedule."""

    def __init__(self, rules: Rules, schedule_state: ScheduleState, now: datetime, starts_max: int) -> None:
        self.rules, self.schedule_state, self.now, self.starts_max = rules, schedule_state, now, starts_max
        self.is_open = schedule_state.is_open
        self.buffered = list(schedule_state.buffered)
        self.starts: list[datetime] = []
        self.runs: list[tuple[datetime, RunOutcome]] = []
        self.cancels = False
        self.passed = 0
        self.done_until = schedule_state.done_until
        self.backfill = schedule_state.backfill

    def decide(self) -> Decision:
        again = False
        if self.schedule_state.trigger is not None:
            self._take(*self.schedule_state.trigger)
        if not self.schedule_state.paused:
            if self.buffered and not self.is_open:
                self._start(self.buffered.pop(0))
            again = self._take_due()
        again |= self._take_backfill()
        return Decision(
            self.starts,
            self.cancels,
            self.runs,
            self.buffered,
            self.done_until,
            self.backfill,
            self._next_scan(again),
            self.passed,
        )

    def _next_scan(self, again: bool) -> datetime | None:
        if again:
            return self.now
        upcoming = None if self.schedule_state.paused else self.rules.times.next(self.done_until)
        due_at = None if upcoming is None else self.rules.times.due_at(self.rules.name, upcoming)
        if self.backfill is None and (self.schedule_state.paused or not self.buffered):
            return due_at
        scan_at = self.now + timedelta(seconds=WAITING_SCAN_S)
        return scan_at if due_at is None else min(due_at, scan_at)

    # -- times that are due

    def _take_due(self) -> bool:
        """Return whether there may be more that is due."""
        rules, now = self.rules, self.now
        due: list[datetime] = []
        for at in rules.times.between(self.done_until, now, SCAN_MAX_TIMES):
            if rules.times.due_at(rules.name, at) > now:
                break  # in order: what comes after one that is not due yet waits for it
            due.append(at)
        full = len(due) == SCAN_MAX_TIMES
        if full and rules.catch_up is not CatchUp.ALL:
            due, full = self._pass_over(due), False
        wanted = self._caught_up(due)
        for at in due:
            if at not in wanted:
                self._miss(at)
            elif len(self.starts) < self.starts_max:
                self._take(at, rules.overlap)
            else:
                return True
            self.done_until = at
        return full

    def _pass_over(self, due: list[datetime]) -> list[datetime]:
        """Of more than a look takes: the last one, the others are missed."""
        jitter = timedelta(seconds=self.rules.times.jitter_s)
        last = self.rules.times.last(due[-1], self.now - jitter)
        if last is None:
            return due
        for at in due:
            self._miss(at)
        self.done_until = due[-1]
        return [last]

    def _caught_up(self, due: Sequence[datetime]) -> set[datetime]:
        """Of what is due: what is to be started, if `overlap` lets it."""
        rules = self.rules
        ages = {at: (self.now - rules.times.due_at(rules.name, at)).total_seconds() for at in due}
        on_time = {at for at in due if ages[at] <= ON_TIME_S}
        late = [at for at in due if ON_TIME_S < ages[at] <= rules.window_s]
        if rules.catch_up is CatchUp.ALL:
            return on_time | set(late)
        if rules.catch_up is CatchUp.NONE or on_time:
            return on_time
        return set(late[-1:])

    def _miss(self, at: datetime) -> None:
        if len(self.runs) < RUNS_MAX:
            self.runs.append((at, RunOutcome.MISSED))
        else:
            self.passed += 1

    # -- one time

    def _take(self, at: datetime, overlap: Overlap) -> None:
        if overlap is Overlap.ALLOW or not self.is_open:
            self._start(at)
        elif overlap is Overlap.CANCEL_OTHER:
            self._start_instead(at)
        elif overlap is Overlap.SKIP or len(self.buffered) >= (1 if overlap is Overlap.BUFFER_ONE else BUFFER_MAX):
            self.runs.append((at, RunOutcome.SKIPPED))
        else:
            self.buffered.append(at)
            self.runs.append((at, RunOutcome.BUFFERED))

    def _start(self, at: datetime) -> None:
        self.starts.append(at)
        self.is_open = True

    def _start_instead(self, at: datetime) -> None:
        """What this look has started already would be cancelled at once: it is left out."""
        if self.starts:
            self.runs += [(overtaken, RunOutcome.SKIPPED) for overtaken in self.starts]
            self.starts.clear()
        else:
            self.cancels = True
        self._start(at)

    # -- backfill

    def _take_backfill(self) -> bool:
        """Return whether there is more of it that could begin now."""
        asked = self.backfill
        if asked is None:
            return False
        one_by_one = asked.overlap is not Overlap.ALLOW
        most = self.starts_max - len(self.starts)
        if one_by_one:
            most = min(most, 0 if self.is_open else 1)
        if most <= 0:
            return not one_by_one
        found = self.rules.times.between(asked.mark, asked.until, SCAN_MAX_TIMES)
        for at in found:
            if at not in self.schedule_state.started:
                if most == 0:
                    break
                self._start(at)
                most -= 1
            asked = asked._replace(mark=at)
        else:
            if len(found) < SCAN_MAX_TIMES:
                self.backfill = None
                return False
        self.backfill = asked
        return not (one_by_one and self.is_open)


def decide(rules: Rules, schedule_state: ScheduleState, now: datetime, starts_max: int) -> Decision:
    """What a look at a schedule does; it starts so many at most. What is started is open from then on."""
    return _ScheduleScan(rules, schedule_state, now, starts_max).decide()
