"""What is refused when it is parsed, where, and how the error reads; and the contract's rewriting."""

from __future__ import annotations

import pytest

from penstock.core.expression import parse
from tests.core.expression.evaluation import failure, refusal, same, value

VARIABLES = {"a": 1, "b": 2, "list": [1, 2, 3], "text": "abc", "m": {"k": 1}, "t": True}

REFUSALS = [
    # nothing, or too little
    ("", 1, "unexpected the end of the expression"),
    ("   ", 4, "unexpected the end of the expression"),
    ("// only", 8, "unexpected the end of the expression"),
    ("1 +", 4, "unexpected the end of the expression"),
    ("1 + )", 5, "unexpected )"),
    ("(1", 3, "unexpected the end of the expression, ) was expected"),
    ("(1]", 3, "unexpected ], ) was expected"),
    ("()", 2, "unexpected )"),
    ("[1", 3, "unexpected the end of the expression, , was expected"),
    ("[1 2]", 4, "unexpected 2, , was expected"),
    ("[,]", 2, "unexpected ,"),
    ("{a: 1", 6, "unexpected the end of the expression, , was expected"),
    ("{a 1}", 4, "unexpected 1, : was expected"),
    ("{in: 1}", 2, "unexpected in, a key (a name, a string, a number or an expression in brackets) was expected"),
    ("{[1]: 1}", 2, "unexpected [, a key (a name, a string, a number or an expression in brackets) was expected"),
    ("${a", 4, "unexpected the end of the expression, } was expected"),
    ("${a)", 4, "unexpected ), } was expected"),
    ("${}", 3, "unexpected }"),
    ("a ? 1", 6, "unexpected the end of the expression, : was expected"),
    ("a ? : ", 7, "unexpected the end of the expression"),
    ("a[", 3, "unexpected the end of the expression"),
    ("a[]", 3, "unexpected ]"),
    ("a[1", 4, "unexpected the end of the expression, ] was expected"),
    ("a[1:2:3]", 6, "unexpected :, ] was expected"),
    ("a.", 3, "unexpected the end of the expression, a name was expected"),
    ("a.1", 2, "unexpected .1"),
    ("a.'b'", 3, "unexpected a string, a name was expected"),
    ("a?.", 4, "unexpected the end of the expression, a name was expected"),
    ("a.(b)", 3, "unexpected (, a name was expected"),
    # too much
    ("1 2", 3, "unexpected 2"),
    ("a b", 3, "unexpected b"),
    ("'a' 'b'", 5, "unexpected a string"),
    ("'it''s'", 5, "unexpected a string"),
    ("1)", 2, "unexpected )"),
    ("1;;", 3, "unexpected ;"),
    ("(1;)", 4, "unexpected )"),
    ("[1; 2]", 3, "unexpected ;, , was expected"),
    ("a = 1", 3, "unexpected ="),
    ("true.x", 5, "unexpected ."),
    ("1[0]", 2, "unexpected ["),
    ("nil[0]", 4, "unexpected ["),
    ("if t { 1 }", 11, "unexpected the end of the expression, else was expected"),
    ("1 + if t { 1 } else { 2 }", 8, "unexpected t"),
    ("if t { 1 } else { 2 } + 1", 23, "unexpected +"),
    ("if 5", 5, "unexpected the end of the expression, { was expected"),
    ("filter(a, #acc)", 11, "#acc is not known in a predicate: the element is #, a variable has no #"),
    ("b'\\u0041'", 3, "bytes have no \\u: write \\x and two digits"),
    ("::1", 3, "unexpected 1, a function was expected"),
    # operators
    ("1 ===  2", 5, "unexpected ="),
    ("1 <> 2", 4, "unexpected >"),
    ("* 1", 1, "unexpected *"),
    ("1 * * 2", 5, "unexpected *"),
    ("a and", 6, "unexpected the end of the expression"),
    ("and a", 1, "unexpected and"),
    ("in", 1, "unexpected in"),
    ("a not", 6, "unexpected the end of the expression, in, contains, startsWith, endsWith or matches was expected"),
    ("a not b", 7, "unexpected b, in, contains, startsWith, endsWith or matches was expected"),
    ("a not == b", 7, "unexpected ==, in, contains, startsWith, endsWith or matches was expected"),
    ("a ?? b + 1", 8, "?? and + can't be mixed: put one of them in brackets"),
    ("a ?? b == 1", 8, "?? and == can't be mixed: put one of them in brackets"),
    ("a ?? b and t", 8, "?? and and can't be mixed: put one of them in brackets"),
    ("t ?.5 : 1", 5, "unexpected 5, a name was expected"),
    ("a | b", 5, "unexpected b, a function call was expected"),
    ("a | 1", 5, "unexpected 1, a function call was expected"),
    ("a | len", 5, "unexpected len, a function call was expected"),
    ("list | len()[0]", 13, "unexpected ["),
    ("a |> len()", 4, "unexpected >, a function call was expected"),
    # calls
    ("foo()", 1, "unknown function foo"),
    ("a | foo()", 5, "unknown function foo"),
    ("hasPrefix('a')", 1, "hasPrefix takes 2 arguments, not 1"),
    ("eval('1')", 1, "unknown function eval"),
    ("a.b.c(", 7, "unexpected the end of the expression"),
    ("len()", 1, "len takes 1 argument, not 0"),
    ("len(a, b)", 1, "len takes 1 argument, not 2"),
    ("1 + len(a, b)", 5, "len takes 1 argument, not 2"),
    ("a | len(b)", 5, "len takes 1 argument, not 2"),
    ("min()", 1, "min takes at least 1 argument, not 0"),
    ("split('a')", 1, "split takes 2 to 3 arguments, not 1"),
    ("replace('a', 'b')", 1, "replace takes 3 to 4 arguments, not 2"),
    ("now(1, 2)", 1, "now takes 0 to 1 argument, not 2"),
    ("len(a", 6, "unexpected the end of the expression, , was expected"),
    ("len(a b)", 7, "unexpected b, , was expected"),
    ("(len)(a)", 6, "unexpected ("),
    ("contains(a)", 11, "unexpected ), , was expected"),
    ("contains(a, b, b)", 16, "unexpected b, ) was expected"),
    ("contains", 1, "unexpected contains"),
    # numbers
    ("0x", 1, "bad number: 0x"),
    ("0b2", 1, "bad number: 0b2"),
    ("0o8", 1, "bad number: 0o8"),
    ("0xg", 1, "bad number: 0xg"),
    ("1e", 1, "bad number: 1e"),
    ("1e+", 1, "bad number: 1e+"),
    ("1x", 1, "bad number: 1x"),
    ("12abc", 1, "bad number: 12a"),
    ("1.5.5", 4, "unexpected .5"),
    ("1é", 1, "bad number: 1é"),
    ("1$", 1, "bad number: 1$"),
    ("1e400", 1, "the number is too large"),
    ("a + 1e400", 5, "the number is too large"),
    # strings
    ("'abc", 1, "the string is not closed"),
    ('"abc', 1, "the string is not closed"),
    ("`abc", 1, "the string is not closed"),
    ("'ab\nc'", 1, "the string is not closed"),
    ("a + 'x", 5, "the string is not closed"),
    ("'\\", 1, "the string is not closed"),
    ("'\\'", 1, "the string is not closed"),
    (r"'\q'", 2, "unknown escape in a string"),
    (r"'ab\x4'", 4, "unknown escape in a string"),
    (r"'\u00'", 2, "unknown escape in a string"),
    (r"'\0'", 2, "unknown escape in a string"),
    (r"'\`'", 2, "unknown escape in a string"),
    (r"'\u{1234567}'", 2, "unknown escape in a string"),
    (r"'\ud800'", 2, "an escape sequence is not a character"),
    (r"'\U00110000'", 2, "an escape sequence is not a character"),
    # characters
    ("@", 1, "unexpected character @"),
    ("a & b", 3, "unexpected character &"),
    ("a ~ b", 3, "unexpected character ~"),
    ("a \\ b", 3, "unexpected character \\"),
    ("a \0", 3, "unexpected character U+0000"),
    ("a \u200b", 3, "unexpected character U+200B"),
    ("a \ud800", 3, "unexpected character U+D800"),
    ("a “b”", 3, "unexpected character “"),
    ("/* open", 1, "the comment is not closed"),
    ("1 + /* open", 5, "the comment is not closed"),
    # let
    ("let", 4, "unexpected the end of the expression, a name was expected"),
    ("let = 1; 1", 5, "unexpected =, a name was expected"),
    ("let true = 1; 1", 5, "unexpected true, a name was expected"),
    ("let x 1; 1", 7, "unexpected 1, = was expected"),
    ("let x = 1", 10, "unexpected the end of the expression, ; was expected"),
    ("let x = 1; ", 12, "unexpected the end of the expression"),
    ("let x = 1; let x = 2; x", 16, "x can't be declared again"),
    ("let len = 1; len", 5, "len can't be declared again"),
    ("let any = 1; any", 5, "any can't be declared again"),
    ("1 + let x = 1; x", 5, "unexpected let"),
]


