"""What people do to an instance that stands where it should not: take it up again, skip a step, move a token.

A part of `advance`, its only user; `find_mover` says beforehand what may be moved where. Of a FAILED instance the
tokens are those that its failure closed. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.core.advance import ending, for_each, recorder
from penstock.core.advance.evaluation import EvaluationFailed
from penstock.core.advance.event import RetryRequested, StepSkipped, TokenMoved
from penstock.core.advance.recorder import AdvanceState
from penstock.core.graph.definition import Definition, Step, StepType
from penstock.core.rules.state import HistoryKind, InstanceStatus, Token, change_status
from penstock.errors import Conflict

SKIPPABLE = frozenset(
    {StepType.SERVICE_TASK, StepType.USER_TASK, StepType.WAIT, StepType.CALL_ACTIVITY, StepType.TRANSFORMATION}
)
"""What does something, and leads somewhere whatever that gives."""


def apply_repair(run: AdvanceState, event: RetryRequested | StepSkipped | TokenMoved) -> None:
    match event:
        case RetryRequested():
            reopen(run)
        case StepSkipped():
            skip(run, event)
        case TokenMoved():
            move_token(run, event)


def reopen(run: AdvanceState, but: Collection[int] = ()) -> None:
    """`retry`: every step that the failure closed is entered anew, gateway counts stay as they were. Of the tokens
    ``but`` somebody else says where they go."""
    change_status(run.instance, InstanceStatus.ACTIVE)
    run.out.reopened = True
    failed: list[tuple[Token, str]] = []
    # in the old order of entry; those that were about to enter their first step had none yet
    for token in sorted(run.tokens.values(), key=lambda token: (token.seq == 0, token.seq)):
        run.fresh.add(token.id)
        recorder.mark_changed(run, token)
        if token.id in but:
            continue
        if token.is_open:
            run.entering.append((token, token.step))
            run.reentering[token.id] = token.entry
        elif run.is_map(token):
            try:
                for_each.resume_map(run, token)
            except EvaluationFailed as error:
                failed.append((token, error.reason))
    if failed:
        ending.fail(run, *failed[0])


def skip(run: AdvanceState, event: StepSkipped) -> None:
    """The step counts as done, with what is given as its result; where it leads is decided as ever. One item of a
    forEach is skipped by itself, the whole step with all of them."""
    token = run.tokens[event.token_id]
    failed = run.instance.status is InstanceStatus.FAILED
    items = for_each.items_of(run, token)
    if failed:
        reopen(run, {token.id, *(item.id for item in items)})
    for_each.forget_raw(run, token)
    if token.item is not None:
        token.leaving = False
        if failed:
            recorder.begin_execution(run, token, run.definition.steps[token.step])
        ending.finish_item(run, token, HistoryKind.SKIPPED, reason=event.reason, output=event.output)
        return
    if run.is_map(token):
        for_each.close_map(run, token, event.reason, closed=failed)
    if failed:
        recorder.begin_execution(run, token, run.definition.steps[token.step])
        recorder.record(
            run, token, HistoryKind.SKIPPED, reason=event.reason, output=recorder.merge(run, token, event.output)
        )
    else:
        output = recorder.merge(run, token, event.output)
        recorder.close(run, token, HistoryKind.SKIPPED, reason=event.reason, output=output)
    token.leaving = True
    run.entering.append((token, token.step))


def move_token(run: AdvanceState, event: TokenMoved) -> None:
    """What stands there is given up, with all branches of a gateway whose token it is."""
    token = run.tokens[event.token_id]
    below = [branch for branch in run.tokens.values() if _is_below(run, branch, token)]
    if run.instance.status is InstanceStatus.FAILED:
        reopen(run, {token.id, *(branch.id for branch in below)})
    else:
        for each in sorted((token, *below), key=lambda each: each.seq):
            if each.is_open or run.is_map(each):
                recorder.close(run, each, HistoryKind.SKIPPED, reason=event.reason)
    for each in (token, *below):
        for_each.forget_raw(run, each)
        if run.is_map(each):
            for_each.forget_map(run, each)
    for branch in below:
        recorder.free(run, branch)
        recorder.remove(run, branch)
    token.pending = token.arrived = 0
    token.leaving = False
    recorder.mark_changed(run, token)
    run.entering.append((token, event.step))


def _is_below(run: AdvanceState, branch: Token, token: Token) -> bool:
    parent = branch.parent_id
    while parent is not None:
        if parent == token.id:
            return True
        parent = run.tokens[parent].parent_id
    return False


def find_mover(definition: Definition, tokens: Sequence[Token], token: Token, target: Step) -> Token:
    """The token that goes to ``target`` when ``token`` is sent there: itself, or that of the gateway whose block it is
    the last one to leave. Raises Conflict for what would break a join, or what is undone."""
    undoes = definition.steps[token.step].compensates
    if undoes is not None:
        raise Conflict(f"it compensates step '{definition.steps[undoes].id}': it can be skipped, but not moved")
    if definition.undo_step in (token.step, target.index):
        raise Conflict("the instance compensates before it ends: nothing can be moved")
    if target.compensates is not None:
        raise Conflict(f"step '{target.id}' is a compensation handler: nothing can be moved there")
    by_id = {each.id: each for each in tokens}
    if target.type is StepType.END:
        return token if token.item is None else by_id[token.parent_id or 0]
    mover = token
    while mover.parent_id is not None:
        parent = by_id[mover.parent_id]
        gateway = definition.steps[parent.step]
        if gateway.type is not StepType.PARALLEL_GATEWAY:
            raise Conflict(f"it is a part of step '{gateway.id}': move that")
        if target.index == gateway.join or definition.is_inside(gateway.index, target.index):
            return mover
        if parent.pending > 1 or parent.arrived:
            others = f"{parent.pending - 1} more under way, {parent.arrived} arrived"
            raise Conflict(
                f"step '{target.id}' is outside of the block of gateway '{gateway.id}', whose join waits for its other "
                f"branches ({others}): move '{gateway.id}' itself, with all of them"
            )
        mover = parent
    if mover.side:
        return mover  # ends at any join
    around = definition.blocks.around(target.index) if target.type is not StepType.PARALLEL_GATEWAY else []
    if around:
        gateway = definition.steps[around[0]]
        raise Conflict(
            f"step '{target.id}' is inside the block of gateway '{gateway.id}', and what is moved is none of its "
            f"branches: move it to '{gateway.id}'"
        )
    if target.type is StepType.JOIN_GATEWAY:
        raise Conflict(f"step '{target.id}' is a join, and what is moved is not a branch of its gateway")
    return mover
