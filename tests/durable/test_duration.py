"""Lengths of time as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.durable import BadDuration
from penstock.durable.duration import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("2 h", 7_200),
        ("3 days", 259_200),
        ("1 day", 86_400),
        ("1.5 min", 90),
        ("20ms", 0.02),
        ("2 weeks", 1_209_600),
    ],
)
def test_text_of_number_and_unit(text, seconds):
    assert seconds_of(text) == seconds


def test_seconds_and_timedeltas():
    assert [seconds_of(2), seconds_of(0.5), seconds_of(timedelta(minutes=1))] == [2, 0.5, 60]


@pytest.mark.parametrize(
    "bad", ["", "s", "3", "3 fortnights", "-1s", -1, float("nan"), float("inf"), "99999 days", None]
)
def test_what_is_no_length_of_time_is_refused(bad):
    with pytest.raises(BadDuration, match=r"is not a duration|is not between"):
        seconds_of(bad)
