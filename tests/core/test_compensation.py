"""Compensation: definitions with it, and what an advance makes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.graph.definition import InvalidDefinition
from penstock.core.parsing.parsing import parse_definition
from penstock.core.rules.state import HistoryKind, InstanceStatus, TokenState
from penstock.testing.definitions import Json, definition, end, timer
from tests.core.machine import Machine
from tests.shapes import call, choose, compensate, gateway, joining, task, user, wait


def undoable(step_id: str, next_step: str | None = "end", **fields: object) -> Json:
    """A task that a job `undo-<id>` undoes."""
    return task(step_id, next_step, compensation={"jobType": f"undo-{step_id}"}, **fields)


def travel(*last: Json, **fields: Any) -> Json:
    """Flight and hotel, then the card, whose failure leads to a COMPENSATE."""
    return definition(
        undoable("flight", "hotel"),
        undoable("hotel", "card"),
        task("card", "end", boundaryEvents=[{"type": "ERROR", "targetStepId": "undo"}]),
        *(last or (compensate("undo", "sorry"), task("sorry"))),
        end(),
        **fields,
    )


def problems(*steps: Json, **fields: Any) -> list[str]:
    with pytest.raises(InvalidDefinition) as caught:
        parse_definition(definition(*steps, end(), **fields))
    return [str(problem) for problem in caught.value.problems]


def run(machine: Machine, *steps: str) -> None:
    for step in steps:
        machine.complete(step, {step: True})


def test_everything_wrong_with_compensation_is_reported_at_once() -> None:
    wrong: Any = {"retryCount": -1, "nextStep": "b", "timeout": "soon", "retryOn": ["A"], "noRetryOn": ["A"]}
    assert problems(
        task("a", "b", compensation=wrong),
        task("b", "undo", compensation=7),
        compensate("undo", "a/compensation", steps=["a", "end", "nowhere", "a", 3]),
        onFailure="RETRY",
    ) == [
        'onFailure: must be COMPENSATE, not "RETRY"',
        "steps[0].compensation.jobType: required",
        "steps[0].compensation.retryCount: must lie between 0 and 2147483647",
        "steps[0].compensation.timeout: 'soon' is not an ISO 8601 duration such as PT30S, PT1H30M, P7D or P1W",
        'steps[0].compensation.noRetryOn: the code "A" is in retryOn, too',
        "steps[0].compensation.nextStep: unknown field",
        "steps[1].compensation: must be an object, not a number",
        "steps[2].steps[4]: must be a string, not a number",
        'steps[2].nextStep: unknown step "a/compensation"',
        'steps[3]: step "end" cannot be reached from the first step',
        "steps: no END step can be reached from the first step",
        'steps[2].steps[1]: step "end" has no compensation',
        'steps[2].steps[2]: unknown step "nowhere"',
        'steps[2].steps[3]: the step "a" stands twice',
    ]


def test_what_has_no_handler_can_not_be_compensated() -> None:
    assert problems(task("a", "undo"), compensate("undo"), onFailure="COMPENSATE") == [
        "steps[1]: there is nothing to compensate: no step has a compensation",
        "onFailure: no step has a compensation",
    ]
    assert problems(task("a", "undo"), compensate("undo", steps=[])) == ["steps[1].steps: must have at least one step"]


def test_hidden_ids_are_not_free() -> None:
    assert problems(
        undoable("a", "a/compensation"), task("a/compensation", "/compensation"), task("/compensation")
    ) == [
        'steps[1].id: the id "a/compensation" is that of the compensation of steps[0]',
        'steps[2].id: the id "/compensation" is taken: steps have a compensation',
    ]
    assert parse_definition(definition(task("a", "a/compensation"), task("a/compensation"), end())).undo_step is None


def test_the_canonical_form_keeps_what_was_given() -> None:
    handler: Json = {
        "jobType": "refund", "delegateClass": "x", "retryCount": 5, "retryBackoff": {"initial": "PT1S"},
        "timeout": "PT5M", "noRetryOn": ["GONE"],
    }  # fmt: skip
    given = definition(
        task("card", "undo", compensation=handler), compensate("undo", steps=["card"]), end(), onFailure="COMPENSATE"
    )
    parsed = parse_definition(given)
    assert {**json.loads(parsed.content), "steps": json.loads(parsed.content)["steps"]} == given
    assert parse_definition(parsed.content.encode()) == parsed
    card, undo, _, hidden, last = parsed.steps
    assert (hidden.id, hidden.job_type, hidden.retry_count, hidden.timeout_s) == ("card/compensation", "refund", 5, 300)
    assert (card.compensation, hidden.compensates, undo.undoes, last.undoes) == (3, 0, (0,), (0,))
    assert (parsed.undo_step, parsed.undoes_failures, parsed.single_token) == (4, True, False)


def test_fields_of_compensation_on_another_step_are_ignored() -> None:
    parsed = parse_definition(definition({**user("a"), "compensation": {"jobType": 7}, "steps": [1]}, end()))
    assert (parsed.steps[0].compensation, parsed.undo_step, len(parsed.steps)) == (None, None, 2)


def test_what_completed_is_undone_in_reverse_order_one_by_one() -> None:
    machine = Machine(travel())
    machine.complete("flight", {"seat": "1A"})
    machine.complete("hotel", None)
    machine.fail("card", retryable=False)
    assert machine.open == ["hotel/compensation"]
    assert machine.reported == [{"stepId": "hotel", "output": None}]
    machine.complete("hotel/compensation", {"refunded": 80})
    assert machine.open == ["flight/compensation"]
    assert machine.reported == [{"stepId": "flight", "output": {"seat": "1A"}}]
    machine.complete("flight/compensation")
    assert machine.open == ["sorry"]
    assert machine.variables == {"seat": "1A", "refunded": 80}
    run(machine, "sorry")
    assert machine.path == [
        ("flight", "COMPLETED"),
        ("hotel", "COMPLETED"),
        ("card", "CAUGHT"),
        ("undo", "COMPLETED"),
        ("hotel/compensation", "COMPENSATED"),
        ("flight/compensation", "COMPENSATED"),
        ("sorry", "COMPLETED"),
        ("end", "COMPLETED"),
    ]


def test_a_compensate_with_nothing_to_undo_is_passed() -> None:
    go = choose("go", {"n > 0": "a", "true": "undo"})
    machine = Machine(definition(go, undoable("a", "undo"), compensate("undo"), end()), {"n": 0})
    assert machine.status is InstanceStatus.COMPLETED
    assert machine.path == [("go", "COMPLETED"), ("undo", "COMPLETED"), ("end", "COMPLETED")]


def test_what_this_very_advance_completed_is_undone_too() -> None:
    machine = Machine(definition(undoable("a", "undo"), compensate("undo"), end()))
    machine.complete("a", {"x": 1})
    assert machine.reported == [{"stepId": "a", "output": {"x": 1}}]


def test_each_round_of_a_loop_is_undone_once() -> None:
    body = definition(
        undoable("a", "more"), choose("more", {"n < 3": "a", "true": "undo"}), compensate("undo", "again"),
        compensate("again"), end(),
    )  # fmt: skip
    machine = Machine(body, {"n": 0})
    for n in (1, 2, 3):
        machine.complete("a", {"n": n})
    seen: list[object] = []
    while machine.status is InstanceStatus.ACTIVE:
        seen += machine.reported
        run(machine, "a/compensation")
    assert seen == [{"stepId": "a", "output": {"n": n}} for n in (3, 2, 1)]


def test_only_named_steps_are_undone() -> None:
    machine = Machine(travel(compensate("undo", steps=["flight"])))
    run(machine, "flight", "hotel")
    machine.fail("card", retryable=False)
    assert machine.open == ["flight/compensation"]
    run(machine, "flight/compensation")
    assert machine.status is InstanceStatus.COMPLETED


def test_what_is_still_running_is_not_undone() -> None:
    body = definition(
        gateway("fork", "a", "b"), undoable("a", "join"), undoable("b", "undo"), compensate("undo", "join"),
        joining("join"), end(),
    )  # fmt: skip
    machine = Machine(body)
    run(machine, "b", "a", "b/compensation")
    assert machine.status is InstanceStatus.COMPLETED
    assert ("a/compensation", "COMPENSATED") not in machine.path


def test_two_compensates_at_once_share_what_there_is() -> None:
    body = definition(
        undoable("a", "b"), undoable("b", "c"), undoable("c", "fork"), gateway("fork", "one", "two"),
        compensate("one", "join"), compensate("two", "join"), joining("join"), end(),
    )  # fmt: skip
    machine = Machine(body)
    run(machine, "a", "b", "c")
    assert machine.open == ["c/compensation", "b/compensation"]
    run(machine, "c/compensation")
    assert machine.open == ["b/compensation", "a/compensation"]
    run(machine, "b/compensation", "a/compensation")
    assert machine.status is InstanceStatus.COMPLETED


def test_a_retry_goes_on_at_the_handler_that_failed() -> None:
    machine = Machine(travel())
    run(machine, "flight", "hotel")
    machine.fail("card", retryable=False)
    machine.fail("hotel/compensation", "no line", retryable=False, code="GONE")
    assert (machine.failure, machine.instance.failure_code) == ("compensation of step 'hotel' failed: no line", "GONE")
    machine.retry()
    assert machine.open == ["hotel/compensation"]
    assert machine.reported == [{"stepId": "hotel", "output": {"hotel": True}}]
    run(machine, "hotel/compensation", "flight/compensation", "sorry")
    assert machine.status is InstanceStatus.COMPLETED


def test_a_failure_is_undone_before_the_instance_fails() -> None:
    body = definition(
        undoable("flight", "fork"), gateway("fork", "hotel", "ask", "car"), undoable("hotel", "card"),
        user("ask", "join"), call("car", "car", "join"), task("card", "join"), joining("join"), end(),
        onFailure="COMPENSATE",
    )  # fmt: skip
    machine = Machine(body)
    run(machine, "flight", "hotel")
    called = machine.at("car")
    out = machine.fail("card", "declined", retryable=False, code="DECLINED")
    assert out.abandoned == [(called.id, called.seq)]
    assert (machine.status, machine.open) == (InstanceStatus.ACTIVE, ["hotel/compensation"])
    root = machine.tokens[machine.instance.id]
    assert (root.state, root.pending, len(machine.tokens)) == (TokenState.FORKED, 1, 2)
    run(machine, "hotel/compensation")
    machine.fail("flight/compensation", "no line", retryable=False)
    assert machine.failure == "compensation of step 'flight' failed: no line"
    machine.retry()
    run(machine, "flight/compensation")
    assert (machine.status, machine.failure, machine.instance.failure_code) == (
        InstanceStatus.FAILED, "declined", "DECLINED"
    )  # fmt: skip
    assert machine.last.snapshot is None
    assert [how for step, how in machine.path if step in ("ask", "car")] == ["SKIPPED", "SKIPPED"]


def test_a_failure_with_nothing_to_undo_can_be_retried() -> None:
    machine = Machine(travel(compensate("undo", "sorry"), task("sorry"), onFailure="COMPENSATE"))
    machine.fail("flight", retryable=False)
    assert (machine.status, machine.failure) == (InstanceStatus.FAILED, "boom")
    machine.retry()
    assert machine.open == ["flight"]


@pytest.mark.parametrize("compensated", [False, True])
def test_a_cancel_undoes_only_if_asked_to(compensated: bool) -> None:
    machine = Machine(travel())
    run(machine, "flight")
    machine.cancel("changed my mind", compensate=compensated)
    assert machine.open == (["flight/compensation"] if compensated else [])
    if compensated:
        run(machine, "flight/compensation")
    assert (machine.status, machine.failure) == (InstanceStatus.CANCELLED, "changed my mind")
    assert machine.path[1:3] == [("hotel", "SKIPPED"), *([("/compensation", "COMPLETED")] if compensated else [])]


def test_a_cancel_with_nothing_to_undo_ends_at_once() -> None:
    machine = Machine(travel())
    machine.cancel(compensate=True)
    assert machine.status is InstanceStatus.CANCELLED
    assert HistoryKind.COMPENSATED not in {row.kind for row in machine.history}


def test_a_handler_that_an_end_interrupts_is_begun_anew() -> None:
    """What it was to undo is not undone: another one has to."""
    machine = Machine(travel())
    run(machine, "flight", "hotel")
    machine.fail("card", retryable=False)
    machine.claim("hotel/compensation")
    machine.cancel(compensate=True)
    assert ("hotel/compensation", "SKIPPED") in machine.path
    run(machine, "hotel/compensation", "flight/compensation")
    assert machine.status is InstanceStatus.CANCELLED
    assert [how for step, how in machine.path if step.startswith("hotel/")] == ["SKIPPED", "COMPENSATED"]


def test_a_branch_without_a_step_is_undone_too() -> None:
    """The root token has ended; a side token fails."""
    body = definition(
        undoable("a", None, boundaryEvents=[timer("b")]),
        task("b", "c"),
        wait("c", "end"),
        end(),
        onFailure="COMPENSATE",
    )
    machine = Machine(body)
    machine.fire("a")
    run(machine, "a")
    assert machine.tokens[machine.instance.id].state is TokenState.ENDED
    machine.fail("b", retryable=False)
    run(machine, "a/compensation")
    assert (machine.status, machine.failure) == (InstanceStatus.FAILED, "boom")


def test_a_failure_by_too_many_steps_is_undone_too() -> None:
    body = definition(undoable("a", "loop"), choose("loop", {"n > 0": "loop", "true": "end"}), end(),
                      onFailure="COMPENSATE")  # fmt: skip
    machine = Machine(body, {"n": 1}, max_automatic_steps=10)
    run(machine, "a")
    assert machine.open == ["a/compensation"]
    run(machine, "a/compensation")
    assert machine.failure == "step 'loop': more than 10 automatic steps in one advance"


def test_a_call_is_undone_by_its_handler() -> None:
    body = definition(
        call("ship", "ship", "undo", output={"parcel": "${result.parcel}"}, compensation={"jobType": "fetch"}),
        compensate("undo"), end(),
    )  # fmt: skip
    machine = Machine(body)
    machine.child_ended(machine.at("ship"), InstanceStatus.COMPLETED, {"parcel": 7})
    assert machine.reported == [{"stepId": "ship", "output": {"parcel": 7}}]
    run(machine, "ship/compensation")
    assert machine.status is InstanceStatus.COMPLETED
