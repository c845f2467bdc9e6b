"""The whole judgement of complete, fail and heartbeat: each rule of docs/guarantees.md, in its order."""

from __future__ import annotations

from itertools import product

import pytest

from penstock.core.rules.fencing import (
    CallKind,
    ExecutionState,
    FenceDecision,
    FenceRequest,
    decide_fence,
    known_attempt,
)
from penstock.core.rules.state import CLOSING_KINDS, JOB_STATES, HistoryKind, InstanceStatus, TokenState

COMPLETE, FAIL, HEARTBEAT, PARK = CallKind
ACTIVE = InstanceStatus.ACTIVE
READY, LOCKED, PARKED, FORKED, BACKOFF, DISPATCHED, ENDED, *_ = TokenState
APPLY, DONE, ALREADY, LOST, CANCELLED, NOT_FOUND, IGNORED = FenceDecision

ME, OTHER = "me", "other"
ATTEMPT = 3
"""The current attempt in all facts of open executions, and the one that closed those that are closed."""


def open_job(state: TokenState = LOCKED, holder: str | None = ME, failed_attempt: int | None = None) -> ExecutionState:
    return ExecutionState(instance=ACTIVE, state=state, holder=holder, attempt=ATTEMPT, failed_attempt=failed_attempt)


def closed(kind: HistoryKind, instance: InstanceStatus = ACTIVE) -> ExecutionState:
    return ExecutionState(instance=instance, closed=kind, closed_attempt=ATTEMPT)


COMPLETED = closed(HistoryKind.COMPLETED)
COMPLETED_AND_ENDED = closed(HistoryKind.COMPLETED, InstanceStatus.COMPLETED)
COMPLETED_THEN_CANCELLED = closed(HistoryKind.COMPLETED, InstanceStatus.CANCELLED)
INTERRUPTED = closed(HistoryKind.INTERRUPTED)
FAILED = closed(HistoryKind.FAILED, InstanceStatus.FAILED)
FAILED_THEN_RETRIED = closed(HistoryKind.FAILED)
SKIPPED = closed(HistoryKind.SKIPPED, InstanceStatus.COMPLETED)
CANCELLED_INSTANCE = closed(HistoryKind.SKIPPED, InstanceStatus.CANCELLED)

