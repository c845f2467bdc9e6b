"""Functions over arrays and maps without a predicate, and what those with one share with them.

Relies on `values` and `notation`. Must not evaluate, and must not change what it is given: variables are shared.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final, cast

from penstock.core.expression import access, decimals, notation
from penstock.core.expression.decimals import is_decimal
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame
from penstock.core.expression.values import (
    array,
    equal,
    is_array,
    is_map,
    is_number,
    kind,
    mapping,
    ordered,
    whole,
)

KEY_STEPS: Final = 4
ENTRY_STEPS: Final = 2
"""What making a key of a value costs (0.4 µs), and putting an entry into a map."""
PAIR_ITEMS: Final = 2


def leaves(frame: Frame, items: Iterable[object], level: int = 0) -> list[object]:
    """The items of ``items`` that are no arrays, and those of the arrays among them, however deep."""
    found: list[object] = []
    for item in items:
        frame.charge(2)
        if is_array(item):
            if level > frame.limits.value_levels:
                raise Fault(f"a value is nested more than {frame.limits.value_levels} levels deep")
            found.extend(leaves(frame, item, level + 1))
        else:
            found.append(item)
    return found


# --- order ------------------------------------------------------------------------------------------------------------


def is_descending(order: object, name: str) -> bool:
    """What the last argument of `sort` and `sortBy` says."""
    if order not in ("asc", "desc"):
        place = "second" if name == "sort" else "third"
        raise Fault(f'the {place} argument of {name} must be "asc" or "desc"')
    return order == "desc"


def sorted_by(frame: Frame, items: list[object], keys: list[object], name: str, *, descending: bool) -> list[object]:
    """``items`` in the order of their ``keys``. Equal ones stay as they are, in both orders."""
    frame.new_array_items(len(items))
    frame.charge(len(items) * (4 + len(items).bit_length()) // 4)
    # Once every neighbour can be ordered all can: the types that can't mix are told apart here, not in the sort.
    for left, right in itertools.pairwise(keys):
        ordered(frame, left, right, name, operator.lt)
    if any(map(is_decimal, keys)):
        keys = [decimals.decimal_of(frame, key) for key in keys]
    comparable = cast("list[Any]", keys)
    return [items[place] for place in sorted(range(len(items)), key=comparable.__getitem__, reverse=descending)]


# --- numbers in arrays ------------------------------------------------------------------------------------------------


def mean(frame: Frame, *arguments: object) -> object:
    """`mean(list)`: 0 of none, as in expr."""
    numbers = _numbers(frame, "mean", arguments)
    if any(map(is_decimal, numbers)):
        return decimals.average(frame, _exact(frame, numbers))
    return _half_way(_floats(numbers))


def median(frame: Frame, *arguments: object) -> object:
    """`median(list)`: the one in the middle, or half-way between the two there; 0 of none, as in expr."""
    numbers = _numbers(frame, "median", arguments)
    frame.charge(len(numbers) * len(numbers).bit_length() // 8)
    middle = slice((len(numbers) - 1) // 2, len(numbers) // 2 + 1)
    if any(map(is_decimal, numbers)):
        found = sorted(_exact(frame, numbers))[middle]
        return found[0] if len(found) == 1 else decimals.average(frame, found)
    return _half_way(sorted(_floats(numbers))[middle] if numbers else [])


def _numbers(frame: Frame, name: str, arguments: tuple[object, ...]) -> list[object]:
    found = leaves(frame, arguments)
    for number in found:
        if not is_number(number) and not is_decimal(number):
            raise Fault(f"{name} takes numbers, or arrays of numbers, not {kind(number)}")
    return found


def _exact(frame: Frame, numbers: list[object]) -> list[Decimal]:
    return [each for each in (decimals.decimal_of(frame, number) for number in numbers) if each is not None]


def _floats(numbers: list[object]) -> list[float]:
    try:
        return [float(cast("int | float", number)) for number in numbers]
    except OverflowError:
        raise Fault("the number is too large for a decimal number") from None


def _half_way(numbers: list[float]) -> float:
    """Their average, 0 of none."""
    average = sum(numbers) / len(numbers) if numbers else 0.0
    if math.isfinite(average):
        return average
    raise Fault("the result is too large for a decimal number")


# --- arrays -----------------------------------------------------------------------------------------------------------


def get(frame: Frame, value: object, index: object) -> object:
    """`get(value, index)`: the element or the value of the key, nil where there is none."""
    if not (is_array(value) or is_map(value) or type(value) is str):
        return None
    if not is_map(value) and not -len(value) <= whole(index, "an index") < len(value):
        return None
    return access.at(value, index)


def take(frame: Frame, value: object, count: object) -> object:
    """`take(list, n)`: its first n elements, or all of fewer."""
    items, most = array(value, "the first argument of take"), whole(count, "the second argument of take")
    if most < 0:
        raise Fault("the second argument of take must not be negative")
    frame.new_array_items(min(most, len(items)))
    return items[:most]


def concat(frame: Frame, *arguments: object) -> object:
    """`concat(list, …)`: the elements of all of them."""
    parts = [array(argument, "an argument of concat") for argument in arguments]
    frame.new_array_items(sum(map(len, parts)))
    return [item for part in parts for item in part]


def flatten(frame: Frame, value: object) -> object:
    """`flatten(list)`: the arrays in it replaced by their elements, however deep."""
    found = leaves(frame, array(value, "the argument of flatten"))
    frame.new_array_items(len(found))
    return found


def uniq(frame: Frame, value: object) -> object:
    """`uniq(list)`: without what is equal to an earlier element. Text is found by a table, anything else compared."""
    items = array(value, "the argument of uniq")
    frame.new_array_items(len(items))
    frame.charge(len(items))
    texts: set[str] = set()
    others: list[object] = []
    kept: list[object] = []
    for item in items:
        if type(item) is str:
            frame.charge_chars(len(item))
            if item in texts:
                continue
            texts.add(item)
        else:
            frame.charge(len(others))
            if any(equal(frame, item, other) for other in others):
                continue
            others.append(item)
        kept.append(item)
    return kept


# --- maps -------------------------------------------------------------------------------------------------------------


class Keys:
    """Keys of a map made of values: JSON has none but strings, so that others become text, as `string()` has it.
    Two that are different and have the same text are refused, rather than taken for one."""

    def __init__(self, frame: Frame, name: str) -> None:
        self._frame = frame
        self._name = name
        self._kinds: dict[str, str] = {}

    def text(self, value: object) -> str:
        """The key that ``value`` is. Raises `Fault` for an array, a map, and what an earlier one can't be told from."""
        self._frame.charge(KEY_STEPS)
        if is_array(value) or is_map(value):
            raise Fault(f"{self._name} can't make a key of {kind(value)}")
        key = notation.to_text(self._frame, value)
        self._frame.charge_chars(len(key))
        if self._kinds.setdefault(key, kind(value)) != kind(value):
            raise Fault(f"{self._name} has {self._kinds[key]} and {kind(value)} for the key {key[:40]!a}: use string()")
        return key


