"""Functions without a predicate: what they give, and what they refuse."""

from __future__ import annotations

import itertools
import json

import pytest

from penstock.core.expression import ExpressionError, parse
from penstock.core.expression.functions import FUNCTIONS
from tests.core.expression.evaluation import NOW, failure, outcome, same, value

VARIABLES = {
    "n": None, "t": True, "i": -7, "d": 2.5, "s": " héllo ", "a": [3, 1, 2], "m": {"b": 2, "a": 1}, "e": [],
    "huge": 10**400,
}  # fmt: skip

RESULTS = [
    ("len('')", 0),
    ("len('héllo')", 5),
    ("len('😀')", 1),
    ("len(a)", 3),
    ("len(m)", 2),
    # numbers
    ("abs(i)", 7),
    ("abs(-2.5)", 2.5),
    ("abs(-huge) == huge", True),
    ("ceil(1.2)", 2),
    ("ceil(-1.2)", -1),
    ("ceil(5)", 5),
    ("ceil(huge) == huge", True),
    ("floor(1.8)", 1),
    ("floor(-1.2)", -2),
    ("floor(5)", 5),
    ("round(2.5)", 3),
    ("round(-2.5)", -3),
    ("round(0.5)", 1),
    ("round(-0.5)", -1),
    ("round(0.49999999999999994)", 0),
    ("round(4503599627370497.5)", 4503599627370498),
    ("round(7)", 7),
    ("type(round(2.5))", "float"),
    ("int(1.9)", 1),
    ("int(-1.9)", -1),
    ("int('42')", 42),
    ("int('-42')", -42),
    ("int('+42')", 42),
    ("int('123456789012345678901234567890')", 123456789012345678901234567890),
    ("int(1e300) == 1e300", True),
    ("float(3)", 3),
    ("type(float(3))", "float"),
    ("float('1.5')", 1.5),
    ("float('-.5e1')", -5),
    ("float('5.')", 5),
    ("min(3, 1, 2)", 1),
    ("max(3, 1.5, 2)", 3),
    ("min(a)", 1),
    ("max(1, a, [[9]])", 9),
    ("min(e)", None),
    ("max([[], []])", None),
    ("sum(a)", 6),
    ("sum(e)", 0),
    ("sum([0.5, 1])", 1.5),
    # text
    ("upper('héß')", "HÉß"),
    ("lower('ÀΣİ')", "àσi"),
    ("upper('')", ""),
    ("upper('ŉǰ')", "ŉǰ"),
    ("lower('ABC')", "abc"),
    ("trim(s)", "héllo"),
    ("trim('xxaxx', 'x')", "a"),
    ("trim('abcba', 'ab')", "c"),
    ("trim('a', '')", "a"),
    ("split('a,b,c', ',')", ["a", "b", "c"]),
    ("split('a,b,c', ',', 2)", ["a", "b,c"]),
    ("split('a,b,c', ',', 9)", ["a", "b", "c"]),
    ("split('a,b,c', ',', -1)", ["a", "b", "c"]),
    ("split('a,b', ',', 0)", []),
    ("split('', ',')", [""]),
    ("split('', '')", []),
    ("split('añb', '')", ["a", "ñ", "b"]),
    ("split('abc', '', 2)", ["a", "bc"]),
    ("split('abc', '', 1)", ["abc"]),
    ("split('abc', '', 9)", ["a", "b", "c"]),
    ("split('abc', 'x')", ["abc"]),
    ("join(['a', 'b'], ', ')", "a, b"),
    ("join(['a', 'b'])", "ab"),
    ("join([], ',')", ""),
    ("join(['a'], ',')", "a"),
    ("replace('aaa', 'a', 'b')", "bbb"),
    ("replace('aaa', 'a', 'b', 2)", "bba"),
    ("replace('aaa', 'a', 'b', 0)", "aaa"),
    ("replace('aaa', 'a', 'b', -1)", "bbb"),
    ("replace('abc', '', '-')", "-a-b-c-"),
    ("replace('abc', 'x', 'y')", "abc"),
    ("replace('aXbX', 'X', '')", "ab"),
    # arrays and maps
    ("first(a)", 3),
    ("last(a)", 2),
    ("first(e)", None),
    ("last(e)", None),
    ("sort(a)", [1, 2, 3]),
    ("sort(a, 'desc')", [3, 2, 1]),
    ("sort(a, 'asc')", [1, 2, 3]),
    ("sort([2, 1.5, -1])", [-1, 1.5, 2]),
    ("sort(['b', 'a', 'B'])", ["B", "a", "b"]),
    ("sort(e)", []),
    ("sort([{}])", [{}]),
    ("sort([date('2024-01-02'), date('2024-01-01')])[0].Day()", 1),
    ("reverse(a)", [2, 1, 3]),
    ("reverse(e)", []),
    ("keys(m)", ["a", "b"]),
    ("values(m)", [1, 2]),
    ("keys({})", []),
    # types
    ("map([nil, true, 1, 1.5, '', [], {}, now(), duration('1s')], type(#))",
     ["nil", "bool", "int", "float", "string", "array", "map", "time.Time", "time.Duration"]),
    ("type(6 / 2)", "float"),
    # string()
    ("string('x')", "x"),
    ("string(n)", "<nil>"),
    ("string(true)", "true"),
    ("string(42)", "42"),
    ("string(2 ** 70)", "1180591620717411303424"),
    ("string(6 / 2)", "3"),
    ("string(0.1)", "0.1"),
    ("string(-2.5)", "-2.5"),
    ("string(1e21)", "1e+21"),
    ("string(1e-7)", "1e-7"),
    ("string(0.000001)", "0.000001"),
    ("string(123456789.125)", "123456789.125"),
    ("string([1, 'a b', nil, [true]])", "[1 a b <nil> [true]]"),
    ("string([])", "[]"),
    ("string({'b': [1], 'a': {}})", "map[a:map[] b:[1]]"),
    # JSON
    ("toJSON(nil)", "null"),
    ("toJSON('a\"b\\\\\\n')", '"a\\"b\\\\\\n"'),
    ("toJSON('<&>')", '"\\u003c\\u0026\\u003e"'),
    ("toJSON('é\\u2028')", '"é\\u2028"'),
    ("toJSON(1.0)", "1"),
    ("toJSON([])", "[]"),
    ("toJSON({})", "{}"),
    ("toJSON([1, [true, {}]])", "[\n  1,\n  [\n    true,\n    {}\n  ]\n]"),
    ("toJSON({'b': 1, 'a': 'x'})", '{\n  "a": "x",\n  "b": 1\n}'),
    ("toJSON([0.1, 1e21, 1e-7, 123e18])", "[\n  0.1,\n  1e+21,\n  1e-7,\n  123000000000000000000\n]"),
    ("fromJSON('[1, 2.5, \"x\", null, true, {\"k\": []}]')", [1, 2.5, "x", None, True, {"k": []}]),
    ("fromJSON(' 12345678901234567890123 ')", 12345678901234567890123),
    ("fromJSON('1e3')", 1000),
    ("fromJSON('1e-400')", 0),
    ("fromJSON('{\"a\": 1, \"a\": 2}')", {"a": 2}),
    ("fromJSON(toJSON(m)) == m", True),
    ("toBase64('héllo')", "aMOpbGxv"),
    ("toBase64('')", ""),
    ("fromBase64('aMOpbGxv')", "héllo"),
    # pipes
    ("'a,b' | split(',')", ["a", "b"]),
    ("a | sort() | first()", 1),
    ("a | len() | string()", "3"),
    ("[1] | map(# + 1)", [2]),
    ("a | filter(# > 1) | len() == 2 ? 1 : 2", 1),
]  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), RESULTS)
def test_a_function_gives(source, expected):
    assert same(value(source, VARIABLES), expected)


