"""The functions that go through an array with a predicate: `any(items, # > 2)`.

Relies on `frame` for the element and the budget. Must not know nodes: it gets the predicate compiled, and its cost
per element from the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.core.expression.frame import Frame, Run
from penstock.core.expression.operators import add
from penstock.core.expression.values import array, boolean

Items = list[object]


@dataclass(frozen=True, slots=True)
class Predicate:
    """A function of this module. ``required`` tells whether it needs its predicate, or means the element without."""

    call: Callable[[Frame, Items, Run, int], object]
    required: bool = True


# The three loops. Each puts the outer element back; a fault leaves it, and ends the evaluation.


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
    "map": Predicate(_map),
    "count": Predicate(_count, required=False),
    "sum": Predicate(_sum, required=False),
}


def apply(name: str, frame: Frame, collection: object, predicate: Run, cost_steps: int) -> object:
    """Call the function ``name``. Raises `Fault` when ``collection`` is no array."""
    return PREDICATES[name].call(frame, array(collection, f"the first argument of {name}"), predicate, cost_steps)
