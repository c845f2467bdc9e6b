"""Dates and durations: reading, writing, arithmetic, methods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.core.expression import parse
from tests.core.expression.evaluation import NOW, failure, same, value

RESULTS = [
    ("now()", "2031-05-04T12:30:15.25Z"),
    ("${now()}", "2031-05-04T12:30:15.25Z"),
    ("[now()]", ["2031-05-04T12:30:15.25Z"]),
    ("{'at': now()}", {"at": "2031-05-04T12:30:15.25Z"}),
    ("now() == now()", True),
    ("string(now())", "2031-05-04T12:30:15.25Z"),
    ("toJSON(now())", '"2031-05-04T12:30:15.25Z"'),
    ("date(string(now())) == now()", True),
    # reading dates
    ("date('2024-02-29')", "2024-02-29T00:00:00Z"),
    ("date('2024-02-29T10:11:12Z')", "2024-02-29T10:11:12Z"),
    ("date('2024-02-29T10:11:12.5Z')", "2024-02-29T10:11:12.5Z"),
    ("date('2024-02-29T10:11:12.123456789Z')", "2024-02-29T10:11:12.123456Z"),
    ("date('2024-02-29T10:11:12+02:00')", "2024-02-29T08:11:12Z"),
    ("date('2024-02-29T10:11:12-05:30')", "2024-02-29T15:41:12Z"),
    ("date('2024-02-29 10:11:12')", "2024-02-29T10:11:12Z"),
    ("date('02 Jan 24 10:11 UTC')", "2024-01-02T10:11:00Z"),
    ("date('Tue, 02 Jan 2024 10:11:12 GMT')", "2024-01-02T10:11:12Z"),
    ("date('Tuesday, 02-Jan-24 10:11:12 UTC')", "2024-01-02T10:11:12Z"),
    ("date(now()) == now()", True),
    ("date('29.02.2024', '02.01.2006')", "2024-02-29T00:00:00Z"),
    ("date('2/1/24 3:04 pm', '2/1/06 3:04 pm')", "2024-01-02T15:04:00Z"),
    ("date('12:30 AM 2024', '03:04 PM 2006')", "2024-01-01T00:30:00Z"),
    ("date('12:30 PM 2024', '03:04 PM 2006')", "2024-01-01T12:30:00Z"),
    ("date('5 March 2024', '2 January 2006')", "2024-03-05T00:00:00Z"),
    ("date(' 5 Mar 1970', '_2 Jan 2006')", "1970-03-05T00:00:00Z"),
    ("date('20240305T101112+0130', '20060102T150405-0700')", "2024-03-05T08:41:12Z"),
    ("date('2024-03-05 10 +05', '2006-01-02 15 -07')", "2024-03-05T05:00:00Z"),
    ("date('2024 10:11:12,25', '2006 15:04:05')", "2024-01-01T10:11:12.25Z"),
    ("date('70', '06')", "1970-01-01T00:00:00Z"),
    ("date('69', '06')", "1969-01-01T00:00:00Z"),
    ("date('68', '06')", "2068-01-01T00:00:00Z"),
    # reading durations
    ("duration('1h30m')", "PT1H30M"),
    ("duration('90s')", "PT1M30S"),
    ("duration('1.5h')", "PT1H30M"),
    ("duration('250ms')", "PT0.25S"),
    ("duration('1us') + duration('1µs') + duration('1μs')", "PT0.000003S"),
    ("duration('1500ns')", "PT0.000001S"),
    ("duration('-1h')", "-PT1H"),
    ("duration('+1h')", "PT1H"),
    ("duration('0')", "PT0S"),
    ("duration('0s')", "PT0S"),
    ("duration('.5s')", "PT0.5S"),
    ("duration('PT1H30M')", "PT1H30M"),
    ("duration('P7D')", "PT168H"),
    ("duration('P1W')", "PT168H"),
    ("duration('P1DT0.5S')", "PT24H0.5S"),
    ("duration('-PT1H')", "-PT1H"),
    ("duration('PT0S')", "PT0S"),
    ("duration(duration('1s'))", "PT1S"),
    ("string(duration('90m'))", "1h30m0s"),
    ("string(duration('61s'))", "1m1s"),
    ("string(duration('1.5s'))", "1.5s"),
    ("string(duration('250ms'))", "250ms"),
    ("string(duration('2.5us'))", "2µs"),
    ("string(duration('-1h0m0.001s'))", "-1h0m0.001s"),
    ("string(duration('0'))", "0s"),
    ("toJSON([duration('1h')])", '[\n  "PT1H"\n]'),
    # arithmetic and order
    ("date('2024-01-02') - date('2024-01-01')", "PT24H"),
    ("date('2024-01-01') - date('2024-01-02')", "-PT24H"),
    ("date('2024-01-01') + duration('36h')", "2024-01-02T12:00:00Z"),
    ("duration('36h') + date('2024-01-01')", "2024-01-02T12:00:00Z"),
    ("date('2024-01-01') - duration('1s')", "2023-12-31T23:59:59Z"),
    ("duration('1h') + duration('30m')", "PT1H30M"),
    ("duration('1h') - duration('90m')", "-PT30M"),
    ("duration('1h') * 2", "PT2H"),
    ("0.5 * duration('1h')", "PT30M"),
    ("-duration('1h')", "-PT1H"),
    ("+duration('1h')", "PT1H"),
    ("duration('1h') == duration('60m')", True),
    ("duration('1h') < duration('61m')", True),
    ("date('2024-01-01T02:00:00+02:00') == date('2024-01-01')", True),
    ("date('2024-01-01') < date('2024-01-02') < now()", True),
    ("now() - date('2031-05-04') > duration('12h')", True),
    ("max(duration('1s'), duration('2s'))", "PT2S"),
    ("min([now(), date('2024-01-01')])", "2024-01-01T00:00:00Z"),
    ("now() == '2031-05-04T12:30:15.25Z'", False),
    ("duration('1s') == 1", False),
    ("now() in [date('2031-05-04T12:30:15.25Z')]", True),
    # methods
    ("[now().Year(), now().Month(), now().Day()]", [2031, 5, 4]),
    ("[now().Hour(), now().Minute(), now().Second()]", [12, 30, 15]),
    ("[now().Weekday(), now().YearDay()]", [0, 124]),
    ("date('1970-01-02').Unix()", 86400),
    ("date('1969-12-31T23:59:59.5Z').Unix()", -1),
    ("date('1970-01-01T00:00:01.5Z').UnixMilli()", 1500),
    ("date('2024-01-01T02:00:00+02:00').Hour()", 2),
    ("date('2024-01-01T02:00:00+02:00').UTC().Hour()", 0),
    ("now().String()", "2031-05-04T12:30:15.25Z"),
    ("now().Format('Mon, 02 Jan 2006 15:04:05 MST')", "Sun, 04 May 2031 12:30:15 UTC"),
    ("now().Format('Monday January _2 2 1 06 3 03 PM pm 4 5')", "Sunday May  4 4 5 31 12 12 PM pm 30 15"),
    ("now().Format('15:04:05.000 .999 Z07:00 Z0700 -07:00 -0700 -07')", "12:30:15.250 .25 Z Z +00:00 +0000 +00"),
    ("date('2024-01-01T01:02:03-05:30').Format('15:04 Z07:00 Z0700 -07:00 -0700 -07 MST')",
     "01:02 -05:30 -0530 -05:30 -0530 -05 -0530"),
    ("date('2024-01-01').Format('05.999')", "00"),
    ("now().Format('no layout')", "no layout"),
    ("date('2024-01-01').Before(now()) and now().After(date('2024-01-01'))", True),
    ("now().Equal(now())", True),
    ("date('2024-01-01').Add(duration('1h'))", "2024-01-01T01:00:00Z"),
    ("date('2024-01-02').Sub(date('2024-01-01')).Hours()", 24),
    ("date('2024-01-31').AddDate(0, 1, 0)", "2024-03-02T00:00:00Z"),
    ("date('2024-02-29').AddDate(1, 0, 0)", "2025-03-01T00:00:00Z"),
    ("date('2024-03-15').AddDate(0, -3, -15)", "2023-11-30T00:00:00Z"),
    ("duration('90m').Hours()", 1.5),
    ("duration('90s').Minutes()", 1.5),
    ("duration('1500ms').Seconds()", 1.5),
    ("duration('1.5s').Milliseconds()", 1500),
    ("duration('90m').String()", "1h30m0s"),
    ("now()?.Year()", 2031),
    ("nil ?? now().Year()", 2031),
    ("sort([now(), date('2024-01-01')]) | first()", "2024-01-01T00:00:00Z"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), RESULTS)
def test_a_date_gives(source, expected):
    assert same(value(source), expected)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("date('nope')", "'nope' is not a date that is known"),
        ("date('')", "'' is not a date that is known"),
        ("date('2024-13-01')", "'2024-13-01' is not a date that is known"),
        ("date('2023-02-29')", "'2023-02-29' is not a date that is known"),
        ("date('2024-01-01T25:00:00Z')", "'2024-01-01T25:00:00Z' is not a date that exists"),
        ("date('0000-01-01T00:00:00Z')", "'0000-01-01T00:00:00Z' is not a date that exists"),
        ("date('2024-01-01T10:00:00')", "'2024-01-01T10:00:00' is not a date that is known"),
        ("date('10:00:00')", "'10:00:00' is not a date that is known"),
        ("date('Tue, 02 Jan 2024 10:11:12 MST')", "'Tue, 02 Jan 2024 10:11:12 MST' is not a date that is known"),
        ("date('1.1.2024', '02.01.2006')", "'1.1.2024' is not a date that is known in this layout"),
        ("date('13:00 PM 2024', '03:04 PM 2006')", "'13:00 PM 2024' is not a date that is known in this layout"),
        ("date('2024 +05:60', '2006 -07:00')", "'2024 +05:60' is not a date that is known in this layout"),
        ("date(1)", "the argument of date must be a string, not a number"),
        ("date('x', 1)", "the layout of date must be a string, not a number"),
        ("duration('90')", "'90' is not a duration: write it like 1h30m, 90s or PT1H30M"),
        ("duration('')", "'' is not a duration: write it like 1h30m, 90s or PT1H30M"),
        ("duration('1d')", "'1d' is not a duration: write it like 1h30m, 90s or PT1H30M"),
        ("duration('P1M')", "'P1M' is not a duration: write it like 1h30m, 90s or PT1H30M"),
        ("duration('PT')", "'PT' is not a duration: write it like 1h30m, 90s or PT1H30M"),
        ("duration('P')", "'P' is not a duration: write it like 1h30m, 90s or PT1H30M"),
        ("duration('P1DT')", "'P1DT' is not a duration: write it like 1h30m, 90s or PT1H30M"),
        ("duration(5)", "the argument of duration must be a string, not a number"),
        ("duration('999999999999999h')", "the duration is out of range"),
        ("now() + 1", "+ can't join a date and a number"),
        ("now() + now()", "+ can't join a date and a date"),
        ("duration('1s') - now()", "- can't join a duration and a date"),
        ("now() * 2", "* can't join a date and a number"),
        ("duration('1h') / 2", "/ can't join a duration and a number"),
        ("now() < '2024-01-01'", "< can't order a date and a string"),
        ("now() > duration('1s')", "> can't order a date and a duration"),
        ("now() + ''", "+ can't join a date and a string"),
        ("now() + duration('99999999h') * 1", "the date or duration is out of range"),
        ("duration('20000000000h') * 100", "the date or duration is out of range"),
        ("now().AddDate(9000, 0, 0)", "the date or duration is out of range"),
        ("now().AddDate(0, 0, 1e18)", "the date or duration is out of range"),
        ("date('0001-01-01T00:00:00+01:00')", "the date or duration is out of range"),
        ("now().Nope()", "a date has no method Nope"),
        ("duration('1s').Year()", "a duration has no method Year"),
        ("[nil][0].Year()", "nil has no method Year"),
        ("now().Year(1)", "Year takes 0 arguments, not 1"),
        ("now().Format()", "Format takes 1 argument, not 0"),
        ("now().Before('x')", "a date is needed, not a string"),
        ("now().Add(1)", "a duration is needed, not a number"),
        ("now().AddDate(0.5, 0, 0)", "an argument of AddDate must be a whole number, not 0.5"),
        ("now().Year", "can't take Year of a date"),
        ("now()[0]", "can't take an element of a date"),
        ("len(now())", "len needs a string, an array or a map, not a date"),
    ],
)
def test_a_date_refuses(source, reason):
    assert failure(source).reason == reason


def test_texts_and_layouts_have_a_longest_length():
    assert failure("date(s)", {"s": "2" * 65}).reason == "a date is longer than 64 characters"
    assert failure("now().Format(s)", {"s": "2" * 65}).reason == "a layout is longer than 64 characters"
    assert failure("duration(s)", {"s": "1" * 65}).reason == "a duration is longer than 64 characters"


def test_now_comes_from_outside_and_is_shown_in_utc():
    east = datetime(2031, 1, 1, 3, tzinfo=timezone(timedelta(hours=5)))
    assert parse("now()").evaluate({}, east) == "2030-12-31T22:00:00Z"
    assert parse("now()").evaluate({}, datetime(2031, 1, 1, tzinfo=UTC)) == "2031-01-01T00:00:00Z"
    assert parse("now()").evaluate({}, NOW) == parse("now()").evaluate({}, NOW)


def test_a_time_without_an_offset_is_the_callers_mistake():
    with pytest.raises(AssertionError):
        parse("1").evaluate({}, datetime(2031, 1, 1))  # noqa: DTZ001


def test_a_duration_that_left_can_be_read_again():
    for text in ("1h30m", "-1h", "0s", "250ms", "1us", "1000000h0.5s"):
        left = value("duration(t)", {"t": text})
        assert value("duration(a) == duration(b)", {"a": text, "b": left}) is True
