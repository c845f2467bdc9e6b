"""Decimals that are exact: `decimal("19.90") * 3` is 59.70. Not expr's.

Inside an evaluation one is a `decimal.Decimal`; JSON's numbers are read as binary ones by most programs, so that what
leaves the expression is text with its digits. A number beside one is taken with the digits that it is written with.
Relies on `frame` and `failure`. Adding, subtracting and multiplying are exact or an error; `/` and `**` are rounded to
34 digits, as in FEEL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_EVEN,
    ROUND_HALF_UP,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
)
from typing import Final

from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame

DIGITS_MAX: Final = 1_000
"""Of a decimal, and places before or after its point."""
QUOTIENT_DIGITS: Final = 34
"""Of what `/` and `**` give."""
DECIMAL_STEPS: Final = 4
"""What an operation costs (0.4 µs), beside a step for every so many digits or bits."""
DIGITS_PER_STEP: Final = 16
_WHOLE_MAX_BITS: Final = 3_322
_EMPTY_BYTES: Final = Decimal(1).__sizeof__()
_TEXT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_EXACT: Final = Context(
    prec=DIGITS_MAX, rounding=ROUND_HALF_UP, Emin=-DIGITS_MAX, Emax=DIGITS_MAX,
    traps=[Inexact, Overflow, InvalidOperation, DivisionByZero],
)  # fmt: skip
_ROUNDED: Final = Context(
    prec=QUOTIENT_DIGITS, rounding=ROUND_HALF_EVEN, Emin=-DIGITS_MAX, Emax=DIGITS_MAX,
    traps=[Overflow, InvalidOperation, DivisionByZero],
)  # fmt: skip
_QUANTIZED: Final = Context(
    prec=2 * DIGITS_MAX, rounding=ROUND_HALF_UP, Emin=-DIGITS_MAX, Emax=2 * DIGITS_MAX,
    traps=[Overflow, InvalidOperation, DivisionByZero],
)  # fmt: skip
TO_WHOLE: Final = {"ceil": ROUND_CEILING, "floor": ROUND_FLOOR, "round": ROUND_HALF_UP}


def is_decimal(value: object) -> bool:
    """Return whether it is exact."""
    return value.__class__ is Decimal


def decimal_of(frame: Frame, value: object) -> Decimal | None:
    """``value`` as a decimal, None when it is no number."""
    frame.charge(DECIMAL_STEPS)
    if isinstance(value, Decimal):
        return value
    if type(value) is int:
        if value.bit_length() > _WHOLE_MAX_BITS:
            raise _too_long()
        frame.charge(value.bit_length() // DIGITS_PER_STEP)
        return _checked(Decimal(value))
    if type(value) is float and math.isfinite(value):
        return Decimal(repr(value))
    return None


def decimal_in(frame: Frame, source: str) -> Decimal:
    """The decimal that a text is. Raises `Fault` when it is none."""
    frame.charge_chars(len(source))
    if len(source) > 2 * DIGITS_MAX or not _TEXT.fullmatch(source):
        raise Fault(f"{source[:40]!a} is not a number")
    return _checked(Decimal(source))


def _checked(value: Decimal) -> Decimal:
    if value.adjusted() >= DIGITS_MAX:
        raise _too_long()
    try:
        return _EXACT.plus(value) if value else _EXACT.abs(value)  # no -0
    except DecimalException:
        raise _too_long() from None


def _weight(value: Decimal) -> int:
    """Steps for its length: 8 bytes hold 19 digits."""
    return (value.__sizeof__() - _EMPTY_BYTES) // 8


def _too_long() -> Fault:
    return Fault(f"a decimal of more than {DIGITS_MAX} digits")


def decimal_text(value: Decimal) -> str:
    """Return all of its digits, without an exponent."""
    return format(value, "f")


_OPERATIONS: Final[dict[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
    "/": _ROUNDED.divide,
    "%": _EXACT.remainder,
    "**": _ROUNDED.power,
}


def operate(frame: Frame, symbol: str, left: object, right: object) -> Decimal | None:
    """What the operator gives for two numbers of which one is a decimal, None where one is no number."""
    first, second = decimal_of(frame, left), decimal_of(frame, right)
    if first is None or second is None:
        return None
    if symbol in ("/", "%") and not second:
        raise Fault("division by zero")
    frame.charge(_weight(first) + _weight(second))
    try:
        return _checked(_OPERATIONS[symbol](first, second))
    except InvalidOperation:
        raise Fault(f"{symbol} has no result that is a decimal") from None
    except DecimalException:
        raise _too_long() from None


def compared(frame: Frame, left: object, right: object) -> int | None:
    """-1, 0 or 1 of two numbers of which one is a decimal, None where one is no number."""
    first, second = decimal_of(frame, left), decimal_of(frame, right)
    if first is None or second is None:
        return None
    return (first > second) - (first < second)


def rounded_to(frame: Frame, value: Decimal, places: int, rounding: str = ROUND_HALF_UP) -> Decimal:
    """With so many places after its point, fewer than none for tens and hundreds; halves go away from zero."""
    if abs(places) > DIGITS_MAX:
        raise Fault(f"places must be from -{DIGITS_MAX} to {DIGITS_MAX}")
    frame.charge(DECIMAL_STEPS + _weight(value) + abs(places) // DIGITS_PER_STEP)
    try:
        unit = _QUANTIZED.scaleb(Decimal(1), -places)
        made = value.quantize(unit, rounding=rounding, context=_QUANTIZED)
    except DecimalException:
        raise _too_long() from None
    return _checked(made)


def average(frame: Frame, numbers: list[Decimal]) -> Decimal:
    """Of at least one."""
    total = Decimal(0)
    for number in numbers:
        total = operate(frame, "+", total, number) or Decimal(0)
    return operate(frame, "/", total, len(numbers)) or Decimal(0)
