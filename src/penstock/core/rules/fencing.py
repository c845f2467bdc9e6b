"""Who may still act on a job: one pure judgement for complete, fail and heartbeat, whatever arrives late or twice.

The rules and their order are those of `docs/guarantees.md` ("Fencing"). The store reads `ExecutionState` by key, under
the token's lock where something may be written; nobody else decides such a question.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from penstock.core.rules.state import CLOSING_KINDS, DONE_KINDS, JOB_STATES, HistoryKind, InstanceStatus, TokenState


class CallKind(enum.Enum):
    """What the caller wants."""

    COMPLETE = "complete"
    FAIL = "fail"
    HEARTBEAT = "heartbeat"
    PARK = "park"


ATTEMPT_MAX: Final = (1 << 31) - 1
"""What a token's column holds."""


def known_attempt(attempt: int | None) -> int | None:
    """The attempt that a caller names, as one that can be compared: 0, which nobody ever had, for those that can't."""
    return attempt if attempt is None or 0 < attempt <= ATTEMPT_MAX else 0


class FenceRequest(msgspec.Struct, frozen=True):
    """The call that is decided on. ``explicit``: made through a batch call, whose answers name every outcome."""

    kind: CallKind
    worker: str
    attempt: int | None = None
    explicit: bool = False


class ExecutionState(msgspec.Struct, frozen=True):
    """What is known of one step execution. Without ``instance`` there is no such instance. Only jobs are judged."""

    instance: InstanceStatus | None = None
    closed: HistoryKind | None = None  # how the execution ended; None while it is open
    closed_attempt: int = 0
    state: TokenState | None = None  # of the token, while it stands on this very execution
    holder: str | None = None
    attempt: int = 0
    failed_attempt: int | None = None  # of the latest applied `fail` of the step, when it was this worker's


class FenceDecision(enum.Enum):
    """The answer. ``decide_fence`` gives APPLY where the call is to be carried out; DONE says that it was."""

    APPLY = "apply"
    DONE = "ok"
    ALREADY = "already-completed"
    LEASE_LOST = "lease-lost"
    CANCELLED = "cancelled"
    NOT_FOUND = "not-found"
    IGNORED = "ignored"  # answered with success, counted and logged


_ELSEWHERE: Final = (HistoryKind.INTERRUPTED, HistoryKind.CAUGHT)
"""The instance went on elsewhere."""


def decide_fence(call: FenceRequest, execution: ExecutionState) -> FenceDecision:
    """Return the first rule that fits decides."""
    if execution.instance is None or (
        execution.closed is None and execution.state not in JOB_STATES and not _is_parked_job(execution)
    ):
        return FenceDecision.NOT_FOUND
    if execution.closed in CLOSING_KINDS or execution.instance is not InstanceStatus.ACTIVE:
        return _decide_closed(call, execution)
    if call.attempt is not None and call.attempt != execution.attempt:  # 3
        return FenceDecision.LEASE_LOST
    if _is_parked_job(execution) and execution.holder is not None:  # its worker's own transaction has completed it
        done = call.kind is CallKind.COMPLETE and execution.holder == call.worker
        return FenceDecision.ALREADY if done else FenceDecision.LEASE_LOST
    if execution.state in (TokenState.LOCKED, TokenState.READY) and execution.holder == call.worker:  # 4
        return FenceDecision.APPLY
    if execution.state is TokenState.DISPATCHED:  # 5
        return FenceDecision.APPLY
    if _is_repeated(call, execution) or (call.kind is CallKind.PARK and _is_parked_job(execution)):  # 6
        return FenceDecision.ALREADY
    if call.kind is CallKind.FAIL and call.attempt is None:  # 7
        return FenceDecision.IGNORED
    return FenceDecision.LEASE_LOST


def _decide_closed(call: FenceRequest, execution: ExecutionState) -> FenceDecision:
    """Of a step execution that is over."""
    heartbeat = call.kind in (CallKind.HEARTBEAT, CallKind.PARK)
    if execution.closed in DONE_KINDS:  # 1
        if heartbeat or (call.attempt is not None and call.attempt != execution.closed_attempt):
            return FenceDecision.LEASE_LOST
        return FenceDecision.ALREADY
    goes_on = execution.closed is HistoryKind.FAILED and execution.instance is InstanceStatus.ACTIVE  # it is undone
    if (goes_on or execution.closed is HistoryKind.CAUGHT) and _is_repeated(call, execution):  # 6
        return FenceDecision.ALREADY
    if execution.instance is not InstanceStatus.ACTIVE or execution.closed in _ELSEWHERE:  # 2
        if heartbeat or call.explicit or call.attempt is not None:
            return FenceDecision.CANCELLED
        return FenceDecision.ALREADY
    # 7: the instance was retried since, with a new execution of the step
    return FenceDecision.IGNORED if call.kind is CallKind.FAIL and call.attempt is None else FenceDecision.LEASE_LOST


def _is_repeated(call: FenceRequest, execution: ExecutionState) -> bool:
    """Return whether it is a `fail` that was applied."""
    return (
        call.kind is CallKind.FAIL
        and execution.failed_attempt is not None
        and call.attempt in (None, execution.failed_attempt)
    )


def _is_parked_job(execution: ExecutionState) -> bool:
    """Return whether it is a job whose worker waits; a user task or a wait never had an attempt."""
    return execution.state is TokenState.PARKED and execution.attempt > 0
