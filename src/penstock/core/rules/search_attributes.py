"""Search attributes: variables that a definition declares so that its instances are found by them.

Pure. What a variable's value becomes in the table, and what a text that is looked for means. A value of another type
than the declared one, or too long a text, is not found; it fails nothing.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

ATTRIBUTE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""Of variables that may be declared: without what JSON texts could write in two ways, or an address would not hold."""
TEXT_MAX_CHARS: Final = 256

_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class AttributeType(enum.Enum):
    """What a value has to be."""

    STRING = "STRING"
    NUMBER = "NUMBER"
    BOOLEAN = "BOOLEAN"
    TIME = "TIME"  # a text in RFC 3339, with its zone


class Indexed(NamedTuple):
    """A value as it stands in the table: a text, or true or false; a number, or seconds since 1970; or nothing."""

    text: str | None = None
    number: float | None = None


class Wanted(NamedTuple):
    """What is looked for: the text, or numbers from ``low`` to below ``high``."""

    name: str
    text: str | None
    low: float | None
    high: float | None


class SearchAttributes(msgspec.Struct, frozen=True):
    """Those of one definition: the types of variables by their names."""

    types: Mapping[str, AttributeType]

    def may_be_in(self, variables: bytes) -> bool:
        """Return whether a JSON object may have one of them. True now and then for one that has none; cheap."""
        return b"\\" in variables or any(name.encode() in variables for name in self.types)

    def read(self, variables: bytes) -> dict[str, Indexed]:
        """Those that a JSON object has."""
        if not self.may_be_in(variables):
            return {}
        given = _read_object(variables)
        return {name: _indexed(kind, given[name]) for name, kind in self.types.items() if name in given}


def _indexed(kind: AttributeType, raw: msgspec.Raw) -> Indexed:
    value = msgspec.json.decode(raw)
    match kind:
        case AttributeType.STRING if isinstance(value, str) and len(value) <= TEXT_MAX_CHARS:
            return Indexed(text=value)
        case AttributeType.BOOLEAN if isinstance(value, bool):
            return Indexed(text="true" if value else "false")
        case AttributeType.NUMBER if isinstance(value, int | float) and not isinstance(value, bool):
            return Indexed(number=_finite(value))
        case AttributeType.TIME if isinstance(value, str):
            return Indexed(number=_seconds(value))
        case _:
            return Indexed()


def wanted(
    name: str, exactly: str | None = None, at_least: str | None = None, below: str | None = None
) -> Wanted | None:
    """What is looked for, by a value or by bounds, each a number or a time. None when a bound is neither."""
    if exactly is not None:
        number = _measure(exactly)
        return Wanted(name, exactly, number, None if number is None else math.nextafter(number, math.inf))
    low, high = (None if bound is None else _measure(bound) for bound in (at_least, below))
    if (at_least is not None and low is None) or (below is not None and high is None):
        return None
    return Wanted(name, None, -math.inf if low is None else low, math.inf if high is None else high)


def _measure(text: str) -> float | None:
    try:
        return _finite(float(text)) if "_" not in text else None
    except ValueError:
        return _seconds(text)


def _finite(value: float) -> float | None:
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _seconds(text: str) -> float | None:
    try:
        found = datetime.fromisoformat(text)
        return None if found.tzinfo is None else found.timestamp()
    except (ValueError, OverflowError):
        return None
