"""The operators between two values, and the unary ones.

Relies on `values` for types and `frame` for the budget. Must not evaluate operands: what needs short-circuiting is
in the compiler. Division by zero and whatever has no finite result are errors at the operator (expr lets infinity
travel on): a condition that compares with infinity is a wrong decision, not a result.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from penstock.core.expression import decimals, regex, zones
from penstock.core.expression.decimals import is_decimal
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame
from penstock.core.expression.values import (
    SHORT_CHARS,
    Ordering,
    equal,
    finite,
    is_array,
    is_map,
    is_number,
    kind,
    text,
    whole,
)

Operator = Callable[[Frame, object, object], object]
Number = int | float
_WORD: Final = 1 << 62
"""Whole numbers below this cost what a machine word costs."""


def add(frame: Frame, left: object, right: object) -> object:
    if is_number(left) and is_number(right):
        return _settle(frame, _arithmetic(operator.add, left, right))
    if type(left) is str and type(right) is str:
        frame.new_text_chars(len(left) + len(right))
        return left + right
    if isinstance(left, datetime) and isinstance(right, timedelta):
        return _in_range(operator.add, left, right)
    if isinstance(left, timedelta) and isinstance(right, datetime | timedelta):
        return _in_range(operator.add, right, left)
    return _decimal("+", frame, left, right)


def subtract(frame: Frame, left: object, right: object) -> object:
    if is_number(left) and is_number(right):
        return _settle(frame, _arithmetic(operator.sub, left, right))
    if isinstance(left, datetime) and isinstance(right, datetime | timedelta):
        return _in_range(operator.sub, left, right)
    if isinstance(left, timedelta) and isinstance(right, timedelta):
        return _in_range(operator.sub, left, right)
    return _decimal("-", frame, left, right)


def multiply(frame: Frame, left: object, right: object) -> object:
    if is_number(left) and is_number(right):
        return _settle(frame, _arithmetic(operator.mul, left, right))
    if isinstance(left, timedelta) and is_number(right):
        return _in_range(operator.mul, left, right)
    if isinstance(right, timedelta) and is_number(left):
        return _in_range(operator.mul, right, left)
    return _decimal("*", frame, left, right)


def divide(frame: Frame, left: object, right: object) -> object:
    if not is_number(left) or not is_number(right):
        return _decimal("/", frame, left, right)
    if right == 0:
        raise Fault("division by zero")
    _charge_long(frame, left, right)
    # Of two whole numbers Python gives the nearest decimal, whatever their size.
    return finite(_arithmetic(_quotient, left, right))


def _quotient(left: Number, right: Number) -> float:
    return left / right


def remainder(frame: Frame, left: object, right: object) -> object:
    """With the sign of the left side, as in Go; Python's has the sign of the right."""
    if not is_number(left) or not is_number(right):
        return _decimal("%", frame, left, right)
    dividend, divisor = whole(left, "the left side of %"), whole(right, "the right side of %")
    if divisor == 0:
        raise Fault("division by zero")
    _charge_long(frame, dividend, divisor)
    rest = abs(dividend) % abs(divisor)
    return -rest if dividend < 0 else rest


def power(frame: Frame, left: object, right: object) -> object:
    """Exact for whole numbers with an exponent of at least 0, decimal otherwise."""
    if not is_number(left) or not is_number(right):
        return _decimal("**", frame, left, right)
    if type(left) is int and type(right) is int and right >= 0:
        return _whole_power(frame, left, right)
    try:
        return finite(math.pow(left, right))
    except OverflowError:
        raise Fault("the result is too large for a decimal number") from None
    except ValueError:
        raise Fault("the result is not a finite number") from None


def _whole_power(frame: Frame, base: int, exponent: int) -> int:
    if base in (0, 1, -1):  # the only ones that don't grow; an exponent of any size would take as many squarings
        return base if exponent % 2 else base * base if exponent else 1
    if (base.bit_length() - 1) * exponent >= frame.limits.integer_bits:
        raise Fault(f"a whole number of more than {frame.limits.integer_bits} bits")
    return frame.new_integer(base**exponent)


def _arithmetic(operation: Callable[[Number, Number], Number], left: Number, right: Number) -> Number:
    try:
        return operation(left, right)
    except OverflowError:
        raise Fault("the result is too large for a decimal number") from None


