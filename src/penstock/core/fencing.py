"""Who may still act on a job: one pure judgement for complete, fail and heartbeat, whatever arrives late or twice.

The rules and their order are those of `docs/guarantees.md` ("Fencing"). The store reads `ExecutionState` by key, under
the token's lock where something may be written; nobody else decides such a question.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from penstock.core.state import CLOSING_KINDS, JOB_STATES, HistoryKind, InstanceStatus, TokenState


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
    """The call that is judged. ``explicit``: made through a batch call, whose answers name every outcome."""

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
    failed_attempt: int | None = (
        None  # of the latest applied `fail` of an open or caught step, when it was this worker's
    )


class Verdict(enum.Enum):
    """The answer. ``judge`` gives APPLY where the call is to be carried out; DONE says that it was."""

    APPLY = "apply"
    DONE = "ok"
    ALREADY = "already-completed"
    LEASE_LOST = "lease-lost"
    CANCELLED = "cancelled"
    NOT_FOUND = "not-found"
    IGNORED = "ignored"  # answered with success, counted and logged


_ELSEWHERE: Final = (HistoryKind.INTERRUPTED, HistoryKind.CAUGHT)
"""The instance went on elsewhere."""


def judge(call: FenceRequest, facts: ExecutionState) -> Verdict:
    """The first rule that fits decides."""
    if facts.instance is None or (facts.closed is None and facts.state not in JOB_STATES and not _is_parked_job(facts)):
        return Verdict.NOT_FOUND
    if facts.closed in CLOSING_KINDS or facts.instance is not InstanceStatus.ACTIVE:
        return _judge_closed(call, facts)
    if call.attempt is not None and call.attempt != facts.attempt:  # 3
        return Verdict.LEASE_LOST
    if facts.state in (TokenState.LOCKED, TokenState.READY) and facts.holder == call.worker:  # 4
        return Verdict.APPLY
    if facts.state is TokenState.DISPATCHED:  # 5
        return Verdict.APPLY
    if _is_repeated(call, facts) or (call.kind is CallKind.PARK and _is_parked_job(facts)):  # 6
        return Verdict.ALREADY
    if call.kind is CallKind.FAIL and call.attempt is None:  # 7
        return Verdict.IGNORED
    return Verdict.LEASE_LOST


def _judge_closed(call: FenceRequest, facts: ExecutionState) -> Verdict:
    """Of a step execution that is over."""
    heartbeat = call.kind in (CallKind.HEARTBEAT, CallKind.PARK)
    if facts.closed is HistoryKind.COMPLETED:  # 1
        if heartbeat or (call.attempt is not None and call.attempt != facts.closed_attempt):
            return Verdict.LEASE_LOST
        return Verdict.ALREADY
    if facts.closed is HistoryKind.CAUGHT and _is_repeated(call, facts):  # 6
        return Verdict.ALREADY
    if facts.instance is not InstanceStatus.ACTIVE or facts.closed in _ELSEWHERE:  # 2
        if heartbeat or call.explicit or call.attempt is not None:
            return Verdict.CANCELLED
        return Verdict.ALREADY
    # 7: the instance was retried since, with a new execution of the step
    return Verdict.IGNORED if call.kind is CallKind.FAIL and call.attempt is None else Verdict.LEASE_LOST


def _is_repeated(call: FenceRequest, facts: ExecutionState) -> bool:
    """Whether it is a `fail` that was applied."""
    return (
        call.kind is CallKind.FAIL and facts.failed_attempt is not None and call.attempt in (None, facts.failed_attempt)
    )


def _is_parked_job(facts: ExecutionState) -> bool:
    """Whether it is a job whose worker waits; a user task or a wait never had an attempt."""
    return facts.state is TokenState.PARKED and facts.attempt > 0
