"""forEach in an upload and in one advance; what engines make of it is in tests/engine/test_for_each.py."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.core.advance.event import JobCompleted, JobFailed, StepSkipped, TimerFired, TokenMoved
from penstock.core.advance.for_each import ITEMS_MAX_COUNT, STARTED_MAX_COUNT
from penstock.core.graph.definition import InvalidDefinition
from penstock.core.parsing.parsing import parse_definition
from penstock.core.rules.state import CONTINUE_TIMER, HistoryKind, InstanceStatus, Token, TokenState
from penstock.testing.definitions import Json, definition, end, timer
from tests.core.machine import Machine
from tests.shapes import call, task, user

LINES: Json = {"lines": [10, 20, 30, 40]}


def each(**fields: Any) -> Json:
    return {"items": "${lines}", "as": "line", "index": "i", **fields}


def mapped(**fields: Any) -> Json:
    """One SERVICE_TASK `a` for each of `lines`, then `b`."""
    boundaries = fields.pop("boundaryEvents", None)
    more: Json = {} if boundaries is None else {"boundaryEvents": boundaries}
    retries: Json = {"retryCount": fields.pop("retryCount", 0)}
    return definition(task("a", "b", forEach=each(**fields), **retries, **more), task("b"), user("c"), end())


def begun(body: Json | None = None, variables: Json = LINES, **inputs: Any) -> Machine:
    made = mapped() if body is None else body
    steps: Any = made["steps"]
    if not any(event["targetStepId"] == "c" for event in steps[0].get("boundaryEvents", [])):
        steps[1:3] = [step for step in steps[1:3] if step["id"] != "c"]
    return Machine(made, variables, **inputs)


def items(machine: Machine) -> dict[int, Token]:
    """The tokens of items under way, by index."""
    return {token.item: token for token in machine.tokens.values() if token.item is not None}


def done(machine: Machine, item: int, output: Json | None = None) -> None:
    token = items(machine)[item]
    if token.state is TokenState.READY:
        machine.claim_token(token)
    machine.apply(JobCompleted(token.id, "w", None if output is None else msgspec.json.encode(output)))


def broken(machine: Machine, item: int, code: str | None = None, *, retryable: bool = False) -> None:
    token = items(machine)[item]
    if token.state is TokenState.READY:
        machine.claim_token(token)
    machine.apply(JobFailed(token.id, "w", retryable, "boom", code=code))


def whole(machine: Machine) -> Token:
    [token] = [token for token in machine.tokens.values() if token.id in machine.maps]
    return token


def go_on(machine: Machine) -> None:
    machine.apply(TimerFired(whole(machine).id, CONTINUE_TIMER))


def ends_of(machine: Machine, step: str = "a") -> list[tuple[int | None, str]]:
    index = machine.step(step).index
    return [(row.item, row.kind.name) for row in machine.history if row.step == index]


def problems(**fields: Any) -> list[str]:
    with pytest.raises(InvalidDefinition) as caught:
        parse_definition(definition({**task("a"), **fields}, end()))
    return [str(problem) for problem in caught.value.problems]


def test_an_upload_is_told_all_problems_of_a_for_each() -> None:
    given = {
        "items": "lines", "as": "x", "index": "x", "parallel": 1001, "collect": "${1 +}", "until": 3, "onError": "STOP",
        "surprise": 1,
    }  # fmt: skip
    assert problems(forEach=given) == [
        'steps[0].forEach.items: must be an expression, ${…}, not "lines"',
        "steps[0].forEach.parallel: must lie between 1 and 1000",
        "steps[0].forEach.collect: unexpected } (line 1, column 6 of `${1 +}`)",
        "steps[0].forEach.into: required beside collect",
        "steps[0].forEach.until: must be a string, not a number",
        'steps[0].forEach.onError: must be FAIL or COLLECT, not "STOP"',
        "steps[0].forEach.surprise: unknown field",
        'steps[0].forEach.index: the same variable as as: "x"',
    ]
    assert problems(forEach={}) == ["steps[0].forEach.items: required"]
    assert problems(forEach=[]) == ["steps[0].forEach: must be an object, not an array"]
    named = {"items": "${a}", "as": "result", "index": "items", "into": "b" * 257}
    assert problems(forEach=named) == [
        "steps[0].forEach.into: longer than 256 characters",
        'steps[0].forEach.as: "result" is what collect and until know of the item that is done',
        'steps[0].forEach.index: "items" is what collect and until know of the item that is done',
    ]


def test_a_call_for_each_has_no_output() -> None:
    with pytest.raises(InvalidDefinition) as caught:
        parse_definition(definition(call("a", "x", forEach=each(), output={"b": "${result.b}"}), end()))
    assert caught.value.reason == (
        "invalid definition: steps[0].output: with forEach nothing comes back but what forEach.collect says"
    )


def test_the_canonical_form_keeps_the_for_each_as_given() -> None:
    given = task("a", forEach=each(parallel=3, collect="${result.n}", into="ns", until="${i > 1}", onError="COLLECT"))
    parsed = parse_definition(definition(given, end()))
    assert json.loads(parsed.content)["steps"][0]["forEach"] == given["forEach"]
    assert parse_definition(parsed.content.encode()) == parsed
    assert not parsed.single_token
    assert parsed.maps
    smallest = parse_definition(definition(task("a", forEach={"items": "${x}"}), end())).steps[0].for_each
    assert smallest is not None
    assert (smallest.name, smallest.index, smallest.parallel, smallest.into) == ("item", None, 100, None)


def test_items_are_jobs_and_the_last_ends_the_step() -> None:
    machine = begun(mapped(parallel=2))
    assert machine.open == ["a", "a"]
    assert items(machine).keys() == {0, 1}
    assert machine.items[whole(machine).id, 1] == b'{"line":20,"i":1}'
    done(machine, 1, {"x": 1})
    assert items(machine).keys() == {0, 2}
    done(machine, 0)
    done(machine, 3)
    assert (items(machine).keys(), whole(machine).pending) == ({2}, 1)
    done(machine, 2)
    assert machine.open == ["b"]
    assert machine.variables == LINES, "what an item is done with is not a variable of the instance"
    assert ends_of(machine) == [
        (1, "COMPLETED"),
        (0, "COMPLETED"),
        (3, "COMPLETED"),
        (2, "COMPLETED"),
        (None, "COMPLETED"),
    ]
    assert (machine.maps, machine.items, machine.results) == ({}, {}, {})


def test_what_is_collected_comes_in_the_order_of_items() -> None:
    machine = begun(mapped(collect="${result.n + line + i}", into="sums"))
    for item in (3, 0, 2, 1):
        done(machine, item, {"n": 100})
    assert machine.variables == {**LINES, "sums": [110, 121, 132, 143]}


def test_no_items_give_an_empty_list_at_once() -> None:
    machine = begun(mapped(collect="${result.n}", into="sums"), {"lines": []})
    assert machine.open == ["b"]
    assert machine.variables == {"lines": [], "sums": []}
    assert ends_of(machine) == [(None, "COMPLETED")]


@pytest.mark.parametrize("given", [3, {"a": 1}, "abc", None, [0] * (ITEMS_MAX_COUNT + 1)])
def test_what_is_no_list_is_an_error_with_a_code(given: object) -> None:
    machine = begun(variables={"lines": given})
    assert machine.status is InstanceStatus.FAILED
    assert machine.instance.failure_code == "Penstock.BadItems"
    assert (machine.failure or "").startswith("BadItems: step 'a': forEach.items `${lines}` gave ")
    caught: Json = {"type": "ERROR", "errorCodes": ["Penstock.BadItems"], "errorVariable": "e", "targetStepId": "c"}
    machine = begun(mapped(boundaryEvents=[caught]), {"lines": given})
    assert machine.open == ["c"]
    assert machine.variables["e"]["code"] == "Penstock.BadItems"


def test_items_of_too_many_bytes_are_refused_as_well() -> None:
    machine = begun(variables={"lines": ["x" * 50_000] * 80})
    assert len(items(machine)) == 80, "more than other expressions may give"
    machine = begun(variables={"lines": ["x" * 50_000] * 84})
    assert "the result is larger than 4194304 bytes" in (machine.failure or "")
    assert machine.instance.failure_code == "Penstock.BadItems"
    machine = begun(mapped(index="i" * 256, **{"as": "l" * 250}), {"lines": [0] * 9_000})
    assert (machine.failure or "").endswith("bytes of items, more than 4194304")
    assert machine.instance.failure_code == "Penstock.BadItems"


def test_many_items_begin_in_slices_of_an_advance_each() -> None:
    machine = begun(mapped(parallel=250), {"lines": list(range(300))})
    assert len(items(machine)) == STARTED_MAX_COUNT
    assert (whole(machine).pending, whole(machine).arrived) == (101, 1)
    done(machine, 5)
    assert len(items(machine)) == 100
    go_on(machine)
    assert len(items(machine)) == 200
    go_on(machine)
    assert (len(items(machine)), whole(machine).arrived) == (250, 0)
    for item in range(300):
        if item != 5:
            done(machine, item)
    assert machine.open == ["b"]


def test_items_may_all_be_done_before_the_next_slice() -> None:
    machine = begun(mapped(parallel=250, collect="${i}", into="all"), {"lines": list(range(120))})
    for item in range(120):
        done(machine, item)
    assert (whole(machine).pending, whole(machine).arrived) == (1, 1)
    go_on(machine)
    assert machine.open == ["b"]
    assert machine.variables["all"] == list(range(120))


def test_lists_without_items_in_a_loop_are_bounded() -> None:
    body = definition(task("a", "a", forEach=each(), boundaryEvents=[timer("end", "PT1H")]), end())
    machine = Machine(body, {"lines": []}, max_automatic_steps=20)
    assert machine.failure == "step 'a': more than 20 automatic steps in one advance"
    assert machine.maps == {}, "a retry enters the step anew"
    machine.retry()
    assert machine.status is InstanceStatus.FAILED


def test_an_item_that_fails_ends_the_others() -> None:
    machine = begun(mapped(parallel=3))
    done(machine, 1)
    broken(machine, 2)
    assert machine.status is InstanceStatus.FAILED
    assert ends_of(machine) == [
        (1, "COMPLETED"), (None, "FAILED"), (2, "FAILED"), (0, "SKIPPED"), (3, "SKIPPED"),
    ]  # fmt: skip
    assert machine.maps, "a retry goes on with them"
    machine.retry()
    assert items(machine).keys() == {0, 2, 3}
    assert whole(machine).entry is not None
    for item in (0, 2, 3):
        done(machine, item)
    assert machine.open == ["b"]
    assert ends_of(machine)[-1] == (None, "COMPLETED")


def test_a_retry_begins_those_that_were_still_to_begin() -> None:
    machine = begun(mapped(parallel=150), {"lines": list(range(200))})
    broken(machine, 7)
    machine.retry()
    assert (len(items(machine)), whole(machine).arrived) == (100, 1)
    go_on(machine)
    assert len(items(machine)) == 150


def test_an_item_has_the_retries_of_its_step() -> None:
    machine = begun(mapped(parallel=1, retryCount=1))
    broken(machine, 0, retryable=True)
    assert items(machine)[0].failures == 1
    done(machine, 0)
    assert items(machine)[1].failures == 0


def test_errors_may_be_collected_like_results() -> None:
    machine = begun(mapped(parallel=2, collect="${result.n}", into="ns", onError="COLLECT"))
    done(machine, 0, {"n": 1})
    broken(machine, 1, "DECLINED")
    broken(machine, 2)
    assert machine.maps[whole(machine).id].failed == 2
    done(machine, 3, {"n": 4})
    assert machine.open == ["b"]
    assert machine.variables["ns"] == [
        1,
        {"error": {"code": "DECLINED", "message": "boom"}},
        {"error": {"code": "Penstock.NotRetryable", "message": "boom"}},
        4,
    ]
    assert (2, "FAILED") in ends_of(machine)
    assert ends_of(machine)[-1] == (None, "COMPLETED")


def test_an_error_boundary_is_the_whole_steps() -> None:
    caught: Json = {"type": "ERROR", "errorCodes": ["DECLINED"], "errorVariable": "e", "targetStepId": "c"}
    machine = begun(mapped(parallel=2, onError="COLLECT", boundaryEvents=[caught]))
    broken(machine, 0, "OTHER")
    broken(machine, 1, "DECLINED")
    assert machine.open == ["c"]
    assert ends_of(machine) == [(0, "FAILED"), (1, "FAILED"), (2, "SKIPPED"), (None, "CAUGHT")]
    assert machine.variables["e"] == {"code": "DECLINED", "message": "boom", "stepId": "a", "data": None}


def test_boundary_timers_are_the_whole_steps() -> None:
    machine = begun(
        mapped(boundaryEvents=[timer("c", "PT1M", interrupting=False), timer("b", "PT1H", interrupting=True)])
    )
    assert len(machine.timers) == 2
    machine.apply(TimerFired(whole(machine).id, 0))
    assert machine.open == ["a", "a", "a", "a", "c"]
    done(machine, 0)
    machine.apply(TimerFired(whole(machine).id, 1))
    assert machine.open == ["c", "b"]
    assert ends_of(machine)[1:] == [(1, "SKIPPED"), (2, "SKIPPED"), (3, "SKIPPED"), (None, "INTERRUPTED")]
    assert not machine.timers


def test_a_step_is_done_once_until_is_true() -> None:
    machine = begun(
        mapped(parallel=3, collect="${result.n}", into="ns", until="${items.completed >= 2 && result.n > 1}")
    )
    done(machine, 0, {"n": 5})
    done(machine, 1, {"n": 1})
    assert machine.open == ["a", "a"]
    done(machine, 3, {"n": 2})
    assert machine.open == ["b"]
    assert machine.variables["ns"] == [5, 1, None, 2]
    assert ends_of(machine)[-2:] == [(2, "SKIPPED"), (None, "COMPLETED")] or (2, "SKIPPED") in ends_of(machine)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"collect": "${result.n + 1}", "into": "x"}, "step 'a': "),
        ({"until": "${line}"}, "until `${line}` gave 10, not true or false"),
    ],
)
def test_expressions_about_items_that_fail_are_not_caught(fields: Json, reason: str) -> None:
    caught: Json = {"type": "ERROR", "targetStepId": "c"}
    machine = begun(mapped(onError="COLLECT", boundaryEvents=[caught], **fields))
    done(machine, 0)
    assert machine.status is InstanceStatus.FAILED
    assert reason in (machine.failure or "")
    machine.retry()  # of the expression: what the item's job did stays done
    assert machine.status is InstanceStatus.FAILED
    assert reason in (machine.failure or "")
    assert items(machine) == {}


def test_what_is_collected_has_the_bound_of_variables() -> None:
    machine = begun(mapped(collect="${result.n}", into="ns"), max_written_bytes=1_000)
    done(machine, 0, {"n": "x" * 600})
    done(machine, 1, {"n": "x" * 600})
    assert machine.failure == "step 'a': the results of its items have more than 1000 bytes"


def test_signals_of_an_items_job_are_its_own() -> None:
    machine = begun(mapped(collect="${paid}", into="all"))
    machine.park("a", signal="paid")
    machine.signal_job("a", {"paid": 7})
    assert machine.variables == LINES
    assert machine.items[whole(machine).id, 0] == b'{"line":10,"i":0,"paid":7}'
    assert [row.output for row in machine.history] == [None, None]


def test_a_cancel_closes_items_and_step() -> None:
    machine = begun(mapped(parallel=2))
    machine.cancel("enough")
    assert ends_of(machine) == [(0, "SKIPPED"), (1, "SKIPPED"), (None, "SKIPPED")]
    assert (machine.maps, machine.items) == ({}, {})


def test_user_tasks_and_calls_come_for_each_item_too() -> None:
    machine = Machine(definition(user("a", forEach=each(collect="${result.ok}", into="oks")), end()), LINES)
    for ok in (True, False, True, True):
        machine.finish("a", {"ok": ok})
    assert machine.status is InstanceStatus.COMPLETED
    assert machine.variables["oks"] == [True, False, True, True]
    calls = definition(
        call(
            "a",
            "child",
            forEach=each(collect="${result.x}", into="xs"),
            input={"n": "${line}"},
            businessKey="${string(i)}",
        ),
        end(),
    )
    machine = Machine(calls, LINES)
    assert [(made.variables, made.business_key) for made in machine.calls.values()] == [
        (b'{"n":10}', "0"), (b'{"n":20}', "1"), (b'{"n":30}', "2"), (b'{"n":40}', "3"),
    ]  # fmt: skip
    for item, token in sorted(items(machine).items()):
        machine.child_ended(token, InstanceStatus.COMPLETED, {"x": item})
    assert machine.status is InstanceStatus.COMPLETED
    assert machine.variables["xs"] == [0, 1, 2, 3]


def test_calls_of_items_go_on_when_one_advance_starts_few() -> None:
    calls = definition(call("a", "child", forEach=each(parallel=2)), end())
    machine = Machine(calls, LINES, calls_max=1)
    assert len(machine.calls) == 1
    late = items(machine)[1]
    machine.apply(TimerFired(late.id, CONTINUE_TIMER))
    assert len(machine.calls) == 2
    assert msgspec.json.decode(machine.calls[late.id, late.seq].variables) == {**LINES, "line": 20, "i": 1}
    machine.child_ended(items(machine)[0], InstanceStatus.COMPLETED)
    assert items(machine).keys() == {1, 2}


def test_calls_that_cannot_be_made_are_collected_in_slices() -> None:
    body = definition(
        call("a", "child", forEach=each(collect="${1}", into="all", onError="COLLECT", parallel=2)), end()
    )
    machine = Machine(body, {"lines": list(range(250))}, uncallable=[("child", 0)])
    slices = 0
    while machine.status is InstanceStatus.ACTIVE:
        go_on(machine)
        slices += 1
    assert slices == 2
    assert len(machine.variables["all"]) == 250
    assert machine.variables["all"][249]["error"]["code"] == "Penstock.DefinitionNotFound"


def test_a_for_each_in_a_loop_begins_anew() -> None:
    again = {"len(all) < 2": "a", "true": "end"}
    body = definition(
        task("a", None, forEach=each(collect="${result.n}", into="all"), conditionalNextSteps=again), end()
    )
    machine = Machine(body, {"lines": [1]})
    done(machine, 0, {"n": 1})
    assert items(machine).keys() == {0}
    assert machine.variables["all"] == [1]
    machine.cancel()
    assert [row.kind for row in machine.history].count(HistoryKind.SKIPPED) == 2


@pytest.mark.parametrize("failed", [False, True])
def test_people_skip_one_item_or_the_whole_step(failed: bool) -> None:
    machine = begun(mapped(parallel=2, collect="${result.n}", into="ns"))
    if failed:
        broken(machine, 1)
    kept = {token.item: token for token in machine.snapshot or machine.tokens.values()}
    skipped = kept[1]
    given = msgspec.json.encode({"n": 7})
    machine.apply(StepSkipped(skipped.id, "by hand", given))
    assert items(machine).keys() == {0, 2}
    assert ends_of(machine)[-1] == (1, "SKIPPED")
    machine.apply(StepSkipped(whole(machine).id, "by hand", msgspec.json.encode({"ns": "none"})))
    assert machine.open == ["b"]
    assert machine.variables["ns"] == "none"
    assert ends_of(machine)[-3:] == [(0, "SKIPPED"), (2, "SKIPPED"), (None, "SKIPPED")]


def test_people_skip_the_whole_of_a_failed_step() -> None:
    machine = begun(mapped(parallel=2))
    broken(machine, 1)
    [token] = [token for token in machine.snapshot or () if token.state is TokenState.FORKED]
    machine.apply(StepSkipped(token.id, "by hand", None))
    assert machine.open == ["b"]


@pytest.mark.parametrize("failed", [False, True])
def test_people_move_the_whole_step(failed: bool) -> None:
    machine = begun(mapped(parallel=2))
    if failed:
        broken(machine, 1)
    [token] = [
        token
        for token in (machine.snapshot if failed else None) or machine.tokens.values()
        if token.state is TokenState.FORKED
    ]
    machine.apply(TokenMoved(token.id, machine.step("b").index, "by hand"))
    assert machine.open == ["b"]
    assert (machine.maps, machine.items) == ({}, {})
