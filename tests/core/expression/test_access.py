"""Literals, access, optional access, indexes and slices."""

from __future__ import annotations

import pytest

from tests.core.expression.evaluation import failure, same, value

VARIABLES = {
    "o": {"a": {"b": 1, "n": None, "list": [{"x": 1}, {"x": 2}]}, "k-1": "dash", "matches": "m", "true": "t"},
    "a": [10, 20, 30],
    "s": "héllo wörld",
    "n": None,
    "i": 1,
    "t": True,
    "odd name": 5,
    "$price": 9,
    "größe": 7,
    "count": 3,
}

RESULTS = [
    # literals
    ("0", 0),
    ("007", 7),
    ("1_000_000", 1000000),
    ("0x1F", 31),
    ("0Xff_ff", 65535),
    ("0b1010", 10),
    ("0o17", 15),
    ("123456789012345678901234567890", 123456789012345678901234567890),
    ("1.5", 1.5),
    (".5", 0.5),
    ("1.", 1),
    ("1e3", 1000),
    ("1E-2", 0.01),
    ("2.5e+2", 250),
    ("1.e2", 100),
    ("true", True),
    ("false", False),
    ("nil", None),
    ("null", None),
    ("'single'", "single"),
    ('"double"', "double"),
    ('"it\'s"', "it's"),
    ("'say \"x\"'", 'say "x"'),
    (r"'it\'s'", "it's"),
    (r'"\a\b\f\n\r\t\v\\"', "\a\b\f\n\r\t\v\\"),
    (r'"\x41\u00e9\u{1F600}\U0001F600\101"', "Aé😀😀A"),
    (r"`raw\n`", "raw\\n"),
    ("`two\nlines`", "two\nlines"),
    ("'${i}'", "${i}"),
    ("'#i // no comment'", "#i // no comment"),
    ("[]", []),
    ("[1, 'a', nil, [true]]", [1, "a", None, [True]]),
    ("[1, 2,]", [1, 2]),
    ("{}", {}),
    ("{a: 1, 'b': 2, \"c\": 3, 4: 5, ('d' + 'e'): 6,}", {"a": 1, "b": 2, "c": 3, "4": 5, "de": 6}),
    ("{true: 1, nil: 2}", {"true": 1, "nil": 2}),
    ("{'a': 1, 'a': 2}", {"a": 1}),
    ("{'z': 1, 'a': 2}", {"z": 1, "a": 2}),
    ("1..3", [1, 2, 3]),
    ("3..1", []),
    ("-1..1", [-1, 0, 1]),
    ("2..2", [2]),
    ("1 + 2 // three", 3),
    ("1 /* one */ + /* \n */ 2", 3),
    ("1 // one\n + 2", 3),
    (" \t\r\n\u00a0\u3000 1 \n", 1),
    # variables
    ("i", 1),
    ("$price", 9),
    ("größe", 7),
    ("count > 2", True),
    ("count(a, # > 10)", 2),
    ("$env.i", 1),
    ("$env['odd name']", 5),
    ("$env['odd' + ' name']", 5),
    ("$env['no' + 'pe']", None),
    ("$env?.nope", None),
    ("len($env)", 10),
    # access
    ("o.a.b", 1),
    ("o['a']['b']", 1),
    ("o['k-1']", "dash"),
    ("o.matches", "m"),
    ("o.true", "t"),
    ("o.in", None),
    ("o.missing", None),
    ("o['missing']", None),
    ("o.a.list[1].x", 2),
    ("o.a.list[-1]['x']", 2),
    ("{'k': [1, 2]}.k[1]", 2),
    ("[[1, 2], [3]][0][1]", 2),
    ("'abc'[1]", "b"),
    ("(o).a.b", 1),
    ("(t ? o : n).a.b", 1),
    ("a[0]", 10),
    ("a[-3]", 10),
    ("a[2.0]", 30),
    ("a[i + 1]", 30),
    ("s[1]", "é"),
    ("s[-1]", "d"),
    # optional
    ("o?.a?.b", 1),
    ("o?.x?.y?.z", None),
    ("o.x?.y.z", None),
    ("o.x?.y[0].z", None),
    ("(o.x?.y).z", None),
    ("n?.x", None),
    ("n?.[0]", None),
    ("n?.[0:1]", None),
    ("i?.x.y", None),
    ("t?.x", None),
    ("a?.x", None),
    ("s?.x.y", None),
    ("i?.[0]", None),
    ("o?.['a']?.['b']", 1),
    ("a?.[1]", 20),
    ("a?.[1:]", [20, 30]),
    ("s?.[0]", "h"),
    ("o.x?.y ?? 'none'", "none"),
    ("missing ?? 'none'", "none"),
    ("(missing) ?? 'none'", "none"),
    ("missing?.x ?? 'none'", "none"),
    ("missing?.x.y ?? 'none'", "none"),
    ("missing?.['x'] ?? 'none'", "none"),
    ("missing ?? neither ?? 'none'", "none"),
    ("$env.missing ?? 'none'", "none"),
    ("(missing ?? 1) + 1", 2),
    ("i ?? 'none'", 1),
    ("o?.x ?? missing ?? nil", None),
    ("o.a?.n?.deep", None),
    # slices
    ("a[1:]", [20, 30]),
    ("a[:1]", [10]),
    ("a[:]", [10, 20, 30]),
    ("a[1:2]", [20]),
    ("a[-2:]", [20, 30]),
    ("a[:-1]", [10, 20]),
    ("a[5:9]", []),
    ("a[2:1]", []),
    ("a[-9:2]", [10, 20]),
    ("a[0:2][1]", 20),
    ("s[0:2]", "hé"),
    ("s[-5:]", "wörld"),
    ("''[0:5]", ""),
    ("a[t ? 0 : 1 : 2]", [10, 20]),
    # let
    ("let x = 5; x + 1", 6),
    ("let x = 5; let y = x * 2; x + y", 15),
    ("let i = 9; i", 9),
    ("(let x = 1; x) + 2", 3),
    ("let x = 2; t ? x : 0", 2),
]


