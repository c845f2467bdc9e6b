"""The times of a schedule, against a second opinion that tries every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock.core.time.schedule_times import ScheduleError, Times, check_ahead, read_times

MINUTE = timedelta(minutes=1)
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-10-04", "2026-04-05"),  # by half an hour
    "America/Santiago": ("2026-09-06", "2026-04-04"),  # at midnight
    "Asia/Beirut": ("2026-03-29", "2026-10-25"),  # at midnight
    "Africa/Casablanca": ("2026-03-22", "2026-02-15"),  # for Ramadan
}
FIXED = {"30 2 * * *": ({30}, {2}), "0 0 * * *": ({0}, {0}), "15,45 0-3 * * *": ({15, 45}, {0, 1, 2, 3})}
FLOWING = {
    "*/30 * * * *": ({0, 30}, set(range(24))),
    "30 * * * *": ({30}, set(range(24))),
    "*/20 0 * * *": ({0, 20, 40}, {0}),
    "10 */2 * * *": ({10}, set(range(0, 24, 2))),
}


def times(*cron: str, zone: str | None = None, **fields: str) -> Times:
    given: dict[str, str | None] = dict.fromkeys(("every", "anchor", "start_at", "end_at", "jitter"))
    return read_times(cron=cron, time_zone=zone, **{**given, **fields})


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _imaginary(local: datetime) -> bool:
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) != local.replace(tzinfo=None)


def fixed_times(minutes: set[int], hours: set[int], zone: ZoneInfo, begin: datetime, end: datetime) -> list[datetime]:
    """Every minute that the wall clock may show: once each, the first time; what is passed over when the gap ends."""
    found: set[datetime] = set()
    wall = begin.astimezone(zone).replace(tzinfo=None) - timedelta(days=1)
    while wall <= end.astimezone(zone).replace(tzinfo=None) + timedelta(days=1):
        if wall.minute in minutes and wall.hour in hours:
            local = wall.replace(tzinfo=zone)
            while _imaginary(local):
                local = (local.replace(tzinfo=None) + MINUTE).replace(tzinfo=zone)
            found.add(local.astimezone(UTC))
        wall += MINUTE
    return sorted(time for time in found if begin < time <= end)


def flowing_times(minutes: set[int], hours: set[int], zone: ZoneInfo, begin: datetime, end: datetime) -> list[datetime]:
    """Every minute that passes."""
    found: list[datetime] = []
    time = begin + MINUTE
    while time <= end:
        local = time.astimezone(zone)
        if local.minute in minutes and local.hour in hours:
            found.append(time)
        time += MINUTE
    return found


@pytest.mark.parametrize("change", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("zone", CHANGES)
def test_changes_of_the_clock_are_as_a_second_opinion_says(zone: str, change: int) -> None:
    day = datetime.fromisoformat(CHANGES[zone][change]).replace(tzinfo=UTC)
    begin, end = day - timedelta(days=2), day + timedelta(days=3)
    offsets = {(begin + hours * timedelta(hours=1)).astimezone(ZoneInfo(zone)).utcoffset() for hours in range(120)}
    assert len(offsets) == 2, "the clock does not change on that day"
    for expressions, opinion in ((FIXED, fixed_times), (FLOWING, flowing_times)):
        for expression, (minutes, hours) in expressions.items():
            expected = opinion(minutes, hours, ZoneInfo(zone), begin, end)
            rules = times(expression, zone=zone)
            assert rules.between(begin, end, 10_000) == expected, expression
            for before in expected[:-1]:  # also when it is asked for one by one, from any of them on
                assert rules.next(before) == expected[expected.index(before) + 1], (expression, before)
            assert rules.last(begin, end) == expected[-1]


def test_half_past_two_in_berlin_is_once_a_night() -> None:
    nightly = times("30 2 * * *", zone="Europe/Berlin")
    assert nightly.next(at("2026-03-28T12:00Z")) == at("2026-03-29T03:00+02:00")
    assert nightly.next(at("2026-03-29T03:00+02:00")) == at("2026-03-30T02:30+02:00")
    assert nightly.next(at("2026-10-24T12:00Z")) == at("2026-10-25T02:30+02:00")
    assert nightly.next(at("2026-10-25T02:30+02:00")) == at("2026-10-26T02:30+01:00")
    assert nightly.next(at("2026-10-25T02:15+01:00")) == at("2026-10-26T02:30+01:00")


def test_several_expressions_give_each_time_once_and_in_order() -> None:
    both = times("0 6 * * *", "0 */3 * * *", "@daily")
    assert [found.hour for found in both.between(at("2026-05-04T01:00Z"), at("2026-05-05T00:00Z"), 100)] == [
        3, 6, 9, 12, 15, 18, 21, 0,
    ]  # fmt: skip


def test_an_interval_counts_from_its_anchor_whatever_the_clock_does() -> None:
    rules = times(every="PT90M", anchor="2026-03-28T23:10:00Z")
    assert rules.between(at("2026-03-29T00:00Z"), at("2026-03-29T04:00Z"), 10) == [
        at("2026-03-29T00:40Z"), at("2026-03-29T02:10Z"), at("2026-03-29T03:40Z"),
    ]  # fmt: skip
    assert rules.next(at("2026-03-28T20:00Z")) == at("2026-03-28T20:10Z"), "before the anchor, too"


def test_nothing_is_before_the_start_or_after_the_end() -> None:
    rules = times("0 * * * *", start_at="2026-05-04T10:00:00Z", end_at="2026-05-04T12:00:00Z")
    assert rules.between(at("2026-05-01T00:00Z"), at("2026-06-01T00:00Z"), 10) == [
        at("2026-05-04T10:00Z"), at("2026-05-04T11:00Z"), at("2026-05-04T12:00Z"),
    ]  # fmt: skip
    assert rules.next(at("2026-05-04T12:00Z")) is None
    assert rules.last(at("2026-05-01T00:00Z"), at("2026-06-01T00:00Z")) == at("2026-05-04T12:00Z")


def test_the_last_second_of_a_year_is_found_at_once() -> None:
    rules = times("* * * * * *")
    assert rules.last(at("2025-01-01T00:00Z"), at("2026-05-04T12:00:30.5Z")) == at("2026-05-04T12:00:30Z")
    assert rules.last(at("2026-05-04T12:00:30Z"), at("2026-05-04T12:00:30.9Z")) is None


def test_jitter_is_the_same_whoever_asks_and_differs_by_name() -> None:
    rules = times("0 2 * * *", jitter="PT10M")
    night = at("2026-05-04T02:00Z")
    delays = {name: rules.due_at(name, night) - night for name in ("a", "b", "c", "d")}
    assert all(timedelta() <= delay < timedelta(minutes=10) for delay in delays.values())
    assert len(set(delays.values())) == 4
    assert rules.due_at("a", night) == rules.due_at("a", at("2026-05-04T04:00+02:00"))


def test_times_end_with_the_calendar() -> None:
    assert times("0 0 1 1 *").next(datetime(9999, 12, 31, tzinfo=UTC)) is None
    assert times(every="P36500D").next(datetime(9990, 12, 31, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cron": ["61 * * * *"]}, "cron[0]: '61 * * * *' is not a cron expression: bad minute"),
        ({"cron": ["* * * *"]}, "cron[0]: '* * * *' is not a cron expression: wrong number of fields"),
        ({"cron": ["0 0 30 2 *"]}, "cron[0]: '0 0 30 2 *' is not a cron expression: bad day-of-month"),
        ({"cron": ["* * * * *", "x" * 300]}, "cron[1]: is at most 256 characters long"),
        ({"cron": ["* * * * *"] * 21}, "cron: at most 20 expressions"),
        ({"cron": ["* * * * *"], "every": "PT1H"}, "cron: one of cron and every has to be given, not both"),
        ({"cron": []}, "cron: one of cron and every has to be given, not both"),
        ({"every": "PT0.5S"}, "every: is at least PT1S"),
        ({"every": "soon"}, "every: 'soon' is not an ISO 8601 duration such as PT30S, PT1H30M, P7D or P1W"),
        ({"every": "PT1H", "time_zone": "UTC"}, "timeZone: goes together with cron; every is absolute time"),
        ({"cron": ["@daily"], "time_zone": "No/Zone"}, "timeZone: 'No/Zone' is not a time zone such as Europe/Berlin"),
        ({"cron": ["* * * * *"], "time_zone": "../etc"}, "timeZone: '../etc' is not a time zone such as Europe/Berlin"),
        ({"cron": ["* * * * *"], "jitter": "P2D"}, "jitter: is at most P1D"),
        ({"cron": ["* * * * *"], "anchor": "2026-01-01T00:00:00Z"}, "anchor: goes together with every"),
        ({"every": "PT1H", "start_at": "2026-01-02T00:00:00Z", "end_at": "2026-01-01T00:00:00Z"},
         "endAt: is before startAt"),
        ({"every": "PT1H", "end_at": "now"}, "endAt: 'now' is not an RFC 3339 time such as 2031-05-04T12:00:00Z"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_field(fields: dict[str, object], says: str) -> None:
    given: Any = {
        "cron": (),
        **dict.fromkeys(("time_zone", "every", "anchor", "start_at", "end_at", "jitter")),
        **fields,
    }
    with pytest.raises(ScheduleError) as refused:
        read_times(**given)
    assert str(refused.value) == says


def test_an_expression_without_a_time_for_years_is_refused() -> None:
    now = at("2026-05-04T00:00Z")
    check_ahead(times("0 0 29 2 *"), now)
    check_ahead(times("0 0 * * *", start_at="9998-06-01T00:00:00Z"), now)
    with pytest.raises(ScheduleError, match=r"cron\[1\]: .* has no time within 5 years"):
        check_ahead(times("0 0 * * *", "0 0 29 2 */7"), now)
