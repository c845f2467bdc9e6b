"""Whether what happened is what a scenario expects: values with a few words for "any", "absent" and "at least"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MISSING = object()


def differs(expected: Any, actual: Any, where: str = "") -> str | None:
    """What is wrong with ``actual``, and where; None when it fits. Of objects the named members are looked at."""
    if isinstance(expected, Mapping):
        words = [key for key in expected if key.startswith("$")]
        if words:
            problem = next((key for key in words if not _holds(key, expected[key], actual)), None)
            return (
                None if problem is None else f"{where}: {problem} {expected[problem]!r} is not true of {_show(actual)}"
            )
        if not isinstance(actual, Mapping):
            return f"{where}: expected an object, got {_show(actual)}"
        return _first(differs(value, actual.get(key, MISSING), f"{where}.{key}") for key, value in expected.items())
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return f"{where}: expected {len(expected)} items, got {_show(actual)}"
        pairs = zip(expected, actual, strict=True)
        return _first(differs(each, other, f"{where}[{index}]") for index, (each, other) in enumerate(pairs))
    if type(expected) is not type(actual) or expected != actual:
        return f"{where}: expected {expected!r}, got {_show(actual)}"
    return None


def fits(expected: Any, actual: Any) -> bool:
    """Whether ``actual`` is what is expected."""
    return differs(expected, actual) is None


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _show(value: Any) -> str:
    return "nothing" if value is MISSING else repr(value)[:600]


def _holds(word: str, given: Any, actual: Any) -> bool:
    match word:
        case "$any":
            return actual is not MISSING
        case "$absent":
            return actual is MISSING or actual is None
        case "$contains":
            return given in str(actual)
        case "$min":
            return actual is not MISSING and actual is not None and actual >= given
        case "$max":
            return actual is not MISSING and actual is not None and actual <= given
        case "$not":
            return not fits(given, actual)
        case "$in":
            return any(fits(each, actual) for each in given)
        case "$length":
            return actual is not MISSING and fits(given, len(actual))
        case "$maxLength":
            return actual is not MISSING and len(actual) <= given
        case _:
            raise AssertionError(f"unknown word {word}")
