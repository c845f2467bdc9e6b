"""The rules between steps: ids are unique, references lead somewhere, every step and an END can be reached, joins
are joins, and parallel blocks don't nest.

Relies on drafts that were read already; notes every problem and never stops at the first. An unknown reference is
left out of the graph, so what only it would have reached is told as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.core.graph.definition import DefinitionLimits, StepType
from penstock.core.graph.graph import Gateway, TooEntangled, find_blocks, reachable
from penstock.core.parsing.draft import StepDraft
from penstock.core.parsing.field_reader import Problems
from penstock.core.parsing.strict_json import join_path, quote


def check_steps(drafts: Sequence[StepDraft], limits: DefinitionLimits, problems: Problems) -> dict[str, int]:
    """Note what breaks a rule between steps. Returns the index of each step id (the first one's for a duplicate)."""
    indexes = _unique_ids(drafts, problems)
    successors = [_resolve(draft, indexes, problems) for draft in drafts]
    if drafts:
        _check_reachable(drafts, successors, problems)
    _check_gateways(drafts, successors, indexes, limits, problems)
    return indexes


def _unique_ids(drafts: Sequence[StepDraft], problems: Problems) -> dict[str, int]:
    indexes: dict[str, int] = {}
    for draft in drafts:
        if draft.id is None:
            continue
        first = indexes.setdefault(draft.id, draft.index)
        if first != draft.index:
            problems.add(f"{draft.path}.id", f"duplicate step id {quote(draft.id)}, taken by steps[{first}]")
    return indexes


def _references(draft: StepDraft) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """(keys within the step, step id) of every reference in a field that the step's type uses."""
    if draft.next is not None:
        yield ("nextStep",), draft.next
    for source, _, target in draft.conditions:
        if target is not None:
            yield ("conditionalNextSteps", source), target
    for place, head in enumerate(draft.branches):
        if head is not None:
            yield ("parallelNextSteps", place), head
    if draft.join is not None:
        yield ("joinStep",), draft.join
    for place, boundary in enumerate(draft.boundaries):
        if boundary.target is not None:
            yield ("boundaryEvents", place, "targetStepId"), boundary.target


def _resolve(draft: StepDraft, indexes: dict[str, int], problems: Problems) -> list[int]:
    """Return the indexes of the steps that this one leads to, each once."""
    targets: dict[int, None] = {}
    for keys, step_id in _references(draft):
        target = indexes.get(step_id)
        if target is not None:
            targets[target] = None
        elif draft.type is not None:
            path = draft.path
            for key in keys:
                path = join_path(path, key)
            problems.add(path, f"unknown step {quote(step_id)}")
    return list(targets)


def _check_reachable(drafts: Sequence[StepDraft], successors: Sequence[Sequence[int]], problems: Problems) -> None:
    found = reachable(successors, [0])
    for draft in drafts:
        # A step without an id is told already, and nothing could lead to it.
        if draft.index not in found and draft.id is not None:
            problems.add(draft.path, f"step {quote(draft.id)} cannot be reached from the first step")
    if not any(drafts[index].type is StepType.END for index in found):
        problems.add("steps", "no END step can be reached from the first step")


def _check_gateways(
    drafts: Sequence[StepDraft],
    successors: Sequence[Sequence[int]],
    indexes: dict[str, int],
    limits: DefinitionLimits,
    problems: Problems,
) -> None:
    gateways: dict[int, Gateway] = {}
    for draft in drafts:
        if draft.type is not StepType.PARALLEL_GATEWAY:
            continue
        heads = [indexes[head] for head in draft.branches if head is not None and head in indexes]
        join = None if draft.join is None else indexes.get(draft.join)
        gateways[draft.index] = Gateway(heads=heads, join=join)
        # A step whose type could not be read may be the join that was meant.
        if join is not None and drafts[join].type not in {StepType.JOIN_GATEWAY, None}:
            reason = f"step {quote(draft.join or '')} is of type {drafts[join].type}, not JOIN_GATEWAY"
            problems.add(f"{draft.path}.joinStep", reason)
    if len(gateways) > limits.gateways_max_count:
        problems.add("steps", f"more than {limits.gateways_max_count} parallel gateways")
        return
    try:
        blocks = find_blocks(successors, gateways)
    except TooEntangled:
        problems.add("steps", "the branches of the parallel gateways are too entangled to tell what is inside them")
        return
    for gateway in gateways:
        for outer in blocks.around(gateway):
            if outer == gateway:
                reason = "its own branches lead back to this parallel gateway without passing its join"
            else:
                reason = f"parallel gateway nested inside a branch of {drafts[outer].path}"
            problems.add(drafts[gateway].path, reason)
