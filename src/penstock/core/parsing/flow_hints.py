"""Ways of a definition from which an instance can't go on: joins that no branch comes to, or one that is not theirs,
and ends without an END.

What is said here is true of every instance that goes such a way; whether one does, nobody knows. So nothing is refused.
The rules are those of `branches`: what they do is told before it happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.core.graph.definition import Catch, Definition, Step, StepType
from penstock.core.parsing.strict_json import join_path, quote

_VISITS_MAX: Final = 200_000
"""Steps that are looked at, of all blocks together: 0.1 s."""
_Edge = tuple[int, tuple[str | int, ...], int]
"""A way from a step: its index, the keys of the field that says it, and where it leads."""
_ENDS: Final = (
    "nothing comes after it, and no END: an instance of which this is the last branch stays open for ever; "
    "lead it to an END"
)


def flow_hints(definition: Definition) -> Iterator[tuple[str, str]]:
    """Paths, and what is to be said of them. Nothing of a definition of which only a part could be read."""
    if definition.id:
        yield from _Ways(definition).hints()


class _Ways:
    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._steps = definition.steps
        self._left = _VISITS_MAX
        self._walked: dict[int, list[_Edge]] = {}

    def hints(self) -> Iterator[tuple[str, str]]:
        """Of what is no branch of a gateway, from the first step on; and of the branches of each gateway."""
        for step in self._steps:
            if step.type is StepType.PARALLEL_GATEWAY and not any(
                target == step.join for *_, target in self._edges(step)
            ):
                text = "no branch leads here: what follows the join is never done, and without an END nothing goes on"
                yield f"steps[{step.index}].joinStep", text
        seen, pending = {0}, [0]
        while pending:
            step = self._steps[pending.pop()]
            if step.next is None and not step.conditions and step.type in _MAY_END:
                yield f"steps[{step.index}]", _ENDS
            for source, keys, target in self._leaving(step):
                if self._is_join(target):
                    yield self._path(source, keys), self._no_branch(target)
                elif target not in seen:
                    seen.add(target)
                    pending.append(target)

    def _no_branch(self, join: int) -> str:
        gateway = next((step.id for step in self._steps if step.join == join), None)
        of = "a gateway" if gateway is None else f"gateway {quote(gateway)}"
        return (
            f"a branch that comes to the join {quote(self._steps[join].id)} from here is none of {of}: "
            "the instance fails (JoinWithoutGateway)"
        )

    def _is_join(self, index: int) -> bool:
        return self._steps[index].type is StepType.JOIN_GATEWAY

    def _path(self, source: int, keys: tuple[str | int, ...]) -> str:
        path = f"steps[{source}]"
        for key in keys:
            path = join_path(path, key)
        return path

    def _leaving(self, step: Step) -> Iterator[_Edge]:
        """The edges on which what is no branch goes on; of a gateway those on which its branches leave its block, and
        what follows the join."""
        if step.type is not StepType.PARALLEL_GATEWAY:
            yield from _edges(step)
            return
        arrives = False
        for edge in self._edges(step):
            arrives = arrives or edge[2] == step.join
            leaves = self._is_join(edge[2]) or not self._definition.is_inside(step.index, edge[2])
            if edge[2] != step.join and leaves:
                yield edge
        follows = None if step.join is None else self._steps[step.join].next
        if arrives and step.join is not None and follows is not None:
            yield step.join, ("nextStep",), follows

    def _edges(self, gateway: Step) -> list[_Edge]:
        """Of a gateway and all steps within its block."""
        known = self._walked.get(gateway.index)
        if known is not None:
            return known
        edges = [(gateway.index, ("parallelNextSteps", place), head) for place, head in enumerate(gateway.branches)]
        found: list[_Edge] = [*edges]
        seen: set[int] = set()
        pending = [head for *_, head in edges]
        while pending and self._left:
            index = pending.pop()
            if index in seen or self._is_join(index) or not self._definition.is_inside(gateway.index, index):
                continue
            seen.add(index)
            self._left -= 1
            own = list(_edges(self._steps[index]))
            found += own
            pending += [target for *_, target in own]
        if not self._left:  # nothing is known of the rest
            found.append((gateway.index, ("joinStep",), gateway.join or 0))
        self._walked[gateway.index] = found
        return found


_MAY_END: Final = frozenset({StepType.SERVICE_TASK, StepType.USER_TASK, StepType.CALL_ACTIVITY})


def _edges(step: Step) -> Iterator[_Edge]:
    """On which its own token goes on."""
    if step.conditions:
        yield from (
            (step.index, ("conditionalNextSteps", condition.source), target) for condition, target in step.conditions
        )
    elif step.next is not None:
        yield step.index, ("nextStep",), step.next
    for place, event in enumerate(step.boundaries):
        if isinstance(event, Catch) or event.interrupting:
            yield step.index, ("boundaryEvents", place, "targetStepId"), event.target
