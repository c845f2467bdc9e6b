"""Dates in Go's layouts (`02/01/2006 15:04`), which `date(text, layout)` and `.Format(layout)` take in expr.

Relies on `zones` for the clocks of a place. A name such as MST means different offsets to different people, so of those
within a text only UTC and GMT are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Final
from zoneinfo import ZoneInfo

from penstock.core.expression import zones
from penstock.core.expression.failure import Fault

LAYOUT_MAX_CHARS: Final = 64
"""Of a layout, and of a date as text."""

_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PIECE: Final = re.compile(
    r"January|Jan(?![a-z])|Monday|Mon(?![a-z])|MST|2006|Z07:00|Z0700|-07:00|-0700|-07"
    r"|_2|01|02|03|04|05|06|15|PM|pm|\.0+(?!\d)|\.9+(?!\d)|1|2|3|4|5"
)
_OFFSET: Final = r"(?P<offset>Z|[+-][0-9]{2}:?[0-9]{2})"
_FRACTION: Final = r"(?:[.,](?P<fraction>[0-9]{1,9}))?"
"""Go reads a fraction after the seconds also where the layout has none."""

_READ: Final = {
    piece: re.compile(pattern)
    for piece, pattern in {
        "January": rf"(?P<month_name>{'|'.join(_MONTHS)})",
        "Jan": rf"(?P<month_name>{'|'.join(name[:3] for name in _MONTHS)})",
        "Monday": rf"(?:{'|'.join(_DAYS)})",
        "Mon": rf"(?:{'|'.join(name[:3] for name in _DAYS)})",
        "MST": r"(?P<utc>UTC|GMT)",
        "2006": r"(?P<year>[0-9]{4})",
        "06": r"(?P<short_year>[0-9]{2})",
        "Z07:00": _OFFSET,
        "Z0700": _OFFSET,
        "-07:00": _OFFSET,
        "-0700": _OFFSET,
        "-07": r"(?P<offset>[+-][0-9]{2})",
        "01": r"(?P<month>[0-9]{2})",
        "1": r"(?P<month>[0-9]{1,2})",
        "02": r"(?P<day>[0-9]{2})",
        "2": r"(?P<day>[0-9]{1,2})",
        "_2": r" ?(?P<day>[0-9]{1,2})",
        "15": r"(?P<hour>[0-9]{2})",
        "03": r"(?P<half_hour>[0-9]{2})",
        "3": r"(?P<half_hour>[0-9]{1,2})",
        "PM": r"(?P<noon>AM|PM)",
        "pm": r"(?P<noon>am|pm)",
        "04": r"(?P<minute>[0-9]{2})",
        "4": r"(?P<minute>[0-9]{1,2})",
        "05": rf"(?P<second>[0-9]{{2}}){_FRACTION}",
        "5": rf"(?P<second>[0-9]{{1,2}}){_FRACTION}",
    }.items()
}


def _zone_name(moment: datetime) -> str:
    """What the clocks of its place are called then; an offset without a place has none, and is written itself."""
    if zones.zone_at(moment):
        return moment.tzname() or ""
    return _offset(moment, "") if moment.utcoffset() else "UTC"


_WRITE: Final[dict[str, Callable[[datetime], str]]] = {
    "January": lambda d: _MONTHS[d.month - 1],
    "Jan": lambda d: _MONTHS[d.month - 1][:3],
    "Monday": lambda d: _DAYS[d.weekday()],
    "Mon": lambda d: _DAYS[d.weekday()][:3],
    "MST": _zone_name,
    "2006": lambda d: f"{d.year:04}",
    "06": lambda d: f"{d.year % 100:02}",
    "Z07:00": lambda d: _offset(d, ":") if d.utcoffset() else "Z",
    "Z0700": lambda d: _offset(d, "") if d.utcoffset() else "Z",
    "-07:00": lambda d: _offset(d, ":"),
    "-0700": lambda d: _offset(d, ""),
    "-07": lambda d: _offset(d, "", minutes=False),
    "01": lambda d: f"{d.month:02}",
    "1": lambda d: str(d.month),
    "02": lambda d: f"{d.day:02}",
    "2": lambda d: str(d.day),
    "_2": lambda d: f"{d.day:2}",
    "15": lambda d: f"{d.hour:02}",
    "03": lambda d: f"{d.hour % 12 or 12:02}",
    "3": lambda d: str(d.hour % 12 or 12),
    "PM": lambda d: "PM" if d.hour >= 12 else "AM",
    "pm": lambda d: "pm" if d.hour >= 12 else "am",
    "04": lambda d: f"{d.minute:02}",
    "4": lambda d: str(d.minute),
    "05": lambda d: f"{d.second:02}",
    "5": lambda d: str(d.second),
}


def write(moment: datetime, layout: str) -> str:
    """``moment`` in ``layout``. Raises `Fault` for a layout that is too long."""
    _check(layout, "a layout")
    written: list[str] = []
    done = 0
    for piece in _PIECE.finditer(layout):
        written.append(layout[done : piece.start()])
        written.append(_written(moment, piece.group()))
        done = piece.end()
    written.append(layout[done:])
    return "".join(written)


def _written(moment: datetime, piece: str) -> str:
    if piece[0] != ".":
        return _WRITE[piece](moment)
    digits = f"{moment.microsecond:06}000"[: len(piece) - 1]
    if piece[1] == "0":
        return f".{digits}"
    digits = digits.rstrip("0")
    return f".{digits}" if digits else ""


def read(text: str, layout: str, zone: ZoneInfo | None = None) -> datetime | None:
    """The date that ``text`` is in ``layout``, None when it is none. Where the text has no offset, by the clocks of
    ``zone``, or of UTC."""
    _check(layout, "a layout")
    _check(text, "a date")
    found = _scan(text, layout)
    if found is None:
        return None
    try:
        moment = _moment(found)
        if zone is None:
            return moment
        if "offset" not in found and not found.get("utc"):
            return zones.by_the_clock(moment.replace(tzinfo=None), zone)
        local = zones.in_zone(moment, zone)
        return local if local.utcoffset() == moment.utcoffset() else moment
    except (ValueError, OverflowError):
        return None


def _scan(text: str, layout: str) -> dict[str, str] | None:
    """Return the parts of ``text`` by name. From left to right without going back, as Go does."""
    found: dict[str, str] = {}
    at = 0
    done = 0
    for piece in _PIECE.finditer(layout):
        literal = layout[done : piece.start()]
        done = piece.end()
        if not text.startswith(literal, at):
            return None
        at += len(literal)
        if piece.group()[0] == ".":
            continue  # a fraction was read with the seconds before it
        match = _READ[piece.group()].match(text, at)
        if match is None:
            return None
        found.update({name: value for name, value in match.groupdict().items() if value is not None})
        at = match.end()
    return found if text[at:] == layout[done:] else None


def _check(text: str, what: str) -> None:
    if len(text) > LAYOUT_MAX_CHARS:
        raise Fault(f"{what} is longer than {LAYOUT_MAX_CHARS} characters")


def _moment(found: dict[str, str]) -> datetime:
    hour = int(found.get("hour", 0))
    if "half_hour" in found:
        half = int(found["half_hour"])
        if not 1 <= half <= 12:
            raise ValueError("hour")
        hour = half % 12 + (12 if found.get("noon", "").lower() == "pm" else 0)
    return datetime(
        _year(found),
        _month(found),
        int(found.get("day", 1)),
        hour,
        int(found.get("minute", 0)),
        int(found.get("second", 0)),
        int(found.get("fraction", "0").ljust(6, "0")[:6]),
        _zone(found.get("offset", "Z")),
    )


def _year(found: dict[str, str]) -> int:
    if "short_year" in found:  # Go's pivot
        short = int(found["short_year"])
        return short + (1900 if short >= 69 else 2000)
    return int(found.get("year", 0))  # 0 has no datetime: a date needs its year


def _month(found: dict[str, str]) -> int:
    name = found.get("month_name")
    if name is None:
        return int(found.get("month", 1))
    return next(number for number, month in enumerate(_MONTHS, 1) if month.startswith(name[:3]))


def _zone(offset: str) -> timezone:
    if offset == "Z":
        return UTC
    digits = offset[1:].replace(":", "").ljust(4, "0")
    if int(digits[2:]) > 59:
        raise ValueError("offset")
    away = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-away if offset[0] == "-" else away)


def _offset(moment: datetime, colon: str, *, minutes: bool = True) -> str:
    away = moment.utcoffset() or timedelta()
    sign = "-" if away < timedelta() else "+"
    total = abs(away) // timedelta(minutes=1)
    return f"{sign}{total // 60:02}{colon}{total % 60:02}" if minutes else f"{sign}{total // 60:02}"
