"""Lengths of time as users of durable workflows write them: seconds, a timedelta, or text such as ``"3 days"``."""

from __future__ import annotations

import re
from datetime import timedelta

from penstock.durable.errors import BadDuration
from penstock.user_text import repr_of

Duration = float | timedelta | str
MAX_DAYS = 36_500  # as the durations of definitions

_UNITS = {
    "ms": 0.001, "millisecond": 0.001, "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60,
    "h": 3_600, "hour": 3_600, "d": 86_400, "day": 86_400, "w": 604_800, "week": 604_800,
}  # fmt: skip
_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


def seconds_of(duration: Duration) -> float:
    """Seconds, 0 or more. Raises `BadDuration` for text without number and unit, and for more than 36,500 days."""
    if isinstance(duration, bool):
        raise BadDuration(f"{duration} is not a duration: seconds, a timedelta, or text")
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        match = _TEXT.fullmatch(duration)
        name = match[2].lower() if match else ""
        unit = _UNITS.get(name) or _UNITS.get(name.removesuffix("s") if len(name) > 2 else "")
        if match is None or unit is None:
            raise BadDuration(f'{duration!r} is not a duration: a number and a unit, as "90s", "2 h", "3 days"')
        seconds = float(match[1]) * unit
    else:
        try:
            seconds = float(duration)
        except Exception:  # of a conversion that is somebody else's code, too
            raise BadDuration(f"{repr_of(duration)} is not a duration: seconds, a timedelta, or text") from None
    if not 0 <= seconds <= MAX_DAYS * 86_400:  # NaN is not either
        raise BadDuration(f"{repr_of(duration)} is not between 0 and {MAX_DAYS:,} days")
    return seconds


def iso_text(duration: Duration) -> str:
    """As engines take it: ISO 8601, which text may be already. Raises `BadDuration`."""
    if isinstance(duration, str) and duration.startswith("P"):
        return duration
    return f"PT{seconds_of(duration):.3f}S"
