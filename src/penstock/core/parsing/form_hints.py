"""What of the forms for people (`metadata.forms`) may be meant otherwise.

The engine reads of them only `summary`, and a page the rest. What neither understands they leave out without a word, so
it is told where it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Final, cast

from penstock.core.expression import Expression, ExpressionError, parse
from penstock.core.graph.definition import Definition, StepType
from penstock.core.parsing.field_reader import kind_of
from penstock.core.parsing.strict_json import join_path, quote

SUMMARY_MAX_CHARS: Final = 500
"""Of an expression that names a task, and of the name."""
FORM_HINTS_MAX: Final = 1_000
_NAMES_MAX: Final = 1_000
"""Among so many what was meant is looked for."""
_COMPARED_MAX: Final = 1_000
"""So many are compared for it, of at most `_COMPARED_MAX_CHARS`: 25 ms as a rule, 0.1 s for names that are made to take
long. All of a draft of 31 KB took 4.7 s."""
_COMPARED_MAX_CHARS: Final = 32
_ALIKE: Final = 0.8
_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object")

FoundHints = Iterable[tuple[str, str]]
"""Paths, and what is to be said of them."""


def form_hints(definition: Definition) -> FoundHints:
    """At most `FORM_HINTS_MAX`."""
    return islice(_of_forms(definition), FORM_HINTS_MAX)


def _of_forms(definition: Definition) -> FoundHints:
    metadata = definition.metadata
    if not isinstance(metadata, dict) or "forms" not in metadata:
        return
    forms = cast("dict[str, object]", metadata)["forms"]
    if not isinstance(forms, dict):
        yield "metadata.forms", f"must be an object of forms by the ids of user tasks, not {kind_of(forms)}"
        return
    known = _Known(_names(definition, cast("dict[str, object]", metadata), cast("dict[str, object]", forms)))
    for step_id, form in cast("dict[str, object]", forms).items():
        path = join_path("metadata.forms", step_id)
        step = definition.step(step_id)
        if step is None or step.type is not StepType.USER_TASK:
            yield path, "no user task has this id: nobody sees the form"
        if not isinstance(form, dict):
            yield path, f"must be an object with `schema` and `summary`, not {kind_of(form)}"
            continue
        given = cast("dict[str, object]", form)
        if "summary" in given:
            yield from _of_summary(f"{path}.summary", given["summary"], known)
        if "schema" in given:
            yield from _of_schema(f"{path}.schema", given["schema"])


class _Known:
    """The names that are known, and which of them is meant by another one."""

    def __init__(self, names: Mapping[str, None]) -> None:
        self.names = names
        self._short = [name for name in names if len(name) <= _COMPARED_MAX_CHARS]
        self._meant: dict[str, str | None] = {}
        self._left = _COMPARED_MAX

    def meant(self, name: str) -> str | None:
        """None: nothing is like it, or too many were asked for."""
        if name not in self._meant and len(name) <= _COMPARED_MAX_CHARS and len(self._short) <= self._left:
            self._left -= len(self._short)
            self._meant[name] = next(iter(get_close_matches(name, self._short, 1, _ALIKE)), None)
        return self._meant.get(name)


def _of_summary(path: str, summary: object, known: _Known) -> FoundHints:
    if not isinstance(summary, str):
        yield path, f"must be an expression, as text, not {kind_of(summary)}"
        return
    if len(summary) > SUMMARY_MAX_CHARS:
        yield path, f"is longer than {SUMMARY_MAX_CHARS} characters: tasks go without it"
        return
    try:
        names = parse(summary).names
    except ExpressionError as error:
        yield path, f"tasks go without it: {error}"
        return
    for name in sorted(names - known.names.keys()):
        if meant := known.meant(name):
            yield path, f"nothing else here is called {quote(name)}: is {quote(meant)} meant?"


def _of_schema(path: str, schema: object) -> FoundHints:
    if not isinstance(schema, dict):
        yield path, f"must be an object, not {kind_of(schema)}"
        return
    given = cast("dict[str, object]", schema)
    kind = given.get("type", "string")
    if kind not in _TYPES:
        shown = quote(kind) if isinstance(kind, str) else kind_of(kind)
        yield f"{path}.type", f"must be one of {', '.join(_TYPES)}, not {shown}: it is asked for as JSON"
    properties = given.get("properties", {})
    inner = cast("dict[str, object]", properties) if isinstance(properties, dict) else {}
    if not isinstance(properties, dict):
        yield f"{path}.properties", f"must be an object of fields, not {kind_of(properties)}"
    required = given.get("required", [])
    if not isinstance(required, list):
        yield f"{path}.required", f"must be a list of names of fields, not {kind_of(required)}"
    for at, name in enumerate(cast("list[object]", required) if isinstance(required, list) else ()):
        if not isinstance(name, str) or name not in inner:
            shown = quote(name) if isinstance(name, str) else kind_of(name)
            yield f"{path}.required[{at}]", f"no field of the form is called {shown}"
    for name, field in inner.items():
        yield from _of_schema(join_path(f"{path}.properties", name), field)
    if "items" in given:
        yield from _of_schema(f"{path}.items", given["items"])


def _names(definition: Definition, metadata: Mapping[str, object], forms: Mapping[str, object]) -> dict[str, None]:
    """Variables that the definition itself sets, reads or shows."""
    found: list[str] = []
    example = metadata.get("exampleVariables")
    found += cast("dict[str, object]", example) if isinstance(example, dict) else ()
    for form in forms.values():
        schema = cast("dict[str, object]", form).get("schema") if isinstance(form, dict) else None
        fields = cast("dict[str, object]", schema).get("properties") if isinstance(schema, dict) else None
        found += cast("dict[str, object]", fields) if isinstance(fields, dict) else ()
    for step in definition.steps:
        assigned = (*step.transformations, *(step.callee.output if step.callee else ()))
        read = (*(condition for condition, _ in step.conditions), *(value for _, value in assigned))
        found += (name for name, _ in assigned)
        found += (name for one in read if isinstance(one, Expression) for name in one.names)
    return dict.fromkeys(found[:_NAMES_MAX])
