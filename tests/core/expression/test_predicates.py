"""Functions with a predicate: `#`, `.field`, `#index`, nesting, and what the predicate must give."""

from __future__ import annotations

import pytest

from tests.core.expression.evaluation import failure, refusal, same, value

VARIABLES = {
    "a": [3, 1, 2],
    "e": [],
    "orders": [
        {"id": "x", "total": 10, "lines": [{"n": 1}, {"n": 2}]},
        {"id": "y", "total": 25.5, "lines": []},
        {"id": "z", "total": 7, "lines": [{"n": 5}]},
    ],
    "limit": 9,
    "n": None,
    "m": {"k": 1},
    "bools": [True, False, True],
}

RESULTS = [
    ("any(a, # > 2)", True),
    ("any(a, # > 3)", False),
    ("any(e, true)", False),
    ("all(a, # > 0)", True),
    ("all(a, # > 1)", False),
    ("all(e, false)", True),
    ("none(a, # > 3)", True),
    ("none(a, # > 2)", False),
    ("none(e, true)", True),
    ("one(a, # > 2)", True),
    ("one(a, # > 1)", False),
    ("one(e, true)", False),
    ("filter(a, # > 1)", [3, 2]),
    ("filter(e, true)", []),
    ("map(a, # * 2)", [6, 2, 4]),
    ("map(a, 'x')", ["x", "x", "x"]),
    ("map(e, #)", []),
    ("count(a, # > 1)", 2),
    ("count(bools)", 2),
    ("count(e)", 0),
    ("find(a, # < 3)", 1),
    ("find(a, # > 9)", None),
    ("sum(a, # * 10)", 60),
    ("sum(orders, .total)", 42.5),
    ("map(a, #index)", [0, 1, 2]),
    ("filter(a, #index > 0)", [1, 2]),
    ("find(orders, .id == 'y').total", 25.5),
    ("map(orders, .id)", ["x", "y", "z"]),
    ("map(orders, #.id)", ["x", "y", "z"]),
    ("map(orders, #['id'])", ["x", "y", "z"]),
    ("map(orders, {.id})", ["x", "y", "z"]),
    ("map(orders, {#.total > limit})", [True, True, False]),
    ("map(orders, len(.lines))", [2, 0, 1]),
    ("map(orders, .missing)", [None, None, None]),
    ("map(orders, .missing?.deeper)", [None, None, None]),
    ("map(a, {{'n': #, i: #index}})", [{"n": 3, "i": 0}, {"n": 1, "i": 1}, {"n": 2, "i": 2}]),
    ("map(a, [#, #])", [[3, 3], [1, 1], [2, 2]]),
    ("map(a, [1, 2][0])", [1, 1, 1]),
    ("map(1..3, # ** 2)", [1, 4, 9]),
    ("any(a, # == 1 or # == 9) and true", True),
    ("filter(filter(a, # > 1), # < 3)", [2]),
    ("filter(orders, any(.lines, .n > 4))", [VARIABLES["orders"][2]]),
    ("map(orders, sum(.lines, .n))", [3, 0, 5]),
    ("map(orders, map(.lines, #index))", [[0, 1], [], [0]]),
    ("map(a, count(a, # > 1) + #)", [5, 3, 4]),
    ("map(a, any(a, # > 2) ? # : 0)", [3, 1, 2]),
    ("map(a, {let y = # + 1; y * y})", [16, 4, 9]),
    ("let k = 2; map(a, # * k)", [6, 2, 4]),
    ("filter(a, # > 1)[0]", 3),
    ("filter(orders, .total > 8)[-1].id", "y"),
    ("a | filter(# > 1) | map(# + 1)", [4, 3]),
    ("a | any(# == 2)", True),
    ("a | sum()", 6),
    ("orders | map(.total) | sort() | last()", 25.5),
    ("any(a, # > 2,)", True),
    ("filter(a, # in [1, 3])", [3, 1]),
    ("any(['ab'], # matches '^a')", True),
    ("map(a, not (# > 1))", [False, True, False]),
    ("map([[1, 2], [3]], #[0])", [1, 3]),
    ("map(['abc'], #[1:])", ["bc"]),
]


