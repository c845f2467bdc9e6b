"""What a start asks for beside its variables: when it begins, and what becomes of others with its key.

Read once, when the request comes, or from a definition that asks for it at each start (`start_of_definition`); nearly
all starts have none of it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.core.expression import Expression
from penstock.core.time.duration import (
    DURATION_MAX_DAYS,
    DurationError,
    TimestampError,
    parse_duration,
    parse_timestamp,
)
from penstock.errors import BadRequest

W = TypeVar("W", bound=StrEnum)
_UNFIT: Final = re.compile("[\0\ud800-\udfff]")

FIELD: Final = "start"
"""Of a definition."""
KEY_MAX_CHARS: Final = 256
_NAMES: Final = ("startAt", "delay", "dedupe", "throttle", "debounce")
WINDOW_MAX_DAYS: Final = 366
"""So long a key is kept at most."""
RATE_MAX: Final = 1_000_000
PERIOD_DEFAULT: Final = "PT1S"
DELAY_MAX_DAYS: Final = 31
"""A throttled start that had to wait for longer is refused."""
MAX_WAITS: Final = 100
"""Without a `maxWait` starts may be put off for so many times `wait`."""


class GivenRule(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A rule as a definition gives it; each has some of these."""

    key: str = ""
    window: str = ""
    limit: int | float = 0
    period: str | None = None
    burst: int | None = None
    on_excess: str | None = None
    wait: str = ""
    max_wait: str | None = None
    keep: str | None = None


FIELDS: Final = {
    "dedupe": {"key", "window"},
    "throttle": {"key", "limit", "period", "burst", "onExcess"},
    "debounce": {"key", "wait", "maxWait", "keep"},
}
"""Of each rule, those that it has."""


class Asked(Protocol):
    """Whoever asks: a request, or a definition. The rules have the fields of `GivenRule` that are theirs."""

    @property
    def start_at(self) -> str | None: ...
    @property
    def delay(self) -> str | None: ...
    @property
    def instance_key(self) -> str | None: ...
    @property
    def dedupe(self) -> Any: ...
    @property
    def throttle(self) -> Any: ...
    @property
    def debounce(self) -> Any: ...


class GivenStart(msgspec.Struct, frozen=True):
    """What a definition asks for, as it was given."""

    start_at: str | None = None
    delay: str | None = None
    dedupe: GivenRule | None = None
    throttle: GivenRule | None = None
    debounce: GivenRule | None = None
    instance_key: None = None


class WindowKind(IntEnum):
    """What a row of `start_window` is for. The numbers are stored."""

    DEDUPE = 1
    THROTTLE = 2
    DEBOUNCE = 3
    BEGUN = 4  # when starts that a throttle has put off begin


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
        """Return whether it may have to wait for another start's commit."""
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


def read_rules(request: Asked) -> StartRules | None:
    """What the request asks for; None for a plain start. Raises BadRequest with the field and the reason."""
    dedupe, throttle, debounce = request.dedupe, request.throttle, request.debounce
    start_at, delay = request.start_at or None, request.delay or None
    if start_at is None and delay is None and dedupe is None and throttle is None and debounce is None:
        return None
    rules = StartRules(
        None if start_at is None else _time(start_at, "startAt"),
        None if delay is None else _seconds(delay, "delay"),
        None if dedupe is None else Dedupe(_key(dedupe.key, "dedupe"), _window(dedupe.window, "dedupe.window")),
        None if throttle is None else _throttle(throttle),
        None if debounce is None else _debounce(debounce),
    )
    check_together(rules, has_instance_key=bool(request.instance_key))
    return rules


def check_together(rules: StartRules, *, has_instance_key: bool) -> None:
    """Raises BadRequest for what can't be asked for at once."""
    given: dict[str, object] = {
        "startAt": rules.start_at,
        "delay": rules.delay_s,
        "dedupe": rules.dedupe,
        "throttle": rules.throttle,
        "instanceKey": has_instance_key or None,
    }
    for field, value, excluded in (
        ("debounce", rules.debounce, tuple(given)),
        ("throttle", rules.throttle, ("startAt", "delay")),
        ("dedupe", rules.dedupe, ("instanceKey",)),
        ("startAt", rules.start_at, ("delay",)),
    ):
        other = next((name for name in excluded if given[name] is not None), None) if value is not None else None
        if other is not None:
            raise BadRequest(f"{field}: can't be combined with {other}")


