"""What leaves an expression: a JSON value of its own, inside the limits.

A copy, so that a result never shares a list or a map with the variables it came from. Whole decimals become whole
numbers (`6/2` is stored and shown as 3), dates and durations become text. Relies on `chronology` for that text.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, cast
from zoneinfo import ZoneInfo

from penstock.core.expression.chronology import date_text, duration_text
from penstock.core.expression.decimals import decimal_text
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import CHARS_PER_STEP
from penstock.core.expression.limits import ExpressionLimits
from penstock.core.expression.notation import WHOLE_BELOW
from penstock.core.expression.values import type_name

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)


STEPS_PER_ITEM: Final = 4
"""What it costs to copy one value, in steps of the evaluation: 0.28 µs."""


def leave(value: object, limits: ExpressionLimits) -> tuple[object, int]:
    """``value`` as a JSON value, and the steps that took. Raises `Fault` when JSON can't hold it or it is over the
    limits."""
    if value is True or value is False or value is None:
        return value, 0
    way_out = _Exit(limits)
    result = way_out.take(value, 0)
    return result, STEPS_PER_ITEM * way_out.items + way_out.bytes_taken // CHARS_PER_STEP


class _Exit:
    """Counts the bytes of the JSON text while it copies."""

    def __init__(self, limits: ExpressionLimits) -> None:
        self._limits = limits
        self._bytes_left = limits.result_bytes
        self.items = 0

    @property
    def bytes_taken(self) -> int:
        return self._limits.result_bytes - self._bytes_left

    def take(self, value: object, level: int) -> object:
        self.items += 1
        kind = value.__class__
        if kind is str:
            return self._text(cast(str, value))
        if kind is list:
            return self._array(cast("list[object]", value), level)
        if kind is dict:
            return self._map(cast("dict[str, object]", value), level)
        return self._scalar(value)

    def _spend(self, count: int) -> None:
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise Fault(f"the result is larger than {self._limits.result_bytes} bytes")

    def _scalar(self, value: object) -> object:
        match value:
            case bool() | None:
                self._spend(4)
                return value
            case int():
                return self._whole(value)
            case float():
                return self._decimal(value)
            case datetime():
                return date_text(value)
            case timedelta():
                return duration_text(value)
            case ZoneInfo():
                return value.key
            case Decimal():
                return self._text(decimal_text(value))
            case _:
                raise Fault(f"the result holds {type_name(value)}")

    def _whole(self, value: int) -> int:
        self._spend(1 + value.bit_length() * 3 // 10)
        digits = self._limits.result_digits
        if value.bit_length() > 3 * digits and abs(value) >= 10**digits:  # a digit is more than 3 bits
            raise Fault(f"the result holds a whole number of more than {digits} digits")
        return value

    def _decimal(self, value: float) -> int | float:
        self._spend(8)
        if not math.isfinite(value):
            raise Fault("JSON has no infinite number")
        # Above, JSON text has an exponent anyway, and a thousand digits would suggest an exactness that isn't there.
        return int(value) if value.is_integer() and abs(value) < WHOLE_BELOW else value

    def _text(self, value: str) -> str:
        if value.isascii() and value.isprintable():
            self._spend(2 + len(value))
            return value
        if "\0" in value:
            raise Fault("the result holds a NUL character")
        self._spend(len(value))  # before it is encoded
        try:
            self._spend(len(_ENCODER.encode(value).encode()) - len(value))
        except UnicodeEncodeError:
            raise Fault("the result holds half a character") from None
        return value

    def _array(self, items: list[object], level: int) -> list[object]:
        self._enter(len(items), level)
        return [self.take(item, level + 1) for item in items]

    def _map(self, entries: dict[str, object], level: int) -> dict[str, object]:
        self._enter(2 * len(entries), level)
        return {self._text(key): self.take(item, level + 1) for key, item in entries.items()}

    def _enter(self, items: int, level: int) -> None:
        """Brackets and separators, and for each item the least that it can be."""
        self._spend(2 + items)
        if self._bytes_left < items:
            self._spend(self._bytes_left + 1)
        if level >= self._limits.value_levels:
            raise Fault(f"the result is nested more than {self._limits.value_levels} levels deep")
