"""Definitions that expr runs were refused at upload: thirty builtins, `if { } else { }`, `a; b`, time zones by name."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from penstock.core.expression import Expression
from penstock.core.parsing.parsing import parse_definition

VARIABLES = {
    "orders": [{"id": "a", "net": 30, "tags": ["x"]}, {"id": "b", "net": 10, "tags": ["y", "x"]}],
    "text": "PL-2031-7",
    "missing": None,
}
WANTED = {
    "groupBy(orders, .id).a[0].net": 30,
    "countBy(orders, .net > 20)": {"true": 1, "false": 1},
    "map(sortBy(orders, .net), .id)": ["b", "a"],
    "map(sortBy(orders, .net, 'desc'), .id)": ["a", "b"],
    "findIndex(orders, .net == 10)": 1,
    "findLast(orders, .net > 0).id": "b",
    "findLastIndex(orders, .net > 0)": 1,
    "reduce(orders, #acc + .net, 0)": 40,
    "trimPrefix(text, 'PL-')": "2031-7",
    "trimSuffix(text, '-7')": "PL-2031",
    "splitAfter(text, '-')": ["PL-", "2031-", "7"],
    "repeat('ab', 2)": "abab",
    "indexOf(text, '-') + lastIndexOf(text, '-')": 9,
    "hasPrefix(text, 'PL') and hasSuffix(text, '7')": True,
    "mean(map(orders, .net)) + median(map(orders, .net))": 40,
    "get(orders, 5)": None,
    "take(orders, 1)[0].id": "a",
    "toPairs({'k': 1})": [["k", 1]],
    "fromPairs([['k', 1]])": {"k": 1},
    "uniq(flatten(map(orders, .tags)))": ["x", "y"],
    "concat(['a'], ['b'])": ["a", "b"],
    "[bitand(6, 3), bitor(6, 3), bitxor(6, 3), bitnand(6, 3), bitnot(6)]": [2, 7, 5, 4, -7],
    "[bitshl(1, 4), bitshr(-8, 1), bitushr(8, 1)]": [16, -4, 4],
    "date('2031-07-01 12:00:00', '2006-01-02 15:04:05', 'Europe/Warsaw')": "2031-07-01T10:00:00Z",
    "date('2031-07-01').In(timezone('Asia/Tokyo')).Hour()": 9,
    "if len(orders) > 1 { 'many' } else { 'few' }": "many",
    "let n = len(orders); n; n * 2": 4,
    "missing contains 'x' or missing startsWith 'x'": False,
    "first(missing)": None,
    "b'ab'": [97, 98],
}


@pytest.mark.parametrize("source", WANTED)
def test_a_definition_does_what_expr_does(source):
    steps = [
        {
            "id": "t",
            "name": "t",
            "type": "TRANSFORMATION",
            "transformations": {"v": f"${{{source}}}"},
            "nextStep": "end",
        },
        {"id": "end", "name": "end", "type": "END"},
    ]
    definition = parse_definition(msgspec.json.encode({"id": "d", "name": "d", "steps": steps}))
    ((_, expression),) = definition.steps[0].transformations
    assert isinstance(expression, Expression)
    assert expression.evaluate(VARIABLES, datetime(2031, 5, 4, tzinfo=UTC)) == WANTED[source]
