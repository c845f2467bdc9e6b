"""The tables of transitions: what is in them, and that nothing else is possible."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import pytest

from penstock.core.rules.state import (
    BIRTH_STATES,
    CLOSING_KINDS,
    ENTERING,
    INSTANCE_TRANSITIONS,
    INTERRUPTED_REASON,
    JOB_STATES,
    OPEN_STATES,
    TOKEN_TRANSITIONS,
    HistoryKind,
    Instance,
    InstanceStatus,
    Token,
    TokenState,
    Trigger,
    change_status,
    move,
)

NOW = datetime(2031, 5, 4, tzinfo=UTC)


def token(state: TokenState) -> Token:
    return Token(id=1, instance_id=1, seq=1, step=0, state=state, entered_at=NOW)


@pytest.mark.parametrize(("trigger", "state"), list(product(Trigger, TokenState)), ids=str)
def test_a_token_moves_only_as_the_table_says(trigger: Trigger, state: TokenState) -> None:
    sources, target, _ = TOKEN_TRANSITIONS[trigger]
    moved = token(state)
    if state in sources:
        move(moved, trigger)
        assert moved.state is target
    else:
        with pytest.raises(AssertionError):
            move(moved, trigger)
        assert moved.state is state


def test_every_trigger_has_its_transition() -> None:
    assert set(TOKEN_TRANSITIONS) == set(Trigger)


def test_nothing_leads_out_of_the_end_of_a_token() -> None:
    """But for the root token, when the instance is undone before its own end."""
    out = [trigger for trigger, row in TOKEN_TRANSITIONS.items() if TokenState.ENDED in row.sources]
    assert out == [Trigger.COMPENSATE]


def test_every_other_state_leads_to_any_step_and_the_end() -> None:
    for trigger in (*(ENTERING - {Trigger.COMPENSATE}), Trigger.END):
        assert TOKEN_TRANSITIONS[trigger].sources == set(TokenState) - {TokenState.ENDED}


def test_only_a_waiting_job_is_claimed_or_dispatched() -> None:
    assert TOKEN_TRANSITIONS[Trigger.CLAIM][:2] == ({TokenState.READY}, TokenState.LOCKED)
    assert TOKEN_TRANSITIONS[Trigger.DISPATCH][:2] == ({TokenState.READY}, TokenState.DISPATCHED)


def test_a_lease_ends_only_while_there_is_one() -> None:
    assert TOKEN_TRANSITIONS[Trigger.LEASE_EXPIRED].sources == {TokenState.LOCKED}
    assert TOKEN_TRANSITIONS[Trigger.RELEASE].sources == {TokenState.LOCKED}
    assert TOKEN_TRANSITIONS[Trigger.DISPATCH_ENDED].sources == {TokenState.DISPATCHED}


def test_a_token_begins_with_a_step_or_an_ended_root() -> None:
    entered = {TokenState.READY, TokenState.LOCKED, TokenState.PARKED, TokenState.FORKED, TokenState.CALLED}
    assert entered | {TokenState.ENDED, TokenState.DELAYED} == BIRTH_STATES


@pytest.mark.parametrize(("before", "after"), list(product(InstanceStatus, InstanceStatus)), ids=str)
def test_only_retrying_a_failed_instance_leaves_a_terminal_state(before: InstanceStatus, after: InstanceStatus) -> None:
    legal = (before is InstanceStatus.ACTIVE and after is not before) or (
        before is InstanceStatus.FAILED and after is InstanceStatus.ACTIVE
    )
    assert (after in INSTANCE_TRANSITIONS[before]) is legal
    instance = Instance(1, before, "old")
    if legal:
        change_status(instance, after, "new")
        assert (instance.status, instance.failure) == (after, "new")
    else:
        with pytest.raises(AssertionError):
            change_status(instance, after, "new")
        assert (instance.status, instance.failure) == (before, "old")


def test_the_numbers_in_the_database_never_change_their_meaning() -> None:
    assert [(state.name, state.value) for state in TokenState] == [
        ("READY", 0),
        ("LOCKED", 1),
        ("PARKED", 2),
        ("FORKED", 3),
        ("BACKOFF", 4),
        ("DISPATCHED", 5),
        ("ENDED", 6),
        ("CALLED", 7),
        ("DELAYED", 8),
    ]
    assert [(status.name, status.value) for status in InstanceStatus] == [
        ("ACTIVE", 0),
        ("COMPLETED", 1),
        ("FAILED", 2),
        ("CANCELLED", 3),
    ]
    assert [(kind.name, kind.value) for kind in HistoryKind] == [
        ("COMPLETED", 1),
        ("FAILED", 2),
        ("SKIPPED", 3),
        ("INTERRUPTED", 4),
        ("CAUGHT", 5),
        ("COMPENSATED", 6),
        ("ATTEMPT_FAILED", 10),
        ("ATTEMPT_EXPIRED", 11),
        ("ATTEMPT_RELEASED", 12),
        ("ATTEMPT_REDISPATCHED", 13),
        ("ATTEMPT_PARKED", 14),
        ("JOB_SIGNALLED", 15),
        ("OUTPUT_MAPPED", 16),
    ]


def test_what_is_open_and_what_is_a_job() -> None:
    open_states = {state for state in TokenState if token(state).is_open}
    assert open_states == OPEN_STATES == set(TokenState) - {TokenState.FORKED, TokenState.ENDED, TokenState.DELAYED}
    assert OPEN_STATES - {TokenState.PARKED, TokenState.CALLED} == JOB_STATES
    assert {kind for kind in HistoryKind if kind < 10} == CLOSING_KINDS


def test_the_root_token_is_the_one_with_the_instances_id() -> None:
    assert token(TokenState.READY).is_root
    assert not Token(id=2, instance_id=1, seq=1, step=0, state=TokenState.READY, entered_at=NOW).is_root


def test_the_reason_that_old_clients_look_for() -> None:
    assert INTERRUPTED_REASON == "interrupted by boundary timer"
