"""The class that the rest of the engine holds: immutable, hashable, evaluated without a trace."""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.core.expression import Expression, ExpressionError, parse, reads
from tests.core.expression.evaluation import NOW


def test_an_expression_keeps_its_source_as_it_was():
    assert parse("  ${ amount } > 1 // why\n").source == "  ${ amount } > 1 // why\n"


def test_an_expression_cannot_be_changed():
    expression = parse("a + b")
    for field in dataclasses.fields(expression):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(expression, field.name, None)


def test_expressions_are_equal_when_their_source_is():
    assert parse("a + b") == parse("a + b")
    assert hash(parse("a + b")) == hash(parse("a + b"))
    assert parse("a + b") != parse("a+b")
    assert parse("a") != "a"
    assert len({parse("a"), parse("a"), parse("b")}) == 2


def test_an_expression_shows_its_source():
    assert repr(parse("a > 1")) == "Expression(source='a > 1')"
    assert isinstance(parse("a"), Expression)


def test_an_evaluation_leaves_nothing_behind():
    expression = parse("let x = sum(a); map(a, # + x)")
    for _ in range(3):
        assert expression.evaluate({"a": [1, 2]}, NOW) == [4, 5]
    with pytest.raises(ExpressionError):
        expression.evaluate({"a": [1, "2"]}, NOW)
    assert expression.evaluate({"a": [1, 2]}, NOW) == [4, 5]


def test_one_expression_serves_many_threads():
    expression = parse("map(filter(a, # > n), let y = # * 2; y + n)")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: expression.evaluate({"a": list(range(200)), "n": n}, NOW), range(50)))
    assert results == [[item * 2 + n for item in range(200) if item > n] for n in range(50)]


def test_variables_may_be_any_mapping():
    layers = ChainMap({"a": 1}, {"a": 9, "b": 2})
    assert parse("a + b").evaluate(layers, NOW) == 3
    assert parse("$env").evaluate(layers, NOW) == {"a": 1, "b": 2}
    assert parse("$env.b").evaluate(layers, NOW) == 2


def test_the_first_undefined_name_is_reported_with_its_place():
    with pytest.raises(ExpressionError) as caught:
        parse("a + b + c + b").evaluate({"a": 1}, NOW)
    assert (caught.value.reason, caught.value.column) == ("b is not defined", 5)


def test_an_error_knows_its_source():
    with pytest.raises(ExpressionError) as caught:
        parse("1 +")
    assert (caught.value.source, caught.value.position) == ("1 +", 3)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ is True


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        ('amount > 5 || customer.tier == "new"', [("amount", None), ("customer.tier", 22)]),
        ("${a.b.c[0].d} ", [("a.b.c[0].d", 3)]),
        ("a.b + (c ?? 1) + (d?.e ?? 2) + f?.g", [("a.b", 1), ("f", None)]),
        ("let k = m.n; k.o + len(filter(list.items, .a > #index))", [("m.n", 9), ("list.items", 34)]),
        ("(a).b + $env.c.d + #e.f + g['h'].i", [("a", None), ("g", None)]),
        ('"😀" + a.b', [("a.b", 7)]),
    ],
)
def test_uses_of_variables_are_reported_with_their_places(source: str, reported: list[tuple[str, int | None]]):
    found = reads(source)
    assert [(source[one.start : one.end], one.dot) for one in found] == reported
    assert all(source.startswith(one.name, one.start) for one in found)