def to_pairs(frame: Frame, value: object) -> object:
    """`toPairs(map)`: an array of keys with their values, in the order of the keys."""
    entries = mapping(value, "the argument of toPairs")
    frame.new_array_items((1 + PAIR_ITEMS) * len(entries))
    frame.charge(ENTRY_STEPS * len(entries))
    return [[key, entries[key]] for key in sorted(entries)]


def from_pairs(frame: Frame, value: object) -> object:
    """`fromPairs(list)`: the map of an array of keys with their values; of equal keys the last one counts."""
    pairs = array(value, "the argument of fromPairs")
    frame.new_array_items(len(pairs))
    frame.charge(ENTRY_STEPS * len(pairs))
    keys = Keys(frame, "fromPairs")
    made: dict[str, object] = {}
    for pair in pairs:
        if not is_array(pair) or len(pair) != PAIR_ITEMS:
            raise Fault("fromPairs needs arrays of a key and its value")
        made[keys.text(pair[0])] = pair[1]
    return made


def merge(frame: Frame, *arguments: object) -> object:
    """`merge(map, …)`: the entries of all of them, of equal keys the last one. Maps within them are not merged."""
    maps = [mapping(argument, "an argument of merge") for argument in arguments]
    frame.new_array_items(sum(map(len, maps)))
    frame.charge(sum(map(len, maps)) // 2)
    return {key: value for each in maps for key, value in each.items()}
