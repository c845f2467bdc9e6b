"""The table of functions without a predicate.

Each takes the frame and its arguments, evaluated, and checks their types. Relies on `values`, `notation`,
`chronology`. Must not call the clock: `now()` is the time that came in with the evaluation.
"""

from __future__ import annotations

import base64
import binascii
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from penstock.core.expression import bits, chronology, decimals, formats, lists, notation, zones
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import ABSENT, Frame
from penstock.core.expression.values import (
    Ordering,
    array,
    is_array,
    is_map,
    is_number,
    kind,
    mapping,
    number,
    ordered,
    text,
    type_name,
    whole,
)

_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
REPEATED_MAX: Final = 1_000_000
"""As in expr, also of an empty text."""
NUMBER_MAX_CHARS: Final = 4_300
"""Of a number as text; Python reads no longer one."""


@dataclass(frozen=True, slots=True)
class Function:
    """``maximum`` is None when there is no most."""

    call: Callable[..., object]
    minimum: int
    maximum: int | None

    @property
    def arity(self) -> str:
        """How many arguments it takes, for a person."""
        if self.maximum is None:
            return f"at least {_arguments(self.minimum)}"
        if self.minimum == self.maximum:
            return _arguments(self.minimum)
        return f"{self.minimum} to {_arguments(self.maximum)}"


def _arguments(count: int) -> str:
    return "1 argument" if count == 1 else f"{count} arguments"


# --- numbers ----------------------------------------------------------------------------------------------------------


def _abs(frame: Frame, value: object) -> object:
    if isinstance(value, Decimal):
        return decimals.operate(frame, "-", 0, value) if value < 0 else value
    return abs(number(value, "the argument of abs"))


def _ceil(frame: Frame, value: object) -> object:
    return _rounded(frame, value, "ceil", math.ceil)


def _floor(frame: Frame, value: object) -> object:
    return _rounded(frame, value, "floor", math.floor)


def _round(frame: Frame, value: object, places: object = None) -> object:
    if places is None:
        return _rounded(frame, value, "round", _half_away)
    count = whole(places, "the second argument of round")
    if isinstance(value, Decimal):
        return decimals.rounded_to(frame, value, count)
    given = number(value, "the first argument of round")
    exact = decimals.decimal_of(frame, given)
    if exact is None:
        raise Fault("the first argument of round is not a finite number")
    made = decimals.rounded_to(frame, exact, count)
    # A decimal has no more places than it is written with: what it would be rounded to beyond them is the number.
    return given if made == exact else frame.new_integer(int(made)) if type(given) is int else float(made)


def _decimal(frame: Frame, value: object, places: object = None) -> object:
    source = text(value, "the argument of decimal") if type(value) is str else None
    made = decimals.decimal_of(frame, value) if source is None else decimals.decimal_in(frame, source)
    if made is None:
        raise Fault(f"the argument of decimal must be a number, or text that is one, not {kind(value)}")
    return made if places is None else decimals.rounded_to(frame, made, whole(places, "the second argument of decimal"))


def _rounded(frame: Frame, value: object, name: str, rounding: Callable[[float], int]) -> object:
    """Return a decimal stays one, as in expr: `type(ceil(1.5))` is float. A whole number is kept, whatever its size."""
    if isinstance(value, Decimal):
        return decimals.rounded_to(frame, value, 0, decimals.TO_WHOLE[name])
    given = number(value, f"the argument of {name}")
    return given if type(given) is int else float(rounding(given))


def _half_away(value: float) -> int:
    """To the nearest, halves away from zero (Go); Python's `round` takes them to the even one."""
    below = math.floor(abs(value))
    nearest = below + (abs(value) - below >= 0.5)
    return nearest if value >= 0 else -nearest


def _int(frame: Frame, value: object) -> object:
    if type(value) is str:
        frame.charge_chars(len(value))
        if len(value) > NUMBER_MAX_CHARS or not _WHOLE.fullmatch(value):
            raise Fault(f"{value[:40]!a} is not a whole number")
        return frame.new_integer(int(value))
    if isinstance(value, Decimal):
        return frame.new_integer(int(value))
    if isinstance(value, timedelta):  # nanoseconds, as in expr
        return value // timedelta(microseconds=1) * 1_000
    return frame.new_integer(int(number(value, "the argument of int")))


