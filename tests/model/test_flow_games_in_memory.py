"""What schedules decide, against the second opinion: random rules, looks at random times, in memory."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

from penstock.core.time.schedule import CatchUp, Overlap, Rules, ScheduleState, decide
from penstock.core.time.schedule_times import read_times
from tests.model.flow_model import SECOND, ModelInstance, ModelSchedule

BEGIN = datetime(2026, 5, 4, tzinfo=UTC)
GAMES, SCANS = 200, 25
EVERY_S = 60


def time(microseconds: int) -> datetime:
    return BEGIN + timedelta(microseconds=microseconds)


class ScheduleGame:
    """One schedule: as `decide` has it, and as the model has it."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.overlap, self.catch_up = source.choice([*Overlap]), source.choice([*CatchUp])
        times = read_times(
            cron=[],
            every=f"PT{EVERY_S}S",
            anchor=BEGIN.isoformat(),
            time_zone=None,
            start_at=None,
            end_at=None,
            jitter=None,
        )
        self.rules = Rules("s", times, self.overlap, self.catch_up, 1e9)
        self.model = ModelSchedule(EVERY_S * SECOND, self.overlap, self.catch_up, 0)
        self.now = self.runs = 0
        self.done, self.buffered = BEGIN, list[datetime]()
        self.outcomes: dict[datetime, str] = {}

    def play(self) -> None:
        for _ in range(SCANS):
            self.now += round(self.source.choice((0, 0.5, 3, 61, 200, 1_000)) * SECOND)
            match self.source.randrange(4):
                case 0 if self.model.last is not None:
                    self.model.last.status = "COMPLETED"
                case 1:
                    self.hold()
                case _:
                    pass
            self.scan(trigger=self.source.random() < 0.2)

    def hold(self) -> None:
        """Pause it, or let it go on: what passed meanwhile is not caught up."""
        if self.model.paused:
            self.model.resume(self.now)
            self.done = max(self.done, time(self.now))
        else:
            self.model.paused = True

    def scan(self, *, trigger: bool) -> None:
        """Until nothing more is started; a trigger is of the first look."""
        asked_for = [self.model.free_time(self.now)] if trigger else []
        while True:
            wanted = [(time(at), self.overlap) for at in asked_for]
            was_open = self.model.is_open
            schedule_state = ScheduleState(
                self.done, self.buffered, was_open, None, wanted[0] if wanted else None, self.model.paused
            )
            found = decide(self.rules, schedule_state, time(self.now), 1_000)
            starts = self.model.scan(self.now, *asked_for)
            assert found.starts == [time(at) for at in starts]
            assert (found.cancels and was_open) == (self.model.cancels and was_open)
            assert found.buffered == [time(at) for at in self.model.waits]
            self.done, self.buffered = found.done_until, found.buffered
            self.outcomes |= {at: outcome.name for at, outcome in found.runs}
            self.outcomes |= dict.fromkeys(found.starts, "STARTED")
            assert self.outcomes == {time(at): outcome for at, outcome in self.model.runs.items()}
            if starts:
                self.runs += len(starts)
                self.model.last = ModelInstance(str(self.runs), [], {}, "", 5)
            if not starts:
                return
            asked_for = []


def test_schedules_decide_by_the_rules() -> None:
    seen: Counter[str] = Counter()
    for seed in range(GAMES):
        game = ScheduleGame(random.Random(seed))
        try:
            game.play()
        except AssertionError as error:
            error.add_note(f"seed {seed}: {game.overlap} {game.catch_up}")
            raise
        seen.update(game.outcomes.values())
    assert {what for what, times in seen.items() if times > GAMES / 4} == {"STARTED", "BUFFERED", "SKIPPED", "MISSED"}
