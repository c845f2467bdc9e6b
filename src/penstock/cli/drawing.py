"""Pictures of a definition as text: Mermaid, which code hosts and editors draw.

Relies on nothing but the definition. Each type of step has the shape that BPMN gives it as near as Mermaid can: tasks
are boxes, gateways diamonds, waits rounded, ends circles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, assert_never

from penstock.core.graph.definition import Catch, Definition, Step, StepType

LABEL_MAX_CHARS = 60


class DrawnEdge(NamedTuple):
    """A way from one step to another."""

    target: int
    label: str
    boundary: bool
    """Taken by a boundary event, or to a handler: drawn dotted."""
    event: Literal["timer", "error"] | None = None
    """Which event."""


def mermaid(definition: Definition) -> str:
    """Return a `flowchart TD` with a node per step, in their order; an edge's label is its condition or its event."""
    lines = ["flowchart TD"]
    steps = definition.steps[: definition.undo_step]
    lines += [f"  s{step.index}{_shape(step)}" for step in steps]
    for step in steps:
        for edge in edges(step):
            arrow = "-.->" if edge.boundary else "-->"
            label = f'|"{_label(edge.label)}"|' if edge.label else ""
            lines.append(f"  s{step.index} {arrow}{label} s{edge.target}")
    return "\n".join(lines)


def edges(step: Step) -> Iterator[DrawnEdge]:
    """The ways out of a step, in the order in which they are tried. A gateway's join is none."""
    for condition, target in step.conditions:
        yield DrawnEdge(target, condition.source, boundary=False)
    for head in step.branches:
        yield DrawnEdge(head, "", boundary=False)
    if step.next is not None:
        yield DrawnEdge(step.next, "otherwise" if step.conditions else "", boundary=False)
    for event in step.boundaries:
        if isinstance(event, Catch):
            label = f"error {', '.join(event.codes)}" if event.codes else "any error"
        else:
            label = f"after {event.duration}" if event.interrupting else f"after {event.duration}, beside"
        yield DrawnEdge(event.target, label, boundary=True, event="error" if isinstance(event, Catch) else "timer")
    if step.compensation is not None:
        yield DrawnEdge(step.compensation, "undone by", boundary=True)


def _shape(step: Step) -> str:
    name = step.name if step.name == step.id else f"{step.name}\n{step.id}"
    if step.for_each is not None:
        name += f"\nfor each of {step.for_each.items.source.removeprefix('${').removesuffix('}')}"
    if step.message is not None:
        name += f"\nmessage {step.message.name}"
    name = _label(name)
    match step.type:
        case StepType.SERVICE_TASK:
            return f'["{name}"]'
        case StepType.USER_TASK:
            return f'[/"{name}"/]'
        case StepType.TRANSFORMATION:
            return f'[["{name}"]]'
        case StepType.WAIT:
            return f'("{name}")'
        case StepType.CALL_ACTIVITY:
            return f'{{{{"{name}"}}}}'
        case StepType.COMPENSATE:
            return f'>"{name}"]'
        case StepType.DECISION | StepType.PARALLEL_GATEWAY | StepType.JOIN_GATEWAY:
            return f'{{"{name}"}}'
        case StepType.END:
            return f'(("{name}"))'
        case _:
            assert_never(step.type)


def _label(text: str) -> str:
    """Text between quotes in Mermaid: what it would read as its own is written as an entity."""
    lines = [line if len(line) <= LABEL_MAX_CHARS else f"{line[: LABEL_MAX_CHARS - 1]}…" for line in text.split("\n")]
    marks = {ord(character): f"#{ord(character)};" for character in '"#&<>`\\|[]{}()'}
    return "<br>".join(line.translate(marks) for line in lines)