def _float(frame: Frame, value: object) -> object:
    if type(value) is str:
        frame.charge_chars(len(value))
        if len(value) > NUMBER_MAX_CHARS or not _DECIMAL.fullmatch(value):
            raise Fault(f"{value[:40]!a} is not a number")
        result = float(value)
    elif isinstance(value, Decimal):
        result = float(value)
    else:
        try:
            result = float(number(value, "the argument of float"))
        except OverflowError:
            result = math.inf
    if math.isinf(result):
        raise Fault("the number is too large for a decimal number")
    return result


def _min(frame: Frame, *arguments: object) -> object:
    return _extreme(frame, "min", operator.lt, arguments)


def _max(frame: Frame, *arguments: object) -> object:
    return _extreme(frame, "max", operator.gt, arguments)


def _extreme(frame: Frame, name: str, better: Ordering, arguments: tuple[object, ...]) -> object:
    """Of numbers, dates or durations, and of such in arrays; nil when there is none."""
    if arguments == (None,):  # as in expr
        return None
    best: object = None
    for candidate in lists.leaves(frame, arguments):
        if not is_number(candidate) and not isinstance(candidate, _TIMES):
            raise Fault(f"{name} takes numbers, or arrays of numbers, not {kind(candidate)}")
        if best is None or ordered(frame, candidate, best, name, better):
            best = candidate
    return best


# --- strings ----------------------------------------------------------------------------------------------------------


def _upper(frame: Frame, value: object) -> object:
    source = text(value, "the argument of upper")
    return _by_character(frame, source, str.upper, _upper_character)


def _lower(frame: Frame, value: object) -> object:
    source = text(value, "the argument of lower")
    return _by_character(frame, source, str.lower, lambda character: character.lower()[0])


def _by_character(frame: Frame, source: str, ascii_case: Callable[[str], str], case: Callable[[str], str]) -> str:
    """Character by character, as Go does: the length stays, `ß` has no capital, a sigma has no special end form."""
    frame.new_text_chars(len(source))
    if source.isascii():
        return ascii_case(source)
    frame.charge(len(source))
    return "".join(map(case, source))


def _upper_character(character: str) -> str:
    for changed in (character.upper(), character.title()):
        if len(changed) == 1:
            return changed
    return character


