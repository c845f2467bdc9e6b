"""Rules for single fields, of the definition and of each type of step: refused with the exact paths and reasons."""

from __future__ import annotations

import json

import pytest

from penstock.core.graph.definition import DefinitionLimits
from penstock.core.parsing.parsing import parse_definition
from penstock.testing.definitions import Json, definition, end, fork, linear, service, step, timer
from penstock.wire.error_code import OWN_CODES
from tests.core.upload_cases import (
    NOT_REACHED,
    THE_TYPES,
    problems_of,
    with_decision,
    with_first,
    with_timer,
    with_top,
    with_transformations,
    with_wait,
)

REFUSED: dict[str, tuple[Json, list[tuple[str, str]]]] = {
    # the top level
    "no id": (with_top(id=...), [("id", "required")]),
    "a null id": (with_top(id=None), [("id", "required")]),
    "an empty id": (with_top(id=""), [("id", "required")]),
    "an id with a space": (with_top(id="a b"), [("id", "may hold only letters, digits, '_', ':' and '-'")]),
    "an id with a letter beyond ASCII": (
        with_top(id="größe"),
        [("id", "may hold only letters, digits, '_', ':' and '-'")],
    ),
    "an id that ends with a line feed": (
        with_top(id="a\n"),
        [("id", "may hold only letters, digits, '_', ':' and '-'")],
    ),
    "an id of 257 characters": (with_top(id="a" * 257), [("id", "longer than 256 characters")]),
    "an id that is a number": (with_top(id=7), [("id", "must be a string, not a number")]),
    "no name": (with_top(name=...), [("name", "required")]),
    "an empty name": (with_top(name=""), [("name", "required")]),
    "a name that is an array": (with_top(name=["x"]), [("name", "must be a string, not an array")]),
    "a long name": (with_top(name="n" * 1_001), [("name", "longer than 1000 characters")]),
    "a description that is an object": (with_top(description={}), [("description", "must be a string, not an object")]),
    "a long description": (with_top(description="d" * 10_001), [("description", "longer than 10000 characters")]),
    "autoStartNextWorkflow as text": (
        with_top(autoStartNextWorkflow="true"),
        [("autoStartNextWorkflow", "must be true or false, not a string")],
    ),
    "autoStartNextWorkflow as 1": (
        with_top(autoStartNextWorkflow=1),
        [("autoStartNextWorkflow", "must be true or false, not a number")],
    ),
    "a next workflow that is started and not named": (
        with_top(autoStartNextWorkflow=True),
        [("nextWorkflowId", "required")],
    ),
    "a next workflow that is started and empty": (
        with_top(autoStartNextWorkflow=True, nextWorkflowId=""),
        [("nextWorkflowId", "required")],
    ),
    "a next workflow that is started and can't exist": (
        with_top(autoStartNextWorkflow=True, nextWorkflowId="a b"),
        [("nextWorkflowId", "may hold only letters, digits, '_', ':' and '-'")],
    ),
    "no steps": (with_top(steps=...), [("steps", "required")]),
    "null steps": (with_top(steps=None), [("steps", "required")]),
    "empty steps": (with_top(steps=[]), [("steps", "must have at least one step")]),
    "steps as an object": (with_top(steps={}), [("steps", "must be an array, not an object")]),
    "metadata as an array": (with_top(metadata=[]), [("metadata", "must be an object, not an array")]),
    "an unknown field": (with_top(owner="me"), [("owner", "unknown field")]),
    "an unknown field that is null": (with_top(owner=None), [("owner", "unknown field")]),
    "a known field in other case": (
        with_top(Description="x"),
        [("Description", "unknown field; did you mean `description`?")],
    ),
    "an unknown field that is not a name": (with_top(**{"a.b": 1}), [('["a.b"]', "unknown field")]),
    # every step
    "a step that is null": (
        definition(service("a", "end"), None, end()),  # pyright: ignore[reportArgumentType] - on purpose
        [("steps[1]", "must be an object, not null")],  # type: ignore[arg-type]
    ),
    "a step without id": (with_first(id=...), [("steps[0].id", "required")]),
    "a step without name": (with_first(name=...), [("steps[0].name", "required")]),
    "a step with an empty name": (with_first(name=""), [("steps[0].name", "required")]),
    "a step without type": (with_first(type=...), [("steps[0].type", "required")]),
    "a step whose type is true": (with_first(type=True), [("steps[0].type", "must be a string, not true")]),
    "an unknown type": (
        with_first(type="SERVICE"),
        [
            (
                "steps[0].type",
                f'unknown step type "SERVICE"; {THE_TYPES}',
            )
        ],
    ),
    "a type in other case": (
        definition(service("a", "e"), step("e", "End"), end("e2")),
        [
            (
                "steps[1].type",
                f'unknown step type "End"; {THE_TYPES}',
            ),
            ("steps[2]", f'step "e2" {NOT_REACHED}'),
            ("steps", "no END step can be reached from the first step"),
        ],
    ),
    "an unknown field of a step": (
        with_first(retries=3),
        [("steps[0].retries", "unknown field; did you mean `retryCount`?")],
    ),
    "a duplicate step id": (
        definition(service("a", "end"), end(), end()),
        [("steps[2].id", 'duplicate step id "end", taken by steps[1]'), ("steps[2]", f'step "end" {NOT_REACHED}')],
    ),
    "a long step id": (with_first(id="a" * 257), [("steps[0].id", "longer than 256 characters")]),
    # SERVICE_TASK
    "no jobType": (with_first(jobType=...), [("steps[0].jobType", "required")]),
    "an empty jobType": (with_first(jobType=""), [("steps[0].jobType", "required")]),
    "a jobType of 257 characters": (
        with_first(jobType="j" * 257),
        [("steps[0].jobType", "longer than 256 characters")],
    ),
    "a negative retryCount": (
        with_first(retryCount=-1),
        [("steps[0].retryCount", "must lie between 0 and 2147483647")],
    ),
    "a retryCount beyond int32": (
        with_first(retryCount=2**31),
        [("steps[0].retryCount", "must lie between 0 and 2147483647")],
    ),
    "a retryCount that is true": (
        with_first(retryCount=True),
        [("steps[0].retryCount", "must be a whole number, not true")],
    ),
    "a retryCount of 3.0": (
        with_first(retryCount=3.0),
        [("steps[0].retryCount", "must be a whole number, not a number")],
    ),
    "a retryCount as text": (
        with_first(retryCount="3"),
        [("steps[0].retryCount", "must be a whole number, not a string")],
    ),
    "a delegateClass that is an object": (
        with_first(delegateClass={}),
        [("steps[0].delegateClass", "must be a string, not an object")],
    ),
    "backoff as text": (
        with_first(retryBackoff="PT1S"),
        [("steps[0].retryBackoff", "must be an object, not a string")],
    ),
    "backoff without initial": (with_first(retryBackoff={}), [("steps[0].retryBackoff.initial", "required")]),
    "backoff with everything wrong": (
        with_first(retryBackoff={"initial": "P1M", "multiplier": 0.5, "max": "0", "jitter": 1.5, "kind": "x"}),
        [
            ("steps[0].retryBackoff.kind", "unknown field"),
            (
                "steps[0].retryBackoff.initial",
                "'P1M' is in years or months, which have no fixed length; use weeks, days or less",
            ),
            ("steps[0].retryBackoff.max", "'0' is not an ISO 8601 duration such as PT30S, PT1H30M, P7D or P1W"),
            ("steps[0].retryBackoff.multiplier", "must lie between 1 and 100"),
            ("steps[0].retryBackoff.jitter", "must lie between 0 and 1"),
        ],
    ),
    "a backoff multiplier that is true": (
        with_first(retryBackoff={"initial": "PT1S", "multiplier": True}),
        [("steps[0].retryBackoff.multiplier", "must be a number, not true")],
    ),
    "a backoff multiplier of 101": (
        with_first(retryBackoff={"initial": "PT1S", "multiplier": 101}),
        [("steps[0].retryBackoff.multiplier", "must lie between 1 and 100")],
    ),
    "a negative jitter": (
        with_first(retryBackoff={"initial": "PT1S", "jitter": -0.1}),
        [("steps[0].retryBackoff.jitter", "must lie between 0 and 1")],
    ),
    "a backoff that ends below its start": (
        with_first(retryBackoff={"initial": "PT10S", "max": "PT5S"}),
        [("steps[0].retryBackoff.max", "must not be shorter than initial")],
    ),
    "a timeout of zero": (
        with_first(timeout="PT0S"),
        [("steps[0].timeout", "'PT0S' is zero; a timer needs a duration of more than zero")],
    ),
    "a timeout in seconds": (with_first(timeout=30), [("steps[0].timeout", "must be a string, not a number")]),
    # DECISION
    "a decision without conditions": (
        definition(step("a", "DECISION", nextStep="end"), end()),
        [
            ("steps[0].conditionalNextSteps", "required"),
            ("steps[1]", f'step "end" {NOT_REACHED}'),
            ("steps", "no END step can be reached from the first step"),
        ],
    ),
    "a decision with no condition in it": (
        definition(
            service("z", conditionalNextSteps={"x": "a", "y": "end"}),
            step("a", "DECISION", conditionalNextSteps={}),
            end(),
        ),
        [("steps[1].conditionalNextSteps", "must have at least one condition")],
    ),
    "conditions as an array": (
        with_first(conditionalNextSteps=["x"]),
        [("steps[0].conditionalNextSteps", "must be an object, not an array")],
    ),
    "conditions that lead nowhere": (
        with_decision({"true": "end", "x": None, "y": "", "z": 1, "w": "s" * 257}),
        [
            ("steps[0].conditionalNextSteps.x", "required: the id of a step"),
            ("steps[0].conditionalNextSteps.y", "required: the id of a step"),
            ("steps[0].conditionalNextSteps.z", "must be a string, not a number"),
            ("steps[0].conditionalNextSteps.w", "longer than 256 characters"),
        ],
    ),
    "a long expression": (
        with_decision({"true": "end", "x" * 10_001: "end"}),
        [(f'steps[0].conditionalNextSteps["{"x" * 80}…"]', "the expression is longer than 10000 characters")],
    ),
    # TRANSFORMATION
    "no transformations": (
        definition(step("a", "TRANSFORMATION", nextStep="end"), end()),
        [("steps[0].transformations", "required")],
    ),
    "empty transformations": (with_transformations({}), [("steps[0].transformations", "must have at least one entry")]),
    "transformations as an array": (
        with_transformations([1]),
        [("steps[0].transformations", "must be an object, not an array")],
    ),
    "a transformation without nextStep": (
        definition(
            service("z", conditionalNextSteps={"x": "a", "y": "end"}),
            step("a", "TRANSFORMATION", transformations={"x": 1}),
            end(),
        ),
        [("steps[1].nextStep", "required")],
    ),
    "a transformation with a long name": (
        with_transformations({"n" * 257: 1}),
        [(f'steps[0].transformations["{"n" * 80}…"]', "the name is longer than 256 characters")],
    ),
    # WAIT
    "a wait without nextStep": (
        definition(step("a", "WAIT", conditionalNextSteps={"x": "end"}), end()),
        [("steps[0].nextStep", "required")],
    ),
    "a wait with duration and until": (
        with_wait(duration="PT1S", until="2031-05-04T12:00:00Z"),
        [("steps[0].until", "a wait has either duration or until, not both")],
    ),
    "a wait that keeps signals now and then": (
        with_wait(buffer="maybe"),
        [("steps[0].buffer", "must be true or false, not a string")],
    ),
    "a wait for a month": (
        with_wait(duration="P1M"),
        [("steps[0].duration", "'P1M' is in years or months, which have no fixed length; use weeks, days or less")],
    ),
    "a wait for a number": (with_wait(duration=30), [("steps[0].duration", "must be a string, not a number")]),
    "a wait until a day": (
        with_wait(until="2031-05-04"),
        [("steps[0].until", "'2031-05-04' is not an RFC 3339 time such as 2031-05-04T12:00:00Z")],
    ),
    "a wait until a day that isn't": (
        with_wait(until="2031-02-30T00:00:00Z"),
        [("steps[0].until", "'2031-02-30T00:00:00Z' is not a time that exists")],
    ),
    # boundary events
    "boundary events as an object": (
        with_first(boundaryEvents={}),
        [("steps[0].boundaryEvents", "must be an array, not an object")],
    ),
    "a boundary event that is text": (
        with_first(boundaryEvents=["PT1H", timer("end")]),
        [("steps[0].boundaryEvents[0]", "must be an object, not a string")],
    ),
    "a boundary event with nothing": (
        with_first(boundaryEvents=[{}]),
        [
            ("steps[0].boundaryEvents[0].type", "required"),
            ("steps[0].boundaryEvents[0].duration", "required"),
            ("steps[0].boundaryEvents[0].targetStepId", "required"),
        ],
    ),
    "a boundary event of another type": (
        with_timer(type="MESSAGE"),
        [("steps[0].boundaryEvents[0].type", 'must be TIMER or ERROR, not "MESSAGE"')],
    ),
    "error boundaries that are wrong in every way": (
        with_first(
            boundaryEvents=[
                {"type": "ERROR", "errorCodes": [], "targetStepId": "end"},
                {"type": "ERROR", "errorCodes": ["A", "A", 7, "a b", "Penstock.Odd"], "targetStepId": "end"},
                {"type": "ERROR", "errorCodes": ["A"], "errorVariable": 7, "duration": "PT1S"},
                {"type": "ERROR", "targetStepId": "end"},
                {"type": "ERROR", "errorCodes": ["B"], "targetStepId": "end"},
            ]
        ),
        [
            ("steps[0].boundaryEvents[0].errorCodes", "must have at least one code"),
            ("steps[0].boundaryEvents[1].errorCodes[1]", 'the code "A" stands twice'),
            ("steps[0].boundaryEvents[1].errorCodes[2]", "must be a string, not a number"),
            (
                "steps[0].boundaryEvents[1].errorCodes[3]",
                "must be 1 to 100 of letters, digits, '_', '.' and '-'",
            ),
            (
                "steps[0].boundaryEvents[1].errorCodes[4]",
                f"codes that begin with 'Penstock.' are the engine's; those are {', '.join(sorted(OWN_CODES))}",
            ),
            ("steps[0].boundaryEvents[2].errorVariable", "must be a string, not a number"),
            ("steps[0].boundaryEvents[2].targetStepId", "required"),
            ("steps[0].boundaryEvents[2].duration", "unknown field"),
            ("steps[0].boundaryEvents[2].errorCodes", 'the code "A" is taken before'),
            (
                "steps[0].boundaryEvents[4]",
                "comes after steps[0].boundaryEvents[3], which takes every error",
            ),
        ],
    ),
    "an error boundary of a WAIT": (
        with_wait(boundaryEvents=[{"type": "ERROR", "targetStepId": "end"}]),
        [("steps[0].boundaryEvents[0]", "a WAIT does not fail: it has no error boundaries")],
    ),
    "a code in both lists of retries": (
        with_first(retryOn=["A", "B"], noRetryOn=["B", "Penstock.LeaseExpired"]),
        [
            ("steps[0].noRetryOn[1]", "codes that begin with 'Penstock.' are the engine's"),
            ("steps[0].noRetryOn", 'the code "B" is in retryOn, too'),
        ],
    ),
    "more codes than there may be": (
        with_first(retryOn=[f"E{n}" for n in range(101)]),
        [("steps[0].retryOn", "more than 100 codes")],
    ),
    "an END with a code and an output": (
        definition(service("a", "end"), step("end", "END", errorCode="A", output={"x": "${1 +}"})),
        [
            ("steps[1].output.x", "unexpected } (line 1, column 6 of `${1 +}`)"),
            ("steps[1].output", "an END with an errorCode fails the instance, which has no result then"),
        ],
    ),
    "an END with what is not a code": (
        definition(service("a", "end"), step("end", "END", errorCode="ä")),
        [("steps[1].errorCode", "must be 1 to 100 of letters, digits, '_', '.' and '-'")],
    ),
    "interrupting as text": (
        with_timer(interrupting="true"),
        [("steps[0].boundaryEvents[0].interrupting", "must be true or false, not a string")],
    ),
    "a timer of zero": (
        with_timer(duration="PT0S"),
        [("steps[0].boundaryEvents[0].duration", "'PT0S' is zero; a timer needs a duration of more than zero")],
    ),
    "a timer of garbage": (
        with_timer(duration="1h"),
        [
            (
                "steps[0].boundaryEvents[0].duration",
                "'1h' is not an ISO 8601 duration such as PT30S, PT1H30M, P7D or P1W",
            )
        ],
    ),
    "an unknown field of a boundary event": (
        with_timer(after="x"),
        [("steps[0].boundaryEvents[0].after", "unknown field; did you mean `duration`?")],
    ),
    "the second event of the second step": (
        definition(service("a", "b"), service("b", "end", boundaryEvents=[timer("end"), timer("ghost", "P0D")]), end()),
        [
            ("steps[1].boundaryEvents[1].duration", "'P0D' is zero; a timer needs a duration of more than zero"),
            ("steps[1].boundaryEvents[1].targetStepId", 'unknown step "ghost"'),
        ],
    ),
    # wrong types and unknown fields in fields that the type does not use
    "wrong types in unused fields": (
        definition(
            step(
                "end",
                "END",
                nextStep=1,
                retryCount="3",
                parallelNextSteps={},
                transformations=[],
                conditionalNextSteps={"x": 1},
                boundaryEvents=[{"when": 1}],
                retryBackoff={"x": 1},
            )
        ),
        [
            ("steps[0].retryCount", "must be a whole number, not a string"),
            ("steps[0].retryBackoff.x", "unknown field"),
            ("steps[0].nextStep", "must be a string, not a number"),
            ("steps[0].conditionalNextSteps.x", "must be a string, not a number"),
            ("steps[0].transformations", "must be an object, not an array"),
            ("steps[0].parallelNextSteps", "must be an array, not an object"),
            ("steps[0].boundaryEvents[0].when", "unknown field"),
        ],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_rule_is_refused_with_its_path_and_reason(name: str) -> None:
    body, expected = REFUSED[name]
    assert problems_of(body) == expected
    assert problems_of(json.dumps(body).encode()) == expected


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (with_decision({"x >": "end"}), 'steps[0].conditionalNextSteps["x >"]'),
        (with_decision({"": "end"}), 'steps[0].conditionalNextSteps[""]'),
        (with_decision({"${x": "end"}), 'steps[0].conditionalNextSteps["${x"]'),
        (with_first(conditionalNextSteps={"1 +": "end"}), 'steps[0].conditionalNextSteps["1 +"]'),
        (with_wait(conditionalNextSteps={")": "end"}), 'steps[0].conditionalNextSteps[")"]'),
        (with_transformations({"total sum": "${a +}"}), 'steps[0].transformations["total sum"]'),
        (with_transformations({"total": "${}"}), "steps[0].transformations.total"),
        (with_wait(duration="${'PT}"), "steps[0].duration"),
        (with_wait(until="${now(}"), "steps[0].until"),
    ],
)
def test_an_unparsable_expression_is_refused_with_its_path(body: Json, path: str) -> None:
    [(found, reason)] = problems_of(body)
    assert found == path
    assert "column" in reason  # the parser's own words, with the position


