"""What a start asks for beside its definition and variables: when it begins, and what becomes of others with its key.

Read once, when the request comes; nearly all starts have none of it. Pure.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, TypeVar

from penstock.core.duration import (
    DURATION_MAX_DAYS,
    DurationError,
    TimestampError,
    parse_duration,
    parse_timestamp,
)
from penstock.engine.paging import NAME_MAX_CHARS
from penstock.engine.payload import check_text
from penstock.errors import BadRequest
from penstock.wire import start as wire
from penstock.wire.model import StartRequest

W = TypeVar("W", bound=StrEnum)

WINDOW_MAX_DAYS: Final = 366
"""So long a key is kept at most."""
RATE_MAX: Final = 1_000_000
PERIOD_DEFAULT: Final = "PT1S"
DELAY_MAX_DAYS: Final = 31
"""A throttled start that had to wait for longer is refused."""
MAX_WAITS: Final = 100
"""Without a `maxWait` starts may be put off for so many times `wait`."""


class WindowKind(IntEnum):
    """What a row of `start_window` is for. The numbers are stored."""

    DEDUPE = 1
    THROTTLE = 2
    DEBOUNCE = 3


class OnExcess(StrEnum):
    """What becomes of starts that are too many."""

    REJECT = "REJECT"
    DELAY = "DELAY"


class Keep(StrEnum):
    """Which variables a debounced start has."""

    LAST = "LAST"
    MERGE = "MERGE"


class Dedupe(NamedTuple):
    """Within ``window_s`` of the first start with the key, that one's instance is the answer."""

    key: str
    window_s: float


class Throttle(NamedTuple):
    """One start with the key each ``pace_s`` seconds, and ``burst`` at once after a pause."""

    key: str
    pace_s: float
    burst: int
    delays: bool


class Debounce(NamedTuple):
    """Of the starts with the key one begins, ``wait_s`` after the last, ``max_wait_s`` after the first."""

    key: str
    wait_s: float
    max_wait_s: float
    merges: bool


class StartRules(NamedTuple):
    """What a start asks for."""

    start_at: datetime | None = None
    delay_s: float | None = None
    dedupe: Dedupe | None = None
    throttle: Throttle | None = None
    debounce: Debounce | None = None

    @property
    def keyed(self) -> bool:
        """Whether it may have to wait for another start's commit."""
        return self.window is not None

    @property
    def window(self) -> tuple[type, str] | None:
        """What it shares with others; of two the one of which more is decided."""
        rule = self.throttle or self.dedupe or self.debounce
        return None if rule is None else (type(rule), rule.key)

    def begins_at(self, now: datetime) -> datetime | None:
        """When it begins; None: at once. Raises BadRequest."""
        if self.delay_s is not None:
            return now + timedelta(seconds=self.delay_s)
        if self.start_at is None or self.start_at <= now:
            return None
        if self.start_at - now > timedelta(days=DURATION_MAX_DAYS):
            raise BadRequest(f"startAt: is more than {DURATION_MAX_DAYS} days from now")
        return self.start_at


def read_rules(request: StartRequest) -> StartRules | None:
    """What the request asks for; None for a plain start. Raises BadRequest with the field and the reason."""
    dedupe, throttle, debounce = request.dedupe, request.throttle, request.debounce
    start_at, delay = request.start_at or None, request.delay or None
    if start_at is None and delay is None and dedupe is None and throttle is None and debounce is None:
        return None
    _check_together(request)
    return StartRules(
        None if start_at is None else _time(start_at, "startAt"),
        None if delay is None else _seconds(delay, "delay"),
        None if dedupe is None else Dedupe(_key(dedupe.key, "dedupe"), _window(dedupe.window, "dedupe.window")),
        None if throttle is None else _throttle(throttle),
        None if debounce is None else _debounce(debounce),
    )


def _check_together(request: StartRequest) -> None:
    given = {
        "startAt": request.start_at,
        "delay": request.delay,
        "dedupe": request.dedupe,
        "throttle": request.throttle,
        "instanceKey": request.instance_key,
    }
    for field, value, excluded in (
        ("debounce", request.debounce, tuple(given)),
        ("throttle", request.throttle, ("startAt", "delay")),
        ("dedupe", request.dedupe, ("instanceKey",)),
        ("startAt", request.start_at, ("delay",)),
    ):
        other = next((name for name in excluded if given[name]), None) if value else None
        if other is not None:
            raise BadRequest(f"{field}: can't be given with {other}")


def _throttle(given: wire.Throttle) -> Throttle:
    limit = given.limit or 0
    burst = limit if given.burst is None else given.burst
    for value, field in ((limit, "limit"), (burst, "burst")):
        if not 1 <= value <= RATE_MAX or value != int(value):
            raise BadRequest(f"throttle.{field}: is a whole number from 1 to {RATE_MAX}")
    period_s = _window(given.period or PERIOD_DEFAULT, "throttle.period")
    delays = _word(OnExcess, given.on_excess, OnExcess.REJECT, "throttle.onExcess") is OnExcess.DELAY
    return Throttle(_key(given.key, "throttle"), period_s / limit, int(burst), delays)


def _debounce(given: wire.Debounce) -> Debounce:
    wait_s = _window(given.wait, "debounce.wait")
    max_wait_s = min(MAX_WAITS * wait_s, WINDOW_MAX_DAYS * 86_400.0)
    if given.max_wait:
        max_wait_s = _window(given.max_wait, "debounce.maxWait")
        if max_wait_s < wait_s:
            raise BadRequest("debounce.maxWait: is less than wait")
    merges = _word(Keep, given.keep, Keep.LAST, "debounce.keep") is Keep.MERGE
    return Debounce(_key(given.key, "debounce"), wait_s, max_wait_s, merges)


def _key(key: str, field: str) -> str:
    if not key:
        raise BadRequest(f"{field}.key: is required")
    return check_text(key, f"{field}.key", NAME_MAX_CHARS)


def _time(text: str, field: str) -> datetime:
    try:
        return parse_timestamp(text)
    except TimestampError as error:
        raise BadRequest(f"{field}: {error}") from None


def _seconds(text: str, field: str) -> float:
    try:
        return parse_duration(text)
    except DurationError as error:
        raise BadRequest(f"{field}: {error}") from None


def _window(text: str, field: str) -> float:
    if not text:
        raise BadRequest(f"{field}: is required")
    seconds = _seconds(text, field)
    if seconds > WINDOW_MAX_DAYS * 86_400:
        raise BadRequest(f"{field}: is longer than {WINDOW_MAX_DAYS} days")
    return seconds


def _word(kind: type[W], word: str | None, default: W, field: str) -> W:
    try:
        return kind(word) if word else default
    except ValueError:
        raise BadRequest(f"{field}: is one of {', '.join(kind)}") from None