@pytest.mark.parametrize(("source", "expected"), RESULTS)
def test_a_predicate_function_gives(source, expected):
    assert same(value(source, VARIABLES), expected)


ERRORS = [
    ("any(a, #)", 1, "the predicate must be a bool, not a number"),
    ("all(a, nil)", 1, "the predicate must be a bool, not nil"),
    ("filter(a, 'x')", 1, "the predicate must be a bool, not a string"),
    ("count(a)", 1, "the predicate must be a bool, not a number"),
    ("find(a, #)", 1, "the predicate must be a bool, not a number"),
    ("one(a, 1)", 1, "the predicate must be a bool, not a number"),
    ("none(a, 1)", 1, "the predicate must be a bool, not a number"),
    ("any(n, true)", 1, "the first argument of any must be an array, not nil"),
    ("map(m, #)", 1, "the first argument of map must be an array, not a map"),
    ("filter('abc', true)", 1, "the first argument of filter must be an array, not a string"),
    ("n | count(true)", 5, "the first argument of count must be an array, not nil"),
    ("map(a, .x)", 8, "can't take x of a number"),
    ("map(a, # + 'x')", 10, "+ can't join a number and a string"),
    ("sum(orders, .id)", 1, "+ can't join a number and a string"),
    ("map(orders, .lines[0].n)", 19, "the index 0 is out of range: the length is 0"),
]


@pytest.mark.parametrize(("source", "column", "reason"), ERRORS)
def test_a_predicate_function_refuses_and_says_where(source, column, reason):
    error = failure(source, VARIABLES)
    assert (error.reason, error.column) == (reason, column)


REFUSALS = [
    ("any(a)", 1, "any needs a predicate"),
    ("any()", 1, "any needs an array"),
    ("sum()", 1, "sum needs an array"),
    ("a | filter()", 5, "filter needs a predicate"),
    ("any(a, true, true)", 14, "unexpected true, ) was expected"),
    ("any(a, {true)", 13, "unexpected ), } was expected"),
    ("#", 1, "# is the element of a predicate, and this is outside of one"),
    ("[#]", 2, "# is the element of a predicate, and this is outside of one"),
    ("any(#, true)", 5, "# is the element of a predicate, and this is outside of one"),
    (".x", 1, "unexpected ."),
    ("any(.x, true)", 5, "unexpected ."),
    ("any(a, # > #limit)", 12, "#limit is not known in a predicate: the element is #, a variable has no #"),
    ("map(a, #acc)", 8, "#acc is not known in a predicate: the element is #, a variable has no #"),
    ("map(a, {'k': #})", 12, "unexpected :, } was expected"),
]


@pytest.mark.parametrize(("source", "column", "reason"), REFUSALS)
def test_a_predicate_that_makes_no_sense_is_refused(source, column, reason):
    error = refusal(source)
    assert (error.reason, error.column) == (reason, column)


def test_the_outer_element_is_there_again_after_an_inner_loop():
    assert value("map(a, [#, any(a, # == 1), #, map(a, #)[0], #, count(a, # > 1), #, #index])", VARIABLES) == [
        [3, True, 3, 3, 3, 2, 3, 0],
        [1, True, 1, 3, 1, 2, 1, 1],
        [2, True, 2, 3, 2, 2, 2, 2],
    ]


def test_a_predicate_stops_where_the_answer_is_known():
    assert value("any([1, 'x'], # > 0)") is True
    assert value("all([1, 'x'], # > 1)") is False
    assert value("find([1, 'x'], # > 0)") == 1
    assert failure("one([1, 'x'], # > 0)").reason == "> can't order a string and a number"
