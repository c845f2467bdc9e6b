"""JSON text to a tree and back with nothing lost: order, whole numbers of any size, and no silent repairs.

Python's own json module reads it, because its hooks see what msgspec hides: an object with the same key twice, a
number without a double, whole numbers beyond 64 bits. What is wrong with values (not with the syntax) is left in
the tree as a mark and told by `find_flaws` with its path, so that one answer can hold all of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Final, cast

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SHOWN_MAX_CHARS: Final = 80
_RAW_DIGITS_MAX: Final = 4_000
"""Python refuses to read a whole number of more than 4,300 digits; find_flaws has a lower limit anyway."""


class BadJson(ValueError):
    """The text is not JSON. The message says what and where."""


class RepeatedKeys(dict[str, object]):
    """An object in whose text a key stood twice; the last value won. ``find_flaws`` tells it."""

    repeated: list[str]


class _HugeNumber:
    """Stands where the text has a whole number of more digits than are ever read."""


def read_json(body: bytes) -> object:
    """The tree of a JSON text in UTF-8 (a byte order mark is skipped). Raises BadJson."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadJson(f"not UTF-8: byte {error.start} is {body[error.start]:#04x}") from error
    try:
        return cast(object, json.loads(text, object_pairs_hook=_object, parse_int=_integer))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno} (character {error.pos})"
        raise BadJson(f"not JSON: {error.msg}, at {where}") from error
    except RecursionError as error:
        # The C scanner counts against the recursion limit and stops cleanly, long after any nesting_max_levels.
        raise BadJson("nested too deeply") from error


def write_json(tree: object) -> str:
    """Compact JSON text that keeps the order of objects and any Unicode as it is. The tree has no flaws."""
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    marked = RepeatedKeys(found)
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for key, _ in pairs:
        if key in seen:
            repeated[key] = None
        seen.add(key)
    marked.repeated = list(repeated)
    return marked


def _integer(text: str) -> object:
    return int(text) if len(text) <= _RAW_DIGITS_MAX else _HugeNumber()


def quote(text: str) -> str:
    """Return the text as JSON shows it, cut to 80 characters, fit for any encoding and log."""
    if len(text) > _SHOWN_MAX_CHARS:
        text = text[:_SHOWN_MAX_CHARS] + "…"
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")


def join_path(path: str, key: str | int) -> str:
    """The path of what stands under the key: ``a.b``, ``a[3]``, ``a["x > 1"]``."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if _PLAIN_KEY.fullmatch(key) is None or len(key) > _SHOWN_MAX_CHARS:
        return f"{path}[{quote(key)}]"
    return f"{path}.{key}" if path else key


def find_flaws(tree: object, *, nesting_max_levels: int, number_max_digits: int) -> Iterator[tuple[str, str]]:
    """(path, reason) of every value that JSON or PostgreSQL's jsonb can't hold, of repeated keys and of nesting
    beyond the limit (what is deeper is not looked at). Iterative; its memory grows with the depth only."""
    bound = 10**number_max_digits
    keys: list[str | int] = []
    levels: list[Iterator[tuple[str | int, object]]] = [iter([("", tree)])]
    while levels:
        for key, value in levels[-1]:
            for reason in _flaws_of(value, bound, number_max_digits):
                yield _path([*keys, key]), reason
            if not isinstance(value, (dict, list)):
                continue
            if len(levels) > nesting_max_levels:
                yield _path([*keys, key]), f"nested more than {nesting_max_levels} levels deep"
                continue
            keys.append(key)
            levels.append(_children(cast("dict[str, object] | list[object]", value)))
            break
        else:
            levels.pop()
            if keys:
                keys.pop()


def _children(container: dict[str, object] | list[object]) -> Iterator[tuple[str | int, object]]:
    if isinstance(container, dict):
        return iter(container.items())
    return iter(enumerate(container))


def _path(keys: list[str | int]) -> str:
    """Return the path along the keys; the first is the root's, which has none."""
    path = ""
    for key in keys[1:]:
        path = join_path(path, key)
    return path


def _flaws_of(value: object, bound: int, number_max_digits: int) -> Sequence[str]:
    """What is wrong with the value itself, its children left out."""
    if isinstance(value, str):
        return _flaws_of_text(value)
    if value is None or isinstance(value, (bool, list)):
        return ()
    if isinstance(value, int):
        return () if -bound < value < bound else (f"a whole number of more than {number_max_digits} digits",)
    if isinstance(value, float):
        return () if math.isfinite(value) else ("not a number that JSON and an IEEE double can hold",)
    if isinstance(value, dict):
        return _flaws_of_keys(cast("dict[str, object]", value))
    if isinstance(value, _HugeNumber):
        return (f"a whole number of more than {number_max_digits} digits",)
    raise TypeError(f"{type(value).__name__} is not part of a JSON tree")


def _flaws_of_keys(found: dict[str, object]) -> Sequence[str]:
    reasons = [f"the key {quote(key)} {reason}" for key in found for reason in _flaws_of_text(key)]
    if isinstance(found, RepeatedKeys):
        reasons += [f"the key {quote(key)} stands here more than once" for key in found.repeated]
    return reasons


def _flaws_of_text(text: str) -> Sequence[str]:
    if text.isascii() and "\0" not in text:
        return ()
    reasons: list[str] = []
    if "\0" in text:
        reasons.append("has a NUL character")
    if _SURROGATE.search(text) is not None:
        reasons.append("has a lone surrogate")
    return reasons