# facts → verdicts of: complete, complete with the right attempt, with a wrong one, in a batch; fail likewise;
# heartbeat, with the right attempt, with a wrong one
TABLE: dict[str, tuple[ExecutionState, list[FenceDecision], list[FenceDecision], list[FenceDecision]]] = {
    "1 completed": (COMPLETED, [ALREADY, ALREADY, LOST, ALREADY], [ALREADY, ALREADY, LOST, ALREADY], [LOST] * 3),
    "1 completed, its instance too": (
        COMPLETED_AND_ENDED,
        [ALREADY, ALREADY, LOST, ALREADY],
        [ALREADY, ALREADY, LOST, ALREADY],
        [LOST] * 3,
    ),
    "1 completed, its instance cancelled later": (
        COMPLETED_THEN_CANCELLED,
        [ALREADY, ALREADY, LOST, ALREADY],
        [ALREADY, ALREADY, LOST, ALREADY],
        [LOST] * 3,
    ),
    "2 interrupted": (
        INTERRUPTED,
        [ALREADY, CANCELLED, CANCELLED, CANCELLED],
        [ALREADY, CANCELLED, CANCELLED, CANCELLED],
        [CANCELLED] * 3,
    ),
    "2 failed": (
        FAILED,
        [ALREADY, CANCELLED, CANCELLED, CANCELLED],
        [ALREADY, CANCELLED, CANCELLED, CANCELLED],
        [CANCELLED] * 3,
    ),
    "6 failed by the caller, and caught": (
        ExecutionState(instance=ACTIVE, closed=HistoryKind.CAUGHT, closed_attempt=ATTEMPT, failed_attempt=ATTEMPT),
        [ALREADY, CANCELLED, CANCELLED, CANCELLED],
        [ALREADY, ALREADY, CANCELLED, ALREADY],
        [CANCELLED] * 3,
    ),
    "2 failed by another, and caught": (
        closed(HistoryKind.CAUGHT),
        [ALREADY, CANCELLED, CANCELLED, CANCELLED],
        [ALREADY, CANCELLED, CANCELLED, CANCELLED],
        [CANCELLED] * 3,
    ),
    "6 failed by the caller, its instance undone or retried": (
        ExecutionState(instance=ACTIVE, closed=HistoryKind.FAILED, closed_attempt=ATTEMPT, failed_attempt=ATTEMPT),
        [LOST, LOST, LOST, LOST],
        [ALREADY, ALREADY, LOST, ALREADY],
        [LOST] * 3,
    ),
    "7 failed, its instance retried": (
        FAILED_THEN_RETRIED,
        [LOST, LOST, LOST, LOST],
        [IGNORED, LOST, LOST, IGNORED],
        [LOST] * 3,
    ),
    "2 skipped by an END": (
        SKIPPED,
        [ALREADY, CANCELLED, CANCELLED, CANCELLED],
        [ALREADY, CANCELLED, CANCELLED, CANCELLED],
        [CANCELLED] * 3,
    ),
    "2 skipped by a cancel": (
        CANCELLED_INSTANCE,
        [ALREADY, CANCELLED, CANCELLED, CANCELLED],
        [ALREADY, CANCELLED, CANCELLED, CANCELLED],
        [CANCELLED] * 3,
    ),
    "4 locked by the caller": (
        open_job(),
        [APPLY, APPLY, LOST, APPLY],
        [APPLY, APPLY, LOST, APPLY],
        [APPLY, APPLY, LOST],
    ),
    "4 expired, the caller was the last holder": (
        open_job(READY),
        [APPLY, APPLY, LOST, APPLY],
        [APPLY, APPLY, LOST, APPLY],
        [APPLY, APPLY, LOST],
    ),
    "5 dispatched": (
        open_job(DISPATCHED, None),
        [APPLY, APPLY, LOST, APPLY],
        [APPLY, APPLY, LOST, APPLY],
        [APPLY, APPLY, LOST],
    ),
    "5 dispatched, another heartbeats": (
        open_job(DISPATCHED, OTHER),
        [APPLY, APPLY, LOST, APPLY],
        [APPLY, APPLY, LOST, APPLY],
        [APPLY, APPLY, LOST],
    ),
    "6 failed by the caller, back in the queue": (
        open_job(READY, None, ATTEMPT),
        [LOST, LOST, LOST, LOST],
        [ALREADY, ALREADY, LOST, ALREADY],
        [LOST] * 3,
    ),
    "6 failed by the caller, in back-off": (
        open_job(BACKOFF, None, ATTEMPT),
        [LOST, LOST, LOST, LOST],
        [ALREADY, ALREADY, LOST, ALREADY],
        [LOST] * 3,
    ),
    "6 failed by the caller, claimed by another since": (
        open_job(LOCKED, OTHER, ATTEMPT - 1),
        [LOST, LOST, LOST, LOST],
        [ALREADY, LOST, LOST, ALREADY],
        [LOST] * 3,
    ),
    "7 claimed by another": (
        open_job(LOCKED, OTHER),
        [LOST, LOST, LOST, LOST],
        [IGNORED, LOST, LOST, IGNORED],
        [LOST] * 3,
    ),
    "7 expired, another was the last holder": (
        open_job(READY, OTHER),
        [LOST, LOST, LOST, LOST],
        [IGNORED, LOST, LOST, IGNORED],
        [LOST] * 3,
    ),
    "7 never claimed, or given back": (
        open_job(READY, None),
        [LOST, LOST, LOST, LOST],
        [IGNORED, LOST, LOST, IGNORED],
        [LOST] * 3,
    ),
    "7 in back-off after another's failure": (
        open_job(BACKOFF, None),
        [LOST, LOST, LOST, LOST],
        [IGNORED, LOST, LOST, IGNORED],
        [LOST] * 3,
    ),
    "unknown instance": (ExecutionState(), [NOT_FOUND] * 4, [NOT_FOUND] * 4, [NOT_FOUND] * 3),
    "unknown execution": (ExecutionState(instance=ACTIVE), [NOT_FOUND] * 4, [NOT_FOUND] * 4, [NOT_FOUND] * 3),
    "unknown execution of an ended instance": (
        ExecutionState(instance=InstanceStatus.FAILED),
        [NOT_FOUND] * 4,
        [NOT_FOUND] * 4,
        [NOT_FOUND] * 3,
    ),
    "a user task, which is not a job": (
        ExecutionState(instance=ACTIVE, state=PARKED),
        [NOT_FOUND] * 4,
        [NOT_FOUND] * 4,
        [NOT_FOUND] * 3,
    ),
    "7 parked": (open_job(PARKED, None), [LOST] * 4, [IGNORED, LOST, LOST, IGNORED], [LOST] * 3),
}


