"""Durations (ISO 8601) and points in time (RFC 3339) as definitions write them.

Also used on what expressions give at run time, so the bounds are here and not among the limits of an upload. Must
not read the clock: text in, number out.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Final

DURATION_MAX_DAYS: Final = 36_500
"""A hundred years: any sum with a date of today stays inside what PostgreSQL and Python hold."""
DURATION_MIN_S: Final = 0.001
"""A timer is kept and compared in finer steps than this, but nothing can be promised for it."""
TEXT_MAX_CHARS: Final = 64
"""Of a duration or a point in time. The longest sensible one is half of it."""

_DAY_S: Final = 86_400
_UNIT_S: Final = {"W": 7 * _DAY_S, "D": _DAY_S, "H": 3_600, "M": 60, "S": 1}
_NUMBER: Final = r"[0-9]+(?:[.,][0-9]+)?"
_DURATION: Final = re.compile(
    rf"P(?:({_NUMBER})Y)?(?:({_NUMBER})M)?(?:({_NUMBER})W)?(?:({_NUMBER})D)?"
    rf"(T(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?"
)
_TIMESTAMP: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


class DurationError(ValueError):
    """The text is no duration that can be waited for. The message is the reason, fit to be shown."""


class TimestampError(ValueError):
    """The text is no RFC 3339 point in time. The message is the reason, fit to be shown."""


def parse_duration(text: str) -> float:
    """Seconds of an ISO 8601 duration such as ``PT30S``, ``PT1H30M``, ``P7D``, ``P1W`` or ``PT0.5H``.

    Only the last number may have a fraction (with a point or a comma). Raises DurationError for anything else, for
    years and months (they have no fixed length), for less than a millisecond and for more than 36,500 days.
    """
    if len(text) > TEXT_MAX_CHARS:
        raise DurationError(f"not an ISO 8601 duration: longer than {TEXT_MAX_CHARS} characters")
    match = _DURATION.fullmatch(text)
    if match is None:
        raise DurationError(f"{text!a} is not an ISO 8601 duration such as PT30S, PT1H30M, P7D or P1W")
    years, months, weeks, days, time, hours, minutes, seconds = match.groups()
    if years is not None or months is not None:
        raise DurationError(f"{text!a} is in years or months, which have no fixed length; use weeks, days or less")
    if time == "T":
        raise DurationError(f"{text!a} is not an ISO 8601 duration: nothing follows the T")
    units = {"W": weeks, "D": days, "H": hours, "M": minutes, "S": seconds}
    numbers = [(number.replace(",", "."), unit) for unit, number in units.items() if number is not None]
    if not numbers:
        raise DurationError(f"{text!a} is not an ISO 8601 duration: it has no number")
    if any("." in number for number, _ in numbers[:-1]):
        raise DurationError(f"{text!a} is not an ISO 8601 duration: only the last number may have a fraction")
    # Decimal, because 1.1 days are 95,040 s and not 95,040.00000000001.
    total = float(sum(Decimal(number) * _UNIT_S[unit] for number, unit in numbers))
    if total == 0:
        raise DurationError(f"{text!a} is zero; a timer needs a duration of more than zero")
    if total < DURATION_MIN_S:
        raise DurationError(f"{text!a} is shorter than a millisecond")
    if total > DURATION_MAX_DAYS * _DAY_S:
        raise DurationError(f"{text!a} is longer than {DURATION_MAX_DAYS} days")
    return total


def parse_timestamp(text: str) -> dt.datetime:
    """Return the point in time, in UTC, of RFC 3339 text such as ``2031-05-04T12:00:00Z``; finer than µs is cut off.

    Raises TimestampError, also for text without an offset from UTC.
    """
    if len(text) > TEXT_MAX_CHARS:
        raise TimestampError(f"not an RFC 3339 time: longer than {TEXT_MAX_CHARS} characters")
    if _TIMESTAMP.fullmatch(text) is None:
        raise TimestampError(f"{text!a} is not an RFC 3339 time such as 2031-05-04T12:00:00Z")
    try:
        return dt.datetime.fromisoformat(text.upper()).astimezone(dt.UTC)
    except (ValueError, OverflowError) as error:
        raise TimestampError(f"{text!a} is not a time that exists") from error
