"""What people do to an instance that stands where it should not: take it up again, skip a step, move a token.

A part of `advance`, its only user; `find_mover` says beforehand what may be moved where. Of a FAILED instance the
tokens are those that its failure closed. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.core.advance.ending import Ending
from penstock.core.advance.evaluation import EvaluationFailed
from penstock.core.advance.event import RetryRequested, StepSkipped, TokenMoved
from penstock.core.graph.definition import Definition, Step, StepType
from penstock.core.rules.state import HistoryKind, InstanceStatus, Token, change_status
from penstock.errors import Conflict

SKIPPABLE = frozenset(
    {StepType.SERVICE_TASK, StepType.USER_TASK, StepType.WAIT, StepType.CALL_ACTIVITY, StepType.TRANSFORMATION}
)
"""What does something, and leads somewhere whatever that gives."""


class Mending(Ending):
    """Reopens, skips and moves. Of a FAILED instance the tokens are those that its failure closed."""

    def repair_by_hand(self, event: RetryRequested | StepSkipped | TokenMoved) -> None:
        match event:
            case RetryRequested():
                self.reopen()
            case StepSkipped():
                self.skip(event)
            case TokenMoved():
                self.move_token(event)

    def reopen(self, but: Collection[int] = ()) -> None:
        """`retry`: every step that the failure closed is entered anew, gateway counts stay as they were. Of the tokens
        ``but`` somebody else says where they go."""
        change_status(self.instance, InstanceStatus.ACTIVE)
        self.out.reopened = True
        failed: list[tuple[Token, str]] = []
        # in the old order of entry; those that were about to enter their first step had none yet
        for token in sorted(self.tokens.values(), key=lambda token: (token.seq == 0, token.seq)):
            self.fresh.add(token.id)
            self.mark_changed(token)
            if token.id in but:
                continue
            if token.is_open:
                self.entering.append((token, token.step))
                self.reentering[token.id] = token.entry
            elif self.is_map(token):
                try:
                    self.resume_map(token)
                except EvaluationFailed as error:
                    failed.append((token, error.reason))
        if failed:
            self.fail(*failed[0])

    def skip(self, event: StepSkipped) -> None:
        """The step counts as done, with what is given as its result; where it leads is decided as ever. One item of a
        forEach is skipped by itself, the whole step with all of them."""
        token = self.tokens[event.token_id]
        failed = self.instance.status is InstanceStatus.FAILED
        items = self.items_of(token)
        if failed:
            self.reopen({token.id, *(item.id for item in items)})
        self.forget_raw(token)
        if token.item is not None:
            token.leaving = False
            if failed:
                self.begin_execution(token, self.definition.steps[token.step])
            self.finish_item(token, HistoryKind.SKIPPED, reason=event.reason, output=event.output)
            return
        if self.is_map(token):
            self.close_map(token, event.reason, closed=failed)
        if failed:
            self.begin_execution(token, self.definition.steps[token.step])
            self.record(token, HistoryKind.SKIPPED, reason=event.reason, output=self.merge(token, event.output))
        else:
            output = self.merge(token, event.output)
            self.close(token, HistoryKind.SKIPPED, reason=event.reason, output=output)
        token.leaving = True
        self.entering.append((token, token.step))

    def move_token(self, event: TokenMoved) -> None:
        """What stands there is given up, with all branches of a gateway whose token it is."""
        token = self.tokens[event.token_id]
        below = [branch for branch in self.tokens.values() if self._is_below(branch, token)]
        if self.instance.status is InstanceStatus.FAILED:
            self.reopen({token.id, *(branch.id for branch in below)})
        else:
            for each in sorted((token, *below), key=lambda each: each.seq):
                if each.is_open or self.is_map(each):
                    self.close(each, HistoryKind.SKIPPED, reason=event.reason)
        for each in (token, *below):
            self.forget_raw(each)
            if self.is_map(each):
                self.forget_map(each)
        for branch in below:
            self.free(branch)
            self.remove(branch)
        token.pending = token.arrived = 0
        token.leaving = False
        self.mark_changed(token)
        self.entering.append((token, event.step))

    def _is_below(self, branch: Token, token: Token) -> bool:
        parent = branch.parent_id
        while parent is not None:
            if parent == token.id:
                return True
            parent = self.tokens[parent].parent_id
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
        raise Conflict(f"step '{target.id}' is a join, and what is moved is no branch of its gateway")
    return mover
