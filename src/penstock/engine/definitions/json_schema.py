"""Does a value fit a JSON schema? The part of JSON Schema that programs publish for what they take (`durable.takes`).

What a schema does not say, and keywords that are none of these, fit. Relies on nothing; a schema comes from a program,
so the work is bounded whatever it holds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

import msgspec

from penstock.core.graph.definition import Problem
from penstock.errors import BadRequest

CHECKS_MAX: Final = 100_000
"""Of one value: what has more parts fits as far as it was looked at."""
DEPTH_MAX: Final = 60
SHOWN_MAX_CHARS: Final = 80
ALLOWED_MAX: Final = 20
"""Values of an enumeration that are told."""
_WORDS: Final = {
    "integer": "an integer", "number": "a number", "string": "text", "boolean": "true or false", "null": "null",
    "array": "a list", "object": "an object",
}  # fmt: skip
_FORMATS: Final[Mapping[str, tuple[Any, str]]] = {
    "date-time": (datetime, "a time such as 2026-01-31T12:00:00Z"),
    "date": (date, "a date such as 2026-01-31"),
    "time": (time, "a time of day such as 12:00:00"),
    "duration": (timedelta, "a duration such as PT5M"),
    "uuid": (UUID, "a UUID"),
    "decimal": (Decimal, "a decimal number"),
    "base64": (bytes, "text in base64"),
}


class WrongValue(BadRequest):
    """A value does not fit what the program that gets it has published. ``problems`` has its place and the reason."""

    def __init__(self, reason: str, problems: Sequence[Problem], takes: str = "") -> None:
        """``takes``: what would fit, in words."""
        super().__init__(reason)
        self.problems = list(problems)
        self._takes = takes

    @property
    def without_value(self) -> str:
        """The places and what is allowed there."""
        texts = [f"{each.path}: {each.reason.partition(', not ')[0]}" for each in self.problems]
        return "; ".join([*texts, self._takes] if self._takes else texts)


class _Budget:
    """How much may be looked at yet."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = CHECKS_MAX


class _Bound(NamedTuple):
    """A keyword that bounds a number or a size: how it compares with the bound, and in words."""

    holds: Callable[[Any, Any], bool]
    words: str


_NUMBER_BOUNDS: Final = {
    "minimum": _Bound(operator.ge, "at least {}"),
    "maximum": _Bound(operator.le, "at most {}"),
    "exclusiveMinimum": _Bound(operator.gt, "more than {}"),
    "exclusiveMaximum": _Bound(operator.lt, "less than {}"),
}
_TEXT_BOUNDS: Final = {
    "minLength": _Bound(operator.ge, "text of at least {} characters"),
    "maxLength": _Bound(operator.le, "text of at most {} characters"),
}
_LIST_BOUNDS: Final = {
    "minItems": _Bound(operator.ge, "a list of at least {} items"),
    "maxItems": _Bound(operator.le, "a list of at most {} items"),
}


def find_problem(schema: object, value: object, at: str = "") -> Problem | None:
    """The first place at which a value, as `msgspec.json.decode` gives it, does not fit."""
    return _find(schema, value, at, _Budget(), 0)


def find_constant_problem(
    schema: Mapping[str, object], constants: Mapping[str, object], evaluated: Collection[str]
) -> Problem | None:
    """The same of an object of which only some values are known by now; the others are ``evaluated`` later."""
    properties = schema.get("properties")
    known = cast("dict[str, object]", properties) if isinstance(properties, dict) else {}
    any_value: dict[str, object] = {name: True for name in evaluated if name in known}
    partial: dict[str, object] = {**schema, "properties": {**known, **any_value}}
    return find_problem(partial, {**constants, **dict.fromkeys(evaluated)})


