"""Joins that nothing comes to, conditions that can never be true, retries without a number: nobody said a word of them.

A definition with one of them was valid, and runs where no instance comes there. So it is a hint, and it has to be true.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.expression import ExpressionError, Foreseen, parse
from penstock.core.expression.failure import Fault
from penstock.core.expression.frame import Frame
from penstock.core.expression.limits import DEFAULT
from penstock.core.expression.values import kind
from penstock.core.graph.definition import InvalidDefinition
from penstock.core.parsing.hints import hints
from penstock.core.parsing.parsing import parse_definition, readable_part
from penstock.core.parsing.strict_json import join_path
from penstock.testing.definitions import definition, end, service, step
from tests.core.expression.differential import ENVIRONMENT as DRAWN
from tests.core.expression.evaluation import NOW
from tests.core.expression.test_against_expr import ENVIRONMENT, ORACLE, RECORDED
from tests.shapes import choose, user, wait


def parsed(*steps: dict[str, Any], **more: Any):
    return parse_definition(json.dumps({**definition(*steps), **more}).encode())


def reported(*steps: dict[str, Any], **more: Any) -> list[tuple[str, str]]:
    return [(hint.path, hint.kind) for hint in hints(parsed(*steps, **more))]


def of_conditions(*conditions: str) -> list[tuple[int, str, str]]:
    """The place of each condition that a hint is about (-1: of none), the kind and the words."""
    found = hints(parsed(choose("d", dict.fromkeys(conditions, "end")), end()))
    paths = {path: place for place, path in enumerate(map(_path, conditions))}
    return [(paths.get(hint.path, -1), hint.kind, hint.text) for hint in found]


def _path(condition: str) -> str:
    return join_path("steps[0].conditionalNextSteps", condition)


@pytest.mark.parametrize(
    "condition",
    ["'yes'", "1", "nil", "[true]", "{'a': true}", "x + 1", "upper(x)", "len(x)", "${'yes'}", "x ? 'a' : 'b'",
     "if x > 1 { 1 } else { 2 }", "now()", "filter(x, # > 1)", "x..3", "decimal(x)", "1; 'a'", "let a = x; 'b'",
     "3 < 'x'", "1 + 'a' == 2", "not 'a'", "'a' and x", "upper(x) > 1", "date(x) > 'a'", "5 contains 'a'",
     "x in 5", "x / 0 > 1", "upper(5) == 'a'", "upper(x).y", "any('a', # > 1)", "1 ? true : false", "len(x) > 'a'"],
)  # fmt: skip
def test_a_condition_that_gives_no_truth_fails(condition: str) -> None:
    [(place, sort, text)] = of_conditions(condition)
    assert (place, sort) == (0, "FAILS")
    assert "the instance fails where it is evaluated" in text


@pytest.mark.parametrize(
    "condition",
    ["false", "false || false", "not true", "1 == 2", "x and false", "false and x", "x > 1 && 'yes'", "1 == 'a'",
     "upper(x) == 5", "upper(x) in [1, 2]", "x in []", "x in nil", "1 < x < 'a'", "now().Year() == '2031'",
     "not (x or true)", "any(x, false)", "x == 1 and 3 < 'x'", "nil contains x", "'a' not in ['a']"],
)  # fmt: skip
def test_a_condition_that_is_never_true(condition: str) -> None:
    assert [(place, sort) for place, sort, _ in of_conditions(condition, "true")] == [(0, "NEVER_TRUE")]


@pytest.mark.parametrize(
    ("conditions", "last"),
    [
        (("x == 1", "true", "x > 1"), "never reached: `true` before it is always true"),
        (("1 == 1", "x > 1"), "never reached: `1 == 1` before it is always true"),
        (("x or true", "x > 1"), "never reached: `x or true` before it is always true"),
        (("upper(x) != 5", "true"), "never reached: `upper(x) != 5` before it is always true"),
        (("'yes'", "true"), "never reached: `'yes'` before it is never true or false"),
        (("3 < 'x'", "true"), "never reached: `3 < 'x'` before it always fails"),
        (("x > 1", "x>1", "true"), "never reached: `x > 1` before it is the same condition"),
        (("x > 1", "${x > 1}", "true"), "never reached: `x > 1` before it is the same condition"),
        (("x > 1", "x <= 1", "y"), "never reached: one of `x > 1` and `x <= 1` before it is always true"),
        (("x == 1", "x != 1", "y"), "never reached: one of `x == 1` and `x != 1` before it is always true"),
        (("x", "!x", "y"), "never reached: one of `x` and `!x` before it is always true"),
        (
            ("x in [1]", "x not in [1]", "y"),
            "never reached: one of `x in [1]` and `x not in [1]` before it is always true",
        ),
    ],
)
def test_a_condition_that_nothing_comes_to(conditions: tuple[str, ...], last: str) -> None:
    found = [text for _, sort, text in of_conditions(*conditions) if sort == "NEVER_REACHED"]
    assert found == [last]
    assert all(sort != "NO_OTHERWISE" for _, sort, _ in of_conditions(*conditions))


@pytest.mark.parametrize(
    "condition",
    ["x", "x == 1", "x > 1", "x.y.z", "x > 1 and y < 'a'", "x == 1 == true", "len(x) > 3", "not x", "x ?? false",
     "x?.y ?? true", "date(x) > now()", "any(x, # > 1)", "x ? true : y", "if x { y } else { false }", "x in [1, 'a']",
     "$env?.['x'] == 1", "x matches '^a'", "let a = x; a == 1", "decimal(x) == 1", "x | len() > 2", "fromJSON(x)",
     "x[0]", "max(x, 1) > 2", "get(x, 'a') == nil", "all(x, false)", "x == nil", "date(x) - now() > duration('1h')"],
)  # fmt: skip
def test_of_what_may_be_true_nothing_is_said(condition: str) -> None:
    assert of_conditions(condition, "true") == []
    assert [sort for _, sort, _ in of_conditions(condition)] == ["NO_OTHERWISE"]


def test_what_is_foreseen_holds_for_all_answers_of_expr() -> None:
    cases = [(row["source"], ENVIRONMENT) for row in RECORDED["answers"]]
    cases += [(row["source"], DRAWN) for row in json.loads((ORACLE / "recorded.json").read_text())["cases"]]
    checked = known = 0
    for source, variables in cases:
        try:
            expression = parse(source)
            forecast = Foreseen(source).forecast
            value = expression._run(Frame(variables, NOW, DEFAULT, expression._slots, DEFAULT.steps))
        except (ExpressionError, Fault, KeyError):
            continue
        checked += 1
        assert kind(value) in forecast.kinds, source
        if forecast.known is not None:
            known += 1
            assert forecast.known[0] == value, source
    assert (checked > 1_500, known > 100) == (True, True)


def test_a_value_of_the_wrong_type_is_reported_where_one_is_needed() -> None:
    each = {"items": "${len(list)}", "until": "${'x'}"}
    found = reported(
        {**service("s", "w"), "forEach": each, "priority": "${upper(x)}", "flowKey": "${1 == x}"},
        wait("w", duration="${x == 1}", message={"name": "m", "correlationKey": "${[x]}"}),
        end(),
    )
    assert [path for path, sort in found if sort == "FAILS"] == [
        "steps[0].flowKey", "steps[0].priority", "steps[0].forEach.items", "steps[0].forEach.until",
        "steps[1].duration", "steps[1].message.correlationKey",
    ]  # fmt: skip


FORK = step("fork", "PARALLEL_GATEWAY", parallelNextSteps=["a", "b"], joinStep="join")
JOIN = step("join", "JOIN_GATEWAY", nextStep="end")


@pytest.mark.parametrize(
    ("steps", "path", "words"),
    [
        ([FORK, service("a"), user("b", None), JOIN, end()], "steps[0].joinStep", "no branch leads here"),
        ([FORK, service("a", "end"), user("b"), JOIN, end()], "steps[0].joinStep", "no branch leads here"),
        ([service("a", "join"), JOIN, end()], "steps[0].nextStep", "none of a gateway"),
        ([choose("d", {"x": "join", "true": "fork"}), FORK, service("a", "join"), user("b", "join"), JOIN, end()],
         "steps[0].conditionalNextSteps.x", 'none of gateway "fork"'),
        ([FORK, service("a", "join"), user("b", "other"), JOIN, step("other", "JOIN_GATEWAY", nextStep="end"), end()],
         "steps[2].nextStep", 'the join "other" from here is none of a gateway'),
        ([FORK, service("a", "join"), user("b", "join"), {**JOIN, "nextStep": "c"},
          service("c", "join", conditionalNextSteps={"x": "end", "true": "join"}), end()],
         "steps[4].conditionalNextSteps.true", 'none of gateway "fork"'),
        ([user("a", boundaryEvents=[{"type": "ERROR", "targetStepId": "join"}]), JOIN, end()],
         "steps[0].boundaryEvents[0].targetStepId", "none of a gateway"),
        ([choose("d", {"x": "a", "true": "end"}), service("a"), end()], "steps[1]", "no END"),
        ([FORK, service("a", "join"), user("b", "join"), {**JOIN, "nextStep": "c"},
          choose("c", {"x": "d", "true": "end"}),
          service("d"), end()], "steps[5]", "no END"),
    ],
)  # fmt: skip
def test_a_way_that_does_not_go_on_is_reported(steps: list[dict[str, Any]], path: str, words: str) -> None:
    found = [(hint.path, hint.text) for hint in hints(parsed(*steps)) if hint.kind == "FLOW"]
    assert [place for place, _ in found] == [path]
    assert words in found[0][1]


@pytest.mark.parametrize(
    "steps",
    [
        [FORK, service("a", "join"), user("b", None), JOIN, end()],
        [FORK, service("a", "join"), service("b", "end"), JOIN, end()],
        [FORK, service("a", "join"), choose("b", {"x": "a", "true": "join"}), JOIN, end()],
        [step("fork", "PARALLEL_GATEWAY", parallelNextSteps=["a", "join"], joinStep="join"), service("a", "end"), JOIN,
         end()],
        [FORK, service("a", "join"), choose("b", {"x": "join", "true": "out"}), JOIN, service("out"), end()],
        [user("a", boundaryEvents=[{"type": "TIMER", "duration": "PT1H", "targetStepId": "mail"}]), service("mail"),
         end()],
        [service("again", "fork"), FORK, service("a", "join"), user("b", "join"), {**JOIN, "nextStep": "c"},
         choose("c", {"x": "again", "true": "end"}), end()],
    ],
)  # fmt: skip
def test_of_a_way_that_goes_on_nothing_is_said(steps: list[dict[str, Any]]) -> None:
    assert [hint.path for hint in hints(parsed(*steps)) if hint.kind == "FLOW"] == []


def test_what_does_nothing_without_retries_or_beside_conditions_is_reported() -> None:
    waits = {"retryBackoff": {"initial": "PT1S"}, "noRetryOn": ["GONE"]}
    handler = {"jobType": "undo", **waits}
    found = reported(
        {**service("a", "b"), **waits},
        {**service("b", "c"), **waits, "retryCount": 1, "compensation": handler},
        {**service("c", "end"), "retryOn": ["BUSY"], "conditionalNextSteps": {"x": "end", "true": "a"}},
        end(),
    )
    assert [path for path, sort in found if sort == "UNUSED"] == [
        "steps[0].retryBackoff", "steps[0].noRetryOn", "steps[2].retryOn", "steps[2].nextStep",
        "steps[1].compensation.retryBackoff", "steps[1].compensation.noRetryOn",
    ]  # fmt: skip


def child(*outputs: dict[str, Any] | None):
    """A definition with an END for each of these outputs."""
    ends = [
        step(f"e{at}", "END", **({} if output is None else {"output": output})) for at, output in enumerate(outputs)
    ]
    arms = {f"x == {at}": f"e{at}" for at in range(len(ends))}
    return parse_definition(json.dumps(definition(choose("d", arms), *ends, definition_id="child")).encode())


@pytest.mark.parametrize(
    ("outputs", "read", "missing"),
    [
        ([{"price": 1}], "${result.prise}", ["prise"]),
        ([{"price": 1}, {"error": 2}], "${result.price ?? result['err']}", ["err"]),
        ([{}], "${result.price}", ["price"]),
        ([{"price": 1}], "${result.price + result?.price}", []),
        ([{"price": 1}, None], "${result.prise}", []),
        ([{"price": {"a": 1}}], "${result}", []),
        ([{"price": 1}], "${item.prise}", []),
    ],
)  # fmt: skip
def test_what_no_end_of_a_child_gives_is_reported(outputs: list[Any], read: str, missing: list[str]) -> None:
    each = {"items": "${list}", "collect": read, "into": "all", "until": read}
    called = step("c", "CALL_ACTIVITY", definitionId="child", forEach=each, nextStep="d")
    alone = step("d", "CALL_ACTIVITY", definitionId="child", output={"v": read}, nextStep="end")
    found = hints(parsed(called, alone, end()), {("child", 0): child(*outputs)})
    reported = [(hint.path, hint.text) for hint in found if hint.kind == "CHILD"]
    assert [path for path, _ in reported] == [
        path for path in ("steps[0].forEach.collect", "steps[0].forEach.until", "steps[1].output.v") for _ in missing
    ]
    assert all(
        f'no end of "child" gives "{name}"' in text for (_, text), name in zip(reported, missing * 3, strict=True)
    )


@pytest.mark.parametrize(
    ("place", "field", "meant"),
    [
        ("step", "retries", "`retryCount`"), ("step", "retrycount", "`retryCount`"),
        ("step", "maxAttempts", "`retryCount`"), ("step", "workflowId", "`definitionId`"),
        ("step", "calledElement", "`definitionId`"),
        ("step", "form", "metadata.forms"), ("step", "formKey", "metadata.forms"), ("step", "next", "`nextStep`"),
        ("step", "nextStpe", "`nextStep`"), ("step", "jobtype", "`jobType`"), ("step", "topic", "`jobType`"),
        ("step", "condition", "`conditionalNextSteps`"), ("step", "boundaryEvent", "`boundaryEvents`"),
        ("step", "for_each", "`forEach`"),
        ("step", "outputs", "`output`"), ("step", "backoff", "`retryBackoff`"), ("event", "errorCode", "`errorCodes`"),
        ("event", "target", "`targetStepId`"), ("event", "cancelActivity", "`interrupting`"),
        ("event", "durations", "`duration`"),
        ("backoff", "factor", "`multiplier`"), ("backoff", "maxDelay", "`max`"), ("each", "collection", "`items`"),
        ("each", "maxConcurrency", "`parallel`"), ("message", "key", "`correlationKey`"), ("top", "tasks", "`steps`"),
        ("top", "onfailure", "`onFailure`"), ("top", "searchAttribute", "`searchAttributes`"),
        ("start", "dellay", "`delay`"),
        ("undo", "retries", "`retryCount`"),
    ],
)  # fmt: skip
def test_an_unknown_field_says_which_one_is_meant(place: str, field: str, meant: str) -> None:
    timer = {"type": "TIMER", "targetStepId": "end", "duration": "PT1H"}
    event = {"type": "ERROR", "targetStepId": "end"} if field == "errorCode" else timer
    more: dict[str, dict[str, Any]] = {
        "step": {}, "event": event, "backoff": {"initial": "PT1S"}, "each": {"items": "${list}"},
        "message": {"name": "m", "correlationKey": "k"}, "top": {}, "start": {}, "undo": {"jobType": "u"},
    }  # fmt: skip
    more[place] = {**more[place], field: "x"}
    first = {
        **service("a", "w"), **more["step"], "boundaryEvents": [more["event"]], "retryBackoff": more["backoff"],
        "forEach": more["each"], "compensation": more["undo"],
    }  # fmt: skip
    with pytest.raises(InvalidDefinition) as caught:
        parsed(first, wait("w", message=more["message"]), end(), start=more["start"], **more["top"])
    [problem] = caught.value.problems
    assert problem.path.endswith(field)
    assert problem.reason.startswith("unknown field; ")
    assert meant in problem.reason


def test_of_a_field_like_no_other_and_of_the_many_nothing_is_meant() -> None:
    with pytest.raises(InvalidDefinition) as caught:
        parsed({**service("a", "end"), "zzz": 1, "x" * 500: 1, **{f"nextStep{at}": 1 for at in range(900)}}, end())
    reasons = [problem.reason for problem in caught.value.problems]
    assert reasons[:2] == ["unknown field", "unknown field"]
    assert "did you mean" in reasons[2]
    assert reasons[-1] == "unknown field"


def test_of_a_definition_with_problems_no_ways_are_reported() -> None:
    body = json.dumps(definition(choose("d", {"3 < 'x'": "nowhere"}), service("a"), end())).encode()
    readable = readable_part(body)
    assert readable is not None
    assert [hint.kind for hint in hints(readable)] == ["FAILS"]
