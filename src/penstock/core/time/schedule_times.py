"""When a schedule is due: cron expressions in a time zone, or an interval.

Pure: what is asked for stands between times that come in as arguments. Cron is `cronsim`'s, which follows Debian's: an
expression whose minutes and hours are both given (``30 2 * * *``) runs once on each day, at the end of the gap when the
clock passes its time over, the first time when the clock comes to it twice; all others follow real time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from heapq import merge
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from penstock.core.time.duration import DurationError, TimestampError, parse_duration, parse_timestamp

CRON_MAX_COUNT: Final = 20
CRON_MAX_CHARS: Final = 256
ZONE_MAX_CHARS: Final = 64
EVERY_MIN_S: Final = 1.0
JITTER_MAX_S: Final = 86_400.0
AHEAD_MAX: Final = timedelta(days=5 * 366)
"""An expression without a time in five years is taken for a mistake."""
WINDOW_FIRST: Final = timedelta(minutes=1)
"""Before the end of a span, in which its last time is looked for first."""
_MICROSECOND: Final = timedelta(microseconds=1)
_SHORTHANDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class ScheduleError(ValueError):
    """A field of a schedule is not what it has to be. ``str``: the field and the reason, fit to be shown."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")


class Times(NamedTuple):
    """The times of a schedule, in order, each once."""

    cron: tuple[str, ...]
    zone: tzinfo
    every: timedelta | None
    anchor: datetime
    start_at: datetime | None
    end_at: datetime | None
    jitter_s: float

    def after(self, time: datetime) -> Iterator[datetime]:
        """Those after ``time``, in UTC."""
        if self.start_at is not None and self.start_at > time:
            time = self.start_at - _MICROSECOND
        found = self._intervals(time) if self.every is not None else self._cron(time)
        for at in found:
            if self.end_at is not None and at > self.end_at:
                return
            yield at

    def next(self, time: datetime) -> datetime | None:
        """Return the first one after ``time``."""
        return next(self.after(time), None)

    def between(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        """Return the first ``most`` after one time and not after the other."""
        found: list[datetime] = []
        for at in self.after(after):
            if at > until or len(found) == most:
                break
            found.append(at)
        return found

    def last(self, after: datetime, until: datetime) -> datetime | None:
        """The last one after one time and not after the other, however many there are between."""
        window = WINDOW_FIRST
        while True:
            begin = max(after, until - window)
            found = None
            for at in self.after(begin):
                if at > until:
                    break
                found = at
            if found is not None or begin == after:
                return found
            window *= 8

    def due_at(self, name: str, at: datetime) -> datetime:
        """When the schedule of that name fires for a time: it, or later by its jitter, the same whoever asks."""
        if not self.jitter_s:
            return at
        digest = hashlib.blake2b(f"{name}\0{at.timestamp()}".encode(), digest_size=8).digest()
        return at + timedelta(seconds=self.jitter_s * int.from_bytes(digest) / 2**64)

    def _intervals(self, time: datetime) -> Iterator[datetime]:
        assert self.every is not None
        count = (time - self.anchor) // self.every + 1
        try:
            while True:
                yield self.anchor + count * self.every
                count += 1
        except OverflowError:
            return

    def _cron(self, time: datetime) -> Iterator[datetime]:
        last = time
        for at in merge(*(_times_of(expression, self.zone, time) for expression in self.cron)):
            if at > last:
                yield at
                last = at


def read_times(
    *,
    cron: Sequence[str],
    time_zone: str | None,
    every: str | None,
    anchor: str | None,
    start_at: str | None,
    end_at: str | None,
    jitter: str | None,
) -> Times:
    """Return the times that these fields say. Raises ScheduleError with the field and the reason."""
    if bool(cron) == (every is not None):
        raise ScheduleError("cron", "one of cron and every has to be given, not both")
    if every is None and anchor is not None:
        raise ScheduleError("anchor", "goes together with every")
    if every is not None and time_zone is not None:
        raise ScheduleError("timeZone", "goes together with cron; every is absolute time")
    zone = read_zone(time_zone or "UTC")
    if len(cron) > CRON_MAX_COUNT:
        raise ScheduleError("cron", f"at most {CRON_MAX_COUNT} expressions")
    expressions = tuple(_expression(text, f"cron[{index}]") for index, text in enumerate(cron))
    interval_s = None if every is None else _seconds(every, "every")
    if interval_s is not None and interval_s < EVERY_MIN_S:
        raise ScheduleError("every", "is at least PT1S")
    jitter_s = 0.0 if jitter is None else _seconds(jitter, "jitter")
    if jitter_s > JITTER_MAX_S:
        raise ScheduleError("jitter", "is at most P1D")
    begin, end = _time(start_at, "startAt"), _time(end_at, "endAt")
    if begin is not None and end is not None and end < begin:
        raise ScheduleError("endAt", "is before startAt")
    return Times(
        expressions,
        zone,
        None if interval_s is None else timedelta(seconds=interval_s),
        _time(anchor, "anchor") or datetime(1970, 1, 1, tzinfo=UTC),
        begin,
        end,
        jitter_s,
    )


def check_ahead(times: Times, now: datetime) -> None:
    """Raises ScheduleError for a cron expression that has no time in the next years. May take a while."""
    begin = now if times.start_at is None else max(now, times.start_at)
    for index, expression in enumerate(times.cron):
        first = next(_times_of(expression, times.zone, begin), None)
        if first is None or first - begin > AHEAD_MAX:
            raise ScheduleError(f"cron[{index}]", f"{expression!a} has no time within 5 years")


@lru_cache(maxsize=1024)
def read_zone(name: str) -> ZoneInfo:
    """Raises ScheduleError for what is no name of a time zone."""
    try:
        if len(name) > ZONE_MAX_CHARS:
            raise ValueError
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ScheduleError("timeZone", f"{name[:ZONE_MAX_CHARS]!a} is not a time zone such as Europe/Berlin") from None


def _expression(text: str, field: str) -> str:
    shown = text[:CRON_MAX_CHARS]
    expression = _SHORTHANDS.get(text.strip().lower(), text)
    if len(text) > CRON_MAX_CHARS:
        raise ScheduleError(field, f"is at most {CRON_MAX_CHARS} characters long")
    try:
        CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    except (CronSimError, ValueError) as error:
        raise ScheduleError(field, f"{shown!a} is not a cron expression: {str(error).lower()}") from None
    return expression


def _seconds(text: str, field: str) -> float:
    try:
        return parse_duration(text)
    except DurationError as error:
        raise ScheduleError(field, str(error)) from None


def _time(text: str | None, field: str) -> datetime | None:
    try:
        return None if text is None else parse_timestamp(text)
    except TimestampError as error:
        raise ScheduleError(field, str(error)) from None


class _Cron(CronSim):
    """Where the clock changes by half an hour, `cronsim` leaps over the hour or the minute that it looks for."""

    def advance_hour(self) -> bool:
        before = self.dt
        if not super().advance_hour():
            return False
        if self.dt.minute:
            self.dt = before.replace(second=0)
            self.tick(seconds=60)
            while self.dt.hour not in self.hours and (self.dt.hour or self.dt.minute):
                self.tick(seconds=60)
        return True

    def advance_minute(self) -> bool:
        before = self.dt
        if not super().advance_minute():
            return False
        if self.dt.utcoffset() != before.utcoffset():
            self.dt = before.replace(second=0)
            while self.dt.minute not in self.minutes:
                self.tick(seconds=60)
                if self.dt.minute == 0:
                    break
        return True


def _times_of(expression: str, zone: tzinfo, time: datetime) -> Iterator[datetime]:
    try:
        for found in _Cron(expression, time.astimezone(zone)):
            at = found.astimezone(UTC)
            if at > time and at.astimezone(zone).replace(tzinfo=None) == found.replace(tzinfo=None):
                yield at  # else a midnight that the clock passes over: cronsim begins days with it
    except (OverflowError, ValueError):  # past the year 9999
        return
