"""What each function and word operator of the language is for: told beside the field where an expression is written,
and in the tables of docs/expressions.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Help(NamedTuple):
    """How it is written (what is in brackets may be left out), what it gives, an example that needs no variables."""

    signature: str
    text: str
    example: str
    gives: str
    """What the example gives, as JSON."""


FUNCTIONS: Final[Mapping[str, Help]] = {
    "len": Help("len(x)", "characters of a string, items of an array, keys of a map", 'len("Kraków")', "6"),
    "sum": Help("sum(list[, value])", "of numbers, or of what each element gives", "sum([1, 2], # * 2)", "6"),
    "min": Help("min(a, …)", "the smallest of numbers, or of arrays of numbers; nil of none", "min([3, 1, 2])", "1"),
    "max": Help("max(a, …)", "the largest of numbers, or of arrays of numbers; nil of none", "max(1, 7, 3)", "7"),
    "abs": Help("abs(n)", "a number without its sign", "abs(-2.5)", "2.5"),
    "ceil": Help("ceil(n)", "the next whole number above", "ceil(2.1)", "3"),
    "floor": Help("floor(n)", "the next whole number below", "floor(2.9)", "2"),
    "round": Help("round(n)", "the nearest whole number; halves go away from zero", "round(-2.5)", "-3"),
    "int": Help("int(x)", "a number without its fraction, or a string that is a whole one", 'int("42")', "42"),
    "float": Help("float(x)", "a number, or a string that is one", 'float("4.2")', "4.2"),
    "string": Help("string(x)", "text of any value", "string(1.5)", '"1.5"'),
    "type": Help(
        "type(x)", "nil, bool, int, float, string, array, map, time.Time, time.Duration", "type([])", '"array"'
    ),
    "upper": Help("upper(s)", "in capitals, character by character, so ß stays ß", 'upper("ab")', '"AB"'),
    "lower": Help("lower(s)", "in small letters", 'lower("AB")', '"ab"'),
    "trim": Help("trim(s[, chars])", "without white space or these characters at its ends", 'trim("--b-", "-")', '"b"'),
    "split": Help("split(s, by[, most])", "its parts, at most so many", 'split("a,b", ",")', '["a", "b"]'),
    "join": Help("join(list[, by])", "strings as one", 'join(["a", "b"], "/")', '"a/b"'),
    "replace": Help(
        "replace(s, old, new[, most])", "one text by another, at most so often", 'replace("aaa", "a", "b", 2)', '"bba"'
    ),
    "first": Help("first(list)", "its first element, nil when it is empty", "first([3, 1])", "3"),
    "last": Help("last(list)", "its last element, nil when it is empty", "last([3, 1])", "1"),
    "sort": Help('sort(list[, "desc"])', "its elements in order", 'sort([2, 3, 1], "desc")', "[3, 2, 1]"),
    "reverse": Help("reverse(list)", "its elements from the end", "reverse([1, 2])", "[2, 1]"),
    "keys": Help("keys(map)", "its keys, in their order", 'keys({"b": 1, "a": 2})', '["a", "b"]'),
    "values": Help("values(map)", "its values, in the order of the keys", 'values({"b": 1, "a": 2})', "[2, 1]"),
    "toJSON": Help("toJSON(x)", "as JSON text, indented by two, keys in order", "toJSON([])", '"[]"'),
    "fromJSON": Help("fromJSON(s)", "the value that JSON text stands for", "fromJSON('[1, 2.5]')", "[1, 2.5]"),
    "toBase64": Help("toBase64(s)", "the text in UTF-8, as Base64", 'toBase64("ł")', '"xYI="'),
    "fromBase64": Help("fromBase64(s)", "the text that Base64 stands for", 'fromBase64("xYI=")', '"ł"'),
    "now": Help("now()", "the time of the evaluation, the same wherever it stands", "now() == now()", "true"),
    "date": Help(
        "date(s[, layout])",
        "a time, from RFC 3339, 2006-01-02 or as a layout of Go's says",
        'date("2031-05-04").Year()',
        "2031",
    ),
    "duration": Help("duration(s)", "a time span, from 1h30m or PT1H30M", 'duration("90m").Hours()', "1.5"),
    "any": Help(
        "any(list, condition)", "whether it is true of some element; `#` is the element", "any([3, 1], # > 2)", "true"
    ),
    "all": Help("all(list, condition)", "whether it is true of every element", "all([3, 1], # > 2)", "false"),
    "none": Help("none(list, condition)", "whether it is true of no element", "none([3, 1], # > 5)", "true"),
    "one": Help("one(list, condition)", "whether it is true of exactly one element", "one([3, 1], # == 1)", "true"),
    "filter": Help("filter(list, condition)", "the elements of which it is true", "filter([3, 1, 2], # > 1)", "[3, 2]"),
    "find": Help(
        "find(list, condition)", "the first element of which it is true, else nil", "find([3, 1], # < 2)", "1"
    ),
    "map": Help("map(list, value)", "what each element gives; `#index` is its place", "map([3, 1], # * 2)", "[6, 2]"),
    "count": Help("count(list[, condition])", "of how many elements it is true", "count([3, 1], # > 2)", "1"),
}
OPERATORS: Final[Mapping[str, Help]] = {
    "and": Help("a and b", "both are true; also &&", "true and false", "false"),
    "or": Help("a or b", "at least one is true; also ||", "true or false", "true"),
    "not": Help("not a", "it is false; also !", "not false", "true"),
    "in": Help("a in b", "an element of an array, a key of a map; also not in", '"k" in {"k": 1}', "true"),
    "contains": Help(
        "a contains b",
        "text that has a part, an array with an element; also not contains",
        '"haystack" contains "st"',
        "true",
    ),
    "startsWith": Help("a startsWith b", "text that begins so", '"abc" startsWith "a"', "true"),
    "endsWith": Help("a endsWith b", "text that ends so", '"abc" endsWith "a"', "false"),
    "matches": Help(
        "a matches b", "text in which a regular expression of RE2 is found", '"Ada" matches "^A[a-z]+$"', "true"
    ),
    "let": Help("let name = a; b", "b, in which the name stands for a", "let net = 8; net * 2", "16"),
}
