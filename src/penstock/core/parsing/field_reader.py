"""Reads the fields of JSON objects by name and type, and gathers what is wrong with them.

The rules that hold for every field of a definition are here: null and (in an optional field) the empty string count
as absent, true is no number, a field nobody asked for is refused. Must not know which fields there are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from penstock.core.graph.definition import InvalidDefinition, Problem
from penstock.core.graph.near_names import ASKED_MAX, meant
from penstock.core.parsing.strict_json import join_path


class Problems:
    """The problems of one upload in the order they were found, at most ``max_count`` and how many more there are."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._found: dict[Problem, int | None] = {}
        self._left_out = 0
        self._names_left = ASKED_MAX

    def add(self, path: str, reason: str, at: int | None = None) -> None:
        """Note a problem. The same one twice is one. ``at``: the character of the text there, counted from 0."""
        problem = Problem(_encodable(path), _encodable(reason))
        if problem in self._found:
            return
        if len(self._found) < self._max_count:
            self._found[problem] = at
        else:
            self._left_out += 1

    def add_unknown(self, path: str, name: str, known: Collection[str]) -> None:
        """Note a field that nobody asked for, with the one of ``known`` that may be meant."""
        advice = None
        if self._names_left and not self._left_out:
            self._names_left -= 1
            advice = meant(name, known)
        self.add(path, "unknown field" if advice is None else f"unknown field; {advice}")

    @property
    def are_expressions_read(self) -> bool:
        """Return whether none of them has a problem, nor may have one that was left out."""
        return not self._left_out and all(at is None for at in self._found.values())

    def raise_if_any(self) -> None:
        """Raise InvalidDefinition when a problem was noted."""
        found = list(self._found)
        if self._left_out:
            found.append(Problem("", f"and {self._left_out} more problems"))
        if found:
            places = {problem: at for problem, at in self._found.items() if at is not None}
            raise InvalidDefinition(found, places)


class FieldReader:
    """The fields of one JSON object. ``given`` gathers what was read, in the order of reading: the canonical form."""

    def __init__(self, fields: dict[str, object], path: str, problems: Problems) -> None:
        self.given: dict[str, object] = {}
        self._fields = fields
        self._path = path
        self._problems = problems
        self._asked: dict[str, None] = {}

    def refuse(self, name: str, reason: str) -> None:
        """Note a problem with the field."""
        self._problems.add(self.at(name), reason)

    def at(self, name: str) -> str:
        """Return the path of the field."""
        return join_path(self._path, name)

    def text(self, name: str, *, max_chars: int, required: bool = False) -> str | None:
        """A string that is not empty, or None."""
        value = self._take(name, required=required)
        if value is None:
            return None
        if not isinstance(value, str):
            self._refuse_type(name, "a string", value)
            return None
        if len(value) > max_chars:
            self.refuse(name, f"longer than {max_chars} characters")
            return None
        self.given[name] = value
        return value

    def whole_number(self, name: str) -> int | None:
        """An int (3.0 is none), or None."""
        value = self._take(name, required=False)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            self._refuse_type(name, "a whole number", value)
            return None
        self.given[name] = value
        return value

    def number(self, name: str) -> int | float | None:
        """Return an int or float, or None."""
        value = self._take(name, required=False)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self._refuse_type(name, "a number", value)
            return None
        self.given[name] = value
        return value

    def whole_number_or_text(self, name: str, *, max_chars: int) -> int | str | None:
        """An int, a string that is not empty, or None."""
        return (
            self.text(name, max_chars=max_chars) if isinstance(self._fields.get(name), str) else self.whole_number(name)
        )

    def text_or_object(self, name: str, *, max_chars: int, required: bool = False) -> str | dict[str, object] | None:
        """A string that is not empty, an object, or None."""
        if isinstance(self._fields.get(name), dict):
            return self.fields(name, required=required)
        return self.text(name, max_chars=max_chars, required=required)

    def flag(self, name: str) -> bool:
        """True or false; false when absent."""
        value = self._take(name, required=False)
        if value is None:
            return False
        if not isinstance(value, bool):
            self._refuse_type(name, "true or false", value)
            return False
        self.given[name] = value
        return value

    def fields(self, name: str, *, required: bool = False) -> dict[str, object] | None:
        """Return an object, or None. ``given`` holds it as it is; the caller may put a normalized one there."""
        value = self._take(name, required=required)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._refuse_type(name, "an object", value)
            return None
        self.given[name] = cast("dict[str, object]", value)
        return cast("dict[str, object]", value)

    def items(self, name: str, *, required: bool = False) -> list[object] | None:
        """Return an array, or None. ``given`` holds it as it is; the caller may put a normalized one there."""
        value = self._take(name, required=required)
        if value is None:
            return None
        if not isinstance(value, list):
            self._refuse_type(name, "an array", value)
            return None
        self.given[name] = cast("list[object]", value)
        return cast("list[object]", value)

    def ignore(self, name: str) -> None:
        """Let the field pass, whatever it holds."""
        self._asked[name] = None

    def refuse_unknown(self) -> None:
        """Note a problem for each field that was not asked for."""
        for name in self._fields:
            if name not in self._asked:
                self._problems.add_unknown(self.at(name), name, self._asked)

    def _take(self, name: str, *, required: bool) -> object | None:
        self._asked[name] = None
        value = self._fields.get(name)
        if value is None or value == "":
            if required:
                self.refuse(name, "required")
            return None
        return value

    def _refuse_type(self, name: str, wanted: str, value: object) -> None:
        self.refuse(name, f"must be {wanted}, not {kind_of(value)}")


def kind_of(value: object) -> str:
    """What a reader calls this JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "an array"
    return "an object" if isinstance(value, dict) else "a number"


def _encodable(text: str) -> str:
    """Problems quote what was sent, which may hold lone surrogates; answers can't."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
