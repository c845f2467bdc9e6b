from __future__ import annotations

import datetime as dt
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.time.duration import (
    DURATION_MAX_DAYS,
    DurationError,
    TimestampError,
    parse_duration,
    parse_timestamp,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT30S", 30),
        ("PT1H30M", 5_400),
        ("P7D", 604_800),
        ("P1W", 604_800),
        ("P2W", 1_209_600),
        ("P1DT12H", 129_600),
        ("P1DT1H1M1S", 90_061),
        ("P1W2DT3H", 788_400),
        ("PT0.5S", 0.5),
        ("PT0,5S", 0.5),
        ("PT1.5H", 5_400),
        ("PT1H0.5M", 3_630),
        ("P0.5D", 43_200),
        ("P1.1D", 95_040),
        ("P0.5W", 302_400),
        ("P0DT0H0M5S", 5),
        ("PT90M", 5_400),
        ("PT007S", 7),
        ("PT36H", 129_600),
        ("PT0.001S", 0.001),
        ("P36500D", 3_153_600_000),
    ],
)
def test_iso_8601_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("PT0S", "zero"),
        ("P0D", "zero"),
        ("P0W", "zero"),
        ("PT0.000S", "zero"),
        ("P0DT0H0M0S", "zero"),
        ("PT0.0009S", "shorter than a millisecond"),
        ("P1M", "years or months"),
        ("P1Y", "years or months"),
        ("P1Y2M3DT4H", "years or months"),
        ("P0Y1D", "years or months"),
        ("P36501D", "longer than 36500 days"),
        ("P99999999999999999999W", "longer than 36500 days"),
        ("PT3153600000.001S", "longer than 36500 days"),
        ("P", "it has no number"),
        ("PT", "nothing follows the T"),
        ("P1DT", "nothing follows the T"),
        ("PT1.5H30M", "only the last number may have a fraction"),
        ("P1.5DT1S", "only the last number may have a fraction"),
        ("", "is not an ISO 8601 duration"),
        ("30", "is not an ISO 8601 duration"),
        ("30s", "is not an ISO 8601 duration"),
        ("1h30m", "is not an ISO 8601 duration"),
        ("pt30s", "is not an ISO 8601 duration"),
        ("-PT30S", "is not an ISO 8601 duration"),
        ("PT-30S", "is not an ISO 8601 duration"),
        ("+PT30S", "is not an ISO 8601 duration"),
        (" PT30S", "is not an ISO 8601 duration"),
        ("PT30S\n", "is not an ISO 8601 duration"),
        ("PT30", "is not an ISO 8601 duration"),
        ("PTS", "is not an ISO 8601 duration"),
        ("PT.5S", "is not an ISO 8601 duration"),
        ("PT5.S", "is not an ISO 8601 duration"),
        ("PT1M1H", "is not an ISO 8601 duration"),
        ("P1H", "is not an ISO 8601 duration"),
        ("P1D1W", "is not an ISO 8601 duration"),
        ("PT٣S", "is not an ISO 8601 duration"),
        ("PT1e3S", "is not an ISO 8601 duration"),
        ("PTnanS", "is not an ISO 8601 duration"),
        ("P7D\x00", "is not an ISO 8601 duration"),
        ("PT\ud800S", "is not an ISO 8601 duration"),
        ("PT" + "0" * 62 + "1S", "longer than 64 characters"),
    ],
)
def test_other_texts_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(DurationError) as caught:
        parse_duration(text)
    assert reason in str(caught.value)
    str(caught.value).encode()  # shown to clients


@given(
    weeks=st.none() | st.integers(0, 99),
    days=st.none() | st.integers(0, 999),
    hours=st.none() | st.integers(0, 9_999),
    minutes=st.none() | st.integers(0, 9_999),
    seconds=st.none() | st.integers(0, 99_999),
    fraction=st.none() | st.integers(0, 999_999),
)
def test_a_duration_is_the_sum_of_its_units(
    weeks: int | None,
    days: int | None,
    hours: int | None,
    minutes: int | None,
    seconds: int | None,
    fraction: int | None,
) -> None:
    date = [(weeks, "W", 604_800), (days, "D", 86_400)]
    time = [(hours, "H", 3_600), (minutes, "M", 60), (seconds, "S", 1)]
    given_units = [unit for unit in date + time if unit[0] is not None]
    expected = Fraction(0)
    texts = {"P": "", "T": ""}
    for place, (value, letter, size) in enumerate(given_units):
        text = str(value)
        exact = Fraction(text)
        if fraction is not None and place == len(given_units) - 1:
            text += f".{fraction:06}"
            exact = Fraction(text)
        expected += exact * size
        texts["P" if letter in "WD" else "T"] += text + letter
    written = "P" + texts["P"] + ("T" + texts["T"] if texts["T"] else "")
    if Fraction(1, 1000) <= expected <= DURATION_MAX_DAYS * 86_400:
        assert parse_duration(written) == float(expected)
    else:
        with pytest.raises(DurationError):
            parse_duration(written)


@given(st.text("PTWDHMSY0123456789.,-+ ", max_size=20) | st.text(max_size=80))
def test_any_text_is_a_bounded_duration_or_an_error(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except DurationError:
        return
    assert 0 < seconds <= DURATION_MAX_DAYS * 86_400


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2031-05-04T12:00:00Z", dt.datetime(2031, 5, 4, 12, tzinfo=dt.UTC)),
        ("2031-05-04t12:00:00z", dt.datetime(2031, 5, 4, 12, tzinfo=dt.UTC)),
        ("2031-05-04T12:00:00.25+02:00", dt.datetime(2031, 5, 4, 10, 0, 0, 250_000, tzinfo=dt.UTC)),
        ("2031-05-04T12:00:00.1234567891-00:30", dt.datetime(2031, 5, 4, 12, 30, 0, 123_456, tzinfo=dt.UTC)),
    ],
)
def test_rfc_3339_times_are_read_as_utc(text: str, expected: dt.datetime) -> None:
    assert parse_timestamp(text) == expected
    assert parse_timestamp(text).tzinfo is dt.UTC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2031-05-04",
        "2031-05-04T12:00:00",
        "2031-05-04 12:00:00Z",
        "2031-05-04T12:00Z",
        "2031-13-04T12:00:00Z",
        "2031-02-29T12:00:00Z",
        "2031-05-04T24:01:00Z",
        "2031-05-04T12:00:00+25:00",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "0000-01-01T00:00:00Z",
        "20310504T120000Z",
        "2031-05-04T12:00:00Z\n",
        "٢٠٣١-05-04T12:00:00Z",
        "2031-05-04T12:00:00." + "0" * 80 + "Z",
    ],
)
def test_a_text_that_is_no_rfc_3339_time_is_refused(text: str) -> None:
    with pytest.raises(TimestampError) as caught:
        parse_timestamp(text)
    str(caught.value).encode()


@given(st.text(max_size=80) | st.from_regex(r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\Z"))
def test_any_text_is_a_time_or_a_timestamp_error(text: str) -> None:
    try:
        moment = parse_timestamp(text)
    except TimestampError:
        return
    assert moment.utcoffset() == dt.timedelta(0)
