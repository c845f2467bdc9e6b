"""The values of the language and what equality and order mean between them.

JSON values as Python has them (None, bool, int, float, str, list, dict), and inside an evaluation also `datetime` (with
an offset), `timedelta`, `ZoneInfo` and `Decimal`. Relies on `frame` for the budget, on `decimals` for the last of them.
Must not coerce: the only types that mix are those of numbers; Python's `True == 1` must not shine through.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeGuard
from zoneinfo import ZoneInfo

from penstock.core.expression import decimals
from penstock.core.expression.decimals import is_decimal
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame

NUMBERS: Final = frozenset({int, float})
_KINDS: Final[dict[type, str]] = {
    type(None): "nil",
    bool: "a bool",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "a map",
    datetime: "a date",
    timedelta: "a duration",
    ZoneInfo: "a time zone",
    Decimal: "a decimal",
}
_TYPES: Final[dict[type, str]] = {
    type(None): "nil",
    bool: "bool",
    int: "int",
    float: "float",
    str: "string",
    list: "array",
    dict: "map",
    datetime: "time.Time",
    timedelta: "time.Duration",
    ZoneInfo: "time.Location",
    Decimal: "decimal",
}
_ORDERED: Final = frozenset({str, datetime, timedelta, Decimal})
SHORT_CHARS: Final = 1_024
"""Strings up to this length are compared without being counted: that costs less than the counting."""

# Any, because these are Python's own operators: `ordered` lets only types through that they can compare.
Ordering = Callable[[Any, Any], bool]


def is_number(value: object) -> TypeGuard[int | float]:
    return value.__class__ in NUMBERS


def is_array(value: object) -> TypeGuard[list[object]]:
    return value.__class__ is list


def is_map(value: object) -> TypeGuard[dict[str, object]]:
    return value.__class__ is dict


def kind(value: object) -> str:
    """Return the type of ``value`` for a person, with its article."""
    return _KINDS.get(value.__class__, "no JSON value")


def type_name(value: object) -> str:
    """What `type()` gives, with expr's names."""
    name = _TYPES.get(value.__class__)
    if name is None:
        raise Fault(f"a variable holds what JSON can't: {value.__class__.__name__}")
    return name


def finite(value: float) -> float:
    if math.isfinite(value):
        return value
    raise Fault("the result is not a finite number")


def whole(value: object, what: str) -> int:
    """``value`` as an int when it is a whole number, be it written `3` or `3.0`."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    shown = repr(value) if type(value) is float else kind(value)
    raise Fault(f"{what} must be a whole number, not {shown}")


def boolean(value: object, what: str) -> bool:
    if value is True or value is False:
        return value
    raise Fault(f"{what} must be a bool, not {kind(value)}")


def text(value: object, what: str) -> str:
    if type(value) is str:
        return value
    raise Fault(f"{what} must be a string, not {kind(value)}")


def number(value: object, what: str) -> int | float:
    if is_number(value):
        return value
    raise Fault(f"{what} must be a number, not {kind(value)}")


def array(value: object, what: str) -> list[object]:
    if is_array(value):
        return value
    raise Fault(f"{what} must be an array, not {kind(value)}")


def mapping(value: object, what: str) -> dict[str, object]:
    if is_map(value):
        return value
    raise Fault(f"{what} must be a map, not {kind(value)}")


def equal(frame: Frame, left: object, right: object, level: int = 0) -> bool:
    """Return whether two values are the same JSON value. Values of different types are unequal, never an error."""
    if left.__class__ is not right.__class__:
        if left is None or right is None:
            return False
        if is_number(left) and is_number(right):
            return left == right
        return (is_decimal(left) or is_decimal(right)) and decimals.compared(frame, left, right) == 0
    if type(left) is str and type(right) is str:
        _charge_texts(frame, left, right)
    elif is_array(left) and is_array(right):
        return _equal_arrays(frame, left, right, level)
    elif is_map(left) and is_map(right):
        return _equal_maps(frame, left, right, level)
    return left == right


def _equal_arrays(frame: Frame, left: list[object], right: list[object], level: int) -> bool:
    if len(left) != len(right):
        return False
    _enter(frame, level, len(left))
    for a, b in zip(left, right, strict=True):  # noqa: SIM110 - a generator costs another frame a level
        if not equal(frame, a, b, level + 1):
            return False
    return True


def _equal_maps(frame: Frame, left: dict[str, object], right: dict[str, object], level: int) -> bool:
    if len(left) != len(right):
        return False
    _enter(frame, level, len(left))
    for key, value in left.items():  # noqa: SIM110 - a generator costs another frame a level
        if key not in right or not equal(frame, value, right[key], level + 1):
            return False
    return True


def _enter(frame: Frame, level: int, items: int) -> None:
    frame.charge(4 + 2 * items)
    if level >= frame.limits.value_levels:
        raise Fault(f"a value is nested more than {frame.limits.value_levels} levels deep")


def _charge_texts(frame: Frame, left: str, right: str) -> None:
    shorter = min(len(left), len(right))
    if shorter > SHORT_CHARS:
        frame.charge_chars(shorter // 8)


def ordered(frame: Frame, left: object, right: object, operator: str, compare: Ordering) -> bool:
    """``compare(left, right)`` when both are numbers, strings, dates or durations. Raises `Fault` otherwise."""
    if is_number(left) and is_number(right):
        return compare(left, right)
    if left.__class__ is right.__class__ and left.__class__ in _ORDERED:
        if type(left) is str and type(right) is str:
            _charge_texts(frame, left, right)
        return compare(left, right)
    if is_decimal(left) or is_decimal(right):
        verdict = decimals.compared(frame, left, right)
        if verdict is not None:
            return compare(verdict, 0)
    raise Fault(f"{operator} can't order {kind(left)} and {kind(right)}")
