"""Rules between steps, and uploads as a whole: legal and refused, with the exact paths and reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.graph import graph
from penstock.core.graph.definition import DefinitionLimits, InvalidDefinition
from penstock.core.parsing.parsing import parse_definition
from penstock.errors import BadRequest
from penstock.testing.definitions import Json, definition, end, fork, linear, service, step, timer
from tests.core.upload_cases import (
    NOT_REACHED,
    problems_of,
    with_decision,
    with_first,
    with_timer,
    with_top,
    with_transformations,
    with_wait,
)

LEGAL: dict[str, Json] = {
    "an END alone": definition(end()),
    "a task that ends its branch, beside an END that a timer reaches": definition(
        service("a", boundaryEvents=[timer("end")]), end()
    ),
    "ids with every kind of character": with_top(id="LOS::loan_2-B"),
    "a step id with any character": definition(service("Prüfung 1/2", "end"), end()),
    "a name of one space": with_top(name=" "),
    "nulls everywhere they count as absent": with_top(
        description=None, autoStartNextWorkflow=None, nextWorkflowId=None, metadata=None, version=None
    ),
    "empty strings in optional fields": with_top(
        description="", autoStartNextWorkflow="", nextWorkflowId="", metadata=""
    ),
    "empty strings and nulls in optional fields of a step": with_first(
        description="",
        retryCount="",
        delegateClass=None,
        conditionalNextSteps="",
        boundaryEvents=None,
        retryBackoff="",
        timeout="",
    ),
    "fields of other types, empty": with_first(
        transformations={}, parallelNextSteps=[], joinStep="", conditionalNextSteps={}, boundaryEvents=[], until=None
    ),
    "any version": with_top(version="seven"),
    "a next workflow without starting it, whatever it is called": with_top(nextWorkflowId="no such id!"),
    "a next workflow that is started": with_top(autoStartNextWorkflow=True, nextWorkflowId="not::there-yet"),
    "unknown references in fields that the type does not use": definition(
        step(
            "a",
            "DECISION",
            conditionalNextSteps={"true": "end"},
            nextStep="ghost",
            joinStep="ghost",
            parallelNextSteps=["ghost"],
            boundaryEvents=[timer("ghost")],
        ),
        step("end", "END", nextStep="ghost", conditionalNextSteps={"x >": "ghost"}, parallelNextSteps=["ghost"]),
    ),
    "values that would be wrong in fields that the type does not use": definition(
        service("a", "end", transformations={"x": "${1 +}"}, duration="P1M", until="tomorrow"),
        step(
            "end",
            "END",
            retryCount=-1,
            timeout="never",
            boundaryEvents=[{"type": None, "duration": "P1M"}],
            retryBackoff={"multiplier": 0},
        ),
    ),
    "conditions on a task without nextStep": definition(
        service("a", conditionalNextSteps={"x > 1": "end", "true": "a"}), end()
    ),
    "a user task without a next step": definition(
        step("a", "USER_TASK", boundaryEvents=[timer("end", interrupting=True)]), end()
    ),
    "a step that leads to itself": definition(service("a", conditionalNextSteps={"x": "a", "y": "end"}), end()),
    "two branches into the same step": definition(
        step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "a"], joinStep="j"),
        service("a", "j"),
        step("j", "JOIN_GATEWAY", nextStep="end"),
        end(),
    ),
    "a branch that goes straight to the join": definition(
        step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "j"], joinStep="j"),
        service("a", "j"),
        step("j", "JOIN_GATEWAY", nextStep="end"),
        end(),
    ),
    "a join that only joinStep reaches": definition(
        step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="j"),
        service("a"),
        service("b"),
        step("j", "JOIN_GATEWAY", nextStep="end"),
        end(),
    ),
    "a join without a gateway": definition(service("a", "j"), step("j", "JOIN_GATEWAY", nextStep="end"), end()),
    "gateways one after another": definition(
        step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="j"),
        service("a", "j"),
        service("b", "j"),
        step("j", "JOIN_GATEWAY", nextStep="f2"),
        step("f2", "PARALLEL_GATEWAY", parallelNextSteps=["c", "d"], joinStep="j2"),
        service("c", "j2"),
        service("d", "j2"),
        step("j2", "JOIN_GATEWAY", nextStep="end"),
        end(),
    ),
    "a loop around a block": definition(
        step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="j"),
        service("a", "j"),
        service("b", "j"),
        step("j", "JOIN_GATEWAY", nextStep="d"),
        step("d", "DECISION", conditionalNextSteps={"x": "f", "true": "end"}),
        end(),
    ),
    "a branch that goes past its join to a second gateway": definition(
        step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="j"),
        service("a", "j"),
        service("b", "f2"),
        step("j", "JOIN_GATEWAY", nextStep="f2"),
        step("f2", "PARALLEL_GATEWAY", parallelNextSteps=["c", "d"], joinStep="j2"),
        service("c", "j2"),
        service("d", "j2"),
        step("j2", "JOIN_GATEWAY", nextStep="end"),
        end(),
    ),
    "a string that only looks like an expression": with_transformations({"a": "${x", "b": "x}", "c": " ${1 +}"}),
    "literals of every kind": with_transformations(
        {"a": None, "b": True, "c": -(10**999), "d": 1.5e300, "e": "", "f": [{"x": "${1 +}"}], "": {}}
    ),
    "retries without end": with_first(retryCount=2_147_483_647),
    "backoff with its defaults": with_first(retryBackoff={"initial": "PT1S"}),
    "backoff with everything": with_first(
        retryBackoff={"initial": "PT1S", "multiplier": 1, "max": "PT1S", "jitter": 1}, timeout="PT5M"
    ),
    "a wait for a duration": with_wait(duration="P1D"),
    "a wait for a computed duration": with_wait(duration="${'PT' + string(n) + 'S'}"),
    "a wait until a moment": with_wait(until="2031-05-04T12:00:00+02:00"),
    "a wait until a computed moment": with_wait(until="${deadline}"),
    "metadata of any shape": with_top(metadata={"": {"steps": [None, "", {"unknown": 1}]}, "a b": 10**400}),
}

REFUSED: dict[str, tuple[Json, list[tuple[str, str]]]] = {
    # references
    "nextStep to an unknown step": (
        definition(service("a", "ghost", boundaryEvents=[timer("end")]), end()),
        [("steps[0].nextStep", 'unknown step "ghost"')],
    ),
    "nextStep that is a number": (
        with_first(nextStep=1, boundaryEvents=[timer("end")]),
        [("steps[0].nextStep", "must be a string, not a number")],
    ),
    "a condition that leads to an unknown step": (
        with_decision({"x": "end", "y > 1": "ghost"}),
        [('steps[0].conditionalNextSteps["y > 1"]', 'unknown step "ghost"')],
    ),
    "a branch that leads to an unknown step": (
        definition(
            step("f", "PARALLEL_GATEWAY", parallelNextSteps=["j", "ghost"], joinStep="j"),
            step("j", "JOIN_GATEWAY", nextStep="end"),
            end(),
        ),
        [("steps[0].parallelNextSteps[1]", 'unknown step "ghost"')],
    ),
    "a timer that leads to an unknown step": (
        with_timer(targetStepId="ghost"),
        [("steps[0].boundaryEvents[0].targetStepId", 'unknown step "ghost"')],
    ),
    "an unknown joinStep": (
        definition(
            step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "a"], joinStep="ghost"), service("a", "end"), end()
        ),
        [("steps[0].joinStep", 'unknown step "ghost"')],
    ),
    # reachability
    "a step that nothing leads to": (
        definition(service("a", "end"), end(), service("b", "end")),
        [("steps[2]", f'step "b" {NOT_REACHED}')],
    ),
    "a ring that nothing leads to": (
        definition(service("a", "end"), end(), service("b", "c"), service("c", "b")),
        [("steps[2]", f'step "b" {NOT_REACHED}'), ("steps[3]", f'step "c" {NOT_REACHED}')],
    ),
    "a step that only an unused field leads to": (
        definition(step("a", "DECISION", conditionalNextSteps={"true": "end"}, nextStep="b"), end(), service("b")),
        [("steps[2]", f'step "b" {NOT_REACHED}')],
    ),
    "no END": (definition(service("a")), [("steps", "no END step can be reached from the first step")]),
    "an END that can't be reached": (
        definition(service("a"), end()),
        [("steps[1]", f'step "end" {NOT_REACHED}'), ("steps", "no END step can be reached from the first step")],
    ),
    # gateways
    "a gateway with nothing": (
        definition(step("f", "PARALLEL_GATEWAY")),
        [
            ("steps[0].parallelNextSteps", "required"),
            ("steps[0].joinStep", "required"),
            ("steps", "no END step can be reached from the first step"),
        ],
    ),
    "a gateway with one branch": (
        definition(
            step("f", "PARALLEL_GATEWAY", parallelNextSteps=["j"], joinStep="j"),
            step("j", "JOIN_GATEWAY", nextStep="end"),
            end(),
        ),
        [("steps[0].parallelNextSteps", "must have at least two branches")],
    ),
    "branches that lead nowhere": (
        definition(
            step("f", "PARALLEL_GATEWAY", parallelNextSteps=["j", None, "", 3, "s" * 257], joinStep="j"),
            step("j", "JOIN_GATEWAY", nextStep="end"),
            end(),
        ),
        [
            ("steps[0].parallelNextSteps[1]", "required: the id of a step"),
            ("steps[0].parallelNextSteps[2]", "required: the id of a step"),
            ("steps[0].parallelNextSteps[3]", "must be a string, not a number"),
            ("steps[0].parallelNextSteps[4]", "longer than 256 characters"),
        ],
    ),
    "branches as text": (
        definition(
            step("f", "PARALLEL_GATEWAY", parallelNextSteps="j", joinStep="j"),
            step("j", "JOIN_GATEWAY", nextStep="end"),
            end(),
        ),
        [("steps[0].parallelNextSteps", "must be an array, not a string")],
    ),
    "a joinStep that is not a join": (
        definition(
            step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="end"),
            service("a", "end"),
            service("b", "end"),
            end(),
        ),
        [("steps[0].joinStep", 'step "end" is of type END, not JOIN_GATEWAY')],
    ),
    "a gateway that is its own join": (
        definition(
            step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "a"], joinStep="f"), service("a", "end"), end()
        ),
        [("steps[0].joinStep", 'step "f" is of type PARALLEL_GATEWAY, not JOIN_GATEWAY')],
    ),
    "a join without nextStep": (
        definition(
            step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "j"], joinStep="j"),
            service("a", "end"),
            step("j", "JOIN_GATEWAY"),
            end(),
        ),
        [("steps[2].nextStep", "required")],
    ),
    "a gateway nested in a branch": (
        definition(
            step("f", "PARALLEL_GATEWAY", parallelNextSteps=["f2", "a"], joinStep="j"),
            service("a", "j"),
            step("f2", "PARALLEL_GATEWAY", parallelNextSteps=["b", "c"], joinStep="j2"),
            service("b", "j2"),
            service("c", "j2"),
            step("j2", "JOIN_GATEWAY", nextStep="j"),
            step("j", "JOIN_GATEWAY", nextStep="end"),
            end(),
        ),
        [("steps[2]", "parallel gateway nested inside a branch of steps[0]")],
    ),
    "a gateway nested behind a timer of a branch": (
        definition(
            step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "j"], joinStep="j"),
            service("a", "j", boundaryEvents=[timer("f2", interrupting=True)]),
            step("f2", "PARALLEL_GATEWAY", parallelNextSteps=["j2", "j2"], joinStep="j2"),
            step("j2", "JOIN_GATEWAY", nextStep="j"),
            step("j", "JOIN_GATEWAY", nextStep="end"),
            end(),
        ),
        [("steps[2]", "parallel gateway nested inside a branch of steps[0]")],
    ),
    "a gateway that its own branch leads back to": (
        definition(
            service("s", "f"),
            step("f", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="j"),
            service("a", conditionalNextSteps={"again": "s", "true": "j"}),
            service("b", "j"),
            step("j", "JOIN_GATEWAY", nextStep="end"),
            end(),
        ),
        [("steps[1]", "its own branches lead back to this parallel gateway without passing its join")],
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_definition_is_taken(name: str) -> None:
    assert problems_of(LEGAL[name]) == []
    assert problems_of(json.dumps(LEGAL[name]).encode()) == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_rule_is_refused_with_its_path_and_reason(name: str) -> None:
    body, expected = REFUSED[name]
    assert problems_of(body) == expected
    assert problems_of(json.dumps(body).encode()) == expected


def test_several_problems_come_in_one_answer() -> None:
    body = {
        "name": "",
        "owner": "me",
        "autoStartNextWorkflow": True,
        "steps": [
            service("a", "ghost", retryCount=-1),
            step("a", "DECISION", conditionalNextSteps={"x >": "b"}),
            step("b", "TRANSFORMATIN"),
            step("c", "WAIT", boundaryEvents=[{"type": "TIMER", "duration": "P1Y", "targetStepId": "d"}]),
            end("d"),
        ],
    }
    with pytest.raises(InvalidDefinition) as caught:
        parse_definition(body)
    refused = caught.value
    assert [problem.path for problem in refused.problems] == [
        "id",
        "name",
        "nextWorkflowId",
        "steps[0].retryCount",
        'steps[1].conditionalNextSteps["x >"]',
        "steps[2].type",
        "steps[3].nextStep",
        "steps[3].boundaryEvents[0].duration",
        "owner",
        "steps[1].id",
        "steps[0].nextStep",
        "steps[1]",
        "steps[2]",
        "steps[3]",
        "steps[4]",
        "steps",
    ]
    # The one text that clients show holds all of them.
    assert all(f"{problem.path}: {problem.reason}" in refused.reason for problem in refused.problems)
    assert isinstance(refused, BadRequest)
    assert refused.code == "bad-request"


def test_an_unknown_step_type_leaves_its_successors_reachable() -> None:
    body = definition(
        step(
            "a",
            "USERTASK",
            nextStep="b",
            boundaryEvents=[timer("c")],
            parallelNextSteps=["d"],
            joinStep="e",
            conditionalNextSteps={"x >": "f", "y": "ghost"},
        ),
        *(service(step_id, "end") for step_id in "bcdef"),
        end(),
    )
    assert [path for path, _ in problems_of(body)] == ["steps[0].type"]


def test_more_problems_than_the_limit_are_counted() -> None:
    body = definition(*(service(f"s{number}", "ghost") for number in range(10)), end())
    found = problems_of(body, DefinitionLimits(problems_max_count=4))
    assert len(found) == 5
    assert found[-1] == ("", "and 17 more problems")


def test_blocks_too_entangled_to_distinguish_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "FLOW_VISITS_MAX_COUNT", -1)
    reason = "the branches of the parallel gateways are too entangled to tell what is inside them"
    assert problems_of(fork()) == [("steps", reason)]
    assert problems_of(linear()) == []


def test_reasons_and_paths_can_always_be_encoded() -> None:
    body: dict[str, Any] = with_decision({"\ud800 > 1": "\udfff", "\0": "end"})
    body["\udcff"] = 1
    found = problems_of(body)
    assert len(found) >= 5
    for path, reason in found:
        path.encode()
        reason.encode()
        assert "\0" not in path + reason
