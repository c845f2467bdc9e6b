"""`"Hello ${name}!"` was stored as this very text, `"${a}-${b}"` was a subtraction, and nobody said so."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from penstock.core.expression import Expression, ExpressionError, ExpressionLimits, parse_template
from penstock.core.graph.definition import InvalidDefinition
from penstock.core.parsing.hints import hints
from penstock.core.parsing.parsing import parse_definition
from tests.core.expression.evaluation import at_most, outcome

NOW = datetime(2031, 5, 4, tzinfo=UTC)
VARIABLES = {
    "name": "Ada",
    "first": "Ada",
    "last": "L",
    "a": 3,
    "b": 1,
    "none": None,
    "list": [1, 2],
    "map": {"k": 1.5},
}


def definition(transformations, **more):
    steps = [
        {"id": "t", "name": "t", "type": "TRANSFORMATION", "transformations": transformations, "nextStep": "w"},
        {"id": "w", "name": "w", "type": "WAIT", "nextStep": "c", **more.get("wait", {})},
        {"id": "c", "name": "c", "type": "CALL_ACTIVITY", "definitionId": "x", "nextStep": "e", **more.get("call", {})},
        {"id": "e", "name": "e", "type": "END", **more.get("end", {})},
    ]
    return parse_definition(json.dumps({"id": "d", "name": "d", "steps": steps}).encode())


def value_of(template):
    ((_, expression),) = definition({"v": {"$template": template}}).steps[0].transformations
    assert isinstance(expression, Expression)
    return expression.evaluate(VARIABLES, NOW)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("Hello ${name}!", "Hello Ada!"),
        ("${first} ${last}", "Ada L"),
        ("${a}-${b}", "3-1"),
        ("${a - b}", 2),
        ("${list}", [1, 2]),
        ("no value", "no value"),
        ("", ""),
        ("$${name} is ${name}, $$${a}", "${name} is Ada, $${a}"),
        ("a}b{ ${ {'k': {'z': 1}}.k.z } ${'}'}", "a}b{ 1 }"),
        ("${map.k} ${true} ${6 / 2} ${now()} ${duration('90m')} ${decimal('1.50')}",
         "1.5 true 3 2031-05-04T00:00:00Z PT1H30M 1.50"),
        ("${let x = a; x}${let x = b; x + 1}", "32"),
        ("${if a > 1 { 'x' } else { 'y' }}/${a; b}", "x/1"),
        ("${none ?? ''}|${missing ?? 'none'}|${join(['p', 'q'], ', ')}", "|none|p, q"),
        ({"to": "${name}", "lines": ["No ${a}", "${list}", {"deep": "x${b}y"}], "n": 1, "t": None, "k ${a}": "plain"},
         {"to": "Ada", "lines": ["No 3", [1, 2], {"deep": "x1y"}], "n": 1, "t": None, "k ${a}": "plain"}),
        ([], []),
        (7, 7),
    ],
)  # fmt: skip
def test_a_template_gives_its_texts_with_the_values_in_them(template, expected):
    assert value_of(template) == expected


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("x${none}",
         'nil has no text in a template: write ${… ?? ""} where there may be none (line 1, column 2 of `x${none}`)'),
        ("x${list}",
         "an array has no text in a template: write it with join() or toJSON() (line 1, column 2 of `x${list}`)"),
        ("x${map}", "a map has no text in a template: write it with toJSON() (line 1, column 2 of `x${map}`)"),
        (["ok", {"k": "x ${missing}"}], "missing is not defined (line 1, column 5 of `x ${missing}`)"),
        ({"k": "x ${1 / 0}"}, "division by zero (line 1, column 7 of `x ${1 / 0}`)"),
    ],
)  # fmt: skip
def test_what_has_no_text_fails_at_its_place_in_the_text(template, error):
    with pytest.raises(ExpressionError) as caught:
        value_of(template)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("template", "problem", "character"),
    [
        ("x ${1 +} y", 'v["$template"]: unexpected the end of the expression (line 1, column 8 of `x ${1 +} y`)', 7),
        (
            {"a": ["ok", "x ${a"]},
            'v["$template"].a[1]: ${ is not closed by } (line 1, column 3 of `x ${a`)',
            2,
        ),
        ({"a b": "${}"}, 'v["$template"]["a b"]: unexpected the end of the expression (line 1, column 3 of `${}`)', 2),
        (
            "${a} ${groupby(a)}",
            'v["$template"]: unknown function groupby (line 1, column 8 of `${a} ${groupby(a)}`)',
            7,
        ),
    ],
)
def test_a_template_that_cannot_be_read_is_refused_at_its_text(template, problem, character):
    with pytest.raises(InvalidDefinition) as caught:
        definition({"v": {"$template": template}})
    assert [str(each) for each in caught.value.problems] == [f"steps[0].transformations.{problem}"]
    assert list(caught.value.places.values()) == [character]


def test_templates_stand_wherever_a_definition_has_values_and_keys():
    given = {"$template": "${a}-${b}"}
    made = definition(
        {"v": given},
        wait={"message": {"name": "m", "correlationKey": given}},
        call={"input": {"v": given}, "output": {"v": given}, "businessKey": given},
        end={"output": {"v": given}},
    )
    transform, wait, call, end = made.steps
    found = [transform.transformations[0][1], wait.message.key, call.callee.input[0][1], call.callee.output[0][1]]
    found += [call.callee.business_key, end.result[0][1]]
    assert [each.evaluate(VARIABLES, NOW) for each in found] == ["3-1"] * 6
    assert all(each.names == {"a", "b"} for each in found)
    assert parse_definition(made.content.encode()) == made
    assert hints(made) == []


@pytest.mark.parametrize("key", [{"$template": {"k": "${a}"}}, {"other": "${a}"}, {"$template": "${a}", "x": 1}, {}])
def test_a_key_is_text_or_a_template_of_a_text(key):
    with pytest.raises(InvalidDefinition, match=r"steps\[1\].message.correlationKey: must be a string, or a template"):
        definition({"v": 1}, wait={"message": {"name": "m", "correlationKey": key}})


def test_text_elsewhere_keeps_its_meaning_and_gets_a_hint():
    made = definition(
        {
            "literal": "Hello ${name}!",
            "nested": {"k": ["x ${a}", "plain"], "n": 1},
            "joined": "${a}-${b}",
            "one": "${a - b}",
            "map": "${ {'k': 1}.k }",
            "no": "costs $5 and {this}",
            "near": {"$template": "x ${a}", "other": 1},
        },
        wait={"message": {"name": "m", "correlationKey": "${a}-${b}"}},
        call={"input": {"v": "a ${b} c"}, "output": {"v": "a ${b} c"}, "businessKey": "order ${a}"},
        end={"output": {"v": "${a}${b}" + " "}},
    )
    assert dict(made.steps[0].transformations)["literal"] == "Hello ${name}!"
    assert dict(made.steps[0].transformations)["joined"].evaluate(VARIABLES, NOW) == 2
    literal = 'stays as it is, with its ${ }; for a text of values write the whole as {"$template": …}'
    joined = (
        "is one expression: what stands between } and ${ is an operator; "
        'for a text of values write the whole as {"$template": …}'
    )
    assert [(hint.path, hint.text) for hint in hints(made) if hint.kind == "TEMPLATE"] == [
        ("steps[0].transformations.literal", literal),
        ("steps[0].transformations.nested.k[0]", literal),
        ("steps[0].transformations.joined", joined),
        ('steps[0].transformations.near["$template"]', literal),
        ("steps[1].message.correlationKey", joined),
        ("steps[2].input.v", literal),
        ("steps[2].output.v", literal),
        ("steps[2].businessKey", literal),
        ("steps[3].output.v", literal),
    ]


@pytest.mark.parametrize(
    "template",
    ["${" * 4_000, "${a}" * 2_400, "${a} ${ {" * 1_000, ["x ${1}"] * 20_000, {f"k{n}": "${n}" for n in range(5_000)}],
)
def test_a_hostile_template_is_read_or_refused_in_milliseconds(template):
    with at_most(2.0):
        result = outcome(lambda: parse_template(template).evaluate({"a": "x" * 1_000, "n": 1}, NOW))
    assert not isinstance(result, ExpressionError) or len(str(result)) < 500


def test_what_a_template_gives_is_bounded_like_any_result():
    given = parse_template(["${text}"] * 50)
    assert len(given.evaluate({"text": "x" * 1_000}, NOW)) == 50
    with pytest.raises(ExpressionError, match="the result is larger than 262144 bytes"):
        given.evaluate({"text": "x" * 100_000}, NOW)
    with pytest.raises(ExpressionError, match="a string of 200001 characters is over the limit of 100000"):
        parse_template("${text} ${text}").evaluate({"text": "x" * 100_000}, NOW, ExpressionLimits(text_chars=100_000))
