"""CALL_ACTIVITY in an upload and in one advance; what engines make of it is in tests/engine/test_calls.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.graph.definition import InvalidDefinition
from penstock.core.parsing.parsing import parse_definition
from penstock.core.rules.state import HistoryKind, InstanceStatus, TokenState
from penstock.testing.definitions import definition, end
from tests.core.machine import Machine
from tests.shapes import call, gateway, joining, task, user


def problems(**fields: Any) -> list[str]:
    with pytest.raises(InvalidDefinition) as caught:
        parse_definition(definition({**call("ship", "ship"), **fields}, end()))
    return [str(problem) for problem in caught.value.problems]


def test_an_upload_is_told_all_problems_of_a_call() -> None:
    assert problems(
        definitionId="no space",
        definitionVersion=-1,
        input={"a": "${1 +}"},
        output=[],
        businessKey="x" * 513,
        surprise=1,
    ) == [
        "steps[0].output: must be an object, not an array",
        "steps[0].definitionId: may hold only letters, digits, '_', ':' and '-'",
        "steps[0].definitionVersion: must lie between 0 (the latest) and 2147483647",
        "steps[0].businessKey: longer than 512 characters",
        "steps[0].input.a: unexpected } (line 1, column 6 of `${1 +}`)",
        "steps[0].surprise: unknown field",
    ]
    assert "steps[0].definitionId: required" in problems(definitionId=None)


def test_the_canonical_form_keeps_what_was_given() -> None:
    given = call(
        "ship", "ship::it", definitionVersion=3, input={"a": "${n}", "b": [1]}, output={"c": "${result.c}"},
        businessKey="${id}",
    )  # fmt: skip
    parsed = parse_definition(definition(given, end()))
    callee = parsed.steps[0].callee
    assert callee is not None
    assert (callee.definition_id, callee.version) == ("ship::it", 3)
    assert json.loads(parsed.content)["steps"][0] == given
    assert parse_definition(parsed.content.encode()) == parsed


def test_fields_of_a_call_on_another_step_are_ignored() -> None:
    parsed = parse_definition(definition({**task("a"), "definitionId": "no space", "input": {"x": "${1 +"}}, end()))
    assert parsed.steps[0].callee is None
    assert json.loads(parsed.content)["steps"][0]["definitionId"] == "no space"


def test_entering_a_call_asks_for_an_instance_and_waits() -> None:
    machine = Machine(definition(call("ship", "ship", input={"order": "${n + 1}"}, businessKey="${k}"), end()),
                      {"n": 1, "k": "K"})  # fmt: skip
    [made] = machine.last.calls
    assert (made.definition_id, made.version, made.variables, made.business_key) == ("ship", 0, b'{"order":2}', "K")
    assert (made.entry, machine.at("ship").state) == (None, TokenState.CALLED)


@pytest.mark.parametrize("key", [7, "x" * 513])
def test_a_business_key_that_is_none_fails_the_call(key: object) -> None:
    machine = Machine(definition(call("ship", "ship", businessKey="${k}"), end()), {"k": key})
    assert machine.failure == "step 'ship': businessKey must be text of at most 512 characters"
    assert machine.last.calls == []


def test_what_an_advance_enters_and_ends_is_never_called() -> None:
    """One branch calls, the next one ends the instance."""
    machine = Machine(definition(gateway("fork", "ship", "end"), call("ship", "ship", "join"), joining("join"), end()))
    assert machine.status is InstanceStatus.COMPLETED
    assert machine.last.calls == []


def test_only_a_call_that_is_closed_early_is_abandoned() -> None:
    body = definition(gateway("fork", "ship", "ask"), call("ship", "ship", "join"), user("ask"), joining("join"), end())
    machine = Machine(body)
    token = machine.at("ship")
    assert machine.finish("ask").abandoned == [(token.id, token.seq)]

    machine = Machine(body)
    out = machine.child_ended(machine.at("ship"), InstanceStatus.COMPLETED)
    assert (out.abandoned, machine.path[-1]) == ([], ("ship", "COMPLETED"))


def test_a_failing_output_fails_the_instance_after_its_step() -> None:
    machine = Machine(definition(call("ship", "ship", output={"x": "${result.no + 1}"}), end()))
    machine.child_ended(machine.at("ship"), InstanceStatus.COMPLETED, {"yes": 1})
    assert machine.history[-1].kind is HistoryKind.COMPLETED
    assert machine.failure is not None
    assert machine.failure.startswith("step 'ship': ")
    machine.retry()  # calls nobody: what was called has completed
    assert (machine.status, machine.open) == (InstanceStatus.FAILED, [])


def test_result_is_no_variable_of_the_caller() -> None:
    machine = Machine(definition(call("ship", "ship", output={"x": "${result.a}", "y": "${x + 1}"}), end()), {"a": 5})
    machine.child_ended(machine.at("ship"), InstanceStatus.COMPLETED)
    assert machine.variables == {"a": 5, "x": 5, "y": 6}


def test_a_long_reason_of_a_child_is_cut() -> None:
    machine = Machine(definition(call("ship", "ship"), end()))
    machine.child_ended(machine.at("ship"), InstanceStatus.FAILED, reason="x" * 5000)
    assert machine.failure == "ChildFailed: instance '1f' of 'ship' failed: " + "x" * 1000
