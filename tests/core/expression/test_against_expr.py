"""The original is the judge: 1,100 answers of expr v1.17.8 (recorded by expr_oracle/main.go), and where we differ, why.

Half of the questions are written by hand, half were drawn from a grammar of well-typed expressions. Ours must give
the same value or refuse the same; whatever doesn't stands in DIFFERENCES with its reason, and still must differ.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from penstock.core.expression import ExpressionError, parse
from tests.core.expression.evaluation import NOW

ORACLE = Path(__file__).parent / "expr_oracle"
RECORDED = json.loads((ORACLE / "answers.json").read_text())
ENVIRONMENT = RECORDED["environment"]

DIFFERENCES = {
    "contract: optional access into a number (or another dead end) is nil": [
        "f?.x", "v.f?.x", "a?.b?.c",
    ],
    "expr knows the types of these variables when it compiles; contract: variables have none": [
        "n?.x.y", "n?.[0]", "(n?.x).y", '"x" in n',
    ],
    "contract: whole and decimal numbers are one type": [
        "a[1.0]", "arr[w - 3]", "i % 2", "v.w % 2", "i..5", "3..i",
    ],
    "contract: nothing is converted, so no fraction is cut off and no other type taken for a bool": [
        "v.a[v.f]", "1..v.f", "v.f..3", "v.f and true", "true and v.f", "true && v.n", "false || v.s",
    ],
    "contract: values of different types are unequal, so a number is not a key of a map": ["1 in m", "1 in v.m"],
    "contract: strings count characters": ["s[0:2]", "s[1]", "s[-1]", '"abc"[1]', '"héllo"[1:2]', "v.s[1]"],
    "contract: whole numbers of any size": [
        "99999999999999999999", "9223372036854775808", "int(1e300)", 'int("99999999999999999999")',
    ],
    "contract: #name is name": ["#a"],
    "contract: a date is RFC 3339 in UTC; durations have text that definitions read": [
        'date("2024-01-02T10:00:00+02:00")', 'string(date("2024-01-02"))', 'date("2024-01-03") - date("2024-01-02")',
        'duration("1h") + duration("30m")', 'duration("1h") - duration("30m")', 'duration("1h") * 2',
        '2 * duration("1h")', '-duration("1h")', 'duration("1h30m")', 'duration("1.5h")', 'duration("-1m")',
        'duration("PT1H")', 'toJSON(duration("1h"))', 'max(duration("1h"),duration("2h"))',
        'date("2024-01-02").Weekday() == 2',
    ],
    "no time zones by name, and a time of day is not a date": [
        'date("10:00:00")', 'date("2024-01-02", "2006-01-02", "Europe/Berlin")',
    ],
    "JSON can't hold it": ['"\\ud800"', '"\\000"', 'fromBase64("//79")'],
    "numbers have one text, that of JSON": [
        "string(1e20)", "string(0.00001)", "string(123456789.0)", "string(12345678901234567890.0)", "string(-0.0)",
        "string(1e-5)",
    ],
    "a function is not a value": ["len", "upper"],
    "a predicate goes through an array": ["any(v.m, true)"],
    "only plain notation of numbers in text": ['float("1_0.5")', 'float("0x1p-2")'],
    "an empty array is not a nil": ['split("a b c", " ", 0)'],
    "ours: a second argument of round": ["round(1.234, 2)"],
    "a name of let hides a variable; expr refuses it": ["let f = 2; f"],
}  # fmt: skip
DIFFERENT = {source for sources in DIFFERENCES.values() for source in sources}


def ours(source):
    try:
        return {"value": parse(source).evaluate(ENVIRONMENT, NOW)}
    except ExpressionError:
        return {"refused": True}


def agree(left, right) -> bool:
    """The same JSON value: `3` and `3.0` are, `1` and `true` are not."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(agree, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(agree(left[key], right[key]) for key in left)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    return type(left) is type(right) and left == right


@pytest.mark.parametrize("answer", RECORDED["answers"], ids=lambda answer: answer["source"])
def test_an_expression_means_what_it_means_to_expr(answer):
    mine = ours(answer["source"])
    if answer["source"] in DIFFERENT:
        assert "value" not in mine or not agree(mine["value"], answer.get("value", "refused"))
    elif "value" in answer:
        assert "value" in mine
        assert agree(mine["value"], answer["value"])
    else:  # refused, or infinite
        assert mine == {"refused": True}


def test_every_difference_is_among_the_questions():
    assert {answer["source"] for answer in RECORDED["answers"]} >= DIFFERENT


@pytest.mark.go
@pytest.mark.slow(reason="compiles a program in Go")
def test_the_recorded_answers_are_those_of_expr():
    questions = {"environment": ENVIRONMENT, "sources": [answer["source"] for answer in RECORDED["answers"]]}
    run = subprocess.run(
        ["go", "run", "."], cwd=ORACLE, input=json.dumps(questions), capture_output=True, text=True, check=True
    )
    assert [json.loads(line) for line in run.stdout.splitlines()] == [
        {key: value for key, value in answer.items() if key != "source"} for answer in RECORDED["answers"]
    ]
