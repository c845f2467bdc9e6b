"""docs/expressions.md is true: every example gives what the page says, and the page names every function."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.core.expression import DEFAULT, ExpressionError, parse, reference
from penstock.core.expression.chronology import DATE_METHODS, DURATION_METHODS
from penstock.core.expression.functions import FUNCTIONS
from penstock.core.expression.lexer import OPERATOR_WORDS
from penstock.core.expression.predicates import PREDICATES
from tests.core.expression.evaluation import NOW

PAGE = (Path(__file__).parents[3] / "docs" / "expressions.md").read_text()
(_GIVEN,) = re.findall(r"^```json variables\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
VARIABLES = json.loads(_GIVEN)
EXAMPLES = [
    tuple(line.split("→"))
    for block in re.findall(r"^```expr\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]


def test_the_page_has_examples_in_every_block():
    assert len(EXAMPLES) >= 99


@pytest.mark.parametrize(("source", "expected"), [(a.strip(), b.strip()) for a, b in EXAMPLES])
def test_an_example_gives_what_the_page_says(source, expected):
    if expected.startswith("error: "):
        with pytest.raises(ExpressionError) as caught:
            parse(source).evaluate(VARIABLES, NOW)
        assert caught.value.reason == expected.removeprefix("error: ")
    else:
        assert json.dumps(parse(source).evaluate(VARIABLES, NOW)) == json.dumps(json.loads(expected))


@pytest.mark.parametrize("name", [*FUNCTIONS, *PREDICATES])
def test_every_function_is_on_the_page(name):
    assert f"{name}(" in PAGE


def test_every_name_has_help_with_a_true_example():
    assert set(reference.FUNCTIONS) == {*FUNCTIONS, *PREDICATES}
    assert set(reference.OPERATORS) == {*OPERATOR_WORDS, "if"}
    for name, reported in {**reference.FUNCTIONS, **reference.OPERATORS}.items():
        assert json.dumps(parse(reported.example).evaluate({}, NOW)) == json.dumps(json.loads(reported.gives)), name
        assert re.search(rf"\b{name}\b", reported.signature), name
    for name, function in FUNCTIONS.items():
        needed, _, more = reference.FUNCTIONS[name].signature[len(name) + 1 : -1].partition("[")
        counts = [
            len([each for each in part.split(",") if each.strip() not in ("", "…", "]")]) for part in (needed, more)
        ]
        if name in PREDICATES:  # with a predicate, too
            counts[1] = 0
        assert counts[0] == function.minimum, name
        assert (None if "…" in needed else sum(counts)) == function.maximum, name


@pytest.mark.parametrize("name", [*DATE_METHODS, *DURATION_METHODS])
def test_every_method_is_on_the_page(name):
    assert re.search(rf"\b{name}\b", PAGE.partition("Dates have the methods")[2])


def test_the_limits_on_the_page_are_the_defaults():
    tail = PAGE.partition("## Errors and limits")[2]
    for bound in (
        DEFAULT.source_chars, DEFAULT.tokens, DEFAULT.depth_levels, DEFAULT.steps, DEFAULT.text_chars,
        DEFAULT.array_items, DEFAULT.integer_bits, DEFAULT.pattern_chars, DEFAULT.result_bytes, DEFAULT.value_levels,
    ):  # fmt: skip
        assert f"{bound:,}" in tail


def test_the_reason_on_the_page_is_what_an_error_shows():
    with pytest.raises(ExpressionError) as caught:
        parse("total / count > 5").evaluate({"total": 1, "count": 0}, NOW)
    assert str(caught.value) in PAGE
