"""Operators: precedence, exact numbers, no coercion, and where their errors are located."""

from __future__ import annotations

import pytest

from tests.core.expression.evaluation import failure, same, value

VARIABLES = {
    "n": None, "t": True, "f": False, "i": 7, "d": 2.5, "s": "héllo", "a": [1, 2, 3], "m": {"x": 1, "y": None},
    "big": 2**80, "huge": 10**400,
}  # fmt: skip

RESULTS = [
    # precedence and associativity
    ("1 + 2 * 3", 7),
    ("(1 + 2) * 3", 9),
    ("2 * 3 % 4", 2),
    ("7 - 4 - 2", 1),
    ("8 / 4 / 2", 1),
    ("2 ** 3 ** 2", 512),
    ("-2 ** 2", -4),
    ("(-2) ** 2", 4),
    ("2 ** -1", 0.5),
    ("2 ^ 3", 8),
    ("1 + 2 == 3 && 4 > 3 || false", True),
    ("true || false && false", True),
    ("(true || false) && false", False),
    ("!f && f", False),
    ("!(f && f)", True),
    ("!f == f", False),
    ("!(f == f)", False),
    ("not f and t", True),
    ("1 + n ?? 2", 3),
    ("(n ?? 1) + 2", 3),
    ("n ?? n ?? 3", 3),
    ("1..2 + 1", [1, 2, 3]),
    ("1..3 == [1, 2, 3]", True),
    ("1 in 1..3", True),
    ("t ? 1 : f ? 2 : 3", 1),
    ("f ? 1 : f ? 2 : 3", 3),
    ("f ? 1 : t ? 2 : 3", 2),
    ("t ? f ? 1 : 2 : 3", 2),
    ("t ?: 5", True),
    ("f ?: 5", 5),
    ("[t ? 1 : 2, 3]", [1, 3]),
    ("{'k': t ? 1 : 2}", {"k": 1}),
    ("1 < 2 < 3", True),
    ("1 < 3 < 2", False),
    ("3 > 2 >= 2 > 1", True),
    ("1 < 2 == true", True),
    ("1 == 1 == true", True),
    ("- - 1", 1),
    ("!!true", True),
    ("1 - -1", 2),
    ("+i", 7),
    # numbers
    ("6 / 2", 3),
    ("7 / 2", 3.5),
    ("1 / 3", 1 / 3),
    ("7 % 3", 1),
    ("-7 % 3", -1),
    ("7 % -3", 1),
    ("-7 % -3", -1),
    ("7.0 % 4", 3),
    ("big + 1", 2**80 + 1),
    ("big * big", 2**160),
    ("big - 1 < big", True),
    ("big == big + 0.0", True),
    ("big + 1 == big + 0.0", False),
    ("9007199254740993 == 9007199254740992.0", False),
    ("9007199254740993 > 9007199254740992.0", True),
    ("huge > 1.5", True),
    ("huge == 1.5", False),
    ("huge % 7", 10**400 % 7),
    ("huge / huge", 1),
    ("10 ** 30", 10**30),
    ("0 ** 0", 1),
    ("(-1) ** 1000000000001", -1),
    ("0 ** 1000000000000", 0),
    ("4 ** 0.5", 2),
    ("0.1 + 0.2", 0.1 + 0.2),
    ("i + d", 9.5),
    ("-0.0", 0),
    ("1e20", 10**20),
    ("1e21", 1e21),
    ("1.0", 1),
    ("[1.0, {'k': 2.0}]", [1, {"k": 2}]),
    # equality
    ("1 == 1.0", True),
    ("1 == true", False),
    ("0 == false", False),
    ("1.0 == true", False),
    ("1 == '1'", False),
    ("n == nil", True),
    ("n == null", True),
    ("n == false", False),
    ("n == 0", False),
    ("n != 0", True),
    ("'' == nil", False),
    ("[] == {}", False),
    ("[1, 2] == [1, 2.0]", True),
    ("[1] == [true]", False),
    ("[[1]] == [[true]]", False),
    ("{'a': 1} == {'a': true}", False),
    ("{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", True),
    ("{'a': nil} == {}", False),
    ("{'a': nil} == {'b': nil}", False),
    ("a == [1, 2, 3]", True),
    ("a != [1, 2]", True),
    ("'é' == 'é'", True),
    ("'Z' < 'a'", True),
    ("'' < 'a'", True),
    ("'a' <= 'a'", True),
    # membership and strings
    ("2 in a", True),
    ("2.0 in a", True),
    ("true in a", False),
    ("true in [1]", False),
    ("1 in [true]", False),
    ("nil in [nil]", True),
    ("nil in a", False),
    ("[1] in [[1.0]]", True),
    ("{'k': 1} in [{'k': true}]", False),
    ("'x' in m", True),
    ("'z' in m", False),
    ("1 in m", False),
    ("'x' in n", False),
    ("2 not in a", False),
    ("9 not in a", True),
    ("s contains 'éll'", True),
    ("s not contains 'q'", True),
    ("s startsWith 'hé'", True),
    ("s endsWith 'lo'", True),
    ("s not startsWith 'x' and s not endsWith 'x'", True),
    ("s + '!'", "héllo!"),
    ("'a' + 'b' + 'c'", "abc"),
    ("t and t and t and f", False),
    ("f or f or f or t", True),
    ("f and 1", False),
    ("t or 1", True),
]


@pytest.mark.parametrize(("source", "expected"), [row for row in RESULTS if row[1] is not None])
def test_an_operator_gives(source, expected):
    assert same(value(source, VARIABLES), expected)


