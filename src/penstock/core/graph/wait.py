"""When a WAIT with `duration` or `until` goes on by itself; and how long what else is given by an expression lasts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from penstock.core.expression import Expression
from penstock.core.graph.definition import Step
from penstock.core.time.duration import (
    DURATION_MAX_DAYS,
    DurationError,
    TimestampError,
    parse_duration,
    parse_timestamp,
)


class WaitError(Exception):
    """An expression gave something that is no duration or no time."""


Evaluate = Callable[[Expression], object]


def wait_ends_at(step: Step, evaluate: Evaluate, now: datetime) -> datetime | None:
    """The end of the wait, None when it has none (only a signal or a boundary timer ends it).

    A duration is seconds from ``now`` (a number) or ISO 8601 text; an end is RFC 3339 text. An end that has passed is
    due at once.
    """
    if step.duration is not None:
        return now + timedelta(seconds=lasting_s(_value(step.duration, evaluate), "wait `duration`"))
    if step.until is not None:
        value = _value(step.until, evaluate)
        if not isinstance(value, str):
            raise WaitError(f"wait `until` must be RFC 3339 text, not {_shown(value)}")
        try:
            return parse_timestamp(value)
        except TimestampError as error:
            raise WaitError(f"wait `until`: {error}") from None
    return None


def lasting_s(value: object, what: str) -> float:
    """Seconds of what an expression gave: a number of them, or ISO 8601 text. A `WaitError` begins with ``what``."""
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except DurationError as error:
            raise WaitError(f"{what}: {error}") from None
    return _seconds(value, what)


def _value(source: object, evaluate: Evaluate) -> object:
    return evaluate(source) if isinstance(source, Expression) else source


def _seconds(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WaitError(f"{what} must be a number of seconds or ISO 8601 text, not {_shown(value)}")
    if value < 0:
        raise WaitError(f"{what} is negative")
    if value > DURATION_MAX_DAYS * 86_400:
        raise WaitError(f"{what} is longer than {DURATION_MAX_DAYS} days")
    return float(value)


def _shown(value: object) -> str:
    return msgspec.json.encode(value)[:100].decode(errors="replace")
