"""Dates and durations: how they are read, written, and what methods they have.

Inside an evaluation a date is a `datetime` with an offset and a duration a `timedelta`; both are exact to the
microsecond. JSON knows neither: what leaves an expression is text, RFC 3339 in UTC for a date and ISO 8601 for a
duration, which is what definitions use for both. Relies on `layout`. Must not read the clock.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, cast
from zoneinfo import ZoneInfo

from penstock.core.expression import layout, zones
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import ABSENT, Frame
from penstock.core.expression.values import kind, text, whole

DURATION_MAX_CHARS: Final = 64
LAST_DAY: Final = 31
DATE_LAYOUTS: Final = (
    "2006-01-02",
    "2006-01-02 15:04:05",
    "02 Jan 06 15:04 MST",
    "Monday, 02-Jan-06 15:04:05 MST",
    "Mon, 02 Jan 2006 15:04:05 MST",
)
"""What `date(text)` reads beside RFC 3339: expr's list, without the time of day alone, which is no date."""

LAYOUT_STEPS: Final = 300
DURATION_STEPS: Final = 100
METHOD_STEPS: Final = 20
DATE_STEPS: Final = 20
"""What reading or writing costs, in steps of about 0.1 µs (measured up to 30 µs, 10 µs, 2 µs and 2 µs)."""

_MICROSECOND: Final = timedelta(microseconds=1)
_BEGINNING: Final = datetime(1, 1, 1, tzinfo=UTC)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_US: Final = {
    "ns": Decimal("0.001"), "us": Decimal(1), "µs": Decimal(1), "μs": Decimal(1), "ms": Decimal(1_000),
    "s": Decimal(1_000_000), "m": Decimal(60_000_000), "h": Decimal(3_600_000_000),
}  # fmt: skip
_RFC_3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
_ISO: Final = re.compile(
    r"P(?:(N)W)?(?:(N)D)?(?:T(?:(N)H)?(?:(N)M)?(?:(N)S)?(?<!T))?".replace("N", r"[0-9]+(?:\.[0-9]+)?")
)
_ISO_UNITS_US: Final = (
    7 * 24 * _UNITS_US["h"], 24 * _UNITS_US["h"], _UNITS_US["h"], _UNITS_US["m"], _UNITS_US["s"],
)  # fmt: skip
_QUANTITY: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


# --- text to values ---------------------------------------------------------------------------------------------------


def date(frame: Frame, *arguments: object) -> datetime:
    """`date(text[, layout[, zone]])` and `date(zone, text[, layout])`, with a layout of Go's."""
    rest = list(arguments)
    zone: ZoneInfo | None = None
    if isinstance(arguments[0], ZoneInfo):
        zone = arguments[0]
        del rest[0]
        if not rest:
            raise Fault("date needs the text of a date after its time zone")
    elif len(rest) == len(("text", "layout", "zone")):
        zone = zones.zone_of(frame, rest.pop(), "the third argument of date")
    return _read(frame, rest[0], rest[1] if len(rest) > 1 else ABSENT, zone)


def _read(frame: Frame, value: object, given_layout: object, zone: ZoneInfo | None) -> datetime:
    if isinstance(value, datetime):
        return value
    source = text(value, "the argument of date")
    frame.charge(DATE_STEPS)
    if given_layout is ABSENT and _RFC_3339.fullmatch(source):
        return _exact(source)
    layouts = DATE_LAYOUTS if given_layout is ABSENT else (text(given_layout, "the layout of date"),)
    frame.charge(LAYOUT_STEPS)
    for candidate in layouts:
        moment = layout.read(source, candidate, zone)
        if moment is not None:
            return moment
    raise Fault(f"{source!a} is not a date that is known" + (" in this layout" if given_layout is not ABSENT else ""))


def _exact(source: str) -> datetime:
    try:
        return datetime.fromisoformat(source)
    except ValueError:
        raise Fault(f"{source!a} is not a date that exists") from None


