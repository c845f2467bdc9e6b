"""Time zones by name, and dates in them.

A date in a zone is a `datetime` with the zone's offset at that moment, as a `tzinfo` that knows the zone too. Python's
own datetimes with a `ZoneInfo` count and compare by the clock on the wall, which is wrong wherever it is put forward or
back; these count by the time that passes. Relies on the time zones of the system, or those of tzdata.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame
from penstock.core.expression.values import kind, text

ZONE_MAX_CHARS: Final = 64
ZONE_STEPS: Final = 100
"""What finding a zone costs (10 µs): reading one takes 0.2 ms, once in the life of the process."""
ZONES_MAX: Final = 1_024
"""So many zones are kept, more than there are."""


class _At(tzinfo):
    """The offset of a zone at one moment."""

    __slots__ = ("_name", "_offset", "zone")

    def __init__(self, zone: ZoneInfo, offset: timedelta, name: str) -> None:
        self.zone = zone
        self._offset = offset
        self._name = name

    def utcoffset(self, dt: datetime | None, /) -> timedelta:
        return self._offset

    def tzname(self, dt: datetime | None, /) -> str:
        return self._name

    def dst(self, dt: datetime | None, /) -> timedelta | None:
        return None


@lru_cache(maxsize=ZONES_MAX)
def _read(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name) if len(name) <= ZONE_MAX_CHARS else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def timezone(frame: Frame, name: object) -> object:
    """`timezone(name)`, such as Europe/Berlin. Raises `Fault` for one that is not known."""
    frame.charge(ZONE_STEPS)
    given = text(name, "the argument of timezone") or "UTC"
    zone = None if given == "Local" else _read(given)  # the engine's own place says nothing
    if zone is None:
        raise Fault(f"{given[:ZONE_MAX_CHARS]!a} is not a time zone such as Europe/Berlin")
    return zone


def zone_of(frame: Frame, value: object, what: str) -> ZoneInfo:
    """Return a zone, or the one with this name."""
    zone = timezone(frame, value) if type(value) is str else value
    if isinstance(zone, ZoneInfo):
        return zone
    raise Fault(f"{what} must be a time zone, not {kind(value)}")


def in_zone(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return the same moment, by the clocks of ``zone``. May raise `OverflowError`."""
    if zone.key == "UTC":
        return moment.astimezone(UTC)
    local = moment.astimezone(zone)
    offset = local.utcoffset() or timedelta()
    return local.replace(tzinfo=_At(zone, offset, local.tzname() or ""), fold=0)


def by_the_clock(local: datetime, zone: ZoneInfo) -> datetime:
    """The moment at which the clocks of ``zone`` show ``local``, which has no zone. One that they show twice, or never,
    is what Go makes of it: the offset is looked up at the time by UTC, and again at what comes out.
    May raise `OverflowError`."""
    utc = local.replace(tzinfo=UTC)
    guessed = utc - _offset(utc, zone)
    return in_zone(utc - _offset(guessed, zone), zone)


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def still_in_zone(moment: datetime) -> datetime:
    """``moment`` after something was added to it: its zone may have another offset by then."""
    place = moment.tzinfo
    return in_zone(moment, place.zone) if isinstance(place, _At) else moment


def zone_at(moment: datetime) -> ZoneInfo | None:
    """The zone of a date that has one."""
    place = moment.tzinfo
    return place.zone if isinstance(place, _At) else None


def is_summer(moment: datetime) -> bool:
    """Return whether the clocks of its zone are put forward then."""
    zone = zone_at(moment)
    return zone is not None and bool(moment.astimezone(zone).dst())
