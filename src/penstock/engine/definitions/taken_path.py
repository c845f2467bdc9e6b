"""Which way an instance took through its definition, as far as its newest executions tell.

History keeps what each token did, not where it came from. Of one token that is the execution before; the first one of a
branch came from the gateway, or from the timer, that was there to make it, and the last one of a branch went into the
join that follows. What can't be told is left out. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from penstock.core.graph.definition import Boundary, Catch, Step, StepType, step_successors
from penstock.core.rules.state import HistoryKind
from penstock.store.rows.diagnosis import Passage
from penstock.wire.standing import Edge


def taken_path(steps: Sequence[Step], passages: Sequence[Passage], root: int, *, whole: bool) -> list[Edge]:
    """The ways of an instance whose root token is ``root``, in order of the definition. ``whole``: there are no older
    passages than these."""
    taken: Counter[tuple[int, int]] = Counter()
    oldest = 0 if whole else min(passage.closed_at for passage in passages if passage.closed_at is not None)
    by_token: dict[int, list[Passage]] = {}
    by_step: dict[int, list[Passage]] = {}
    for passage in sorted(passages, key=lambda passage: passage.entered_at):
        by_token.setdefault(passage.token, []).append(passage)
        by_step.setdefault(passage.step, []).append(passage)
    makers = _makers(steps)
    for token, own in by_token.items():
        for before, after in pairwise(own):
            skipped = before.kind == HistoryKind.SKIPPED  # by hand, if it led on
            if after.step in _leads_to(steps[before.step], HistoryKind.COMPLETED if skipped else before.kind):
                taken[before.step, after.step] += 1
        if token == root:
            continue
        first, last = own[0], own[-1]
        if first.entered_at > oldest and (maker := _maker(first, makers, by_step)) is not None:
            taken[maker, first.step] += 1
        joins = [step for step in _leads_to(steps[last.step], last.kind) if steps[step].type is StepType.JOIN_GATEWAY]
        if len(joins) == 1:
            taken[last.step, joins[0]] += 1
    return [Edge(steps[source].id, steps[target].id, times) for (source, target), times in sorted(taken.items())]


def _leads_to(step: Step, kind: int | None) -> list[int]:
    """Where a token goes from an execution that ended so."""
    if kind == HistoryKind.INTERRUPTED:
        return [event.target for event in step.boundaries if isinstance(event, Boundary) and event.interrupting]
    if kind == HistoryKind.CAUGHT:
        return [event.target for event in step.boundaries if isinstance(event, Catch)]
    if kind != HistoryKind.COMPLETED or step.type is StepType.PARALLEL_GATEWAY:
        return []
    beside = {boundary.target for boundary in step.boundaries}
    beside -= {step.next, *(target for _, target in step.conditions)}
    return [target for target in step_successors(step) if target not in beside]


def _makers(steps: Sequence[Step]) -> Mapping[int, list[int]]:
    """By step, the gateways and steps with timers whose new tokens begin there."""
    makers: dict[int, list[int]] = {}
    for step in steps:
        timers = (event for event in step.boundaries if isinstance(event, Boundary))
        beside = {timer.target for timer in timers if not timer.interrupting}
        for target in {*step.branches, *beside}:
            makers.setdefault(target, []).append(step.index)
    return makers


def _maker(first: Passage, makers: Mapping[int, list[int]], by_step: Mapping[int, list[Passage]]) -> int | None:
    """Return the step that made a token: of those that can have, the one that was entered last before it."""
    found: Passage | None = None
    for step in makers.get(first.step, ()):
        entered = by_step.get(step, [])
        place = bisect_left(entered, first.entered_at, key=lambda passage: passage.entered_at)
        if place and (found is None or entered[place - 1].entered_at > found.entered_at):
            found = entered[place - 1]
    return None if found is None else found.step