ERRORS = [
    ("len(1)", "len needs a string, an array or a map, not a number"),
    ("len(nil)", "len needs a string, an array or a map, not nil"),
    ("abs('1')", "the argument of abs must be a number, not a string"),
    ("abs(true)", "the argument of abs must be a number, not a bool"),
    ("ceil('1')", "the argument of ceil must be a number, not a string"),
    ("floor(nil)", "the argument of floor must be a number, not nil"),
    ("round([])", "the argument of round must be a number, not an array"),
    ("int(true)", "the argument of int must be a number, not a bool"),
    ("int(nil)", "the argument of int must be a number, not nil"),
    ("int('')", "'' is not a whole number"),
    ("int(' 1')", "' 1' is not a whole number"),
    ("int('1.0')", "'1.0' is not a whole number"),
    ("int('0x10')", "'0x10' is not a whole number"),
    ("int('1_0')", "'1_0' is not a whole number"),
    ("int('١')", r"'\u0661' is not a whole number"),
    ("float('abc')", "'abc' is not a number"),
    ("float('inf')", "'inf' is not a number"),
    ("float('NaN')", "'NaN' is not a number"),
    ("float('1e400')", "the number is too large for a decimal number"),
    ("float(huge)", "the number is too large for a decimal number"),
    ("float([])", "the argument of float must be a number, not an array"),
    ("min('a')", "min takes numbers, or arrays of numbers, not a string"),
    ("max(1, true)", "max takes numbers, or arrays of numbers, not a bool"),
    ("max([nil])", "max takes numbers, or arrays of numbers, not nil"),
    ("min(1, now())", "min can't order a date and a number"),
    ("sum(['a'])", "+ can't join a number and a string"),
    ("sum([true])", "+ can't join a number and a bool"),
    ("sum(1)", "the first argument of sum must be an array, not a number"),
    ("upper(1)", "the argument of upper must be a string, not a number"),
    ("lower(nil)", "the argument of lower must be a string, not nil"),
    ("trim(1)", "the first argument of trim must be a string, not a number"),
    ("trim('', 1)", "the second argument of trim must be a string, not a number"),
    ("split(1, '')", "the first argument of split must be a string, not a number"),
    ("split('', nil)", "the second argument of split must be a string, not nil"),
    ("split('', '', 'x')", "the third argument of split must be a whole number, not a string"),
    ("join('a')", "the first argument of join must be an array, not a string"),
    ("join([1])", "an element that is joined must be a string, not a number"),
    ("join([], 1)", "the second argument of join must be a string, not a number"),
    ("replace('', '', 1)", "the third argument of replace must be a string, not a number"),
    ("replace('', '', '', 1.5)", "the fourth argument of replace must be a whole number, not 1.5"),
    ("first('abc')", "the argument of first must be an array, not a string"),
    ("last(1)", "the argument of last must be an array, not a number"),
    ("sort('ab')", "the first argument of sort must be an array, not a string"),
    ("sort([], 'up')", 'the second argument of sort must be "asc" or "desc"'),
    ("sort([], nil)", 'the second argument of sort must be "asc" or "desc"'),
    ("sort([1, 'a'])", "sort can't order a number and a string"),
    ("sort([1, true])", "sort can't order a number and a bool"),
    ("sort([false, true])", "sort can't order a bool and a bool"),
    ("sort([nil, nil])", "sort can't order nil and nil"),
    ("sort([[1], [2]])", "sort can't order an array and an array"),
    ("reverse('ab')", "the argument of reverse must be an array, not a string"),
    ("keys([])", "the argument of keys must be a map, not an array"),
    ("values(1)", "the argument of values must be a map, not a number"),
    ("fromJSON(1)", "the argument of fromJSON must be a string, not a number"),
    ("fromJSON('nope')", "not JSON: Expecting value at character 0"),
    ("fromJSON('[1,]')", None),
    ("fromJSON('')", "not JSON: Expecting value at character 0"),
    ("fromJSON('1 2')", "not JSON: Extra data at character 2"),
    ("fromJSON('NaN')", "JSON has no NaN"),
    ("fromJSON('[-Infinity]')", "JSON has no -Infinity"),
    ("fromJSON('1e400')", "the JSON holds a number that is too large"),
    ("fromJSON('\"\\n\"')", None),
    ("toBase64(1)", "the argument of toBase64 must be a string, not a number"),
    ("fromBase64('aGk')", "the argument of fromBase64 is not base64"),
    ("fromBase64('a!')", "the argument of fromBase64 is not base64"),
    ("fromBase64('é')", "the argument of fromBase64 is not base64"),
    ("fromBase64('//79')", "the argument of fromBase64 is not base64"),
]


@pytest.mark.parametrize(("source", "reason"), ERRORS)
def test_a_function_refuses(source, reason):
    error = failure(source, VARIABLES)
    assert error.column == 1
    assert error.reason == reason if reason else error.reason.startswith("not JSON: ")


def test_an_error_is_located_at_the_innermost_call():
    assert failure("1 + len(upper(abs(t)))", VARIABLES).column == 15


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_copes_with_every_type_of_argument(name):
    """A JSON value or an `ExpressionError`, nothing else."""
    held = [None, True, 1, -1.5, 10**30, "x", "2024-01-01", [], [1], ["a"], {}, {"k": 1}]
    arguments = ["x", "y", "x", "y"][: FUNCTIONS[name].maximum]
    expression = parse(f"{name}({', '.join(arguments[: max(FUNCTIONS[name].minimum, min(len(arguments), 2))])})")
    for first, second in itertools.product(held, held):
        variables = {"x": first, "y": second}
        result = outcome(lambda variables=variables: expression.evaluate(variables, NOW))
        if not isinstance(result, ExpressionError):
            assert json.loads(json.dumps(result, allow_nan=False)) == result
