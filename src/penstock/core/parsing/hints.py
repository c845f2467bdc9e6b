"""What of a definition may be meant otherwise. None of it keeps one from being uploaded; of one with problems it is
told of what can be read (`parsing.readable_part`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Final, cast

import msgspec

from penstock.core.expression import TEMPLATE, Expression, holds_expressions, is_joined
from penstock.core.graph.definition import Definition, Step, StepType
from penstock.core.parsing.child_hints import Called, child_hints
from penstock.core.parsing.condition_hints import ConditionHints
from penstock.core.parsing.draft import FIELDS_BY_TYPE
from penstock.core.parsing.flow_hints import flow_hints
from penstock.core.parsing.form_hints import form_hints
from penstock.core.parsing.strict_json import join_path
from penstock.wire.drafts import HintKind

UNUSED_MAX: Final = 1_000
_AS_TEMPLATE: Final = f'for a text of values write the whole as {{"{TEMPLATE}": …}}'
_COMMON: Final = frozenset({"id", "name", "type", "description"})


class Hint(msgspec.Struct, frozen=True):
    """Where, in the form of a `Problem`'s path, and what."""

    path: str
    text: str
    kind: HintKind

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class _Fields(msgspec.Struct):
    steps: list[dict[str, msgspec.Raw]]
    """Those that can't be read are empty."""


def hints(definition: Definition, called: Mapping[Called, Definition] | None = None) -> list[Hint]:
    """By step, then of the ways between them, of calls (``called``: the definitions that are known of those that it
    calls), of forms for people, then the fields that do nothing; at most `UNUSED_MAX` of each kind."""
    conditions = ConditionHints()
    return [
        *_most(Hint(*each) for step in definition.steps for each in conditions.of(step)),
        *_most(hint for step in definition.steps for hint in _of_texts(step)),
        *_most(Hint(path, text, "FLOW") for path, text in flow_hints(definition)),
        *_most(Hint(path, text, "CHILD") for path, text in child_hints(definition, called or {})),
        *(Hint(path, text, "FORM") for path, text in form_hints(definition)),
        *_most(
            chain(_unused(definition.content), (hint for step in definition.steps for hint in _idle(step, definition)))
        ),
    ]


def _most(found: Iterable[Hint]) -> Iterable[Hint]:
    return islice(found, UNUSED_MAX)


def _idle(step: Step, definition: Definition) -> Iterable[Hint]:
    """Fields that do nothing beside others, or without them."""
    path = f"steps[{step.index if step.compensates is None else step.compensates}]"
    path = path if step.compensates is None else f"{path}.compensation"
    given = (("retryBackoff", step.backoff), ("retryOn", step.retry_on), ("noRetryOn", step.no_retry_on))
    if not step.retry_count:
        for name, value in given:
            if value:
                yield Hint(f"{path}.{name}", "does nothing without retryCount: the job is not tried again", "UNUSED")
    if step.conditions and step.next is not None and definition.id:
        text = (
            "never used: beside conditions one of them has to be true; write the way for the rest as `true`, the last"
        )
        yield Hint(f"{path}.nextStep", text, "UNUSED")


def _of_texts(step: Step) -> Iterable[Hint]:
    """Texts with `${ }` that stay as they are, and expressions that look like texts with more than one."""
    path = f"steps[{step.index}]"
    named: list[tuple[str, object]] = []
    callee = step.callee
    for field, assignments in (
        ("transformations", step.transformations),
        ("output", step.result or ()),
        ("input", (callee.input or ()) if callee else ()),
        ("output", callee.output if callee else ()),
    ):
        named += ((join_path(f"{path}.{field}", name), value) for name, value in assignments)
    if callee is not None:
        named.append((f"{path}.businessKey", callee.business_key))
    if step.message is not None:
        named.append((f"{path}.message.correlationKey", step.message.key))
    for where, value in named:
        if isinstance(value, Expression):
            if not value.is_template and value.source.startswith("${") and is_joined(value.source):
                text = f"is one expression: what stands between }} and ${{ is an operator; {_AS_TEMPLATE}"
                yield Hint(where, text, "TEMPLATE")
        else:
            yield from (
                Hint(place, f"stays as it is, with its ${{ }}; {_AS_TEMPLATE}", "TEMPLATE")
                for place in _literal_texts(where, value)
            )


def _literal_texts(path: str, value: object) -> Iterable[str]:
    """Where in a literal value a text is with `${ }`. Definitions are nested to their limit, no deeper."""
    if isinstance(value, str):
        if holds_expressions(value):
            yield path
    elif isinstance(value, dict):
        for name, item in cast("dict[str, object]", value).items():
            yield from _literal_texts(join_path(path, name), item)
    elif isinstance(value, list):
        for at, item in enumerate(cast("list[object]", value)):
            yield from _literal_texts(f"{path}[{at}]", item)


def _unused(content: str) -> Iterable[Hint]:
    """Fields that a definition keeps though the type of their step has none such."""
    for index, step in enumerate(msgspec.json.decode(content, type=_Fields).steps):
        if not step:
            continue
        kind = StepType(msgspec.json.decode(step["type"], type=str))
        text = f"{kind} does not use it: it is kept, and does nothing"
        for name in sorted(step.keys() - FIELDS_BY_TYPE[kind] - _COMMON):
            yield Hint(f"steps[{index}].{name}", text, "UNUSED")