def _trim(frame: Frame, value: object, characters: object = ABSENT) -> object:
    source = text(value, "the first argument of trim")
    frame.charge_chars(2 * len(source))
    if characters is ABSENT:
        return source.strip()
    cut = text(characters, "the second argument of trim")
    frame.charge(len(source) * len(cut) // 512)
    return source.strip(cut) if cut else source


def _trim_prefix(frame: Frame, value: object, prefix: object = " ") -> object:
    source, start = text(value, "the first argument of trimPrefix"), text(prefix, "the second argument of trimPrefix")
    frame.charge_chars(len(source) + len(start))
    return source.removeprefix(start)


def _trim_suffix(frame: Frame, value: object, suffix: object = " ") -> object:
    source, end = text(value, "the first argument of trimSuffix"), text(suffix, "the second argument of trimSuffix")
    frame.charge_chars(len(source) + len(end))
    return source.removesuffix(end)


def _has_prefix(frame: Frame, value: object, prefix: object) -> object:
    source, start = text(value, "the first argument of hasPrefix"), text(prefix, "the second argument of hasPrefix")
    frame.charge_chars(len(start))
    return source.startswith(start)


def _has_suffix(frame: Frame, value: object, suffix: object) -> object:
    source, end = text(value, "the first argument of hasSuffix"), text(suffix, "the second argument of hasSuffix")
    frame.charge_chars(len(end))
    return source.endswith(end)


def _index_of(frame: Frame, value: object, part: object) -> object:
    source, sought = text(value, "the first argument of indexOf"), text(part, "the second argument of indexOf")
    frame.charge_search(len(source), len(sought))
    return source.find(sought)


def _last_index_of(frame: Frame, value: object, part: object) -> object:
    source, sought = text(value, "the first argument of lastIndexOf"), text(part, "the second argument of lastIndexOf")
    # From the end Python always searches in the simple way, whose worst is the product of both lengths.
    frame.charge(len(source) // 16 + len(source) * len(sought) // 2_048)
    return source.rfind(sought)


def _repeat(frame: Frame, value: object, count: object) -> object:
    source, times = text(value, "the first argument of repeat"), whole(count, "the second argument of repeat")
    if times < 0:
        raise Fault("the second argument of repeat must not be negative")
    if times > REPEATED_MAX:
        raise Fault(f"the second argument of repeat must not be over {REPEATED_MAX:,}")
    frame.new_text_chars(len(source) * times)
    return source * times


def _split_after(frame: Frame, value: object, separator: object, limit: object = -1) -> object:
    pieces = _parts(frame, "splitAfter", value, separator, limit)
    between = text(separator, "the second argument of splitAfter")
    frame.charge(len(pieces))
    frame.charge_chars(sum(map(len, pieces)) + len(between) * len(pieces))
    return [piece + between for piece in pieces[:-1]] + pieces[-1:]


def _split(frame: Frame, value: object, separator: object, limit: object = -1) -> object:
    return _parts(frame, "split", value, separator, limit)


def _parts(frame: Frame, name: str, value: object, separator: object, limit: object) -> list[str]:
    source = text(value, f"the first argument of {name}")
    between = text(separator, f"the second argument of {name}")
    most = whole(limit, f"the third argument of {name}")
    if most == 0:
        return []
    frame.charge_search(len(source), len(between))
    # Counted before the pieces exist, so that a hostile separator makes no more than the limit allows.
    pieces = (source.count(between) + 1 if between else len(source)) if most < 0 else min(most, len(source) + 1)
    frame.new_array_items(pieces)
    frame.charge(pieces // 2)
    if between:
        return source.split(between, most - 1 if most > 0 else -1)
    if most < 0 or most >= len(source):
        return list(source)
    return [*source[: most - 1], source[most - 1 :]]


def _join(frame: Frame, value: object, separator: object = "") -> object:
    between = text(separator, "the second argument of join")
    items = array(value, "the first argument of join")
    frame.charge(len(items) // 2)
    pieces = [text(item, "an element that is joined") for item in items]
    frame.new_text_chars(sum(map(len, pieces)) + len(between) * max(0, len(pieces) - 1))
    return between.join(pieces)


def _replace(frame: Frame, value: object, old: object, new: object, limit: object = -1) -> object:
    source = text(value, "the first argument of replace")
    before, after = text(old, "the second argument of replace"), text(new, "the third argument of replace")
    most = whole(limit, "the fourth argument of replace")
    frame.charge_search(len(source), len(before))
    found = source.count(before)
    times = found if most < 0 else min(found, most)
    frame.new_text_chars(len(source) + times * (len(after) - len(before)))
    frame.charge(times // 4)
    return source.replace(before, after, times)


def _string(frame: Frame, value: object) -> object:
    return notation.to_text(frame, value)


def _to_json(frame: Frame, value: object) -> object:
    return notation.to_json(frame, value)


def _from_json(frame: Frame, value: object) -> object:
    return notation.from_json(frame, text(value, "the argument of fromJSON"))


def _to_base64(frame: Frame, value: object) -> object:
    source = text(value, "the argument of toBase64")
    frame.new_text_chars(len(source) * 4 // 3)
    try:
        encoded = base64.b64encode(source.encode()).decode("ascii")
    except UnicodeEncodeError:
        raise Fault("toBase64 needs whole characters") from None
    frame.new_text_chars(len(encoded))
    return encoded


def _from_base64(frame: Frame, value: object) -> object:
    source = text(value, "the argument of fromBase64")
    frame.new_text_chars(len(source))
    try:
        return base64.b64decode(source, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise Fault("the argument of fromBase64 is not base64") from None


# --- arrays and maps --------------------------------------------------------------------------------------------------


def _len(frame: Frame, value: object) -> object:
    if type(value) is str or is_array(value) or is_map(value):
        return len(value)
    raise Fault(f"len needs a string, an array or a map, not {kind(value)}")


def _first(frame: Frame, value: object) -> object:
    if value is None:  # as in expr
        return None
    items = array(value, "the argument of first")
    return items[0] if items else None


def _last(frame: Frame, value: object) -> object:
    if value is None:  # as in expr
        return None
    items = array(value, "the argument of last")
    return items[-1] if items else None


def _sort(frame: Frame, value: object, order: object = "asc") -> object:
    if value is None:  # as in expr
        return None
    items = array(value, "the first argument of sort")
    return lists.sorted_by(frame, items, items, "sort", descending=lists.is_descending(order, "sort"))


def _reverse(frame: Frame, value: object) -> object:
    items = array(value, "the argument of reverse")
    frame.new_array_items(len(items))
    return items[::-1]


def _keys(frame: Frame, value: object) -> object:
    entries = mapping(value, "the argument of keys")
    return _sorted_keys(frame, entries)


def _values(frame: Frame, value: object) -> object:
    entries = mapping(value, "the argument of values")
    return [entries[key] for key in _sorted_keys(frame, entries)]


def _sorted_keys(frame: Frame, entries: dict[str, object]) -> list[str]:
    """In order: expr's is random, and what a database keeps is another one than what a client sent."""
    frame.new_array_items(len(entries))
    frame.charge(len(entries))
    return sorted(entries)


# --- types and time ---------------------------------------------------------------------------------------------------


def _type(frame: Frame, value: object) -> object:
    return type_name(value)


def _now(frame: Frame, zone: object = ABSENT) -> object:
    return frame.now if zone is ABSENT else zones.in_zone(frame.now, zones.zone_of(frame, zone, "the argument of now"))


_TIMES: Final = (datetime, timedelta, Decimal)

FUNCTIONS: Final[dict[str, Function]] = {
    "abs": Function(_abs, 1, 1),
    "ceil": Function(_ceil, 1, 1),
    "floor": Function(_floor, 1, 1),
    "round": Function(_round, 1, 2),
    "decimal": Function(_decimal, 1, 2),
    "int": Function(_int, 1, 1),
    "float": Function(_float, 1, 1),
    "min": Function(_min, 1, None),
    "max": Function(_max, 1, None),
    "upper": Function(_upper, 1, 1),
    "lower": Function(_lower, 1, 1),
    "trim": Function(_trim, 1, 2),
    "trimPrefix": Function(_trim_prefix, 1, 2),
    "trimSuffix": Function(_trim_suffix, 1, 2),
    "hasPrefix": Function(_has_prefix, 2, 2),
    "hasSuffix": Function(_has_suffix, 2, 2),
    "indexOf": Function(_index_of, 2, 2),
    "lastIndexOf": Function(_last_index_of, 2, 2),
    "repeat": Function(_repeat, 2, 2),
    "split": Function(_split, 2, 3),
    "splitAfter": Function(_split_after, 2, 3),
    "join": Function(_join, 1, 2),
    "replace": Function(_replace, 3, 4),
    "string": Function(_string, 1, 1),
    "toJSON": Function(_to_json, 1, 1),
    "fromJSON": Function(_from_json, 1, 1),
    "toBase64": Function(_to_base64, 1, 1),
    "fromBase64": Function(_from_base64, 1, 1),
    "len": Function(_len, 1, 1),
    "first": Function(_first, 1, 1),
    "last": Function(_last, 1, 1),
    "sort": Function(_sort, 1, 2),
    "reverse": Function(_reverse, 1, 1),
    "merge": Function(lists.merge, 1, None),
    "pad": Function(formats.pad, 2, 3),
    "formatNumber": Function(formats.format_number, 2, 3),
    "addMonths": Function(chronology.add_months, 2, 2),
    "endOfMonth": Function(chronology.end_of_month, 1, 1),
    "daysBetween": Function(chronology.days_between, 2, 2),
    "keys": Function(_keys, 1, 1),
    "values": Function(_values, 1, 1),
    "mean": Function(lists.mean, 1, None),
    "median": Function(lists.median, 1, None),
    "get": Function(lists.get, 2, 2),
    "take": Function(lists.take, 2, 2),
    "concat": Function(lists.concat, 1, None),
    "flatten": Function(lists.flatten, 1, 1),
    "uniq": Function(lists.uniq, 1, 1),
    "toPairs": Function(lists.to_pairs, 1, 1),
    "fromPairs": Function(lists.from_pairs, 1, 1),
    "bitand": Function(bits.both, 2, 2),
    "bitor": Function(bits.either, 2, 2),
    "bitxor": Function(bits.one_of, 2, 2),
    "bitnand": Function(bits.without, 2, 2),
    "bitnot": Function(bits.invert, 1, 1),
    "bitshl": Function(bits.left, 2, 2),
    "bitshr": Function(bits.right, 2, 2),
    "bitushr": Function(bits.unsigned_right, 2, 2),
    "type": Function(_type, 1, 1),
    "now": Function(_now, 0, 1),
    "timezone": Function(zones.timezone, 1, 1),
    "date": Function(chronology.date, 1, 3),
    "duration": Function(chronology.duration, 1, 1),
}