def duration(frame: Frame, value: object) -> timedelta:
    """`duration(text)`: Go's form (`1h30m`) or ISO 8601 (`PT1H30M`)."""
    if isinstance(value, timedelta):
        return value
    source = text(value, "the argument of duration")
    frame.charge(DURATION_STEPS)
    if len(source) > DURATION_MAX_CHARS:
        raise Fault(f"a duration is longer than {DURATION_MAX_CHARS} characters")
    sign = -1 if source.startswith("-") else 1
    body = source[1:] if source[:1] in ("+", "-") else source
    micros = _iso_microseconds(body) if body.startswith("P") else _go_microseconds(body)
    if micros is None:
        raise Fault(f"{source!a} is not a duration: write it like 1h30m, 90s or PT1H30M")
    try:
        return timedelta(microseconds=sign * int(micros))
    except OverflowError:
        raise Fault("the duration is out of range") from None


def _go_microseconds(body: str) -> Decimal | None:
    if body == "0":
        return Decimal(0)
    total = Decimal(0)
    done = 0
    while done < len(body):
        match = _QUANTITY.match(body, done)
        if match is None:
            return None
        total += Decimal(match.group(1)) * _UNITS_US[match.group(2)]
        done = match.end()
    return total if body else None


def _iso_microseconds(body: str) -> Decimal | None:
    """Weeks and less; months and years have no fixed length. Unlike a timer's, a difference may be zero or negative,
    which is why `core.time.duration` does not serve here."""
    match = _ISO.fullmatch(body)
    if match is None or not any(match.groups()):
        return None
    quantities = zip(match.groups(), _ISO_UNITS_US, strict=True)
    return sum((Decimal(number) * unit for number, unit in quantities if number), Decimal(0))


# --- values to text ---------------------------------------------------------------------------------------------------


def date_text(moment: datetime) -> str:
    """RFC 3339 in UTC, without trailing zeros in the fraction."""
    try:
        shown = moment.astimezone(UTC).isoformat(timespec="microseconds")[: -len("+00:00")]
    except OverflowError:
        raise _out_of_range() from None
    return shown.rstrip("0").rstrip(".") + "Z" if "." in shown else shown + "Z"


def duration_text(length: timedelta) -> str:
    """ISO 8601 in hours, minutes and seconds, as `PT26H30M0.5S`; a negative one has a minus in front."""
    sign, hours, minutes, seconds = _clock(length)
    parts = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if seconds or not parts:
        parts += f"{_plain(seconds)}S"
    return f"{sign}PT{parts}"


def go_duration_text(length: timedelta) -> str:
    """As Go writes it: `1h30m0s`, `1.5s`, `250ms`, `0s`."""
    sign, hours, minutes, seconds = _clock(length)
    if hours:
        return f"{sign}{hours}h{minutes}m{_plain(seconds)}s"
    if minutes:
        return f"{sign}{minutes}m{_plain(seconds)}s"
    if seconds >= 1 or seconds == 0:
        return f"{sign}{_plain(seconds)}s"
    micros = seconds * 1_000_000
    return f"{sign}{_plain(micros / 1_000)}ms" if micros >= 1_000 else f"{sign}{_plain(micros)}µs"


def _clock(length: timedelta) -> tuple[str, int, int, Decimal]:
    micros = length // _MICROSECOND
    minutes, rest = divmod(abs(micros), 60_000_000)
    return "-" if micros < 0 else "", minutes // 60, minutes % 60, Decimal(rest) / 1_000_000


def _plain(number: Decimal) -> str:
    shown = f"{number:f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


# --- methods ----------------------------------------------------------------------------------------------------------

Arguments = list[object]