@pytest.mark.parametrize(
    ("limits", "body", "path", "reason"),
    [
        ({"steps_max_count": 2}, linear(2), "steps", "has 3 steps, more than 2"),
        ({"gateways_max_count": 0}, fork(), "steps", "more than 0 parallel gateways"),
        ({"branches_max_count": 2}, fork(0, 0, 0), "steps[0].parallelNextSteps", "more than 2 branches"),
        (
            {"conditions_max_count": 1},
            with_decision({"x": "end", "y": "end"}),
            "steps[0].conditionalNextSteps",
            "more than 1 conditions",
        ),
        (
            {"transformations_max_count": 1},
            with_transformations({"a": 1, "b": 2}),
            "steps[0].transformations",
            "more than 1 entries",
        ),
        (
            {"boundary_events_max_count": 1},
            with_first(boundaryEvents=[timer("end"), timer("end")]),
            "steps[0].boundaryEvents",
            "more than 1 boundary events",
        ),
        ({"metadata_max_bytes": 10}, with_top(metadata={"ä": "0123"}), "metadata", "has 13 bytes, more than 10"),
        ({"retry_max_count": 3}, with_first(retryCount=4), "steps[0].retryCount", "must lie between 0 and 3"),
        (
            {"expression_max_chars": 5},
            with_decision({"a == b": "end"}),
            'steps[0].conditionalNextSteps["a == b"]',
            "the expression is longer than 5 characters",
        ),
        (
            {"expressions_max_chars": 12},
            with_decision({"a == b": "end", "a != b": "end", "c": "end"}),
            "steps",
            "the expressions are longer than 12 characters together",
        ),
        ({"nesting_max_levels": 3}, with_top(metadata={"a": [[]]}), "metadata.a[0]", "nested more than 3 levels deep"),
        (
            {"number_max_digits": 3},
            with_top(metadata={"a": -1000}),
            "metadata.a",
            "a whole number of more than 3 digits",
        ),
    ],
)
def test_each_limit_has_a_setting_and_a_path(limits: dict[str, int], body: Json, path: str, reason: str) -> None:
    assert (path, reason) in problems_of(body, DefinitionLimits(**limits))
    raised = {name: value + 10 for name, value in limits.items()}
    assert problems_of(body, DefinitionLimits(**raised)) == []


def test_an_expression_that_comes_again_counts_and_compiles_once() -> None:
    body = definition(
        *(step(f"d{n}", "DECISION", conditionalNextSteps={"a == b": f"d{n + 1}"}) for n in range(9)), end("d9")
    )
    parsed = parse_definition(body, limits=DefinitionLimits(expressions_max_chars=6))
    assert len({id(one.conditions[0][0]) for one in parsed.steps[:9]}) == 1
