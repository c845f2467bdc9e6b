"""Branches of parallel gateways within one advance: how they end, and when their join fires.

A part of `advance`, its only user.
"""

from __future__ import annotations

from penstock.core.advance.evaluation import Evaluator
from penstock.core.graph.definition import Step, StepType
from penstock.core.rules.state import HistoryKind, Token, Trigger, move


class Branches(Evaluator):
    """An `Evaluator` that counts the branches of gateways."""

    def goes_onto(self, token: Token, step: Step) -> bool:
        """Whether the token, about to enter the step, enters it: at its join a branch ends. One that steps out of its
        gateway's block is no branch any more."""
        parent = None if token.parent_id is None else self.tokens[token.parent_id]
        if parent is not None:
            if step.index == self.definition.steps[parent.step].join:
                self.remove(token)
                self.branch_gone(parent, arrived=1)
                return False
            if not self.definition.is_inside(parent.step, step.index) and step.type is not StepType.END:
                token.parent_id = None
                self.branch_gone(parent, arrived=0)
        if step.type is StepType.JOIN_GATEWAY and token.side:
            self.end_token(token)
            return False
        return True

    def branch_gone(self, gateway: Token, *, arrived: int) -> None:
        """A branch of ``gateway`` arrived at the join (1) or left the block (0)."""
        gateway.pending -= 1
        gateway.arrived += arrived
        assert gateway.pending >= 0, "a branch was counted twice"
        self.mark_changed(gateway)
        if gateway.pending:
            return
        if not gateway.arrived:
            self.end_token(gateway)
            return
        join = self.definition.steps[self.definition.steps[gateway.step].join or 0]
        self.begin_execution(gateway, join)
        self.record(gateway, HistoryKind.COMPLETED)
        self.out.steps_run += 1
        assert join.next is not None
        gateway.pending = gateway.arrived = 0
        self.entering.append((gateway, join.next))

    def end_token(self, token: Token) -> None:
        """The token has nowhere to go. The root is kept as the instance's lock, others vanish."""
        parent_id = token.parent_id
        if token.is_root:
            token.parent_id = token.waits_for = None  # a parked job may have been skipped
            move(token, Trigger.END)
            self.mark_changed(token)
        else:
            self.remove(token)
        if parent_id is not None:
            self.branch_gone(self.tokens[parent_id], arrived=0)