def _settle(frame: Frame, value: Number) -> Number:
    if type(value) is int:
        return value if -_WORD < value < _WORD else frame.new_integer(value)
    return finite(value)


def _charge_long(frame: Frame, left: object, right: object) -> None:
    for value in (left, right):
        if type(value) is int:
            frame.new_integer(value)


def _in_range(operation: Callable[[Any, Any], object], left: object, right: object) -> object:
    try:
        result = operation(left, right)
        return zones.still_in_zone(result) if isinstance(result, datetime) else result
    except (OverflowError, ValueError):
        raise Fault("the date or duration is out of range") from None


def _decimal(symbol: str, frame: Frame, left: object, right: object) -> object:
    """The operator where a side is a decimal. Raises `Fault` where the two can't be joined."""
    if is_decimal(left) or is_decimal(right):
        result = decimals.operate(frame, symbol, left, right)
        if result is not None:
            return result
    raise Fault(f"{symbol} can't join {kind(left)} and {kind(right)}")


# --- comparison and membership ----------------------------------------------------------------------------------------


def different(frame: Frame, left: object, right: object) -> bool:
    return not equal(frame, left, right)


def member(frame: Frame, left: object, right: object) -> bool:
    """`left in right`: an element of an array, a key of a map. Nothing is in nil, as in expr."""
    if is_array(right):
        if (type(left) is str and len(left) <= SHORT_CHARS) or left is None:
            # No coercion can matter for these: Python's own search is exact, and 20 times faster.
            frame.charge_items(len(right))
            return left in right
        frame.charge(len(right))
        return any(equal(frame, left, item) for item in right)
    if is_map(right):
        return type(left) is str and left in right
    if right is None:
        return False
    raise Fault(f"in needs an array or a map on its right, not {kind(right)}")


def within(frame: Frame, left: object, right: object) -> bool:
    """`contains(right, left)`: `left in right`, and for two strings whether one is part of the other."""
    if type(right) is str:
        return contains(frame, right, left)
    return member(frame, left, right)


def contains(frame: Frame, left: object, right: object) -> bool:
    """False beside nil, as in expr; so are the next three."""
    if left is None or right is None:
        return False
    container, part = text(left, "the left side of contains"), text(right, "the right side of contains")
    frame.charge_search(len(container), len(part))
    return part in container


def starts_with(frame: Frame, left: object, right: object) -> bool:
    if left is None or right is None:
        return False
    whole_text, start = text(left, "the left side of startsWith"), text(right, "the right side of startsWith")
    frame.charge_chars(len(start))
    return whole_text.startswith(start)


def ends_with(frame: Frame, left: object, right: object) -> bool:
    if left is None or right is None:
        return False
    whole_text, end = text(left, "the left side of endsWith"), text(right, "the right side of endsWith")
    frame.charge_chars(len(end))
    return whole_text.endswith(end)


def matches(frame: Frame, left: object, right: object) -> bool:
    if left is None or right is None:
        return False
    subject, pattern = text(left, "the left side of matches"), text(right, "the right side of matches")
    return regex.search(frame, regex.compile_pattern(pattern, frame.limits, frame.charge), subject)


def span(frame: Frame, left: object, right: object) -> list[object]:
    """`left..right`, both ends included; empty when the left end is larger."""
    start, stop = whole(left, "the start of a range"), whole(right, "the end of a range")
    frame.new_array_items(max(0, stop - start + 1))
    return list(range(start, stop + 1))


# --- unary ------------------------------------------------------------------------------------------------------------


def negative(frame: Frame, value: object) -> object:
    if is_number(value):
        return _settle(frame, -value)
    if isinstance(value, timedelta):
        return _in_range(operator.sub, timedelta(), value)
    if is_decimal(value):
        return decimals.operate(frame, "-", 0, value)
    raise Fault(f"- needs a number, not {kind(value)}")


def positive(frame: Frame, value: object) -> object:
    if is_number(value) or isinstance(value, timedelta | Decimal):
        return value
    raise Fault(f"+ needs a number, not {kind(value)}")


OPERATORS: Final[dict[str, Operator]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": remainder,
    "**": power,
    "!=": different,
    "in": member,
    "within": within,
    "contains": contains,
    "startsWith": starts_with,
    "endsWith": ends_with,
    "matches": matches,
    "..": span,
}
ORDERINGS: Final[dict[str, Ordering]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
