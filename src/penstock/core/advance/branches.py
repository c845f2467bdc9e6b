"""Branches of parallel gateways within one advance: how they end, and when their join fires.

A part of `advance`, its only user.
"""

from __future__ import annotations

from penstock.core.advance import recorder
from penstock.core.advance.recorder import AdvanceState
from penstock.core.graph.definition import Step, StepType
from penstock.core.rules.state import HistoryKind, Token, Trigger, move


def goes_onto(run: AdvanceState, token: Token, step: Step) -> bool:
    """Return whether the token, about to enter the step, enters it: at its join a branch ends. One that steps out of
    its gateway's block is no branch any more."""
    parent = None if token.parent_id is None else run.tokens[token.parent_id]
    if parent is not None:
        if step.index == run.definition.steps[parent.step].join:
            recorder.remove(run, token)
            branch_gone(run, parent, arrived=1)
            return False
        if not run.definition.is_inside(parent.step, step.index) and step.type is not StepType.END:
            token.parent_id = None
            branch_gone(run, parent, arrived=0)
    if step.type is StepType.JOIN_GATEWAY and token.side:
        end_token(run, token)
        return False
    return True


def branch_gone(run: AdvanceState, gateway: Token, *, arrived: int) -> None:
    """A branch of ``gateway`` arrived at the join (1) or left the block (0)."""
    gateway.pending -= 1
    gateway.arrived += arrived
    assert gateway.pending >= 0, "a branch was counted twice"
    recorder.mark_changed(run, gateway)
    if gateway.pending:
        return
    if not gateway.arrived:
        end_token(run, gateway)
        return
    join = run.definition.steps[run.definition.steps[gateway.step].join or 0]
    recorder.begin_execution(run, gateway, join)
    recorder.record(run, gateway, HistoryKind.COMPLETED)
    run.out.steps_run += 1
    assert join.next is not None
    gateway.pending = gateway.arrived = 0
    run.entering.append((gateway, join.next))


def end_token(run: AdvanceState, token: Token) -> None:
    """The token has nowhere to go. The root is kept as the instance's lock, others vanish."""
    parent_id = token.parent_id
    if token.is_root:
        token.parent_id = token.waits_for = None  # a parked job may have been skipped
        move(token, Trigger.END)
        recorder.mark_changed(run, token)
    else:
        recorder.remove(run, token)
    if parent_id is not None:
        branch_gone(run, run.tokens[parent_id], arrived=0)
