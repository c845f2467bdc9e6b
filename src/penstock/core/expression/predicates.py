"""The functions that go through an array with a predicate: `any(items, # > 2)`.

Relies on `frame` for the element and the budget, on `lists` for what they share with functions without a predicate.
Must not know nodes: it gets the predicate compiled, and its cost per element from the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from penstock.core.expression import lists
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import ABSENT, Frame, Run
from penstock.core.expression.operators import add
from penstock.core.expression.values import array, boolean

Items = list[object]


@dataclass(frozen=True, slots=True)
class Predicate:
    """A function of this module. ``required`` tells whether it needs its predicate, or means the element without.
    ``takes_more``: an argument may follow the predicate."""

    call: Callable[..., object]
    required: bool = True
    takes_more: bool = False


# The four loops. Each puts the outer element back; a fault leaves it, and ends the evaluation.


def _first(frame: Frame, items: Items, predicate: Run, cost_steps: int, *, wanted: bool) -> int:
    """The index of the first element for which the predicate gives ``wanted``, or -1."""
    outer = frame.element, frame.index
    found = -1
    for index, item in enumerate(items):
        frame.steps_left -= cost_steps
        if frame.steps_left < 0:
            raise frame.exhausted()
        frame.element = item
        frame.index = index
        if boolean(predicate(frame), "the predicate") is wanted:
            found = index
            break
    frame.element, frame.index = outer
    return found


def _last(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> int:
    """The index of the last element for which the predicate is true, or -1. From the end, as in expr."""
    outer = frame.element, frame.index
    found = -1
    for index in range(len(items) - 1, -1, -1):
        frame.steps_left -= cost_steps
        if frame.steps_left < 0:
            raise frame.exhausted()
        frame.element = items[index]
        frame.index = index
        if boolean(predicate(frame), "the predicate"):
            found = index
            break
    frame.element, frame.index = outer
    return found


def _filter(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> Items:
    outer = frame.element, frame.index
    kept: Items = []
    for index, item in enumerate(items):
        frame.steps_left -= cost_steps
        if frame.steps_left < 0:
            raise frame.exhausted()
        frame.element = item
        frame.index = index
        if boolean(predicate(frame), "the predicate"):
            kept.append(item)
    frame.element, frame.index = outer
    return kept


def _map(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> Items:
    outer = frame.element, frame.index
    results: Items = []
    for index, item in enumerate(items):
        frame.steps_left -= cost_steps
        if frame.steps_left < 0:
            raise frame.exhausted()
        frame.element = item
        frame.index = index
        results.append(predicate(frame))
    frame.element, frame.index = outer
    return results


def _any(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> bool:
    return _first(frame, items, predicate, cost_steps, wanted=True) >= 0


def _all(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> bool:
    return _first(frame, items, predicate, cost_steps, wanted=False) < 0


def _none(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> bool:
    return _first(frame, items, predicate, cost_steps, wanted=True) < 0


def _one(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> bool:
    return len(_filter(frame, items, predicate, cost_steps)) == 1


def _count(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> int:
    return len(_filter(frame, items, predicate, cost_steps))


def _find(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> object:
    index = _first(frame, items, predicate, cost_steps, wanted=True)
    return items[index] if index >= 0 else None


def _find_index(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> object:
    index = _first(frame, items, predicate, cost_steps, wanted=True)
    return index if index >= 0 else None


def _find_last(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> object:
    index = _last(frame, items, predicate, cost_steps)
    return items[index] if index >= 0 else None


def _find_last_index(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> object:
    index = _last(frame, items, predicate, cost_steps)
    return index if index >= 0 else None


def _group_by(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> object:
    keys = lists.Keys(frame, "groupBy")
    groups: dict[str, object] = {}
    for key, item in zip(_map(frame, items, predicate, cost_steps), items, strict=True):
        group = groups.setdefault(keys.text(key), [])
        assert isinstance(group, list)
        cast("list[object]", group).append(item)
    return groups


def _count_by(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> object:
    keys = lists.Keys(frame, "countBy")
    counts: dict[str, int] = {}
    for key in _map(frame, items, predicate, cost_steps):
        name = keys.text(key)
        counts[name] = counts.get(name, 0) + 1
    return counts


def _sort_by(frame: Frame, items: Items, predicate: Run, cost_steps: int, order: object) -> Items:
    descending = lists.is_descending("asc" if order is ABSENT else order, "sortBy")
    keys = _map(frame, items, predicate, cost_steps)
    return lists.sorted_by(frame, items, keys, "sortBy", descending=descending)


def _reduce(frame: Frame, items: Items, predicate: Run, cost_steps: int, start: object) -> object:
    outer = frame.element, frame.index, frame.accumulator
    total, done = start, 0
    if start is ABSENT:
        if not items:
            raise Fault("reduce of an empty array needs a start value as its third argument")
        total, done = items[0], 1
    for index in range(done, len(items)):
        frame.steps_left -= cost_steps
        if frame.steps_left < 0:
            raise frame.exhausted()
        frame.element, frame.index, frame.accumulator = items[index], index, total
        total = predicate(frame)
    frame.element, frame.index, frame.accumulator = outer
    return total


def _sum(frame: Frame, items: Items, predicate: Run, cost_steps: int) -> object:
    total: object = 0
    for result in _map(frame, items, predicate, cost_steps):
        total = add(frame, total, result)
    return total


PREDICATES: Final[dict[str, Predicate]] = {
    "any": Predicate(_any),
    "all": Predicate(_all),
    "none": Predicate(_none),
    "one": Predicate(_one),
    "filter": Predicate(_filter),
    "find": Predicate(_find),
    "findIndex": Predicate(_find_index),
    "findLast": Predicate(_find_last),
    "findLastIndex": Predicate(_find_last_index),
    "groupBy": Predicate(_group_by),
    "countBy": Predicate(_count_by),
    "sortBy": Predicate(_sort_by, takes_more=True),
    "reduce": Predicate(_reduce, takes_more=True),
    "map": Predicate(_map),
    "count": Predicate(_count, required=False),
    "sum": Predicate(_sum, required=False),
}


def apply(name: str, frame: Frame, collection: object, predicate: Run, cost_steps: int) -> object:
    """Call the function ``name``. Raises `Fault` when ``collection`` is no array."""
    return PREDICATES[name].call(frame, array(collection, f"the first argument of {name}"), predicate, cost_steps)


def apply_with_more(
    name: str, frame: Frame, collection: object, predicate: Run, cost_steps: int, more: object
) -> object:
    """The same of a function that takes an argument after its predicate, or ABSENT."""
    return PREDICATES[name].call(frame, array(collection, f"the first argument of {name}"), predicate, cost_steps, more)