def _moment(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    raise Fault(f"a date is needed, not {kind(value)}")


def _length(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    raise Fault(f"a duration is needed, not {kind(value)}")


def _add_date(moment: datetime, arguments: Arguments) -> object:
    """Years, months and days later; a day that the month doesn't have runs over into the next, as in Go."""
    years, months, days = (whole(argument, "an argument of AddDate") for argument in arguments)
    month = moment.month - 1 + months
    first = moment.replace(year=moment.year + years + month // 12, month=month % 12 + 1, day=1)
    return _same_clock(first + timedelta(days=moment.day - 1 + days))


def _same_clock(moment: datetime) -> datetime:
    """What its clock shows, with the offset that its zone has then."""
    zone = zones.zone_at(moment)
    return moment if zone is None else zones.by_the_clock(moment.replace(tzinfo=None), zone)


def _in(moment: datetime, arguments: Arguments) -> object:
    (zone,) = arguments
    if not isinstance(zone, ZoneInfo):
        raise Fault(f"the argument of In must be a time zone, as timezone(name) gives it, not {kind(zone)}")
    return zones.in_zone(moment, zone)


def _truncated(length: timedelta, unit: timedelta) -> timedelta:
    """Towards zero."""
    return length if unit <= timedelta() else timedelta(microseconds=_to_zero(length, unit) * (unit // _MICROSECOND))


def _to_zero(length: timedelta, unit: timedelta) -> int:
    times = abs(length) // unit
    return -times if length < timedelta() else times


def _rounded(length: timedelta, unit: timedelta) -> timedelta:
    """To the nearest, halves away from zero."""
    if unit <= timedelta():
        return length
    below = _truncated(length, unit)
    rest = abs(length - below)
    return below if 2 * rest < unit else below + (-unit if length < timedelta() else unit)


def _date_truncated(moment: datetime, arguments: Arguments) -> object:
    return zones.still_in_zone(moment - _since_the_beginning(moment, arguments))


def _date_rounded(moment: datetime, arguments: Arguments) -> object:
    unit, rest = _length(arguments[0]), _since_the_beginning(moment, arguments)
    return zones.still_in_zone(moment - rest if 2 * rest < unit or unit <= timedelta() else moment - rest + unit)


def _since_the_beginning(moment: datetime, arguments: Arguments) -> timedelta:
    """What is over a multiple of the duration, counted from the year 1, as in Go."""
    unit = _length(arguments[0])
    return (moment - _BEGINNING) % unit if unit > timedelta() else timedelta()


# --- functions of our own ---------------------------------------------------------------------------------------------


def add_months(frame: Frame, value: object, count: object) -> object:
    """`addMonths(date, n)`: the same day of another month, or its last one where it has no such day."""
    frame.charge(METHOD_STEPS)
    moment, months = _moment(value), whole(count, "the second argument of addMonths")
    try:
        return _same_clock(_in_month(moment, moment.year * 12 + moment.month - 1 + months, moment.day))
    except (OverflowError, ValueError):
        raise _out_of_range() from None


def end_of_month(frame: Frame, value: object) -> object:
    """`endOfMonth(date)`: its last day, at the same time of day."""
    frame.charge(METHOD_STEPS)
    moment = _moment(value)
    return _same_clock(_in_month(moment, moment.year * 12 + moment.month - 1, LAST_DAY))


def _in_month(moment: datetime, months: int, day: int) -> datetime:
    year, month = months // 12, months % 12 + 1
    return moment.replace(year=year, month=month, day=min(day, calendar.monthrange(year, month)[1]))


def days_between(frame: Frame, start: object, end: object) -> object:
    """`daysBetween(from, to)`: how often the day changes from one to the other, by the clocks of the first one."""
    frame.charge(METHOD_STEPS)
    first, second = _moment(start), _moment(end)
    zone = zones.zone_at(first)
    try:
        there = zones.in_zone(second, zone) if zone else second.astimezone(first.tzinfo)
    except OverflowError:
        raise _out_of_range() from None
    return there.toordinal() - first.toordinal()


def _out_of_range() -> Fault:
    return Fault("the date or duration is out of range")


DateMethod = Callable[[datetime, Arguments], object]
DurationMethod = Callable[[timedelta, Arguments], object]
DATE_METHODS: Final[dict[str, tuple[int, DateMethod]]] = {
    "Year": (0, lambda d, _: d.year),
    "Month": (0, lambda d, _: d.month),
    "Day": (0, lambda d, _: d.day),
    "Hour": (0, lambda d, _: d.hour),
    "Minute": (0, lambda d, _: d.minute),
    "Second": (0, lambda d, _: d.second),
    "Weekday": (0, lambda d, _: d.isoweekday() % 7),  # Go counts from Sunday, 0
    "YearDay": (0, lambda d, _: d.timetuple().tm_yday),
    "Unix": (0, lambda d, _: (d - _EPOCH) // timedelta(seconds=1)),
    "UnixMilli": (0, lambda d, _: (d - _EPOCH) // timedelta(milliseconds=1)),
    "UnixMicro": (0, lambda d, _: (d - _EPOCH) // _MICROSECOND),
    "UnixNano": (0, lambda d, _: (d - _EPOCH) // _MICROSECOND * 1_000),
    "Nanosecond": (0, lambda d, _: d.microsecond * 1_000),
    "ISOWeek": (0, lambda d, _: d.isocalendar().year),  # the first of Go's two results, as in expr
    "IsZero": (0, lambda d, _: d == _BEGINNING),
    "IsDST": (0, lambda d, _: zones.is_summer(d)),
    "Zone": (0, lambda d, _: (d.tzname() or "") if zones.zone_at(d) else "" if d.utcoffset() else "UTC"),
    "Location": (0, lambda d, _: zones.zone_at(d) or ZoneInfo("UTC")),
    "In": (1, _in),
    "UTC": (0, lambda d, _: d.astimezone(UTC)),
    "String": (0, lambda d, _: date_text(d)),
    "Format": (1, lambda d, a: layout.write(d, text(a[0], "the argument of Format"))),
    "Before": (1, lambda d, a: d < _moment(a[0])),
    "After": (1, lambda d, a: d > _moment(a[0])),
    "Equal": (1, lambda d, a: d == _moment(a[0])),
    "Compare": (1, lambda d, a: (d > _moment(a[0])) - (d < _moment(a[0]))),
    "Truncate": (1, _date_truncated),
    "Round": (1, _date_rounded),
    "Add": (1, lambda d, a: zones.still_in_zone(d + _length(a[0]))),
    "Sub": (1, lambda d, a: d - _moment(a[0])),
    "AddDate": (3, _add_date),
}
DURATION_METHODS: Final[dict[str, tuple[int, DurationMethod]]] = {
    "Hours": (0, lambda d, _: d / timedelta(hours=1)),
    "Minutes": (0, lambda d, _: d / timedelta(minutes=1)),
    "Seconds": (0, lambda d, _: d / timedelta(seconds=1)),
    "Milliseconds": (0, lambda d, _: _to_zero(d, timedelta(milliseconds=1))),
    "Microseconds": (0, lambda d, _: d // _MICROSECOND),
    "Nanoseconds": (0, lambda d, _: d // _MICROSECOND * 1_000),
    "Abs": (0, lambda d, _: abs(d)),
    "Truncate": (1, lambda d, a: _truncated(d, _length(a[0]))),
    "Round": (1, lambda d, a: _rounded(d, _length(a[0]))),
    "String": (0, lambda d, _: go_duration_text(d)),
}

ZoneMethod = Callable[[ZoneInfo, Arguments], object]
ZONE_METHODS: Final[dict[str, tuple[int, ZoneMethod]]] = {"String": (0, lambda zone, _: zone.key)}


def call_method(frame: Frame, value: object, name: str, arguments: Arguments) -> object:
    """`value.name(arguments)` of a date or a duration. Raises `Fault` when there is no such method."""
    frame.charge(LAYOUT_STEPS if name == "Format" else METHOD_STEPS)
    method: tuple[int, Callable[..., object]] | None = None
    if isinstance(value, ZoneInfo):
        method = cast("tuple[int, Callable[..., object]] | None", ZONE_METHODS.get(name))
    if isinstance(value, datetime):
        method = cast("tuple[int, Callable[..., object]] | None", DATE_METHODS.get(name))
    elif isinstance(value, timedelta):
        method = cast("tuple[int, Callable[..., object]] | None", DURATION_METHODS.get(name))
    if method is None:
        raise Fault(f"{kind(value)} has no method {name[:40]}")
    if len(arguments) != method[0]:
        wanted = "1 argument" if method[0] == 1 else f"{method[0]} arguments"
        raise Fault(f"{name} takes {wanted}, not {len(arguments)}")
    try:
        return method[1](value, arguments)
    except (OverflowError, ValueError):
        raise _out_of_range() from None
