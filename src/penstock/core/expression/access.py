"""Going into a value: fields, indexes, slices.

Relies on `values`. Must not evaluate, and must not know what optional access means: the compiler does.
"""

from __future__ import annotations

from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame
from penstock.core.expression.values import is_array, is_map, kind, whole

MAX_SHOWN_NAME_CHARS = 60


class OutOfRange(Fault):
    """There is no element at an index. `??` behind the path makes nil of it."""


def field(value: object, name: str) -> object:
    """`value.name`: nil when the map has no such key. Raises `Fault` when ``value`` is no map."""
    if is_map(value):
        return value.get(name)
    raise Fault(f"can't take {name[:MAX_SHOWN_NAME_CHARS]} of {kind(value)}")


def at(value: object, index: object) -> object:
    """`value[index]`: a key of a map, or an element of an array or a character of a string, from the end when
    negative. Raises `Fault` when it is out of range or of the wrong type."""
    if is_map(value):
        if type(index) is not str:
            raise Fault(f"a map has strings as keys, not {kind(index)}")
        return value.get(index)
    if is_array(value) or type(value) is str:
        place = whole(index, "an index")
        if -len(value) <= place < len(value):
            return value[place]
        raise OutOfRange(f"the index {_shown(place)} is out of range: the length is {len(value)}")
    raise Fault(f"can't take an element of {kind(value)}")


def bound(value: object) -> int:
    """What stands on one side of the colon of a slice."""
    return whole(value, "the end of a slice")


def part(frame: Frame, value: object, start: int | None, stop: int | None) -> object:
    """`value[start:stop]` of an array or a string; None stands for an end, and what is beyond an end is cut."""
    if type(value) is str:
        frame.charge_chars(len(value))
        return value[start:stop]
    if is_array(value):
        frame.charge_items(len(value))
        return value[start:stop]
    raise Fault(f"can't take a slice of {kind(value)}")


def _shown(number: int) -> str:
    return str(number) if number.bit_length() <= 64 else "given"
