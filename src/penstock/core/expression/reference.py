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
    "round": Help(
        "round(n[, digits])",
        "the nearest number with so many digits after the point, or whole",
        "round(2.675, 2)",
        "2.68",
    ),
    "decimal": Help(
        "decimal(x[, digits])",
        "an exact number, written as text with its digits; ours",
        'decimal("19.90") * 3',
        '"59.70"',
    ),
    "merge": Help(
        "merge(map, …)", "the entries of all; of equal keys the last; ours", 'merge({"a": 1}, {"a": 2})', '{"a": 2}'
    ),
    "pad": Help(
        "pad(s, width[, filler])",
        "filled up at its end, or its beginning where the width is negative; ours",
        'pad("7", -3, "0")',
        '"007"',
    ),
    "formatNumber": Help(
        "formatNumber(n, picture[, options])",
        "as people write it; ours",
        'formatNumber(1234.5, "#,##0.00")',
        '"1,234.50"',
    ),
    "addMonths": Help(
        "addMonths(date, n)",
        "the same day of another month, or its last; ours",
        'addMonths(date("2031-01-31"), 1).Day()',
        "28",
    ),
    "endOfMonth": Help(
        "endOfMonth(date)", "the last day of its month; ours", 'endOfMonth(date("2032-02-03")).Day()', "29"
    ),
    "daysBetween": Help(
        "daysBetween(from, to)",
        "how often the day changes in between; ours",
        'daysBetween(date("2031-05-04"), date("2031-06-01"))',
        "28",
    ),
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
    "trimPrefix": Help(
        "trimPrefix(s[, start])", "without this, or a space, where it begins so", 'trimPrefix("No. 7", "No. ")', '"7"'
    ),
    "trimSuffix": Help(
        "trimSuffix(s[, end])", "without this, or a space, where it ends so", 'trimSuffix("7 km", " km")', '"7"'
    ),
    "hasPrefix": Help("hasPrefix(s, start)", "whether it begins so", 'hasPrefix("PL-7", "PL")', "true"),
    "hasSuffix": Help("hasSuffix(s, end)", "whether it ends so", 'hasSuffix("PL-7", "8")', "false"),
    "indexOf": Help(
        "indexOf(s, part)", "where the part is first found, counted from 0, else -1", 'indexOf("abcb", "b")', "1"
    ),
    "lastIndexOf": Help(
        "lastIndexOf(s, part)", "where the part is last found, else -1", 'lastIndexOf("abcb", "b")', "3"
    ),
    "repeat": Help("repeat(s, n)", "the text so many times", 'repeat("ab", 3)', '"ababab"'),
    "splitAfter": Help(
        "splitAfter(s, by[, most])", "its parts, each with what divides them", 'splitAfter("a,b", ",")', '["a,", "b"]'
    ),
    "mean": Help("mean(a, …)", "the average of numbers, or of arrays of numbers; 0 of none", "mean([1, 2, 6])", "3"),
    "median": Help(
        "median(a, …)", "the one in the middle, or half-way between two; 0 of none", "median([1, 9, 2])", "2"
    ),
    "get": Help("get(x, key)", "an element or the value of a key, nil where there is none", "get([3, 1], 5)", "null"),
    "take": Help("take(list, n)", "its first n elements", "take([3, 1, 2], 2)", "[3, 1]"),
    "concat": Help("concat(list, …)", "the elements of all of them as one array", "concat([1], [2, 3])", "[1, 2, 3]"),
    "flatten": Help(
        "flatten(list)", "with the elements of the arrays in it, however deep", "flatten([1, [2, [3]]])", "[1, 2, 3]"
    ),
    "uniq": Help("uniq(list)", "without what is equal to an earlier element", "uniq([1, 2, 1])", "[1, 2]"),
    "toPairs": Help(
        "toPairs(map)",
        "keys with their values, in the order of the keys",
        'toPairs({"b": 1, "a": 2})',
        '[["a", 2], ["b", 1]]',
    ),
    "fromPairs": Help("fromPairs(list)", "the map of keys with their values", 'fromPairs([["a", 1]])', '{"a": 1}'),
    "bitand": Help("bitand(a, b)", "the bits that both numbers have", "bitand(12, 10)", "8"),
    "bitor": Help("bitor(a, b)", "the bits that one of them has", "bitor(12, 10)", "14"),
    "bitxor": Help("bitxor(a, b)", "the bits that exactly one of them has", "bitxor(12, 10)", "6"),
    "bitnand": Help("bitnand(a, b)", "the bits of the first that the second does not have", "bitnand(12, 10)", "4"),
    "bitnot": Help("bitnot(a)", "all bits turned over", "bitnot(5)", "-6"),
    "bitshl": Help("bitshl(a, places)", "moved to the left", "bitshl(3, 2)", "12"),
    "bitshr": Help("bitshr(a, places)", "moved to the right; the sign stays", "bitshr(-9, 1)", "-5"),
    "bitushr": Help("bitushr(a, places)", "moved to the right as 64 bits without a sign", "bitushr(12, 2)", "3"),
    "timezone": Help(
        "timezone(name)", "a time zone, for dates in it", 'date("2031-07-04").In(timezone("Europe/Warsaw")).Hour()', "2"
    ),
    "now": Help("now([zone])", "the time of the evaluation, the same wherever it stands", "now() == now()", "true"),
    "date": Help(
        "date(s[, layout, zone])",
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
    "findIndex": Help(
        "findIndex(list, condition)", "the place of the first such element, else nil", "findIndex([3, 1], # < 2)", "1"
    ),
    "findLast": Help("findLast(list, condition)", "the last such element, else nil", "findLast([3, 1, 2], # > 1)", "2"),
    "findLastIndex": Help(
        "findLastIndex(list, condition)",
        "the place of the last such element, else nil",
        "findLastIndex([3, 1, 2], # > 2)",
        "0",
    ),
    "groupBy": Help(
        "groupBy(list, key)",
        "a map of arrays: the elements by what each one gives",
        'groupBy([3, 1, 2], # > 1 ? "big" : "small")',
        '{"big": [3, 2], "small": [1]}',
    ),
    "countBy": Help(
        "countBy(list, key)", "how many elements give each key; ours", 'countBy(["a", "b", "a"], #)', '{"a": 2, "b": 1}'
    ),
    "sortBy": Help(
        'sortBy(list, key[, "desc"])',
        "in the order of what each element gives",
        'sortBy(["bb", "a"], len(#))',
        '["a", "bb"]',
    ),
    "reduce": Help(
        "reduce(list, value[, start])",
        "one value of all: `#acc` is what came out so far",
        "reduce([2, 3], #acc * #, 1)",
        "6",
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
    "if": Help(
        "if a { b } else { c }", "b where a is true, else c; also else if", 'if 1 > 2 { "a" } else { "b" }', '"b"'
    ),
    "let": Help("let name = a; b", "b, in which the name stands for a", "let net = 8; net * 2", "16"),
}
