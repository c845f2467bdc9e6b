"""Random expressions: nothing but `ExpressionError` ever comes out, and what is well formed means what it should.

The reference below is written from docs/expressions.md, not from the code: numbers are fractions, every operator is
one line, and an expression is written down with as few brackets as the table of precedences allows.
"""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.expression import ExpressionError, ExpressionLimits, parse
from tests.core.expression.evaluation import NOW, at_most, outcome, same, value

# --- nothing else than ExpressionError --------------------------------------------------------------------------------

FRAGMENTS = r"""
a b missing list text map nil null true false 1 0 -1 2.5 1e3 0x1f 1_000 'x' "y" `z` '' "\n" '\u00e9' @ \ $ é 😀
+ - * / % ** ^ == != < <= > >= && || ! and or not in contains startsWith endsWith matches .. . ?. ?? ? : | , ; = #
( ) [ ] { } ${ // /* */ let $env #index .k #.k [0] [-1] [1:] ?.[ any( all( filter( map( count( find( sum( len(
min( max( abs( int( string( type( upper( split( join( replace( sort( first( keys( toJSON( fromJSON( now() date(
duration( contains( int('1') list[0] map.k text[0:2] any(list,#>1) 9**9**9 1..1000000 matches'(a+)+b'
""".split()  # noqa: SIM905 - 100 strings in quotes would be less readable
VARIABLES = {"a": 3, "b": -2.5, "list": [3, 1, 2], "text": "héllo", "map": {"k": 1, "list": [True, None]}}
TIGHT = ExpressionLimits(steps=5_000, text_chars=5_000, array_items=5_000)


def ending(source, variables=VARIABLES):
    """The result, or the error; anything else that is raised fails the test, and so does taking long."""
    with at_most(1):
        result = outcome(lambda: parse(source).evaluate(variables, NOW, TIGHT))
    if isinstance(result, ExpressionError):
        assert 0 <= result.position <= len(source)
        assert result.line >= 1
        assert result.column >= 1
        assert str(result).isprintable()
    else:
        json.dumps(result, allow_nan=False)
    return result


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30), st.sampled_from(["", " "]))
def test_any_row_of_tokens_gives_a_result_or_an_error(tokens, separator):
    ending(separator.join(tokens))


@given(st.text(max_size=60))
@example("'\ud800'")
@example("\0")
def test_any_text_gives_a_result_or_an_error(source):
    ending(source)


@given(st.text(alphabet="ab1(){}[].,:?!<>=+-*/%&|#$'\"`\\ \n", max_size=60))
def test_any_row_of_symbols_gives_a_result_or_an_error(source):
    ending(source)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30))
def test_the_same_expression_always_ends_the_same_way(tokens):
    source = " ".join(tokens)
    first, second = ending(source), ending(source)
    if isinstance(first, ExpressionError):
        assert str(first) == str(second)
    else:
        assert same(first, second)


# --- against a reference ----------------------------------------------------------------------------------------------

LEVELS = {
    "?:": 0, "or": 1, "and": 2, "==": 3, "!=": 3, "<": 4, ">": 4, "in": 3, "+": 5, "-": 5, "not": 6,
    "*": 7, "%": 7, "neg": 8, "**": 9, "??": 0, "atom": 10,
}  # fmt: skip
"""How tight an operator binds. Always in brackets: `??`, as the language wants it, and chains of `<`, which mean
something else."""

VALUES = {"n": None, "t": True, "f": False, "i": 3, "j": -2, "h": 0.5, "s": "ab", "a": [1, 2.0, True], "m": {"k": 1}}
ERROR = object()

atoms = st.one_of(
    st.sampled_from(sorted(VALUES)).map(lambda name: ("var", name)),
    st.integers(0, 9).map(lambda number: ("lit", number)),
    st.sampled_from([True, False, None, "ab", ""]).map(lambda held: ("lit", held)),
)


def compound(inner):
    two = st.tuples(st.sampled_from([o for o in LEVELS if o not in ("?:", "not", "neg", "atom", "**")]), inner, inner)
    power = st.tuples(st.just("**"), inner, st.integers(0, 3).map(lambda number: ("lit", number)))
    one = st.tuples(st.sampled_from(["not", "neg"]), inner)
    choice = st.tuples(st.just("?:"), inner, inner, inner)
    array = st.lists(inner, max_size=3).map(lambda items: ("array", *items))
    return st.one_of(two, two, power, one, choice, array)


trees = st.recursive(atoms, compound, max_leaves=12)


def level(tree):
    return LEVELS.get(tree[0], LEVELS["atom"])


def bracketed(tree, least):
    return write(tree) if level(tree) >= least else f"({write(tree)})"


