"""Values as text: JSON both ways, and what `string()` shows.

`toJSON` and `string` write what expr writes (two spaces of indent, keys in order, Go's form of decimals), because
definitions compare with it. Relies on `chronology` for dates. Must not build more than the budget allows: every
walk is paid for while it goes.
"""

from __future__ import annotations

import json
import math
import re
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, cast
from zoneinfo import ZoneInfo

from penstock.core.expression import decimals
from penstock.core.expression.chronology import date_text, duration_text, go_duration_text
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame
from penstock.core.expression.limits import MAX_INTEGER_BITS
from penstock.core.expression.values import is_array, is_map, type_name

_ESCAPED: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPES: Final = str.maketrans(_ESCAPED)
_TO_ESCAPE: Final = re.compile("[<>&\u2028\u2029]")
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)
_UNUSUAL_NUMBER: Final = re.compile(r"[0-9]{300}|[eE][+-]?[0-9]{3}")
"""Of the numbers in JSON text only these can be too large, be it for a decimal or for the limit of whole ones."""
_CONTAINERS: Final[frozenset[type]] = frozenset({list, dict})
VALUE_STEPS: Final = 8
MOMENT_STEPS: Final = 30
JSON_CHARS_PER_STEP: Final = 3
"""Costs of writing a value (0.6 µs) and a date or duration (3 µs), and of reading JSON (up to 25 ns a character)."""
PLAIN_FROM_EXPONENT: Final = -6
WHOLE_BELOW: Final = 1e21
"""Decimals from 0.000001 to below this are written without an exponent, as Go and JavaScript do in JSON."""