def together(of_definition: StartRules, asked: StartRules | None, *, has_instance_key: bool) -> StartRules:
    """What a definition asks for at each start, and what the start asks for. Raises BadRequest where both say the
    same."""
    rules = of_definition
    if asked is not None:
        for own, its, name in zip(of_definition, asked, _NAMES, strict=True):
            if own is not None and its is not None:
                raise BadRequest(f"{name}: the definition says it")
        rules = StartRules._make(its if own is None else own for own, its in zip(of_definition, asked, strict=True))
    check_together(rules, has_instance_key=has_instance_key)
    return rules


def _throttle(given: Any) -> Throttle:
    limit = given.limit or 0
    burst = limit if given.burst is None else given.burst
    for value, field in ((limit, "limit"), (burst, "burst")):
        if not 1 <= value <= RATE_MAX or value != int(value):
            raise BadRequest(f"throttle.{field}: must be a whole number from 1 to {RATE_MAX}")
    period_s = _window(given.period or PERIOD_DEFAULT, "throttle.period")
    delays = _word(OnExcess, given.on_excess, OnExcess.REJECT, "throttle.onExcess") is OnExcess.DELAY
    return Throttle(_key(given.key, "throttle"), period_s / limit, int(burst), delays)


def _debounce(given: Any) -> Debounce:
    wait_s = _window(given.wait, "debounce.wait")
    max_wait_s = min(MAX_WAITS * wait_s, WINDOW_MAX_DAYS * 86_400.0)
    if given.max_wait:
        max_wait_s = _window(given.max_wait, "debounce.maxWait")
        if max_wait_s < wait_s:
            raise BadRequest("debounce.maxWait: must not be less than wait")
    merges = _word(Keep, given.keep, Keep.LAST, "debounce.keep") is Keep.MERGE
    return Debounce(_key(given.key, "debounce"), wait_s, max_wait_s, merges)


def _key(key: str, field: str) -> str:
    if not key:
        raise BadRequest(f"{field}.key: is required")
    if len(key) > KEY_MAX_CHARS:
        raise BadRequest(f"{field}.key: has {len(key)} characters, more than {KEY_MAX_CHARS}")
    if _UNFIT.search(key) is not None:
        raise BadRequest(f"{field}.key: has a NUL character or a lone surrogate")
    return key


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
        raise BadRequest(f"{field}: must be one of {', '.join(kind)}") from None


class StartOfDefinition(msgspec.Struct, frozen=True):
    """As it was given, and its expressions by their place."""

    given: GivenStart
    expressions: tuple[tuple[str, Expression], ...]

    def rules(self, evaluate: Callable[[Expression], object]) -> StartRules:
        """What a start asks for, whose variables ``evaluate`` knows. Raises BadRequest, and what that does."""
        given = self.given
        for place, expression in self.expressions:
            text = _text_of(place, evaluate(expression))
            given = with_text(given, place, text)
        rules = read_rules(given)
        assert rules is not None
        return rules


def with_text(given: GivenStart, place: str, text: str) -> GivenStart:
    """Return the same with a text at a place such as ``delay`` or ``dedupe.key``."""
    name, _, inner = place.partition(".")
    if inner:
        rule: Any = getattr(given, name)
        return msgspec.structs.replace(given, **{name: msgspec.structs.replace(rule, key=text)})
    return msgspec.structs.replace(given, **{"start_at" if name == "startAt" else name: text})


def _text_of(place: str, value: object) -> str:
    if isinstance(value, str) and value:
        return value
    if place.endswith(".key") and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    shown = msgspec.json.encode(value)[:100].decode(errors="replace")
    raise BadRequest(f"{FIELD}.{place}: must give text, not {shown}")