def write(tree):
    match tree:
        case ("var", name):
            return name
        case ("lit", held):
            return json.dumps(held) if held is not None else "nil"
        case ("array", *items):
            return f"[{', '.join(map(write, items))}]"
        case ("not", operand):
            return f"not {bracketed(operand, LEVELS['not'])}"
        case ("neg", operand):
            return f"-{bracketed(operand, LEVELS['neg'])}"
        case ("?:", condition, yes, no):
            return f"{bracketed(condition, 1)} ? {write(yes)} : {write(no)}"
        case ("**", left, right):
            return f"{bracketed(left, LEVELS['**'] + 1)} ** {bracketed(right, LEVELS['**'])}"
        case ("??" | "<" | ">" | "==" | "!=" | "in" as operator, left, right):
            least = LEVELS["atom"] if operator == "??" else LEVELS["+"]
            return f"{bracketed(left, least)} {operator} {bracketed(right, least)}"
        case (operator, left, right):
            return f"{bracketed(left, LEVELS[operator])} {operator} {bracketed(right, LEVELS[operator] + 1)}"


def tagged(held):
    """A value in a form in which Python's `==` is the language's."""
    if held is None or isinstance(held, str | bool):
        return (type(held).__name__, held)
    if isinstance(held, list):
        return ("array", tuple(map(tagged, held)))
    if isinstance(held, dict):
        return ("map", tuple(sorted((key, tagged(item)) for key, item in held.items())))
    return ("number", Fraction(held))


def reference(tree):
    """What ``tree`` means, tagged, or ERROR."""
    match tree:
        case ("var", name):
            return tagged(VALUES[name])
        case ("lit", held):
            return tagged(held)
        case ("array", *items):
            held = [reference(item) for item in items]
            return ERROR if ERROR in held else ("array", tuple(held))
        case ("not", operand):
            return logical(lambda a: not a, reference(operand))
        case ("neg", operand):
            return numeric(lambda a: -a, reference(operand))
        case ("?:", condition, yes, no):
            verdict = reference(condition)
            return reference(yes if verdict[1] else no) if is_a(verdict, "bool") else ERROR
        case ("and" | "or" as operator, left, right):
            first = reference(left)
            if not is_a(first, "bool"):
                return ERROR
            return first if first[1] is (operator == "or") else logical(lambda a: a, reference(right))
        case ("??", left, right):
            first = reference(left)
            return reference(right) if is_a(first, "NoneType") else first
        case (operator, left, right):
            return binary(operator, reference(left), reference(right))


def is_a(held, tag):
    return held is not ERROR and held[0] == tag


def logical(operation, held):
    return ("bool", operation(held[1])) if is_a(held, "bool") else ERROR


def numeric(operation, *held):
    return ("number", operation(*(h[1] for h in held))) if all(is_a(h, "number") for h in held) else ERROR


def remainder(left, right):
    if left.denominator > 1 or right.denominator > 1 or right == 0:
        return None
    return Fraction(math.trunc(left / right) * -right + left)


def binary(operator, left, right):
    if ERROR in (left, right):
        return ERROR
    match operator:
        case "==":
            return ("bool", left == right)
        case "!=":
            return ("bool", left != right)
        case "<" | ">":
            if left[0] != right[0] or left[0] not in ("number", "str"):
                return ERROR
            return ("bool", left[1] < right[1] if operator == "<" else left[1] > right[1])
        case "in":
            if right[0] == "map":
                return ("bool", left in [("str", key) for key, _ in right[1]])
            return ("bool", left in right[1]) if right[0] == "array" else nothing_in(right)
        case "+" if is_a(left, "str") and is_a(right, "str"):
            return ("str", left[1] + right[1])
        case "%":
            result = numeric(remainder, left, right)
            return ERROR if result is ERROR or result[1] is None else result
        case _:
            operation = {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "**": Fraction.__pow__}
            return numeric(operation[operator], left, right)


def nothing_in(right):
    return ("bool", False) if is_a(right, "NoneType") else ERROR


@given(trees)
@example(("-", ("lit", 5), ("-", ("lit", 3), ("lit", 2))))
@example(("neg", ("**", ("lit", 2), ("lit", 2))))
@example(("**", ("neg", ("lit", 2)), ("lit", 2)))
@example(("not", ("*", ("lit", 2), ("lit", 2))))
@example(("+", ("not", ("var", "t")), ("lit", 2)))
@example(("==", ("lit", 1), ("var", "t")))
@example(("in", ("lit", 1), ("array", ("var", "t"))))
def test_an_expression_means_what_the_reference_says(tree):
    source = write(tree)
    expected = reference(tree)
    result = ending(source, VALUES)
    if expected is ERROR:
        assert isinstance(result, ExpressionError), source
        assert "unexpected" not in result.reason, source
    else:
        assert not isinstance(result, ExpressionError), source
        assert tagged(result) == expected, source


# --- laws -------------------------------------------------------------------------------------------------------------

numbers = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


def is_same_json(left, right):
    return tagged(left) == tagged(right)


@given(values)
def test_json_is_an_expression_for_itself(held):
    assert is_same_json(value(json.dumps(held, ensure_ascii=False)), held)


