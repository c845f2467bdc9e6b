"""What a look at a schedule decides: overlap, catching up, backfill, in what order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.time.schedule import (
    BUFFER_MAX,
    RUNS_MAX,
    SCAN_MAX_TIMES,
    Backfill,
    CatchUp,
    Decision,
    Overlap,
    Rules,
    RunOutcome,
    ScheduleState,
    decide,
)
from penstock.core.time.schedule_times import read_times

MIDNIGHT = datetime(2026, 5, 4, tzinfo=UTC)
NONE = dict.fromkeys(("time_zone", "every", "anchor", "start_at", "end_at", "jitter"))


def hour(number: float) -> datetime:
    return MIDNIGHT + timedelta(hours=number)


def rules(
    overlap: str = "SKIP",
    catch_up: str = "LAST",
    window_s: float = 365 * 86_400,
    cron: str = "0 * * * *",
    **fields: Any,
) -> Rules:
    times = read_times(cron=[cron] if cron else [], **{**NONE, **fields})
    return Rules("nightly", times, Overlap(overlap), CatchUp(catch_up), window_s)


def decision_at(
    given: Rules,
    now: datetime,
    *,
    done: datetime = MIDNIGHT,
    is_open: bool = False,
    buffered: list[datetime] | None = None,
    most: int = 500,
    **schedule_state: Any,
) -> Decision:
    return decide(given, ScheduleState(done, buffered or [], is_open, **schedule_state), now, most)


def test_a_due_time_is_started_and_the_mark_moves() -> None:
    found = decision_at(rules(), hour(1.001))
    assert found == Decision([hour(1)], False, [], [], hour(1), None, hour(2), 0)
    assert decision_at(rules(), hour(0.9)) == Decision([], False, [], [], MIDNIGHT, None, hour(1), 0)


@pytest.mark.parametrize("catch_up", CatchUp)
def test_three_times_that_passed_are_caught_up_as_said(catch_up: str) -> None:
    found = decision_at(rules("ALLOW", catch_up), hour(3.5))
    started = {"LAST": [3], "ALL": [1, 2, 3], "NONE": []}[catch_up]
    assert found.starts == [hour(n) for n in started]
    assert found.runs == [(hour(n), RunOutcome.MISSED) for n in (1, 2, 3) if n not in started]
    assert (found.done_until, found.fire_at) == (hour(3), hour(4))


@pytest.mark.parametrize("catch_up", CatchUp)
def test_what_is_on_time_is_started_however_late_others_are(catch_up: str) -> None:
    found = decision_at(rules("ALLOW", catch_up), hour(3) + timedelta(seconds=5))
    assert found.starts == [hour(n) for n in ((1, 2, 3) if catch_up == "ALL" else (3,))]


def test_what_is_older_than_the_window_is_missed() -> None:
    found = decision_at(rules("ALLOW", "ALL", window_s=2 * 3600), hour(4.5))
    assert found.starts == [hour(3), hour(4)]
    assert found.runs == [(hour(1), RunOutcome.MISSED), (hour(2), RunOutcome.MISSED)]


def test_a_clock_that_was_set_back_starts_nothing_twice() -> None:
    found = decision_at(rules(), hour(2.5), done=hour(5))
    assert found == Decision([], False, [], [], hour(5), None, hour(6), 0)


@pytest.mark.parametrize(
    ("overlap", "starts", "runs", "buffered"),
    [
        ("SKIP", [], ["SKIPPED", "SKIPPED", "SKIPPED"], []),
        ("BUFFER_ONE", [], ["BUFFERED", "SKIPPED", "SKIPPED"], [1]),
        ("BUFFER_ALL", [], ["BUFFERED", "BUFFERED", "BUFFERED"], [1, 2, 3]),
        ("ALLOW", [1, 2, 3], [], []),
        ("CANCEL_OTHER", [3], ["SKIPPED", "SKIPPED"], []),
    ],
)
def test_times_beside_an_open_run_go_by_overlap(
    overlap: str, starts: list[int], runs: list[str], buffered: list[int]
) -> None:
    found = decision_at(rules(overlap, "ALL"), hour(3.5), is_open=True)
    assert found.starts == [hour(n) for n in starts]
    assert [outcome.name for _, outcome in found.runs] == runs
    assert found.buffered == [hour(n) for n in buffered]
    assert found.cancels is (overlap == "CANCEL_OTHER")


def test_of_several_at_once_others_meet_the_first() -> None:
    assert decision_at(rules("SKIP", "ALL"), hour(3.5)).starts == [hour(1)]
    found = decision_at(rules("CANCEL_OTHER", "ALL"), hour(3.5))
    assert (found.starts, found.cancels) == ([hour(3)], False)


def test_what_waits_is_started_before_what_is_due() -> None:
    found = decision_at(rules("BUFFER_ALL"), hour(3.001), done=hour(2), buffered=[hour(1), hour(2)])
    assert (found.starts, found.buffered) == ([hour(1)], [hour(2), hour(3)])
    assert found.runs == [(hour(3), RunOutcome.BUFFERED)]


def test_a_schedule_with_something_that_waits_is_looked_at_soon() -> None:
    found = decision_at(rules("BUFFER_ONE"), hour(1.5), done=hour(1), is_open=True, buffered=[hour(1)])
    assert found.fire_at == hour(1.5) + timedelta(seconds=10)


def test_the_buffer_has_an_end() -> None:
    waiting = [MIDNIGHT - timedelta(hours=n) for n in range(BUFFER_MAX, 0, -1)]
    found = decision_at(rules("BUFFER_ALL"), hour(1.001), is_open=True, buffered=waiting)
    assert (len(found.buffered), found.runs) == (BUFFER_MAX, [(hour(1), RunOutcome.SKIPPED)])


def test_a_paused_one_starts_only_what_is_asked_for() -> None:
    paused = decision_at(rules(), hour(3.5), paused=True)
    assert paused == Decision([], False, [], [], MIDNIGHT, None, None, 0)
    asked = decision_at(rules(), hour(3.5), paused=True, trigger=(hour(3.5), Overlap.SKIP))
    assert (asked.starts, asked.done_until, asked.fire_at) == ([hour(3.5)], MIDNIGHT, None)


def test_a_trigger_meets_an_open_run_as_asked() -> None:
    skipped = decision_at(rules(), hour(0.5), is_open=True, trigger=(hour(0.5), Overlap.SKIP))
    assert (skipped.starts, skipped.runs) == ([], [(hour(0.5), RunOutcome.SKIPPED)])
    assert decision_at(rules(), hour(0.5), is_open=True, trigger=(hour(0.5), Overlap.ALLOW)).starts == [hour(0.5)]


def test_all_that_passed_comes_in_portions() -> None:
    given, done, started, scans = rules("ALLOW", "ALL", cron="* * * * *"), MIDNIGHT, [], 0
    while True:
        found = decision_at(given, hour(30), done=done, most=400)
        started += found.starts
        done, scans = found.done_until, scans + 1
        if found.fire_at != hour(30):
            break
    assert started == [MIDNIGHT + timedelta(minutes=n) for n in range(1, 1801)]
    assert scans == 5


def test_of_a_million_the_last_is_started_others_are_counted() -> None:
    found = decision_at(rules("ALLOW", cron="* * * * * *"), hour(300))
    assert found.starts[-1:] == [hour(300)]
    assert found.done_until == hour(300)
    assert (len(found.runs), found.passed) == (RUNS_MAX, SCAN_MAX_TIMES - RUNS_MAX)


def test_jitter_makes_a_time_due_later_and_keeps_the_order() -> None:
    given = rules("ALLOW", "ALL", cron="0 * * * *", jitter="PT50M")
    due = given.times.due_at("nightly", hour(1))
    assert due > hour(1)
    before = decision_at(given, due - timedelta(seconds=1))
    assert (before.starts, before.fire_at) == ([], due)
    assert decision_at(given, due).starts == [hour(1)]


def test_a_backfill_starts_its_times_once_beside_what_is_due() -> None:
    asked = Backfill(hour(-5) - datetime.resolution, hour(-1), Overlap.ALLOW)
    found = decision_at(rules(), hour(1.001), backfill=asked, started=frozenset([hour(-3)]))
    assert found.starts == [hour(1), hour(-5), hour(-4), hour(-2), hour(-1)]
    assert found.backfill is None


def test_a_backfill_goes_on_where_it_stopped() -> None:
    found = decision_at(rules(), hour(0.5), backfill=Backfill(hour(-5), hour(-1), Overlap.ALLOW), most=2)
    assert (found.starts, found.fire_at) == ([hour(-4), hour(-3)], hour(0.5))
    assert found.backfill is not None
    rest = decision_at(rules(), hour(0.5), backfill=found.backfill, most=500)
    assert (rest.starts, rest.backfill, rest.fire_at) == ([hour(-2), hour(-1)], None, hour(1))


def test_a_backfill_one_after_the_other_waits_for_each_end() -> None:
    asked = Backfill(hour(-3), hour(-1), Overlap.BUFFER_ALL)
    first = decision_at(rules(), hour(0.5), backfill=asked)
    assert (first.starts, first.fire_at) == ([hour(-2)], hour(0.5) + timedelta(seconds=10))
    assert first.backfill is not None
    waits = decision_at(rules(), hour(0.6), backfill=first.backfill, is_open=True)
    assert (waits.starts, waits.backfill) == ([], first.backfill)
    last = decision_at(rules(), hour(0.7), backfill=first.backfill)
    assert last.starts == [hour(-1)]


@given(
    st.sampled_from(Overlap), st.sampled_from(CatchUp),
    st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=30), st.integers(1, 7),
)  # fmt: skip
def test_every_time_is_decided_about_once(
    overlap: Overlap, catch_up: CatchUp, scans: list[tuple[int, bool]], most: int
) -> None:
    """Whatever the clock does, and however often somebody looks."""
    given = rules(overlap, catch_up, cron="*/10 * * * *", jitter="PT3M")
    done, buffered, now = MIDNIGHT, list[datetime](), MIDNIGHT
    started: list[datetime] = []
    closed: list[datetime] = []
    for minutes, is_open in scans:
        now += timedelta(minutes=minutes - 20)  # it is set back now and then
        found = decision_at(given, now, done=done, is_open=is_open, buffered=buffered, most=most)
        assert found.done_until >= done
        started += found.starts
        closed += [at for at, outcome in found.runs if outcome is not RunOutcome.BUFFERED]
        done, buffered = found.done_until, found.buffered
    decided = [*started, *closed, *buffered]
    assert len(set(decided)) == len(decided)
    assert sorted(decided) == given.times.between(MIDNIGHT, done, 10_000)