ERRORS = [
    # (source, column of the error, the cause)
    ("1 / 0", 3, "division by zero"),
    ("i / 0.0", 3, "division by zero"),
    ("1 % 0", 3, "division by zero"),
    ("10 + i % (3 - 3)", 8, "division by zero"),
    ("7.5 % 2", 5, "the left side of % must be a whole number, not 7.5"),
    ("7 % d", 3, "the right side of % must be a whole number, not 2.5"),
    ("1 + 'a'", 3, "+ can't join a number and a string"),
    ("'a' + 1", 5, "+ can't join a string and a number"),
    ("1 + true", 3, "+ can't join a number and a bool"),
    ("true + true", 6, "+ can't join a bool and a bool"),
    ("1 + n", 3, "+ can't join a number and nil"),
    ("a + a", 3, "+ can't join an array and an array"),
    ("m - 1", 3, "- can't join a map and a number"),
    ("'a' * 2", 5, "* can't join a string and a number"),
    ("'a' / 2", 5, "/ can't join a string and a number"),
    ("2 / true", 3, "/ can't join a number and a bool"),
    ("'a' % 2", 5, "% can't join a string and a number"),
    ("2 ** 'a'", 3, "** can't join a number and a string"),
    ("-'a'", 1, "- needs a number, not a string"),
    ("-t", 1, "- needs a number, not a bool"),
    ("+n", 1, "+ needs a number, not nil"),
    ("!1", 1, "not needs a bool, not a number"),
    ("not n", 1, "not needs a bool, not nil"),
    ("not 1 > 2", 1, "not needs a bool, not a number"),
    ("1 < 'a'", 3, "< can't order a number and a string"),
    ("'a' > 1", 5, "> can't order a string and a number"),
    ("true < false", 6, "< can't order a bool and a bool"),
    ("1 < true", 3, "< can't order a number and a bool"),
    ("n < 1", 3, "< can't order nil and a number"),
    ("n <= n", 3, "<= can't order nil and nil"),
    ("a < a", 3, "< can't order an array and an array"),
    ("m >= m", 3, ">= can't order a map and a map"),
    ("1 < 2 < 'a'", 7, "< can't order a number and a string"),
    ("1 == 1 < 2", 8, "< can't order a bool and a number"),
    ("1 and t", 3, "the left side of and must be a bool, not a number"),
    ("t and 1", 7, "the right side of and must be a bool, not a number"),
    ("'' or t", 4, "the left side of or must be a bool, not a string"),
    ("f or n", 6, "the right side of or must be a bool, not nil"),
    ("t && t && 'x'", 11, "the right side of and must be a bool, not a string"),
    ("1 ? 2 : 3", 1, "the condition of ? : must be a bool, not a number"),
    ("f ? 2 : n ? 3 : 4", 9, "the condition of ? : must be a bool, not nil"),
    ("1 in 1", 3, "in needs an array or a map on its right, not a number"),
    ("'a' in 'abc'", 5, "in needs an array or a map on its right, not a string"),
    ("1 not in 'abc'", 7, "in needs an array or a map on its right, not a string"),
    ("s contains 1", 3, "the right side of contains must be a string, not a number"),
    ("a contains 'x'", 3, "the left side of contains must be a string, not an array"),
    ("i startsWith 'x'", 3, "the left side of startsWith must be a string, not a number"),
    ("s endsWith 1", 3, "the right side of endsWith must be a string, not a number"),
    ("1 matches 'x'", 3, "the left side of matches must be a string, not a number"),
    ("1..2.5", 2, "the end of a range must be a whole number, not 2.5"),
    ("'a'..2", 4, "the start of a range must be a whole number, not a string"),
    ("1..t", 2, "the end of a range must be a whole number, not a bool"),
    ("(0 - 8) ** 0.5", 9, "the result is not a finite number"),
    ("0.0 ** -1", 5, "the result is not a finite number"),
    ("0 ** -1", 3, "the result is not a finite number"),
    ("1e300 * 1e300", 7, "the result is not a finite number"),
    ("1e308 + 1e308", 7, "the result is not a finite number"),
    ("-1e308 - 1e308", 8, "the result is not a finite number"),
    ("10.0 ** 400", 6, "the result is too large for a decimal number"),
    ("huge + 0.5", 6, "the result is too large for a decimal number"),
    ("huge / 3", 6, "the result is too large for a decimal number"),
    ("huge ** 0.5", 6, "the result is too large for a decimal number"),
]


@pytest.mark.parametrize(("source", "column", "reason"), ERRORS)
def test_an_operator_refuses_and_says_where(source, column, reason):
    error = failure(source, VARIABLES)
    assert (error.reason, error.line, error.column) == (reason, 1, column)


@pytest.mark.parametrize(
    ("left", "right"), [(1, True), (0, False), (1.0, True), (None, 0), (None, False), ("1", 1), ([], {}), ("", [])]
)
def test_values_of_different_types_are_unequal_wherever_they_stand(left, right):
    variables = {"l": left, "r": right}
    for source in ("l == r", "r == l", "[l] == [r]", "{'k': l} == {'k': r}", "l in [r]", "[[l]] == [[r]]"):
        assert value(source, variables) is False
    assert value("l != r", variables) is True


def test_both_sides_of_a_comparison_are_the_same_when_chained():
    assert value("1 < x <= 5 < y", {"x": 5, "y": 6}) is True
    assert value("1 < x <= 5 < y", {"x": 5, "y": 5}) is False