@given(values)
def test_a_value_goes_through_unchanged(held):
    assert is_same_json(value("x", {"x": held}), held)
    assert is_same_json(value("[x, {'k': x}]", {"x": held}), [held, {"k": held}])


@given(values)
def test_what_tojson_wrote_fromjson_reads(held):
    assert is_same_json(value("fromJSON(toJSON(x))", {"x": held}), held)
    assert is_same_json(json.loads(value("toJSON(x)", {"x": held})), held)


@given(values, values)
def test_equality_is_that_of_json_values(left, right):
    variables = {"l": left, "r": right}
    expected = tagged(left) == tagged(right)
    assert value("l == r", variables) is expected
    assert value("l != r", variables) is not expected
    assert value("l in [r]", variables) is expected
    assert value("l == l and r == r", variables) is True


@given(numbers, numbers)
def test_numbers_are_ordered_exactly(left, right):
    variables = {"l": left, "r": right}
    assert value("[l < r, l <= r, l > r, l >= r, l == r]", variables) == [
        Fraction(left) < Fraction(right),
        Fraction(left) <= Fraction(right),
        Fraction(left) > Fraction(right),
        Fraction(left) >= Fraction(right),
        Fraction(left) == Fraction(right),
    ]


@given(st.integers(), st.integers(), st.integers())
def test_whole_numbers_are_exact(a, b, c):
    variables = {"a": a, "b": b, "c": c}
    assert same(value("a + b * c - a", variables), b * c)
    assert same(value("-a * b", variables), -a * b)
    if b:
        assert same(value("a % b", variables), int(math.copysign(1, a)) * (abs(a) % abs(b)))
        assert value("(a - a % b) % b", variables) == 0


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_number_is_that_number(number):
    assert value("float(string(x))", {"x": number}) == number
    assert float(value("toJSON(x)", {"x": number})) == number


@given(st.text(max_size=20), st.integers(-25, 25), st.integers(-25, 25))
def test_slices_are_cut_at_the_ends(text, start, stop):
    variables = {"s": text.replace("\0", "0").encode("utf-8", "replace").decode(), "i": start, "j": stop}
    variables["a"] = list(variables["s"])
    for source, expected in (("{}[i:j]", slice(start, stop)), ("{}[i:]", slice(start, None)), ("{}[:j]", slice(stop))):
        assert value(source.format("s"), variables) == variables["s"][expected]
        assert value(source.format("a"), variables) == variables["a"][expected]


@given(texts, texts, texts)
def test_strings_are_taken_apart_and_put_together_again(text, part, other):
    variables = {"s": text, "p": part, "o": other}
    assert value("join(split(s, p), p) == s or p == ''", variables) is True
    assert value("join(split(s, '')) == s", variables) is True
    assert value("replace(s, p, o)", variables) == text.replace(part, other)
    assert value("(s + p) startsWith s and (s + p) endsWith p and (s + p + o) contains p", variables) is True
    assert value("len(s + p) == len(s) + len(p)", variables) is True
    assert value("len(upper(s)) == len(s) and len(lower(s)) == len(s)", variables) is True
    assert value("fromBase64(toBase64(s)) == s", variables) is True


@given(st.lists(numbers, max_size=10))
def test_arrays_are_sorted_counted_and_filtered(items):
    variables = {"a": items}
    assert value("sort(a)", variables) == sorted(items)
    assert value("sort(a, 'desc') == reverse(sort(a))", variables) is True
    assert value("[min(a), max(a)]", variables) == ([min(items), max(items)] if items else [None, None])
    assert value("filter(a, # > 0)", variables) == [item for item in items if item > 0]
    assert value("count(a, # > 0) == len(filter(a, # > 0))", variables) is True
    assert value("any(a, # > 0) == not none(a, # > 0)", variables) is True
    assert value("all(a, # > 0) == not any(a, not (# > 0))", variables) is True
    assert value("map(a, #index)", variables) == list(range(len(items)))
    assert value("map(a, a[#index]) == a", variables) is True


@given(st.dictionaries(texts, values, max_size=6))
def test_maps_are_read_by_key(held):
    assert value("keys(m)", {"m": held}) == sorted(held)
    assert is_same_json(value("map(keys(m), m[#])", {"m": held}), value("values(m)", {"m": held}))
    assert value("all(keys(m), # in m)", {"m": held}) is True
    if "odd" not in held:
        assert value("m.odd", {"m": held}) is None


@pytest.mark.parametrize(
    "number", [0.1, 1e21, 1e22, 1e-6, 1e-7, 123456789.125, 5e-324, 1.7976931348623157e308, 1e16, 0.5]
)
def test_decimals_are_written_as_javascript_does(number):
    shown = value("string(x)", {"x": number})
    assert float(shown) == number
    assert ("e" in shown) is not (1e-6 <= number < 1e21)