class _Writer:
    """Pieces of text, paid for and counted while they are collected."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._pieces: list[str] = []
        self._chars = 0

    def add(self, piece: str) -> None:
        self._chars += len(piece)
        if self._chars > self._frame.limits.text_chars:
            raise Fault(f"the text is over the limit of {self._frame.limits.text_chars} characters")
        self._pieces.append(piece)

    def enter(self, items: int, level: int) -> None:
        """Before the ``items`` of an array or a map, so that a large one is refused before work is put into it."""
        self._frame.charge(VALUE_STEPS * (items + 1))
        if level >= self._frame.limits.value_levels:
            raise _too_deep(self._frame)

    def add_scalar(self, value: object) -> None:
        """What JSON and `string()` write alike."""
        match value:
            case bool():
                self.add("true" if value else "false")
            case int():
                self._add_integer(value)
            case float():
                self._frame.charge(VALUE_STEPS)
                self.add(decimal_text(value))
            case _:
                raise Fault(f"there is no text for {type_name(value)}")

    def add_moment(self, written: str) -> None:
        self._frame.charge(MOMENT_STEPS)
        self.add(written)

    def _add_integer(self, value: int) -> None:
        bits = value.bit_length()
        if bits > MAX_INTEGER_BITS:
            raise Fault(f"a whole number of more than {MAX_INTEGER_BITS} bits has no text")
        self._frame.charge(bits // 16)
        self.add(str(value))

    def text(self) -> str:
        self._frame.charge_chars(self._chars)
        return "".join(self._pieces)


def _too_deep(frame: Frame) -> Fault:
    return Fault(f"a value is nested more than {frame.limits.value_levels} levels deep")


# --- JSON -------------------------------------------------------------------------------------------------------------


def to_json(frame: Frame, value: object) -> str:
    """`toJSON(value)`: JSON text, indented, with sorted keys."""
    writer = _Writer(frame)
    frame.charge(VALUE_STEPS)
    _write_json(writer, value, 0)
    return writer.text()


def _write_json(writer: _Writer, value: object, level: int) -> None:
    match value:
        case str():
            writer.add(_json_text(value))
        case list():
            items = cast("list[object]", value)
            writer.enter(len(items), level)
            _write_items(writer, "[]", [("", item) for item in items], level)
        case dict():
            entries = cast("dict[str, object]", value)
            writer.enter(2 * len(entries), level)
            _write_items(writer, "{}", [(_json_text(key) + ": ", entries[key]) for key in sorted(entries)], level)
        case None:
            writer.add("null")
        case datetime():
            writer.add_moment(_json_text(date_text(value)))
        case timedelta():
            writer.add_moment(_json_text(duration_text(value)))
        case ZoneInfo():
            writer.add(_json_text(value.key))
        case Decimal():
            writer.add(_json_text(decimals.decimal_text(value)))
        case _:
            writer.add_scalar(value)


def _write_items(writer: _Writer, brackets: str, items: list[tuple[str, object]], level: int) -> None:
    if not items:
        writer.add(brackets)
        return
    indent = "\n" + "  " * (level + 1)
    separator = brackets[0] + indent
    for label, item in items:
        writer.add(separator + label)
        _write_json(writer, item, level + 1)
        separator = "," + indent
    writer.add("\n" + "  " * level + brackets[1])


def _json_text(value: str) -> str:
    encoded = _ENCODER.encode(value)
    return encoded.translate(_ESCAPES) if _TO_ESCAPE.search(encoded) else encoded


def from_json(frame: Frame, source: str) -> object:
    """`fromJSON(text)`. Whole numbers of any size stay whole."""
    frame.charge(len(source) // JSON_CHARS_PER_STEP)

    def whole(digits: str) -> int:
        if len(digits) > frame.limits.integer_bits // 3:  # a digit is more than 3 bits
            raise Fault(f"a whole number of more than {frame.limits.integer_bits} bits")
        return frame.new_integer(int(digits))

    # The hooks cost a call per number, and nearly no text needs them.
    unusual = _UNUSUAL_NUMBER.search(source) is not None
    parse_int, parse_float = (whole, _decimal) if unusual else (None, None)
    try:
        value = cast(object, json.loads(source, parse_int=parse_int, parse_float=parse_float, parse_constant=_constant))
    except json.JSONDecodeError as error:
        raise Fault(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _too_deep(frame) from None
    _check_levels(frame, value)
    return value


def _decimal(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise Fault("the JSON holds a number that is too large")
    return value


def _constant(name: str) -> object:
    raise Fault(f"JSON has no {name}")


def _check_levels(frame: Frame, value: object) -> None:
    """Level by level, because this must stop before anything recurses over ``value``."""
    containers = [value]
    for _ in range(frame.limits.value_levels + 1):
        containers = [inner for container in containers for inner in _children(container)]
        if not containers:
            return
    raise _too_deep(frame)


def _children(value: object) -> list[object]:
    if is_array(value):
        return [item for item in value if item.__class__ in _CONTAINERS]
    return [item for item in value.values() if item.__class__ in _CONTAINERS] if is_map(value) else []


# --- string() ---------------------------------------------------------------------------------------------------------


def to_text(frame: Frame, value: object) -> str:
    """`string(value)`: as expr shows it, e.g. `3`, `[1 a]`, `map[k:v]`, `<nil>`; a date in RFC 3339."""
    if type(value) is str:
        return value
    writer = _Writer(frame)
    frame.charge(VALUE_STEPS)
    _write_text(writer, value, 0)
    return writer.text()


def _write_text(writer: _Writer, value: object, level: int) -> None:
    match value:
        case str():
            writer.add(value)
        case list():
            items = cast("list[object]", value)
            writer.enter(len(items), level)
            _write_parts(writer, "[", [("", item) for item in items], level)
        case dict():
            entries = cast("dict[str, object]", value)
            writer.enter(2 * len(entries), level)
            _write_parts(writer, "map[", [(f"{key}:", entries[key]) for key in sorted(entries)], level)
        case None:
            writer.add("<nil>")
        case datetime():
            writer.add_moment(date_text(value))
        case timedelta():
            writer.add_moment(go_duration_text(value))
        case ZoneInfo():
            writer.add(value.key)
        case Decimal():
            writer.add(decimals.decimal_text(value))
        case _:
            writer.add_scalar(value)


def _write_parts(writer: _Writer, opening: str, items: list[tuple[str, object]], level: int) -> None:
    writer.add(opening)
    separator = ""
    for label, item in items:
        writer.add(separator + label)
        _write_text(writer, item, level + 1)
        separator = " "
    writer.add("]")


def decimal_text(value: float) -> str:
    """The shortest text that gives ``value`` again, as JSON has it: `3`, `0.1`, `1e+21`, `1e-7`.

    Without a fraction all digits are written, as of the whole number that leaves an expression. `string()` shows
    decimals like this too, where expr shows `1.5e+06` for 1500000.0.
    """
    if value.is_integer() and abs(value) < WHOLE_BELOW:
        return str(int(value))
    mantissa, _, exponent_text = repr(abs(value)).partition("e")
    sign = "-" if value < 0 else ""
    head, _, tail = mantissa.partition(".")
    digits = (head + tail).lstrip("0").rstrip("0")
    leading = len(head) if head != "0" else len(tail.lstrip("0")) - len(tail)
    exponent = leading - 1 + int(exponent_text or 0)
    if exponent >= PLAIN_FROM_EXPONENT and abs(value) < WHOLE_BELOW:
        return sign + _plain(digits, exponent)
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{exponent:+}"


def _plain(digits: str, exponent: int) -> str:
    """Of a number with a fraction."""
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    return f"{digits[: exponent + 1]}.{digits[exponent + 1 :]}"