@pytest.mark.parametrize(("source", "column", "reason"), REFUSALS)
def test_what_is_no_expression_is_refused_where_it_breaks(source, column, reason):
    error = refusal(source)
    assert error.reason == reason
    assert error.position == (0 if "\n" in source else column - 1)


@pytest.mark.parametrize(
    ("rewritten", "plain"),
    [
        ("${a}", "(a)"),
        ("${a} + ${b}", "(a) + (b)"),
        ("${a + b} * 2", "(a + b) * 2"),
        ("${m}.k", "(m).k"),
        ("${ {'k': 5} }.k", "({'k': 5}).k"),
        ("${${a}}", "((a))"),
        ("any(list, # > ${a})", "any(list, # > (a))"),
        ("#a", "a"),
        ("#a + #b", "a + b"),
        ("#m.k", "m.k"),
        ("#list[0]", "list[0]"),
        ("#len(text)", "len(text)"),
        ("any(#list, # > 2)", "any(list, # > 2)"),
        ("count(#list, # > 1) > #a", "count(list, # > 1) > a"),
        ("'#a ${b}'", '"#a ${b}"'),
        ("'x' + \"y\"", "\"x\" + 'y'"),
        ("contains(list, 2)", "2 in list"),
        ("contains(list, 9)", "9 in list"),
        ("not contains(list, 2)", "not (2 in list)"),
        ("!contains(list, 9) && t", "!(9 in list) && t"),
        ("contains(list, a + 1)", "(a + 1) in list"),
        ("contains(m, 'k')", "'k' in m"),
        ("contains(#list, #a)", "a in list"),
        ("contains(list, 1) == contains(list, 9)", "(1 in list) == (9 in list)"),
        ("contains(nil, 1)", "1 in nil"),
        ("t and contains(list, 1)", "t and (1 in list)"),
        ("filter(list, contains([1, 2], #))", "filter(list, # in [1, 2])"),
    ],
)
def test_older_spellings_mean_the_same(rewritten, plain):
    assert same(value(rewritten, VARIABLES), value(plain, VARIABLES))