def shown(value: object) -> str:
    """Return a value in a message: its JSON, cut."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_MAX_CHARS else text[:SHOWN_MAX_CHARS] + " …"


def _find(schema: object, value: object, at: str, budget: _Budget, depth: int) -> Problem | None:
    budget.left -= 1
    if not isinstance(schema, dict) or budget.left < 0 or depth > DEPTH_MAX:
        return None
    rules = cast("dict[str, Any]", schema)
    if "anyOf" in rules:
        return _find_in_any(rules["anyOf"], value, at, budget, depth)
    if isinstance(rules.get("enum"), list):
        allowed: list[object] = rules["enum"]
        if any(type(one) is type(value) and one == value for one in allowed):
            return None
        return _problem(at, value, f"one of {', '.join(map(shown, allowed[:ALLOWED_MAX]))}")
    types = rules.get("type")
    names = [types] if isinstance(types, str) else cast("list[str]", types) if isinstance(types, list) else None
    if names is not None and not any(_is(name, value) for name in names):
        return _problem(at, value, " or ".join(_WORDS.get(name, str(name)) for name in names))
    return next(_parts(rules, value, at, budget, depth), None)


def _find_in_any(options: object, value: object, at: str, budget: _Budget, depth: int) -> Problem | None:
    """Of several forms that a value may have: with one that is nearly it, what is wrong with that one."""
    if not isinstance(options, list):
        return None
    wrong: list[Problem] = []
    for option in cast("list[object]", options):
        found = _find(option, value, at, budget, depth + 1)
        if found is None:
            return None
        wrong.append(found)
    deeper = [problem for problem in wrong if problem.path != at]
    if len(deeper) == 1:
        return deeper[0]
    texts = dict.fromkeys(problem.reason.partition("must be ")[2].rpartition(", not ")[0] for problem in wrong)
    return _problem(at, value, " or ".join(texts)) if wrong and all(texts) else (wrong[0] if wrong else None)


def _parts(rules: dict[str, Any], value: object, at: str, budget: _Budget, depth: int) -> Iterator[Problem]:
    if isinstance(value, str):
        type_, words = _FORMATS.get(rules.get("format", ""), (None, ""))
        if type_ is not None and not _converts(value, type_):
            yield _problem(at, value, words)
        yield from _bounds(_TEXT_BOUNDS, rules, value, len(value), at)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _bounds(_NUMBER_BOUNDS, rules, value, value, at)
    elif isinstance(value, list):
        items = cast("list[object]", value)
        yield from _bounds(_LIST_BOUNDS, rules, items, len(items), at)
        first = rules.get("prefixItems")
        each = cast("list[object]", first) if isinstance(first, list) else []
        for index, item in enumerate(items):
            if budget.left < 0:
                return
            schema = each[index] if index < len(each) else rules.get("items")
            if (found := _find(schema, item, f"{at}[{index}]", budget, depth + 1)) is not None:
                yield found
    elif isinstance(value, dict):
        yield from _fields(rules, cast("dict[str, object]", value), at, budget, depth)


def _fields(rules: dict[str, Any], value: dict[str, object], at: str, budget: _Budget, depth: int) -> Iterator[Problem]:
    properties = cast("dict[str, object]", rules.get("properties") or {})
    others = rules.get("additionalProperties")
    for name in cast("list[str]", rules.get("required") or ()):
        if name not in value:
            yield Problem(_under(at, name), "is missing")
    for name, item in value.items():
        if budget.left < 0:
            return
        if name not in properties and others is False:
            known = f": there {'are' if len(properties) > 1 else 'is'} {', '.join(properties)}" if properties else ""
            yield Problem(_under(at, name), f"is not one of its names{known}")
        found = _find(properties.get(name, others), item, _under(at, name), budget, depth + 1)
        if found is not None:
            yield found


def _bounds(
    bounds: Mapping[str, _Bound], rules: dict[str, Any], value: object, size: float, at: str
) -> Iterator[Problem]:
    for keyword, bound in bounds.items():
        limit = rules.get(keyword)
        if isinstance(limit, (int, float)) and not bound.holds(size, limit):
            yield _problem(at, value, bound.words.format(limit))


def _is(name: str, value: object) -> bool:
    match name:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return True


def _converts(value: str, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return False
    return True


def _under(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _problem(at: str, value: object, allowed: str) -> Problem:
    return Problem(at, f"must be {allowed}, not {shown(value)}")
