"""`advance`, step by step: each type of step entered, left, refused, failed, interrupted and cancelled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from penstock.core.rules.state import CONTINUE_TIMER, RETRY_TIMER, WAIT_TIMER, HistoryKind, InstanceStatus, TokenState
from penstock.testing.definitions import Json, definition, end, step, timer
from tests.core.machine import INSTANCE, START, Machine
from tests.shapes import assign, choose, gateway, joining, parallel, task, user, wait

ACTIVE, COMPLETED, FAILED, CANCELLED = InstanceStatus

BACKOFF: Json = {"initial": "PT10S", "multiplier": 3, "max": "PT1M", "jitter": 0}


def after(*first: Json) -> Json:
    """These steps, then a second task and an END."""
    return definition(*first, task("second"), end())


# -- entering


ENTERED: dict[str, tuple[Json, TokenState, list[str]]] = {
    "a service task becomes a job in the queue": (task("x", "second"), TokenState.READY, ["x"]),
    "a user task parks": (user("x", "second"), TokenState.PARKED, ["x"]),
    "a wait parks": (wait("x", "second"), TokenState.PARKED, ["x"]),
    "a decision goes on at once": (choose("x", {"true": "second"}), TokenState.READY, ["second"]),
    "a transformation goes on at once": (assign("x", {"a": 1}, "second"), TokenState.READY, ["second"]),
}


@pytest.mark.parametrize("case", ENTERED)
def test_entering(case: str) -> None:
    first, state, open_steps = ENTERED[case]
    machine = Machine(after(first))
    assert machine.open == open_steps
    token = machine.tokens[INSTANCE]
    assert (token.state, token.attempt, token.failures, token.expiries) == (state, 0, 0, 0)
    assert machine.ready == ({(token.id, token.seq)} if state is TokenState.READY else set())
    assert machine.status is ACTIVE


def test_entering_a_gateway_opens_its_branches_only() -> None:
    machine = Machine(parallel(task("a", "join"), user("b", "join"), wait("c", "join")))
    assert machine.open == ["a", "b", "c"]
    root = machine.tokens[INSTANCE]
    assert (root.state, root.pending, root.arrived) == (TokenState.FORKED, 3, 0)
    assert machine.path == [("fork", "COMPLETED")]


def test_entering_an_end_completes_the_instance() -> None:
    machine = Machine(definition(end()))
    assert machine.status is COMPLETED
    assert machine.path == [("end", "COMPLETED")]
    assert machine.tokens == {}


def test_entering_a_join_without_a_gateway_fails_the_instance() -> None:
    machine = Machine(
        definition(
            choose("which", {"false": "fork", "true": "join"}),
            gateway("fork", "a", "b"),
            task("a", "join"),
            task("b", "join"),
            joining(),
            end(),
        )
    )
    assert machine.status is FAILED
    assert machine.failure is not None
    assert machine.failure.startswith("JoinWithoutGateway")
    assert "'join'" in machine.failure
    assert machine.path == [("which", "COMPLETED"), ("join", "FAILED")]


# -- leaving, by a result


@pytest.mark.parametrize(
    "first", [task("x", "second"), user("x", "second"), wait("x", "second")], ids=lambda s: s["type"]
)
def test_a_result_leads_to_the_next_step_with_its_variables(first: Json) -> None:
    machine = Machine(after(first), {"a": 1, "b": 2})
    outcome = give(machine, "x", {"b": 3})
    assert machine.open == ["second"]
    assert machine.path == [("x", "COMPLETED")]
    assert machine.variables == {"a": 1, "b": 3}
    assert [row.output for row in outcome.history] == [b'{"b":3}']
    give(machine, "second", None)
    assert machine.status is COMPLETED
    assert machine.path == [("x", "COMPLETED"), ("second", "COMPLETED"), ("end", "COMPLETED")]


def give(machine: Machine, at: str, output: Json | None) -> Any:
    parked = machine.at(at).state is TokenState.PARKED
    return machine.finish(at, output) if parked else machine.complete(at, output)


@pytest.mark.parametrize("output", [None, {}], ids=["nothing", "an empty object"])
def test_a_result_without_variables_leaves_no_delta(output: Json | None) -> None:
    machine = Machine(after(task("x", "second")))
    outcome = machine.complete("x", output)
    assert [row.output for row in outcome.history] == [None]
    assert machine.tokens[INSTANCE].unfolded == 0


def test_what_a_closed_job_leaves_in_history() -> None:
    machine = Machine(after(task("x", "second")))
    entered = machine.tokens[INSTANCE]
    machine.claim("x", "ann")
    claimed_at = machine.now
    (row,) = machine.complete("x", {"a": None}, worker="ann").history
    assert (row.token_id, row.seq, row.step, row.kind) == (INSTANCE, entered.seq, 0, HistoryKind.COMPLETED)
    assert (row.worker, row.attempt, row.reason, row.output) == ("ann", 1, None, b'{"a":null}')
    assert (row.started_at, row.claimed_at, row.ended_at) == (START + timedelta(seconds=1), claimed_at, machine.now)
    assert row.position > row.seq


def test_the_next_job_starts_with_nothing_of_the_last_one() -> None:
    machine = Machine(after(task("x", "second", retryCount=3, timeout="PT5S")))
    machine.fail("x")
    machine.claim("x")
    machine.expire("x")
    machine.claim("x", "other")
    machine.complete("x", worker="other")
    token = machine.at("second")
    assert (token.attempt, token.failures, token.expiries) == (0, 0, 0)
    assert (token.claimed_by, token.claimed_at, token.lease_until, token.timeout_s) == (None, None, None, None)


def test_a_late_result_takes_the_job_out_of_the_queue() -> None:
    machine = Machine(after(task("x", "second")))
    machine.claim("x", "ann")
    seq = machine.expire("x").seq
    outcome = machine.complete("x", worker="ann")
    assert [(job.job_type, job.seq) for job in outcome.dequeued] == [("x", seq)]
    assert machine.open == ["second"]


def test_a_dispatched_job_is_completed_without_a_holder() -> None:
    machine = Machine(after(task("x", "second")))
    machine.claim("x").state = TokenState.DISPATCHED
    machine.complete("x", {"a": 1}, worker="whoever")
    assert machine.open == ["second"]
    assert machine.history[0].worker == "whoever"


# -- dead ends


@pytest.mark.parametrize("last", [task("x", None), user("x", None)], ids=lambda s: s["type"])
def test_a_task_without_a_next_step_ends_only_its_token(last: Json) -> None:
    machine = Machine(definition(last | {"boundaryEvents": [timer("end")]}, end()))
    outcome = give(machine, "x", None)
    assert machine.open == []
    assert machine.status is ACTIVE
    assert outcome.dead_end
    assert not outcome.ended
    assert machine.tokens[INSTANCE].state is TokenState.ENDED
    assert machine.timers == {}


def test_an_instance_in_a_dead_end_can_still_be_cancelled() -> None:
    machine = Machine(definition(task("x", None, boundaryEvents=[timer("end")]), end()))
    machine.complete("x")
    machine.cancel("enough")
    assert (machine.status, machine.failure) == (CANCELLED, "enough")


def test_a_side_token_goes_on_after_the_roots_dead_end() -> None:
    machine = Machine(definition(task("x", None, boundaryEvents=[timer("later")]), user("later"), end()))
    machine.fire("x")
    outcome = machine.complete("x")
    assert not outcome.dead_end
    assert machine.open == ["later"]
    machine.finish("later")
    assert machine.status is COMPLETED


# -- conditional next steps


@pytest.mark.parametrize("kind", ["SERVICE_TASK", "USER_TASK", "WAIT"])
def test_conditions_precede_the_next_step_and_see_the_result(kind: str) -> None:
    first = step(
        "x",
        kind,
        jobType="x",
        nextStep="second",
        conditionalNextSteps={"n > 5": "big", "n > 3": "middle", "true": "end"},
    )
    if kind == "WAIT":
        del first["jobType"]
    for n, target in [(9, ["big"]), (4, ["middle"]), (0, [])]:
        machine = Machine(definition(first, task("second"), task("big"), task("middle", "second"), end()), {"n": -1})
        give(machine, "x", {"n": n})
        assert machine.open == target
        assert machine.status is (ACTIVE if target else COMPLETED)


@pytest.mark.parametrize("kind", ["SERVICE_TASK", "USER_TASK", "WAIT"])
@pytest.mark.parametrize(
    ("condition", "reason"),
    [("n == 1", "DecisionNoBranchMatched"), ("n", "not true or false"), ("ghost", "ghost"), ("n + 'a'", "+")],
)
def test_without_a_true_condition_the_instance_fails_after_its_step(kind: str, condition: str, reason: str) -> None:
    first = step("x", kind, jobType="x", nextStep="end", conditionalNextSteps={condition: "end"})
    machine = Machine(definition(first, end()), {"n": 0})
    give(machine, "x", {"a": 1})
    assert machine.status is FAILED
    assert machine.failure is not None
    assert reason in machine.failure
    assert "'x'" in machine.failure
    assert machine.path == [("x", "COMPLETED")]
    assert machine.history[-1].reason is None
    assert machine.variables == {"n": 0, "a": 1}


def test_conditions_without_match_or_next_step_do_not_fall_through() -> None:
    first = step("x", "USER_TASK", conditionalNextSteps={"false": "end"})
    machine = Machine(definition(first, end()))
    machine.finish("x")
    assert machine.status is FAILED


# -- decisions


def test_the_first_true_condition_in_object_order_wins() -> None:
    arms = {"n > 1": "a", "n > 0": "b", "true": "c"}
    for n, target in [(2, "a"), (1, "b"), (0, "c")]:
        steps = [task("a"), task("b"), task("c")]
        assert Machine(definition(choose("d", arms), *steps, end()), {"n": n}).open == [target]


def test_conditions_after_the_first_true_one_are_not_evaluated() -> None:
    machine = Machine(definition(choose("d", {"true": "a", "ghost": "end"}), task("a"), end()))
    assert machine.open == ["a"]


@pytest.mark.parametrize(
    ("arms", "reason"),
    [
        ({"n > 5": "end"}, "DecisionNoBranchMatched"),
        ({"n": "end"}, "condition `n` gave 0, not true or false"),
        ({"'yes'": "end"}, 'gave "yes", not true or false'),
        ({"nil": "end"}, "gave null, not true or false"),
        ({"ghost > 1": "end"}, "ghost"),
        ({"false": "end", "1 / 0 > 2": "end"}, "1 / 0 > 2"),
        ({f"'x{'ä' * 200}'": "end"}, "not true or false"),
    ],
)
def test_a_decision_that_can_not_be_made_fails_the_instance(arms: dict[str, str], reason: str) -> None:
    machine = Machine(definition(choose("d", arms), end()), {"n": 0})
    assert machine.status is FAILED
    assert machine.failure is not None
    assert reason in machine.failure
    assert machine.path == [("d", "FAILED")]
    assert machine.tokens == {}


# -- transformations


def test_later_transformations_see_earlier_ones() -> None:
    values: Json = {
        "a": "${n + 1}",
        "b": "${a * 2}",
        "n": 7,
        "c": "${n}",
        "text": "${ not closed",
        "deep": {"x": "${n}"},
    }
    machine = Machine(definition(assign("t", values, "x"), task("x"), end()), {"n": 1})
    assert machine.variables == {"n": 7, "a": 2, "b": 4, "c": 7, "text": "${ not closed", "deep": {"x": "${n}"}}
    assert machine.path == [("t", "COMPLETED")]


def test_a_transformation_is_one_delta_of_the_names_it_sets() -> None:
    machine = Machine(definition(assign("t", {"a": None, "b": 10**30}, "x"), task("x"), end()), {"n": 1})
    assert [row.output for row in machine.history] == [b'{"a":null,"b":1000000000000000000000000000000}']
    assert machine.tokens[INSTANCE].unfolded == 1


def test_now_is_the_time_of_the_advance() -> None:
    machine = Machine(definition(assign("t", {"at": "${now()}"}, "x"), task("x"), end()))
    assert machine.variables == {"at": "2031-05-04T12:00:01Z"}


@pytest.mark.parametrize("value", ["${ghost}", "${1 + 'a'}", "${1 / 0}", "${fromJSON('nonsense')}"])
def test_a_transformation_that_fails_fails_the_instance_and_sets_nothing(value: str) -> None:
    machine = Machine(definition(assign("t", {"a": 1, "b": value}, "x"), task("x"), end()))
    assert machine.status is FAILED
    assert machine.path == [("t", "FAILED")]
    assert machine.failure is not None
    assert value[2:-1] in machine.failure
    assert "line 1" in machine.failure
    assert machine.variables == {}


# -- waits that end by themselves


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"duration": "PT1H"}, 3600),
        ({"duration": "${'PT' + string(n) + 'M'}"}, 120),
        ({"duration": "${n * 1.5}"}, 3),
        ({"until": "2031-05-04T12:00:31Z"}, 30),
        ({"until": "${moment}"}, 30),
        ({"until": "2031-05-04T11:00:01Z"}, -3600),
        ({"until": "2031-05-04T14:00:31+02:00"}, 30),
    ],
)
def test_a_wait_ends_by_itself_when_its_time_has_come(fields: Json, seconds: float) -> None:
    machine = Machine(after(wait("x", "second", **fields)), {"n": 2, "moment": "2031-05-04T12:00:31Z"})
    assert machine.armed("x") == [WAIT_TIMER]
    (armed,) = machine.timers.values()
    assert armed.fire_at == machine.now + timedelta(seconds=seconds)
    machine.fire("x", WAIT_TIMER)
    assert machine.open == ["second"]
    assert machine.path == [("x", "COMPLETED")]


def test_a_signal_ends_a_timed_wait_and_disarms_it() -> None:
    machine = Machine(after(wait("x", "second", duration="PT1H", boundaryEvents=[timer("second", "PT2H")])))
    assert machine.armed("x") == [WAIT_TIMER, 0]
    machine.finish("x", {"a": 1})
    assert machine.timers == {}
    assert machine.variables == {"a": 1}


def test_conditions_decide_where_a_timed_wait_goes_on() -> None:
    first = wait("x", "end", duration="PT1H", conditionalNextSteps={"n == 1": "second", "true": "end"})
    machine = Machine(definition(first, task("second"), end()), {"n": 1})
    machine.fire("x", WAIT_TIMER)
    assert machine.open == ["second"]


@pytest.mark.parametrize(
    "fields",
    [
        {"duration": "${ghost}"},
        {"duration": "${'one hour'}"},
        {"duration": "${true}"},
        {"duration": "${-1}"},
        {"duration": "${10 ** 400}"},
        {"duration": "${1e300}"},
        {"duration": "${nil}"},
        {"until": "${n}"},
        {"until": "${'tomorrow'}"},
        {"until": "${'9999-12-31T23:59:59-14:00'}"},
    ],
)
def test_a_wait_without_an_end_that_can_be_known_fails(fields: Json) -> None:
    machine = Machine(after(wait("x", "second", **fields)), {"n": 2})
    assert machine.status is FAILED
    assert machine.failure is not None
    assert "'x'" in machine.failure
    assert machine.path == [("x", "FAILED")]


# -- kept signals


def test_a_kept_signal_is_taken_when_its_wait_opens() -> None:
    machine = Machine(definition(task("x", "w"), wait("w", "second", duration="PT1H"), task("second"), end()))
    machine.buffer("w", {"a": 1})
    machine.buffer("w", {"a": 2})
    outcome = machine.complete("x")
    assert machine.open == ["second"]
    assert len(outcome.consumed_signals) == 1
    assert machine.variables == {"a": 1}
    assert machine.path == [("x", "COMPLETED"), ("w", "COMPLETED")]
    assert [(row.kind, row.step) for row in outcome.audit] == [("SIGNALLED", 1)]
    assert machine.timers == {}


def test_each_opened_wait_takes_the_oldest_kept_signal() -> None:
    body = definition(task("x", "w"), wait("w", "w2"), wait("w2", "w"), task("never"), end())
    body["steps"][1]["boundaryEvents"] = [timer("never", "PT1H")]  # type: ignore[index]  # pyright: ignore[reportIndexIssue] - JSON of its own making
    machine = Machine(body)
    for n in range(3):
        machine.buffer("w", {"w": n})
    machine.buffer("w2", {"w2": 0})
    machine.complete("x")
    assert machine.open == ["w2"]
    assert machine.variables == {"w": 1, "w2": 0}
    assert [len(kept) for kept in machine.signals.values()] == [1, 0]


def fan_in(count: int, **fields: Any) -> Machine:
    """A loop through a wait, for which so many signals are kept, until one says that it is the last."""
    loop = choose("again", {"last": "done", "true": "w"})
    body = definition(task("x", "w"), wait("w", "again", **fields), loop, user("done", None), end("late"))
    body["steps"][0]["boundaryEvents"] = [timer("late", interrupting=True)]  # type: ignore[index]  # pyright: ignore[reportIndexIssue] - JSON of its own making
    machine = Machine(body, {"last": False}, max_automatic_steps=10)
    for n in range(count):
        machine.buffer("w", {"n": n, "last": n == count - 1})
    return machine


def test_a_loop_fed_by_kept_signals_takes_them_in_slices() -> None:
    machine = fan_in(31)
    assert len(machine.complete("x").consumed_signals) == 3
    slices = [3]
    while machine.open == ["w"]:
        assert machine.armed("w") == [CONTINUE_TIMER]
        slices.append(len(machine.fire("w", CONTINUE_TIMER).consumed_signals))
    assert slices == [3] * 10 + [1]
    assert machine.open == ["done"]
    assert machine.variables == {"n": 30, "last": True}
    assert [row.kind for row in machine.last.audit] == ["SIGNALLED"]
    assert machine.timers == {}


def test_a_kept_signal_and_a_new_one_allow_equal_steps() -> None:
    steps = [assign(f"t{n}", {"n": n}, f"t{n + 1}" if n < 9 else "w") for n in range(10)]
    body = definition(wait("w", "t0", boundaryEvents=[timer("end")]), *steps, end())
    machine = Machine(body, max_automatic_steps=10)
    for _ in range(3):
        machine.buffer("w", {})
    machine.finish("w")
    while machine.armed("w") == [CONTINUE_TIMER, 0]:
        machine.fire("w", CONTINUE_TIMER)
    assert (machine.status, machine.open) == (ACTIVE, ["w"])
    assert sum(step == "w" for step, _ in machine.path) == 4


@pytest.mark.parametrize("index", [WAIT_TIMER, 0, 1])
def test_kept_signals_go_before_the_timers_of_their_wait(index: int) -> None:
    """An engine that was away for a day finds the slice and the end of the wait due at once."""
    machine = fan_in(
        7, duration="PT1H", boundaryEvents=[timer("late", "PT1H", interrupting=True), timer("done", "PT1H")]
    )
    machine.complete("x")
    assert machine.armed("w") == [CONTINUE_TIMER, WAIT_TIMER, 0, 1]
    machine.fire("w", index)
    assert [row.kind for row in machine.last.audit] == ["SIGNALLED"] * 3
    machine.fire("w", CONTINUE_TIMER)
    assert machine.open == ["done"]


def test_a_slice_that_another_token_took_leaves_its_wait_open() -> None:
    body = definition(
        user("u", "fork"), gateway("fork", "a", "b"), assign("a", {"n": 1}, "w"), assign("b", {"n": 1}, "w"),
        wait("w", "join"), joining("join", "end"), end(),
    )  # fmt: skip
    machine = Machine(body, max_automatic_steps=4)
    machine.buffer("w", {})
    machine.finish("u")
    assert machine.armed("w") == [CONTINUE_TIMER]
    machine.fire("w", CONTINUE_TIMER)
    assert machine.open == ["w"]
    assert machine.fire("w", CONTINUE_TIMER).consumed_signals == []
    assert (machine.open, machine.timers) == (["w"], {})
    machine.finish("w")
    assert machine.status is COMPLETED


# -- failures and retries


def test_a_failure_with_retries_left_queues_the_job_again() -> None:
    machine = Machine(after(task("x", "second", retryCount=2)))
    seq = machine.at("x").seq
    outcome = machine.fail("x", "first")
    token = machine.at("x")
    assert (token.seq, token.attempt, token.failures, token.state) == (seq, 1, 1, TokenState.READY)
    assert (token.claimed_by, token.claimed_at, token.lease_until) == (None, None, None)
    (row,) = outcome.history
    assert (row.kind, row.attempt, row.worker, row.reason) == (HistoryKind.ATTEMPT_FAILED, 1, "w", "first")
    machine.fail("x", "second")
    assert machine.at("x").failures == 2
    machine.fail("x", "third")
    assert (machine.status, machine.failure) == (FAILED, "third")
    assert [(row.kind.name, row.attempt) for row in machine.history] == [
        ("ATTEMPT_FAILED", 1),
        ("ATTEMPT_FAILED", 2),
        ("FAILED", 3),
    ]


def test_a_failure_that_is_not_retryable_uses_no_retry() -> None:
    machine = Machine(after(task("x", "second", retryCount=9)))
    machine.fail("x", "broken", retryable=False)
    assert (machine.status, machine.failure) == (FAILED, "broken")
    assert machine.path == [("x", "FAILED")]


def test_without_a_retry_count_the_first_failure_is_the_last() -> None:
    machine = Machine(after(task("x", "second")))
    machine.fail("x")
    assert machine.status is FAILED


def test_a_late_failure_queues_the_waiting_job_anew() -> None:
    machine = Machine(after(task("x", "second", retryCount=1)))
    machine.claim("x")
    machine.expire("x")
    outcome = machine.fail("x")
    assert len(outcome.dequeued) == len(outcome.queued) == 1
    assert machine.at("x").state is TokenState.READY


def test_a_back_off_holds_the_job_until_its_timer_fires() -> None:
    machine = Machine(after(task("x", "second", retryCount=5, retryBackoff=BACKOFF)))
    for seconds in (10, 30, 60, 60):
        machine.fail("x")
        token = machine.at("x")
        assert token.state is TokenState.BACKOFF
        assert machine.armed("x") == [RETRY_TIMER]
        (armed,) = machine.timers.values()
        assert armed.fire_at == machine.now + timedelta(seconds=seconds)
        assert machine.open == ["x"]
        machine.fire("x", RETRY_TIMER)
        assert (machine.at("x").state, machine.at("x").seq) == (TokenState.READY, token.seq)
        assert machine.timers == {}


def test_jitter_takes_its_share_off_the_back_off() -> None:
    backoff = {**BACKOFF, "jitter": 0.5}
    machine = Machine(after(task("x", "second", retryCount=5, retryBackoff=backoff)), jitter=0.8)
    machine.fail("x")
    (armed,) = machine.timers.values()
    assert armed.fire_at == machine.now + timedelta(seconds=6)


def test_the_workers_own_wish_replaces_the_back_off() -> None:
    machine = Machine(after(task("x", "second", retryCount=5, retryBackoff=BACKOFF)))
    machine.fail("x", after=300)
    (armed,) = machine.timers.values()
    assert armed.fire_at == machine.now + timedelta(seconds=300)
    machine.fire("x", RETRY_TIMER)
    machine.fail("x", after=0)
    assert machine.at("x").state is TokenState.READY


def test_boundary_timers_run_through_retries_until_the_end() -> None:
    first = task("x", "second", retryCount=5, retryBackoff=BACKOFF, boundaryEvents=[timer("second", interrupting=True)])
    machine = Machine(after(first))
    (boundary,) = machine.timers.values()
    machine.fail("x")
    assert machine.armed("x") == [RETRY_TIMER, 0]
    machine.fire("x", RETRY_TIMER)
    assert list(machine.timers.values()) == [boundary]
    machine.complete("x")
    assert machine.timers == {}


def test_a_job_in_back_off_is_interrupted_like_any_other() -> None:
    first = task("x", "second", retryCount=5, retryBackoff=BACKOFF, boundaryEvents=[timer("second", interrupting=True)])
    machine = Machine(after(first))
    machine.fail("x")
    machine.fire("x", 0)
    assert machine.open == ["second"]
    assert machine.timers == {}


def test_too_many_lease_expiries_fail_the_job_and_the_instance() -> None:
    machine = Machine(after(task("x", "second", retryCount=5)))
    machine.claim("x")
    machine.dead_letter("x", 10)
    assert (machine.status, machine.failure) == (FAILED, "lease expired 10 times")
    assert machine.history[-1].reason == "lease expired 10 times"


# -- cancel and end


OPEN_EVERYWHERE = parallel(
    task("ready", "join"),
    task("locked", "join"),
    task("backoff", "join", retryCount=1, retryBackoff=BACKOFF),
    user("user", "join", boundaryEvents=[timer("join")]),
    wait("wait", "join", duration="PT1H"),
    task("closing", "join", boundaryEvents=[timer("end", "PT5M", interrupting=True)]),
    task("dispatched", "join"),
)


def everywhere() -> Machine:
    machine = Machine(OPEN_EVERYWHERE)
    machine.claim("locked")
    machine.fail("backoff")
    machine.claim("dispatched").state = TokenState.DISPATCHED
    return machine


@pytest.mark.parametrize("ending", ["cancel", "end", "failure"])
def test_an_end_closes_every_open_step_once_whatever_its_state(ending: str) -> None:
    machine = everywhere()
    open_steps = [name for name in machine.open if name != "closing" or ending == "cancel"]
    if ending == "cancel":
        machine.cancel("why")
        status, reason = CANCELLED, "why"
    elif ending == "end":
        machine.fire("closing")
        status, reason = COMPLETED, None
    else:
        machine.fail("closing", "broken")
        status, reason = FAILED, "broken"
    assert (machine.status, machine.failure) == (status, reason)
    skipped = [row for row in machine.history if row.kind is HistoryKind.SKIPPED]
    assert sorted(machine.definition.steps[row.step].id for row in skipped) == sorted(open_steps)
    assert {row.reason for row in skipped} == {reason}
    assert machine.tokens == {}
    assert machine.timers == {}
    assert machine.ready == set()


def test_an_end_leaves_nothing_queued_by_the_same_advance() -> None:
    machine = Machine(parallel(task("a", "join"), wait("b", "join", duration="PT1H"), end("stop"), user("c", "join")))
    assert machine.status is COMPLETED
    assert machine.last.queued == machine.last.armed == machine.last.inserted == []
    assert machine.path == [("fork", "COMPLETED"), ("stop", "COMPLETED"), ("a", "SKIPPED"), ("b", "SKIPPED")]


def test_cancel_without_a_reason() -> None:
    machine = Machine(after(task("x", "second")))
    machine.cancel()
    assert (machine.status, machine.failure) == (CANCELLED, None)


@pytest.mark.parametrize("end_it", ["complete", "cancel"])
def test_nothing_reopens_a_completed_or_cancelled_instance(end_it: str) -> None:
    machine = Machine(definition(task("x"), end()))
    machine.complete("x") if end_it == "complete" else machine.cancel()
    assert machine.snapshot is None
    machine.snapshot = []
    with pytest.raises(AssertionError):
        machine.retry()


@pytest.mark.parametrize("event", ["cancel", "retry"])
def test_an_end_is_not_ended_again(event: str) -> None:
    machine = Machine(definition(task("x"), end()))
    machine.complete("x")
    machine.snapshot = []
    with pytest.raises(AssertionError):
        machine.cancel() if event == "cancel" else machine.retry()


def test_a_running_instance_is_not_retried() -> None:
    machine = Machine(definition(task("x"), end()))
    machine.snapshot = []
    with pytest.raises(AssertionError):
        machine.retry()


# -- the limit of automatic steps


def test_too_many_automatic_steps_fail_the_instance() -> None:
    body = definition(assign("t", {"n": "${n + 1}"}, "d"), choose("d", {"n < 0": "end", "true": "t"}), end())
    machine = Machine(body, {"n": 0}, max_automatic_steps=1000)
    assert machine.status is FAILED
    assert machine.failure is not None
    assert "more than 1000 automatic steps" in machine.failure
    assert len(machine.path) == 1001
    assert machine.variables == {"n": 500}


def test_as_many_automatic_steps_as_are_allowed_pass() -> None:
    steps = [assign(f"t{n}", {"n": n}, f"t{n + 1}" if n < 9 else "x") for n in range(10)]
    assert Machine(definition(*steps, task("x"), end()), max_automatic_steps=10).open == ["x"]
    assert Machine(definition(*steps, task("x"), end()), max_automatic_steps=9).status is FAILED


def test_a_loop_of_gateways_is_bounded_too() -> None:
    body = definition(
        gateway("fork", "join", "join"),
        joining("join", "again"),
        choose("again", {"n == 1": "end", "true": "fork"}),
        end(),
    )
    machine = Machine(body, {"n": 0}, max_automatic_steps=50)
    assert machine.status is FAILED


# -- the limit of what transformations write


def test_a_transformation_that_writes_too_much_fails_the_instance() -> None:
    doubled: Json = dict.fromkeys(("a", "b", "c", "d"), "${s + s}")  # 202 bytes of JSON each
    body = definition(assign("t", doubled, "x"), task("x"), end())
    assert Machine(body, {"s": "y" * 100}, max_written_bytes=808).open == ["x"]
    machine = Machine(body, {"s": "y" * 100}, max_written_bytes=807)
    assert machine.status is FAILED
    assert machine.failure == "step 't': more than 807 bytes of variables in one advance"
    assert machine.variables == {"s": "y" * 100}


def test_what_a_loop_of_transformations_writes_is_added_up() -> None:
    written: Json = {"n": "${n + 1}", "literal": "y" * 98}  # 1 and 100 bytes
    body = definition(assign("t", written, "d"), choose("d", {"n < 5": "t", "true": "x"}), task("x"), end())
    assert Machine(body, {"n": 0}, max_written_bytes=505).open == ["x"]
    assert Machine(body, {"n": 0}, max_written_bytes=504).status is FAILED


# -- chaining


CHAINED = definition(task("x"), end(), autoStartNextWorkflow=True, nextWorkflowId="next")


def test_a_completed_workflow_chains_into_the_next_one() -> None:
    machine = Machine(CHAINED)
    machine.complete("x")
    assert machine.status is COMPLETED
    assert machine.chained == "next"


def test_an_unknown_next_workflow_fails_the_instance_at_its_end() -> None:
    machine = Machine(CHAINED)
    machine.inputs["next_known"] = False
    machine.complete("x")
    assert (machine.status, machine.failure) == (FAILED, "NextWorkflowNotFound: next")
    assert machine.chained is None
    assert machine.path == [("x", "COMPLETED"), ("end", "COMPLETED")]


def test_a_retry_looks_for_a_missing_next_workflow_again() -> None:
    machine = Machine(CHAINED)
    machine.inputs["next_known"] = False
    machine.complete("x")
    machine.inputs["next_known"] = True
    machine.retry()
    assert (machine.status, machine.chained) == (COMPLETED, "next")


def test_a_chain_too_long_fails_at_its_last_link() -> None:
    machine = Machine(CHAINED)
    machine.inputs["may_chain"] = False
    machine.complete("x")
    assert machine.status is FAILED
    assert machine.failure is not None
    assert "too many workflows in one chain" in machine.failure
    assert machine.chained is None


@pytest.mark.parametrize("ending", ["cancel", "fail"])
def test_only_completion_chains(ending: str) -> None:
    machine = Machine(CHAINED)
    machine.cancel() if ending == "cancel" else machine.fail("x")
    assert machine.chained is None


def test_a_next_workflow_without_automatic_start_is_only_a_name() -> None:
    machine = Machine(definition(task("x"), end(), nextWorkflowId="next"))
    machine.complete("x")
    assert (machine.status, machine.chained) == (COMPLETED, None)


# -- pure


def test_the_same_inputs_give_the_same_outcome_and_stay_unchanged() -> None:
    def outcome() -> bytes:
        machine = everywhere()
        before = msgspec.json.encode(machine.tokens)
        machine._advance(list(machine.tokens.values()), machine_event(machine), {})
        assert msgspec.json.encode(machine.tokens) == before
        machine.cancel("x")
        return msgspec.json.encode([machine.last, machine.history])

    assert outcome() == outcome()


def machine_event(machine: Machine) -> Any:
    from penstock.core.advance.event import JobCompleted

    return JobCompleted(machine.at("locked").id, "w", b'{"a":1}')