@pytest.mark.parametrize(("source", "expected"), RESULTS)
def test_an_access_gives(source, expected):
    assert same(value(source, VARIABLES), expected)


ERRORS = [
    ("n.x", 2, "can't take x of nil"),
    ("o.missing.deeper", 10, "can't take deeper of nil"),
    ("o.a.n.deeper", 6, "can't take deeper of nil"),
    ("o?.a.n.deeper", 7, "can't take deeper of nil"),
    ("i.x", 2, "can't take x of a number"),
    ("t.x", 2, "can't take x of a bool"),
    ("s.x", 2, "can't take x of a string"),
    ("a.x", 2, "can't take x of an array"),
    ("n[0]", 2, "can't take an element of nil"),
    ("i[0]", 2, "can't take an element of a number"),
    ("o[0]", 2, "a map has strings as keys, not a number"),
    ("o[nil]", 2, "a map has strings as keys, not nil"),
    ("a['x']", 2, "an index must be a whole number, not a string"),
    ("a[1.5]", 2, "an index must be a whole number, not 1.5"),
    ("a[true]", 2, "an index must be a whole number, not a bool"),
    ("a[3]", 2, "the index 3 is out of range: the length is 3"),
    ("a[-4]", 2, "the index -4 is out of range: the length is 3"),
    ("[][0]", 3, "the index 0 is out of range: the length is 0"),
    ("s[99]", 2, "the index 99 is out of range: the length is 11"),
    ("a?.[3]", 2, "the index 3 is out of range: the length is 3"),
    ("n[1:]", 2, "can't take a slice of nil"),
    ("o[1:]", 2, "can't take a slice of a map"),
    ("a['x':]", 2, "the end of a slice must be a whole number, not a string"),
    ("a[:nil]", 2, "the end of a slice must be a whole number, not nil"),
    ("a[0.5:]", 2, "the end of a slice must be a whole number, not 0.5"),
    ("{(1): 2}", 3, "a map has strings as keys, not a number"),
    ("{'a': 1, (nil): 2}", 11, "a map has strings as keys, not nil"),
    ("i.x()", 2, "a number has no method x"),
    ("s.upper()", 2, "a string has no method upper"),
    ("missing", 1, "missing is not defined"),
    ("true || missing", 9, "missing is not defined"),
    ("false && missing.x", 10, "missing is not defined"),
    ("i ?? missing", 6, "missing is not defined"),
    ("missing ?? missing", 12, "missing is not defined"),
    ("missing.x ?? 1", 1, "missing is not defined"),
    ("missing?.x", 1, "missing is not defined"),
    ("(missing ?? 1) + missing", 18, "missing is not defined"),
    ("(missing + 1) ?? 1", 2, "missing is not defined"),
    ("t ? i : missing", 9, "missing is not defined"),
    ("any([], missing)", 9, "missing is not defined"),
    ("$env.missing", 5, "missing is not defined"),
    ("$env['missing']", 5, "missing is not defined"),
    ("len", 1, "len is not defined"),
]


@pytest.mark.parametrize(("source", "column", "reason"), ERRORS)
def test_an_access_refuses_and_says_where(source, column, reason):
    error = failure(source, VARIABLES)
    assert (error.reason, error.column) == (reason, column)


def test_a_key_in_brackets_is_located_where_it_stands():
    assert failure("{'a': 1,\n (2): 3}").line == 2


def test_a_variable_may_hold_any_json_value():
    for held in (None, True, 0, -1, 2**200, 1.5, "", "é\n", [], {}, [[[]]], {"a": {"b": [None]}}):
        assert same(value("x", {"x": held}), held)


def test_a_result_shares_nothing_with_the_variables():
    variables = {"x": {"list": [1, {"k": 2}]}}
    result = value("x", variables)
    result["list"][1]["k"] = 99
    result["list"].append(3)
    assert variables == {"x": {"list": [1, {"k": 2}]}}


def test_what_is_no_json_value_is_told_instead_of_taken():
    class Money:
        pass

    assert failure("x", {"x": Money()}).reason == "a variable holds what JSON can't: Money"
    assert failure("x + 1", {"x": Money()}).reason == "+ can't join no JSON value and a number"
    assert failure("x", {"x": (1, 2)}).reason == "a variable holds what JSON can't: tuple"