def calls(kind: CallKind) -> list[FenceRequest]:
    plain = [FenceRequest(kind, ME), FenceRequest(kind, ME, ATTEMPT), FenceRequest(kind, ME, ATTEMPT + 1)]
    return plain if kind is HEARTBEAT else [*plain, FenceRequest(kind, ME, explicit=True)]


@pytest.mark.parametrize("case", TABLE)
def test_the_first_rule_that_fits_decides(case: str) -> None:
    facts, complete, fail, heartbeat = TABLE[case]
    assert [decide_fence(call, facts) for call in calls(COMPLETE)] == complete
    assert [decide_fence(call, facts) for call in calls(FAIL)] == fail
    assert [decide_fence(call, facts) for call in calls(HEARTBEAT)] == heartbeat


ALL_CALLS = [
    FenceRequest(kind, ME, attempt, explicit)
    for kind, attempt, explicit in product(CallKind, [None, ATTEMPT - 1, ATTEMPT, ATTEMPT + 1, 0], [False, True])
]
ALL_FACTS = [
    *(
        ExecutionState(instance=status, closed=kind, closed_attempt=ATTEMPT)
        for status, kind in product(InstanceStatus, sorted(CLOSING_KINDS))
    ),
    *(
        ExecutionState(instance=status, state=state, holder=holder, attempt=ATTEMPT, failed_attempt=failed)
        for status, state, holder, failed in product(
            InstanceStatus, sorted(JOB_STATES), [None, ME, OTHER], [None, 1, ATTEMPT]
        )
    ),
    ExecutionState(),
    *(ExecutionState(instance=status) for status in InstanceStatus),
]


def every() -> list[tuple[FenceRequest, ExecutionState, FenceDecision]]:
    return [(call, facts, decide_fence(call, facts)) for call, facts in product(ALL_CALLS, ALL_FACTS)]


def test_nothing_applies_to_closed_steps_or_ended_instances() -> None:
    for _, facts, decision in every():
        if facts.closed is not None or facts.instance is not ACTIVE:
            assert decision is not APPLY


def test_nothing_is_applied_with_another_attempt_than_the_current_one() -> None:
    for call, facts, decision in every():
        if call.attempt not in (None, facts.attempt):
            assert decision is not APPLY


def test_only_the_last_holder_acts_on_an_undispatched_job() -> None:
    for _, facts, decision in every():
        if facts.state is not DISPATCHED and facts.holder != ME:
            assert decision is not APPLY


def test_a_job_in_back_off_has_no_holder() -> None:
    for _, facts, decision in every():
        if facts.state is BACKOFF:
            assert decision is not APPLY


def test_a_fail_without_attempt_passes_for_old_clients() -> None:
    for call, facts, decision in every():
        known = facts.closed is not None or facts.state is not None
        if call.kind is FAIL and call.attempt is None and not call.explicit and known:
            assert decision in (APPLY, ALREADY, IGNORED)


def test_only_a_fail_without_attempt_is_ignored() -> None:
    for call, _, decision in every():
        if decision is IGNORED:
            assert call.kind is FAIL
            assert call.attempt is None


def test_old_clients_never_hear_of_cancelled_but_by_a_heartbeat() -> None:
    for call, _, decision in every():
        if decision is CANCELLED:
            assert call.kind in (HEARTBEAT, PARK) or call.attempt is not None or call.explicit


def test_a_heartbeat_is_applied_or_refused_and_never_pretends() -> None:
    for call, _, decision in every():
        if call.kind is HEARTBEAT:
            assert decision in (APPLY, LOST, CANCELLED, NOT_FOUND)


def test_judging_never_says_done() -> None:
    assert all(decision is not DONE for _, _, decision in every())


@pytest.mark.parametrize(("given", "known"), [(3, 3), (None, None), (2**31 - 1, 2**31 - 1), (2**31, 0), (-9, 0)])
def test_an_attempt_that_the_store_cannot_compare_is_nobodys(given: int | None, known: int | None) -> None:
    assert known_attempt(given) == known


def test_a_park_is_judged_as_a_heartbeat() -> None:
    for case, (facts, _, _, heartbeat) in TABLE.items():
        if facts.state is not PARKED:
            decisions = [decide_fence(FenceRequest(PARK, ME, attempt), facts) for attempt in (ATTEMPT, ATTEMPT + 1)]
            assert decisions == heartbeat[1:], case
    parked = open_job(PARKED, None)
    assert decide_fence(FenceRequest(PARK, ME, ATTEMPT), parked) is ALREADY
    assert decide_fence(FenceRequest(PARK, ME, ATTEMPT - 1), parked) is LOST
