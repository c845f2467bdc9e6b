"""Some seconds of simulation (`python -m tests.simulation` runs more), and what it finds when rules are broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.rules.fencing import ExecutionState, FenceDecision, FenceRequest
from penstock.core.rules.state import JOB_STATES
from penstock.core.time import schedule as core_schedule
from penstock.core.time.schedule import Decision
from tests.shares import in_shares
from tests.simulation import actors, history, schedule
from tests.simulation.queue import Queue
from tests.simulation.simulate import simulate, simulate_schedules

WORLDS = 40
WORLDS_BROKEN = 60
"""Enough for a broken rule to show; the seeds are fixed, so it does or it does not."""
WANTED = {
    "asked again", "batches of several", "cancel: done", "claims lost", "committed in doubt, looked up",
    "complete: already-completed", "complete: cancelled", "complete: lease-lost", "complete: ok", "engines killed",
    "ended inside the COMMIT, in doubt",
    "fail: already-completed", "fail: ignored", "fail: ok", "fire: done", "fire: nothing to do", "heartbeat: ok",
    "keep signal: done", "leases ended", "retry: done", "rolled back and repeated", "strangers", "user: done",
    "workers killed", "kept back", "overruns", "begun later",
    "ended COMPLETED", "ended FAILED", "ended CANCELLED", "ended ACTIVE",
}  # fmt: skip


WANTED_OF_SCHEDULES = {
    "times STARTED", "times BUFFERED", "times SKIPPED", "times MISSED", "resumed", "nobody fires", "engines killed",
    "runs cancelled by the next", "rolled back and repeated", "committed in doubt, looked up",
}  # fmt: skip


@in_shares
def test_many_histories_end_as_the_rules_say(share: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(WORLDS // share):
        seen += simulate(seed)
    assert seen["histories"] >= 400 // share
    assert share > 1 or seen.keys() >= WANTED, WANTED - seen.keys()


@in_shares
def test_each_time_of_a_schedule_is_decided_about_once(share: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(WORLDS // share):
        seen += simulate_schedules(seed)
    assert share > 1 or seen.keys() >= WANTED_OF_SCHEDULES, WANTED_OF_SCHEDULES - seen.keys()


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_very_many_histories_end_as_the_rules_say() -> None:
    for seed in range(10_000, 12_000):
        simulate(seed)
        simulate_schedules(seed)


def test_one_seed_is_one_history() -> None:
    assert simulate(7) == simulate(7)


def open_to_all(call: FenceRequest, facts: ExecutionState) -> FenceDecision:
    """Whoever calls while the job is open may complete it."""
    return FenceDecision.APPLY if facts.state in JOB_STATES else FenceDecision.LEASE_LOST


def repeats_refused(call: FenceRequest, facts: ExecutionState) -> FenceDecision:
    """A completion that was taken is refused when it comes again."""
    verdict = history_judge(call, facts)
    return FenceDecision.LEASE_LOST if verdict is FenceDecision.ALREADY else verdict


history_judge = history.decide_fence


def break_fence(judge: Callable[[FenceRequest, ExecutionState], FenceDecision]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(history, "decide_fence", judge)


def fire_and_forget(patch: pytest.MonkeyPatch) -> None:
    """A timer is taken as fired before it was acted on, and now and then its engine dies in between."""

    def fire(crowd: Any, timer: tuple[int, int, int]) -> None:
        if not crowd._world.one_in(5):
            crowd._ask("fire", lambda: crowd._history.fire(timer))

    patch.setattr(actors.Crowd, "_fire", fire)


def no_scan(patch: pytest.MonkeyPatch) -> None:
    """Leases are watched by nobody but a worker's own poll."""
    patch.setattr(actors.Crowd, "_sweep", lambda self, job, attempt: None)


def taken_for_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """A COMMIT whose session ended is repeated without a look."""
    patch.setattr(actors.Engine, "_find", lambda self, batch: self._end(batch))


def late_places(patch: pytest.MonkeyPatch) -> None:
    """What an attempt held is given back twice, now and then, as if somebody had heard of its end late."""
    give_back = Queue.give_back

    def twice(queue: Queue, held: int, flow_key: str) -> None:
        give_back(queue, held, flow_key)
        if queue._world.one_in(20) and queue.counts[""]:
            give_back(queue, held, "")

    patch.setattr(Queue, "give_back", twice)


def no_second_scan(patch: pytest.MonkeyPatch) -> None:
    """A poll that found no room does not come again."""
    patch.setattr(Queue, "wait", lambda queue, poll: None)


BROKEN = {
    "a doubt that is taken for a rollback": (taken_for_rolled_back, "applied twice"),
    "a fence that lets everybody in": (break_fence(open_to_all), "nobody did|were taken|differently|BACK_OFF from"),
    "a repeat that is refused": (break_fence(repeats_refused), "answered twice, differently"),
    "timers that are lost by a crash": (fire_and_forget, "a wake-up was lost"),
    "places that are given back late": (late_places, "the counter is not the tokens'|given back twice"),
    "full queues that are not looked at again": (no_second_scan, "a wake-up was lost"),
    "leases that nobody watches": (no_scan, "a wake-up was lost|no end within"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found_and_the_seed_is_reported(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    break_it, expected = BROKEN[name]
    break_it(monkeypatch)
    with pytest.raises(AssertionError, match=expected) as caught:
        for seed in range(WORLDS_BROKEN):
            simulate(seed)
    assert caught.value.__notes__[-1].startswith("again: python -m tests.simulation --seed ")


def mark_stays(patch: pytest.MonkeyPatch) -> None:
    """A look that started something leaves the mark where it was, now and then."""
    write = schedule.Schedule._write

    def forget(self: schedule.Schedule, decision: Decision) -> None:
        mark = self._done_until
        write(self, decision)
        if self._world.one_in(50):
            self._done_until = mark

    patch.setattr(schedule.Schedule, "_write", forget)


def what_waits_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """A look leaves out of the row what waits, now and then."""
    write = schedule.Schedule._write

    def forget(self: schedule.Schedule, decision: Decision) -> None:
        write(self, decision)
        if self._world.one_in(5):
            self._buffered = []

    patch.setattr(schedule.Schedule, "_write", forget)


def no_scan_for_what_waits(patch: pytest.MonkeyPatch) -> None:
    """Who waits for the end of a run is told of it by nothing else."""
    patch.setattr(core_schedule, "WAITING_SCAN_S", 1e9)


def pauses_are_caught_up(patch: pytest.MonkeyPatch) -> None:
    """What passed in a pause is due after it."""

    def resume(self: schedule.Schedule) -> None:
        mark = self._done_until
        go_on(self)
        self._done_until = mark

    go_on = schedule.Schedule._resume
    patch.setattr(schedule.Schedule, "_resume", resume)


BROKEN_SCHEDULES = {
    "a mark that stays behind": (mark_stays, "decided about twice"),
    "times that wait and are dropped": (what_waits_is_dropped, "waited, and was forgotten"),
    "ends of runs that are not looked for": (no_scan_for_what_waits, "what waits was forgotten|no end within"),
    "pauses that are caught up": (pauses_are_caught_up, "passed in a pause"),
    "a doubt that is taken for a rollback": (taken_for_rolled_back, "applied twice"),
}


@pytest.mark.parametrize("name", BROKEN_SCHEDULES)
def test_a_broken_schedule_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    break_it, expected = BROKEN_SCHEDULES[name]
    break_it(monkeypatch)
    with pytest.raises(AssertionError, match=expected):
        for seed in range(WORLDS_BROKEN):
            simulate_schedules(seed)
