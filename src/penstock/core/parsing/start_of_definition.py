"""Reads the field `start` of a definition: what each of its starts asks for, as if its request did.

What a request gives as text may be an expression here, which is evaluated with the start's variables: the keys, and
when it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from penstock.core.expression import Expression, ExpressionError
from penstock.core.expression.work import TooMuchWork, Work
from penstock.core.parsing.draft_expressions import DraftCompiler, is_expression
from penstock.core.parsing.field_reader import FieldReader, Problems
from penstock.core.rules.start_rules import (
    FIELD,
    FIELDS,
    GivenRule,
    GivenStart,
    StartOfDefinition,
    read_rules,
    with_text,
)
from penstock.errors import BadRequest

_STAND_INS: Final = {"startAt": "2000-01-01T00:00:00Z", "delay": "PT1S"}
"""For what is known with the variables only, while the rest is checked."""


def read_start(
    reader: FieldReader, compiler: DraftCompiler, problems: Problems, max_chars: int
) -> StartOfDefinition | None:
    """Return the field, or None."""
    given = reader.fields(FIELD)
    if not given:
        reader.given.pop(FIELD, None)
        return None
    inner = FieldReader(given, FIELD, problems)
    found = _Reading(inner, compiler, problems)
    for name in _STAND_INS:
        text = inner.text(name, max_chars=max_chars)
        if text is not None:
            found.given = with_text(found.given, name, found.take(name, text))
    for name in FIELDS:
        found.read_rule(name)
    inner.refuse_unknown()
    reader.given[FIELD] = inner.given
    try:
        read_rules(found.given)
    except BadRequest as error:
        place, _, reason = error.reason.partition(": ")
        problems.add(f"{FIELD}.{place}", reason)
    return StartOfDefinition(found.given, tuple(found.expressions))


def knowing(variables: Mapping[str, object], now: datetime, work: Work) -> Callable[[Expression], object]:
    """What evaluates the expressions of `StartOfDefinition.rules`, of a start with these variables. Raises
    BadRequest."""

    def evaluate(expression: Expression) -> object:
        try:
            return work.evaluate(expression, variables, now)
        except (ExpressionError, TooMuchWork) as error:
            raise BadRequest(f"{FIELD}: `{expression.source}`: {error}") from None

    return evaluate


class _Reading:
    """What was read so far."""

    def __init__(self, reader: FieldReader, compiler: DraftCompiler, problems: Problems) -> None:
        self._reader, self._compiler, self._problems = reader, compiler, problems
        self.given = GivenStart()
        self.expressions: list[tuple[str, Expression]] = []

    def take(self, place: str, source: str) -> str:
        """The text, or for an expression something that stands in its place."""
        if not is_expression(source):
            return source
        compiled = self._compiler.compile(source, f"{FIELD}.{place}")
        if compiled is not None:
            self.expressions.append((place, compiled))
        return _STAND_INS.get(place, "key")

    def read_rule(self, name: str) -> None:
        fields = self._reader.fields(name)
        if fields is None:
            return
        key = fields.get("key")
        for field in (unknown := sorted(fields.keys() - FIELDS[name])):
            self._problems.add(f"{FIELD}.{name}.{field}", "unknown field")
        fields = {field: value for field, value in fields.items() if field not in unknown}
        if isinstance(key, str):
            fields = fields | {"key": self.take(f"{name}.key", key)}
        try:
            rule: Any = msgspec.convert(fields, GivenRule)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).replace("`", "").partition(" - at $")
            self._problems.add(f"{FIELD}.{name}{path}", f"{reason[0].lower()}{reason[1:]}")
        else:
            self.given = msgspec.structs.replace(self.given, **{name: rule})
