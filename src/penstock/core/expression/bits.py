"""Whole numbers as rows of bits, in two's complement.

Relies on `values`. Ours have any length; only `bitushr` of a negative number needs to know where it begins, and
takes it for one of 64 bits, which is all that expr has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame
from penstock.core.expression.values import whole

WORD_BITS: Final = 64


def _of_two(name: str, operation: Callable[[int, int], int]) -> Callable[[Frame, object, object], object]:
    def call(frame: Frame, left: object, right: object) -> object:
        first, second = _argument(frame, left, name, "first"), _argument(frame, right, name, "second")
        return frame.new_integer(operation(first, second))

    return call


def _argument(frame: Frame, value: object, name: str, place: str) -> int:
    return frame.new_integer(whole(value, f"the {place} argument of {name}"))


def _places(frame: Frame, value: object, name: str) -> int:
    places = _argument(frame, value, name, "second")
    if places < 0:
        raise Fault(f"the second argument of {name} must not be negative")
    return places


def left(frame: Frame, value: object, count: object) -> object:
    """`bitshl(n, places)`: exact, so that nothing falls off at the left."""
    number, places = _argument(frame, value, "bitshl", "first"), _places(frame, count, "bitshl")
    if number and number.bit_length() + places > frame.limits.integer_bits:
        raise Fault(f"a whole number of more than {frame.limits.integer_bits} bits")
    return frame.new_integer(number << places) if number else 0


def right(frame: Frame, value: object, count: object) -> object:
    """`bitshr(n, places)`: the sign stays."""
    number, places = _argument(frame, value, "bitshr", "first"), _places(frame, count, "bitshr")
    return number >> min(places, number.bit_length() + 1)


def unsigned_right(frame: Frame, value: object, count: object) -> object:
    """`bitushr(n, places)`: zeros come in at the left, of a negative number at its 64th bit."""
    number, places = _argument(frame, value, "bitushr", "first"), _places(frame, count, "bitushr")
    if number < 0:
        if number < -(1 << (WORD_BITS - 1)):
            raise Fault(f"bitushr of a negative number of more than {WORD_BITS} bits")
        if places == 0:
            return number
        number += 1 << WORD_BITS
    return number >> min(places, number.bit_length())


def invert(frame: Frame, value: object) -> object:
    """`bitnot(n)`."""
    return ~_argument(frame, value, "bitnot", "only")


both: Final = _of_two("bitand", lambda first, second: first & second)
either: Final = _of_two("bitor", lambda first, second: first | second)
one_of: Final = _of_two("bitxor", lambda first, second: first ^ second)
without: Final = _of_two("bitnand", lambda first, second: first & ~second)
