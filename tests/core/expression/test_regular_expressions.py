"""`matches`: RE2's syntax, found anywhere, linear in time."""

from __future__ import annotations

import pytest

from penstock.core.expression import ExpressionLimits
from tests.core.expression.evaluation import at_most, failure, refusal, value


@pytest.mark.parametrize(
    ("text", "pattern", "found"),
    [
        ("abc", "b", True),
        ("abc", "^b", False),
        ("abc", "^a.c$", True),
        ("abc", "", True),
        ("", "^$", True),
        ("a\nb", "a.b", False),
        ("a\nb", "(?s)a.b", True),
        ("a\nb", "^b$", False),
        ("a\nb", "(?m)^b$", True),
        ("ABC", "abc", False),
        ("ABC", "(?i)abc", True),
        ("a1", r"^\w\d$", True),
        ("a b", r"\s", True),
        ("héllo", "^h.llo$", True),
        ("héllo", r"^\pL+$", True),
        ("a.b", r"a\.b", True),
        ("aXb", r"a\.b", False),
        ("foo bar", r"\bbar\b", True),
        ("foobar", r"\bbar\b", False),
        ("aaa", "^a{2,3}$", True),
        ("aaaa", "^a{2,3}$", False),
        ("ac", "^ab?c$", True),
        ("cat", "^(cat|dog)s?$", True),
        ("x", "[[:alpha:]]", True),
        ("x", "[^x]", False),
        ("a@b.io", r"^[\w.+-]+@[\w-]+(\.[\w-]+)+$", True),
        ("😀", "^.$", True),
        ("a\0b", r"\x00", True),
    ],
)
def test_a_pattern_is_found(text, pattern, found):
    assert value("text matches pattern", {"text": text, "pattern": pattern}) is found
    assert value("text not matches pattern", {"text": text, "pattern": pattern}) is not found
    quoted = pattern.replace("\\", "\\\\").replace('"', '\\"')
    assert value(f'text matches "{quoted}"', {"text": text}) is found
    assert value(f'text not matches "{quoted}"', {"text": text}) is not found


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", "*", "(?P<n", r"(a)\1", "(?=a)", "(?<!a)b", "a{1001}", r"\q"])
def test_a_bad_literal_pattern_is_refused_with_the_expression(pattern):
    quoted = pattern.replace("\\", "\\\\")
    error = refusal(f"'x' matches '{quoted}'")
    assert error.reason.startswith("bad regular expression: ")
    assert error.column == 13


def test_a_bad_pattern_in_a_variable_fails_the_evaluation():
    error = failure("'x' matches p", {"p": "("})
    assert error.reason.startswith("bad regular expression: ")
    assert error.column == 5


def test_a_pattern_other_than_a_string_is_refused_when_parsed():
    assert refusal("'x' matches 1").reason == "the right side of matches must be a string, not a number"
    assert failure("'x' matches p", {"p": 1}).reason == "the right side of matches must be a string, not a number"


def test_half_a_character_is_reported():
    assert failure("s matches 'x'", {"s": "\ud800"}).reason == "matches needs whole characters on its left"
    assert failure("'x' matches s", {"s": "\ud800"}).reason == "bad regular expression: it holds half a character"


def test_a_pattern_has_a_longest_length():
    assert value("'x' matches p", {"p": "x" * 1_024}) is False
    assert (
        failure("'x' matches p", {"p": "x" * 1_025}).reason == "the regular expression is longer than 1024 characters"
    )
    small = ExpressionLimits(pattern_chars=3)
    assert refusal("'x' matches 'abcd'", small).reason == "the regular expression is longer than 3 characters"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(x+x+)+y", "x" * 10_000),
        ("(a|aa)+$", "a" * 10_000 + "b"),
        ("(a*)*$", "a" * 10_000 + "b"),
        ("^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 5_000),
        ("(?:a?){100}a{100}", "a" * 99),
        ("(.*a){20}", "a" * 3_000 + "!"),
        ("([a-zA-Z0-9]+)*@", "a" * 10_000),
    ],
)
def test_patterns_that_kill_backtracking_engines_take_milliseconds(pattern, text):
    with at_most(0.5):
        value("t matches p", {"t": text, "p": pattern})


@pytest.mark.parametrize(
    "pattern", [r"(\pL{1,30}){1,30}", "(.{1,100}){1,10}", "((a{1,100}){1,10}){1,10}", r"(?i)\pL{500}"]
)
def test_a_pattern_that_grows_is_refused(pattern):
    quoted = pattern.replace("\\", "\\\\")
    with at_most(0.5):
        assert refusal(f"'x' matches '{quoted}'").reason.startswith("bad regular expression: ")


def test_text_times_pattern_is_paid_for_in_steps():
    """1,000 characters against 900 instructions that keep every state alive: measured at 5 ns each."""
    variables = {"t": "ab" * 500, "p": "[ab]*a[ab]{900}c"}
    assert value("t matches p", variables) is False
    reason = failure(
        "t matches p and t matches p and t matches p and t matches p", {**variables, "p": "a[ab]{900}"}
    ).reason
    assert reason == "the evaluation takes more than 100000 steps"


def test_any_allowed_text_is_searched_with_a_plain_pattern():
    assert value("t matches 'needle'", {"t": "x" * 200_000 + "needle"}) is True


def test_the_patterns_of_one_expression_are_bounded_together():
    terms = [f"t matches '{n}[ab]{{900}}'" for n in range(60)]
    assert refusal(" or ".join(terms)).reason == "the regular expressions of the expression are too large together"
