"""A schedule of a world: its row, the runs that it starts, and the engines that look at it, with outages of hours.

What a look decides (`core.time.schedule`) is applied as its transaction is: all of it in the moment of the commit, or
nothing. In the end each of its times must have been decided about once, whoever looked, died or came back.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

from penstock.core.time.schedule import ON_TIME_S, CatchUp, Decision, Overlap, Rules, RunOutcome, ScheduleState, decide
from penstock.core.time.schedule_times import read_times
from tests.core.machine import START
from tests.simulation.actors import Engine, Item
from tests.simulation.history import History
from tests.simulation.world import World

POLL_INTERVAL_S = 5.0
"""Engines look so often, whatever they hear."""
LIFE_S = 4_000.0
STARTS_MAX = 20


class Schedule:
    """One of them."""

    def __init__(self, world: World, engines: list[Engine], seen: Counter[str]) -> None:
        self._world, self._engines, self._seen = world, engines, seen
        chance = world.chance
        self._every_s = chance.choice((7, 30, 60, 400))
        self._end = START + timedelta(seconds=LIFE_S)
        times = read_times(
            cron=[], time_zone=None, every=f"PT{self._every_s}S", anchor=None, start_at=None,
            end_at=self._end.isoformat(), jitter=chance.choice((None, "PT20S")),
        )  # fmt: skip
        window_s = chance.choice((120.0, 1e9))
        overlap, catch_up = chance.choice(list(Overlap)), chance.choice(list(CatchUp))
        self.rules = Rules("tick", times, overlap, catch_up, window_s)
        # the row
        self._done_until = START
        self._fire_at: datetime | None = times.due_at("tick", cast(datetime, times.next(START)))
        self._buffered: list[datetime] = []
        self._paused = False
        self._passed = 0
        # what became of it
        self._outcomes: dict[datetime, list[RunOutcome]] = {}
        self._left_out: set[datetime] = set()
        """Times that passed while it was paused."""
        self._open: list[datetime] = []
        self._last: datetime | None = None
        self._away_until = 0.0

    def begin(self) -> None:
        """Engines look, at about the same times, and are away now and then."""
        for _ in self._engines:
            self._world.after(self._world.between(0, POLL_INTERVAL_S), self._scan)
        for _ in range(3):
            self._world.after(self._world.chance.uniform(0, LIFE_S), self._leave)
        if self._world.one_in(3):
            self._world.after(self._world.chance.uniform(0, LIFE_S), lambda: self._ask(self._pause))

    def at(self, seconds: float) -> None:
        """The time goes by itself."""

    @property
    def _now(self) -> datetime:
        return START + timedelta(seconds=self._world.now)

    @property
    def _is_over(self) -> bool:
        return self._fire_at is None and not self._paused and not self._open

    def _ask(self, do: Any) -> None:
        history = cast(History, self)  # engines know of it that it is one
        self._world.chance.choice(self._engines).submit(Item(history, do, lambda result: None))

    def _leave(self) -> None:
        """No engine is there."""
        self._away_until = max(self._away_until, self._world.now + self._world.between(1, 1_500))
        self._seen["nobody fires"] += 1

    def _scan(self) -> None:
        if self._is_over:
            return
        if self._fire_at is not None and self._fire_at <= self._now and self._world.now >= self._away_until:
            self._ask(self._fire)
        self._world.after(POLL_INTERVAL_S, self._scan)

    # -- transactions

    def _fire(self) -> bool:
        """As the group-commit queue of firings does: under the lock of the row, if it is still due."""
        if self._fire_at is None or self._fire_at > self._now or self._paused:
            return False
        is_open = self._last in self._open
        schedule_state = ScheduleState(self._done_until, self._buffered, is_open)
        decision = decide(self.rules, schedule_state, self._now, STARTS_MAX)
        self._write(decision)
        return True

    def _write(self, decision: Decision) -> None:
        if decision.cancels and self._last is not None and self._last in self._open:
            self._open.remove(self._last)
            self._seen["runs cancelled by the next"] += 1
        for at, outcome in decision.runs:
            self._note(at, outcome)
        for at in decision.starts:
            assert self.rules.times.due_at("tick", at) <= self._now, "started before its time"
            self._note(at, RunOutcome.STARTED)
            self._open.append(at)
            self._last = at
            self._world.after(self._world.between(1, 3 * self._every_s), partial(self._end_run, at))
        if self.rules.overlap is not Overlap.ALLOW:
            assert len(self._open) <= 1, "two runs are open"
        self._done_until, self._buffered = decision.done_until, decision.buffered
        self._fire_at, self._passed = decision.fire_at, self._passed + decision.passed

    def _note(self, at: datetime, outcome: RunOutcome) -> None:
        self._outcomes.setdefault(at, []).append(outcome)
        self._seen[f"times {outcome.name}"] += 1

    def _end_run(self, at: datetime) -> None:
        """The timer that tells the schedule may be lost: what waits is found by a later look."""
        if at in self._open:
            self._open.remove(at)
            if self._buffered and not self._paused and not self._world.one_in(4):
                self._fire_at = self._now

    def _pause(self) -> None:
        if not self._paused and not self._is_over:
            self._paused, self._fire_at = True, None
            self._world.after(self._world.between(1, 1_000), self._ask_to_resume)

    def _ask_to_resume(self) -> None:
        """Again, where no answer comes."""
        if self._paused:
            self._ask(self._resume)
            self._world.after(30, self._ask_to_resume)

    def _resume(self) -> None:
        if self._paused:
            before, self._done_until = self._done_until, max(self._done_until, self._now)
            self._left_out |= set(self.rules.times.between(before, self._done_until, 10_000))
            self._paused, self._fire_at = False, self._now
            self._seen["resumed"] += 1

    # -- in the end

    def check_end(self) -> None:
        """Each time was decided about, once."""
        assert not self._buffered, "what waits was forgotten"
        assert not self._open, "a run is open for ever"
        all_times = self.rules.times.between(START, self._end, 10_000)
        reported = {at: outcomes[-1] for at, outcomes in self._outcomes.items()}
        for at, outcomes in self._outcomes.items():
            waited = [RunOutcome.BUFFERED] if outcomes[0] is RunOutcome.BUFFERED else []
            assert outcomes != waited, f"{at} waited, and was forgotten"
            once = [*waited, RunOutcome.STARTED], [outcomes[0]]
            assert outcomes in once, f"{at} was decided about twice: {outcomes}"
            assert at in all_times, f"{at} is none of its times"
            assert at not in self._left_out, f"{at} was started, though it passed in a pause"
        missing = [at for at in all_times if at not in reported and at not in self._left_out]
        assert len(missing) == self._passed, f"{len(missing)} times were left out, {self._passed} counted"
        missed = [at for at, outcome in reported.items() if outcome is RunOutcome.MISSED]
        if self.rules.catch_up is CatchUp.ALL and self.rules.window_s > LIFE_S:
            assert not missed, "all were to be caught up"
            if self.rules.overlap is Overlap.ALLOW:
                assert set(reported.values()) <= {RunOutcome.STARTED}, "all were to be started"
        if self.rules.catch_up is CatchUp.LAST and self.rules.window_s > LIFE_S and missed:
            assert max(missed) < max(at for at in all_times if at in reported), "the last one was missed"


assert ON_TIME_S > POLL_INTERVAL_S