def test_contains_as_a_call_searches_strings_like_the_operator():
    assert value("contains(text, 'bc')", VARIABLES) is True
    assert value("contains(text, 'cb')", VARIABLES) is False
    assert failure("contains(text, 1)", VARIABLES).reason == "the right side of contains must be a string, not a number"
    assert failure("contains(1, 'a')").reason == "in needs an array or a map on its right, not a number"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("1 + 2", set()),
        ("a + b.c * d[e]", {"a", "b", "d", "e"}),
        ("a + a", {"a"}),
        ("#a > ${b}", {"a", "b"}),
        ("any(list, # > limit)", {"list", "limit"}),
        ("map(list, .name + other)", {"list", "other"}),
        ("let x = a; x + y", {"a", "y"}),
        ("(let x = a; x) + x", {"a", "x"}),
        ("{key: value}", {"value"}),
        ("true || nil == null", set()),
        ("len(x) + count", {"x", "count"}),
        ("now().Year()", set()),
        ("$env.a + $env['b']", {"a", "b"}),
        ("$env[key]", {"key"}),
        ("'${a}' + `#b`", set()),
        ("a?.b ?? c", {"a", "c"}),
    ],
)
def test_the_names_of_an_expression_are_its_free_variables(source, names):
    assert parse(source).names == frozenset(names)


def test_text_of_many_lines_gives_line_and_column():
    error = refusal("a +\n  b +\n  * c")
    assert (error.line, error.column, error.position) == (3, 3, 12)
    assert str(error) == "unexpected * (line 3, column 3 of `a +   b +   * c`)"


def test_an_error_shows_cause_position_and_expression_in_one_line():
    assert str(refusal("amount >")) == "unexpected the end of the expression (line 1, column 9 of `amount >`)"
    assert str(failure("a / 0", VARIABLES)) == "division by zero (line 1, column 3 of `a / 0`)"


def test_a_long_expression_is_shown_around_the_position():
    error = failure(" + ".join(["a"] * 200) + " + text + " + " + ".join(["a"] * 200), VARIABLES)
    assert error.reason == "+ can't join a number and a string"
    assert len(str(error)) < 260
    assert "+ text +" in str(error)
    assert str(error).count("…") == 2


def test_an_error_can_be_stored_whatever_the_source_holds():
    for source in ("'\0' + 1", "'\ud800' + 1", "'\x07' matches '('", "@\0\ud800", "1 +\t\0"):
        error = refusal(source) if source[0] != "'" or "matches" in source else failure(source)
        str(error).encode()
        assert "\0" not in str(error)
        assert str(error).isprintable()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if", 7),
        ("if > 3", True),
        ("(if) + else", 8),
        ("if ?? 1", 7),
        ("[if, else]", [7, 1]),
        ("if == 7 ? 'a' : 'b'", "a"),
        ("if if > 3 { if } else { else }", 7),
        ("{if: 1, else: 2}.if", 1),
        ("let if = 2; if * 2", 4),
        ("map([1], if)", [7]),
    ],
)
def test_a_variable_may_still_be_called_if_or_else(source, expected):
    assert value(source, {"if": 7, "else": 1}) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if 'a' == 'b' { 1 } else if true { let x = 2; x + 1 } else { 4 }", 3),
        ("filter([1, 2], {if # > 1 { true } else { false }})", [2]),
        ("false ? 1 : if true { 2 } else { 3 }", 2),
        ("let a = if true { 1 } else { 2 }; a", 1),
        ("if true { {'k': 1} } else { nil }", {"k": 1}),
        ("`a``b`", "a`b"),
        ("'a\rb'", "a\nb"),
        ("b'é\\x00\\377'", [195, 169, 0, 255]),
        ("b'' ", []),
        ("::len('ab') + 1", 3),
        ("1; 'x'; 3", 3),
        ("let a = 1; 5; a", 1),
    ],
)
def test_forms_of_expr_beyond_its_operators(source, expected):
    assert value(source) == expected


def test_what_stands_before_a_semicolon_is_evaluated():
    assert failure("1 / 0; 2").reason == "division by zero"
