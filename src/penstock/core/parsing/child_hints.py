"""What a call takes of its child's result, though no end of the child gives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.core.expression import Expression, fields_of
from penstock.core.graph.definition import Callee, Definition, StepType
from penstock.core.parsing.strict_json import join_path, quote

Called = tuple[str, int]
"""Id and version of a definition that is called; 0: the active one."""
_SHOWN_MAX: Final = 10


def called_by(definition: Definition) -> list[Called]:
    """Which it calls and reads results of, each once."""
    callees = [step.callee for step in definition.steps if step.callee is not None]
    return list(dict.fromkeys((callee.definition_id, callee.version) for callee in callees))


def child_hints(definition: Definition, called: Mapping[Called, Definition]) -> Iterable[tuple[str, str]]:
    """Paths, and what is to be said of them. ``called``: as far as they are known; one that calls itself is."""
    for step in definition.steps:
        callee = step.callee
        if callee is None:
            continue
        child = definition if callee.definition_id == definition.id and not callee.version else called.get(_key(callee))
        given = None if child is None else fields_given(child)
        if given is None:
            continue
        read: list[tuple[str, object]] = [(join_path("output", name), value) for name, value in callee.output]
        if step.for_each is not None:
            read += [("forEach.collect", step.for_each.collect), ("forEach.until", step.for_each.until)]
        for place, value in read:
            if not isinstance(value, Expression) or value.is_template:
                continue
            for name in sorted(fields_of(value.source, "result") - given):
                gives = ", ".join(sorted(given)[:_SHOWN_MAX]) or "nothing"
                text = f"no end of {quote(callee.definition_id)} gives {quote(name)}: the result has {gives}"
                yield f"steps[{step.index}].{place}", text


def fields_given(child: Definition) -> frozenset[str] | None:
    """The fields of its result, whichever of its ends it comes to; None: it has none of its own, but its variables,
    which nobody knows."""
    ends = [step for step in child.steps if step.type is StepType.END and step.error_code is None]
    if not ends or any(end.result is None for end in ends):
        return None
    return frozenset(name for end in ends for name, _ in end.result or ())


def _key(callee: Callee) -> Called:
    return callee.definition_id, callee.version
