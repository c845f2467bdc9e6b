"""Random expressions, for expr itself (expr_oracle/main.go) and for ours: each builtin, operator, form and type.

    python -m tests.core.expression.differential --cases 20000 --seed 7     # holds ours against expr, needs Go
    python -m tests.core.expression.differential --cases 2400 --record      # keeps what expr says for where Go is not

A case where the two differ has to be told of by a row of `DIFFERENCES`, and each of these by the table of
docs/expressions.md.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from penstock.core.expression import ExpressionError, parse
from penstock.core.expression.chronology import duration_text
from tests.core.expression.evaluation import NOW

ORACLE = Path(__file__).parent / "expr_oracle"
RECORDED = ORACLE / "recorded.json"
ENVIRONMENT: dict[str, Any] = {
    "n": None, "i": 3, "z": 0, "j": -2, "k": 7, "big": 2**52, "f": 2.5, "g": -0.75, "t": True, "u": False,
    "s": "hello", "e": "", "w": "a-b-a", "num": "42", "a": [3, 1, 2], "l": ["x", "y", "x"], "x": [], "d": [1.5, 2, -1],
    "nest": [1, [2, [3]], []], "m": {"k": 1}, "mm": {"k": 1, "q": None, "d": {"e": "deep"}}, "empty": {},
    "o": [{"n": "a", "v": 1, "g": "p"}, {"n": "b", "v": 2.5, "g": "q"}, {"n": "c", "v": -3, "g": "p"}],
    "ps": [["a", 1], ["b", 2]], "bs": [True, False, True], "ns": [None, 1, None],
}  # fmt: skip
NAMES = {
    "nil": ["n", "nil", "mm.q", "m.none"],
    "int": ["i", "z", "j", "k", "1", "2", "10", "0x1f", "-3", "big", "m.k", "o[0].v"],
    "float": ["f", "g", "2.5", "0.1", "-1.25", "1e3", "d[0]"],
    "bool": ["t", "u", "true", "false"],
    "text": [
        "s",
        "e",
        "w",
        "num",
        '"a"',
        '"Hello World"',
        '" pad "',
        "'-'",
        '"l"',
        "`raw`",
        "mm.d.e",
        "l[0]",
        '"b,c"',
        '"héłło"',
    ],
    "array": ["a", "l", "x", "d", "nest", "o", "ps", "bs", "ns", "[1, 2, 3]", '["b", "a"]', "1..4", "[n]", "[[1], 2]"],
    "map": ["m", "empty", '{"a": 1}', "{b: [1]}", "o[1]", "mm.d"],
    "date": ['date("2024-02-29")', 'date("2024-03-10 10:20:30")', 'date("2023-12-31T23:00:00+02:00")'],
    "duration": ['duration("1h30m")', 'duration("-45s")', 'duration("36h")'],
    "zone": ['timezone("Europe/Warsaw")', 'timezone("America/New_York")', 'timezone("UTC")'],
}
KINDS = list(NAMES)
JSON_KINDS = ["nil", "int", "float", "bool", "text", "array", "map"]
BINARY = [
    "+", "-", "*", "/", "%", "**", "^", "==", "!=", "<", "<=", ">", ">=", "and", "or", "&&", "||", "in", "contains",
    "startsWith", "endsWith", "matches", "..", "??",
    "not in", "not contains", "not startsWith", "not endsWith", "not matches",
]  # fmt: skip
CALLS: dict[str, list[str]] = {
    "len": ["array text map"], "type": ["any"], "abs": ["int float"], "ceil": ["float int"], "floor": ["float int"],
    "round": ["float int"], "int": ["int float text duration"], "float": ["int float text"], "string": ["any"],
    "trim": ["text", "?text"], "trimPrefix": ["text", "?text"], "trimSuffix": ["text", "?text"], "upper": ["text"],
    "lower": ["text"], "split": ["text", "text", "?int"], "splitAfter": ["text", "text", "?int"],
    "replace": ["text", "text", "text", "?int"], "repeat": ["text", "int"], "join": ["array", "?text"],
    "indexOf": ["text", "text"], "lastIndexOf": ["text", "text"], "hasPrefix": ["text", "text"],
    "hasSuffix": ["text", "text"], "max": ["int float array", "?int float array", "?int float"],
    "min": ["int float array", "?int float array", "?int float"], "mean": ["int float array", "?int float"],
    "median": ["int float array", "?int float"], "toJSON": ["any"], "fromJSON": ["text"], "toBase64": ["text"],
    "fromBase64": ["text"], "duration": ["text"], "date": ["text", "?text", "?text"], "timezone": ["text"],
    "first": ["array"], "last": ["array"], "get": ["array map text nil", "int text"], "take": ["array", "int"],
    "keys": ["map"], "values": ["map"], "toPairs": ["map"], "fromPairs": ["array"], "reverse": ["array"],
    "uniq": ["array"], "concat": ["array", "?array", "?array"], "flatten": ["array"], "sort": ["array", "?text"],
    "bitand": ["int", "int"], "bitor": ["int", "int"], "bitxor": ["int", "int"], "bitnand": ["int", "int"],
    "bitnot": ["int"], "bitshl": ["int", "int"], "bitshr": ["int", "int"], "bitushr": ["int", "int"],
}  # fmt: skip
PREDICATES = [
    "all",
    "none",
    "any",
    "one",
    "filter",
    "map",
    "find",
    "findIndex",
    "findLast",
    "findLastIndex",
    "count",
    "sum",
    "groupBy",
    "sortBy",
    "reduce",
]
METHODS = {
    "date": {
        "Year": [], "Month": [], "Day": [], "Hour": [], "Minute": [], "Second": [], "Weekday": [], "YearDay": [],
        "Unix": [], "UnixMilli": [], "UnixMicro": [], "UnixNano": [], "Nanosecond": [], "ISOWeek": [], "IsZero": [],
        "IsDST": [], "Zone": [], "UTC": [], "Before": ["date"], "After": ["date"], "Equal": ["date"],
        "Compare": ["date"], "Sub": ["date"], "Add": ["duration"], "Truncate": ["duration"], "Round": ["duration"],
        "In": ["zone"], "AddDate": ["int", "int", "int"], "Format": ["layout"],
    },
    "duration": {
        "Hours": [], "Minutes": [], "Seconds": [], "Milliseconds": [], "Microseconds": [], "Nanoseconds": [],
        "Abs": [], "String": [], "Truncate": ["duration"], "Round": ["duration"],
    },
}  # fmt: skip
LAYOUTS = [
    '"2006-01-02"', '"2006-01-02 15:04:05"', '"02/01/06 03:04 PM"', '"Mon, 2 Jan 2006 15:04:05 MST"',
    '"2006-01-02T15:04:05Z07:00"', '"Monday January _2 15h04 -0700"',
]  # fmt: skip
TEXTS = {
    "fromJSON": ["'[1, 2.5]'", "'{\"a\": null}'", "'x'", "toJSON(a)", "'1e2'"],
    "fromBase64": ['"YWJj"', '"YQ"', '"!"', "toBase64(s)"],
    "duration": ['"1h"', '"1.5s"', '"-2m3s"', '"250ms"', '"x"', '"1us"', '"0"', '""'],
    "timezone": ['"Europe/Berlin"', '"UTC"', '""', '"Nowhere/City"'],
    "int": ['"12"', '"-7"', '"+7"', '"1.5"', '" 1"', '""', "num"],
    "float": ['"1.5"', '"-2e3"', '".5"', '"x"', "num"],
    "join": ["l", '["a", "b"]', "map(a, string(#))", "split(w, '-')"],
    "sort": ["a", "l", "d", "x", '["b", "a"]', "reverse(a)", "[2.5, 1, 2]"],
    "fromPairs": ["ps", '[["k", 1], ["k", 2]]', "x", "toPairs(m)", "[[1, 2]]", "[[1]]"],
    "median": ["a", "d", "nest", "[4, 1, 3, 2]", "x"],
    "mean": ["a", "d", "nest", "x"],
    "flatten": ["nest", "[[1, [n]], x, [[l]]]", "a"],
    "uniq": ["l", "[1, 1, 2.5, 2.5, n, n, t]", "[[1], [1], m, m]", "ns"],
}
SECOND = {
    "sort": ['"asc"', '"desc"', '"up"'],
    "split": ['","', '"-"', '""', '"l"'], "splitAfter": ['","', '"-"', '""', '"l"'],
    "date": LAYOUTS, "get": ["0", "1", "-1", "9", '"k"', '"none"'], "take": ["0", "1", "2", "9", "-1"],
    "repeat": ["0", "1", "3", "-1"], "bitshl": ["0", "1", "5", "-1"], "bitshr": ["0", "1", "70"],
    "bitushr": ["0", "1", "64", "62"],
}  # fmt: skip
REPORTED = [
    'fromPairs([[1, "a"], ["1", "b"]])', 'date("2024-01-31").AddDate(n, 1, 0)', "big * big", "bitshl(1, 70)",
    'indexOf("héłło", "o")', 'lastIndexOf("héłło", "ł")', "s[1]", "2.5 ** 1000", '{"a": 1} == {"a": 1.0}',
    "uniq([m, {'k': 1.0}])", "first(s)", "min(s)", 'split(s, "l", 0)', 'date("10:00:00")', 'fromBase64("//79")',
    "string(1500000.5)", "type(ceil(1))", "reduce(l, #acc + #)", "::len(a)", "b'ab'", "let q = 1; q; 3", "(1; 2)",
    "t && i", "a[f]", "a[1:f]", "1..f", "bitand(mean(a), 1)", "a?.x", "+s", "a[9] ?? 1",
    "date('2024-01-31') | toJSON()",
    "1 in m", "n.x",
]  # fmt: skip
"""Of every row of the table at least one, beside what comes by chance."""
DATES = ['"2024-02-29"', '"2024-02-30"', '"2024-05-06 07:08:09"', '"2024-05-06T07:08:09+02:00"', '"x"']
LOCAL = ['"2024-03-31 02:30:00"', '"2024-10-27 02:30:00"', '"2024-07-01 12:00:00"', '"2024-03-10 02:30:00"']
ZONES = ['"Europe/Berlin"', '"America/New_York"', '"Asia/Kolkata"', '"UTC"', '"Nowhere"']


class Case(NamedTuple):
    """One expression, and what each of the two says of it."""

    source: str
    about: str
    theirs: dict[str, Any]
    ours: dict[str, Any]


class Generator:
    """Makes sources, each with the name of what it is about."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def cases(self, count: int) -> Iterator[tuple[str, str]]:
        """``count`` different ones: builtins, operators and forms in turn."""
        makers = [*((name, self._call) for name in CALLS), *((name, self._predicate) for name in PREDICATES)]
        makers += [(name, self._operator) for name in BINARY]
        makers += [(name, maker) for name, maker in self._forms().items() for _ in range(2)]
        seen: set[str] = set(REPORTED[:count])
        yield from (("told of", source) for source in REPORTED[:count])
        turn = 0
        while len(seen) < count:
            about, maker = makers[turn % len(makers)]
            turn += 1
            source = maker(about)
            if source not in seen and len(source) < 300:
                seen.add(source)
                yield about, source

    def _pick(self, items: list[str]) -> str:
        return self._random.choice(items)

    def value(self, kinds: str, depth: int = 2) -> str:
        """An expression that is of one of the kinds as a rule, and of any other one in eight."""
        wanted = kinds.split()
        if "any" in wanted or self._random.random() < 0.12:
            wanted = KINDS
        kind = self._pick(wanted)
        if depth > 0 and self._random.random() < 0.3:
            return self._made(kind, depth - 1)
        return self._pick(NAMES[kind])

    def _made(self, kind: str, depth: int) -> str:
        value = lambda kinds: self.value(kinds, depth)  # noqa: E731 - a name for what each line below needs
        made: dict[str, list[Callable[[], str]]] = {
            "nil": [lambda: f"find(x, # == {value('any')})", lambda: f"get({value('map')}, 'none')"],
            "int": [
                lambda: f"({value('int')} + {value('int')})", lambda: f"len({value('array')})",
                lambda: f"({value('int')} * {self._pick(['2', '-1'])})", lambda: f"count({value('array')}, # != nil)",
                lambda: f"bitand({value('int')}, {value('int')})", lambda: f"int({value('float')})",
            ],
            "float": [lambda: f"({value('float')} * {value('float')})", lambda: f"mean({value('array')})"],
            "bool": [
                lambda: f"({value('int')} < {value('float')})", lambda: f"not {value('bool')}",
                lambda: f"({value('any')} == {value('any')})", lambda: f"any({value('array')}, # == {value('int')})",
            ],
            "text": [
                lambda: f"({value('text')} + {value('text')})", lambda: f"string({value('int')})",
                lambda: f"upper({value('text')})", lambda: f"replace({value('text')}, 'l', {value('text')})",
            ],
            "array": [
                lambda: f"map({value('array')}, [#, {value('int')}])", lambda: f"concat({value('array')}, [n])",
                lambda: f"filter({value('array')}, # != {value('any')})", lambda: f"[{value('any')}, {value('any')}]",
                lambda: f"{value('array')}[1:]", lambda: f"split({value('text')}, '-')",
            ],
            "map": [lambda: f"{{'v': {value('any')}}}", lambda: f"groupBy({value('array')}, 'k')"],
            "date": [
                lambda: f"({value('date')} + {value('duration')})", lambda: f"{value('date')}.AddDate(0, 1, -1)",
                lambda: f"{value('date')}.In({value('zone')})",
            ],
            "duration": [lambda: f"({value('date')} - {value('date')})", lambda: f"({value('duration')} * 2)"],
            "zone": [lambda: self._pick(NAMES["zone"])],
        }  # fmt: skip
        return self._random.choice(made[kind])()

    def _call(self, name: str) -> str:
        parameters = CALLS[name]
        least = sum(not each.startswith("?") for each in parameters)
        count = self._random.randint(least, len(parameters))
        arguments = [self.value(each.lstrip("?")) for each in parameters[:count]]
        if name == "date":
            return self._date(count)
        if name in TEXTS and self._random.random() < 0.7:
            arguments[0] = self._pick(TEXTS[name])
        if name in SECOND and count > 1 and self._random.random() < 0.8:
            arguments[1] = self._pick(SECOND[name])
        if name in ("keys", "values", "toPairs"):  # in random order in expr
            arguments[0] = self._pick(["m", '{"a": 1}', "empty", "o", "n", "mm.d", "s", '{"k": [1]}'])
        made = f"{name}({', '.join(arguments)})"
        if self._random.random() < 0.15:
            made = f"{arguments[0]} | {name}({', '.join(arguments[1:])})"
        return made

    def _date(self, count: int) -> str:
        layout = self._pick(LAYOUTS)
        if count == 1:
            return f"date({self._pick(DATES)})"
        shown = f"{self.value('date', 0)}.Format({layout})" if self._random.random() < 0.7 else self._pick(DATES)
        if self._random.random() < 0.5:
            shown, layout = self._pick(LOCAL), '"2006-01-02 15:04:05"'
        if count == 2:
            return f"date({shown}, {layout})"
        forms = [f"date({shown}, {layout}, {self._pick(ZONES)})", f"date({self.value('zone', 0)}, {shown}, {layout})"]
        return self._pick([*forms, f"date({self.value('zone', 0)}, {shown})"])

    def _predicate(self, name: str) -> str:
        items = self._pick(["a", "o", "d", "l", "x", "ns", "bs", "1..5", "nest", self.value("array")])
        over_maps = items == "o"
        condition = [
            "# == 1", "# != nil", "#index > 0", "# in a", "true", "# == #", f"# == {self.value('any', 1)}",
            f"any(a, # == {self.value('int', 0)})", "{let q = #; q == 1}", "type(#) == 'int'",
        ]  # fmt: skip
        result = ["#", "#index", "[#, #index]", "type(#)", "string(#)", "1", "n", f"[#, {self.value('any', 1)}]"]
        if over_maps:
            condition += [".v > 0", ".g == 'p'", "#.n startsWith 'a'", ".v", ".none == nil"]
            result += [".v", ".g", "#.n", "{.g + .n}", "{{'g': .g}}", ".none"]
        else:
            condition += ["# > 1", "# % 2 == 0", "# startsWith 'x'", "not #"]
            result += ["# * 2", "-#", "# + #index", "# + 1"]
        body = self._pick(result if name in ("map", "sum", "groupBy", "sortBy") else condition)
        more = ""
        if name == "sum" and self._random.random() < 0.3:
            return f"sum({items})"
        if name == "count" and self._random.random() < 0.2:
            return f"count({items})"
        if name == "sortBy" and self._random.random() < 0.5:
            more = ", " + self._pick(['"asc"', '"desc"', '"up"', "n"])
        if name == "reduce":
            body = self._pick(
                ["#acc + #", "#acc + #index", "[#acc, #]", "{#acc}", "#acc", "max(#acc, #)", "concat(#acc, [#])"]
                + (["#acc + .v", "#acc + .n"] if over_maps else [])
            )
            more = (
                ", " + self._pick(["0", "[]", "''", "1.5", self.value("any", 0)]) if self._random.random() < 0.6 else ""
            )
        if self._random.random() < 0.15:
            return f"{items} | {name}({body}{more})"
        return f"{name}({items}, {body}{more})"

    def _operator(self, name: str) -> str:
        left, right = self.value("any", 1), self.value("any", 1)
        if self._random.random() < 0.5:  # of types that go together
            kinds = {
                "int": "% .. + - *", "int float": "+ - * / ** ^ == < <= > >=", "bool": "and or && || == !=",
                "text": "+ == != < >= contains startsWith endsWith matches", "date": "- == < >", "array": "in == !=",
            }  # fmt: skip
            for kind, names in kinds.items():
                if name.removeprefix("not ") in names.split() and self._random.random() < 0.6:
                    left, right = self.value(kind, 1), self.value(kind, 1)
                    break
        if name.endswith("in"):
            right = self.value("array map", 1)
        if name.endswith("matches"):
            right = self._pick(['"^h"', '"l+o$"', '"a|b"', '"["', right])
        return f"({left}) {name} ({right})"

    def _forms(self) -> dict[str, Callable[[str], str]]:
        value = self.value
        return {
            "if": lambda _: f"if {value('bool')} {{ {value('any')} }} else {{ {value('any')} }}",
            "else if": lambda _: (
                f"if {value('bool')} {{{value('any')}}} else if {value('bool')} {{{value('any')}}} "
                f"else {{{value('any')}}}"
            ),
            "? :": lambda _: f"{value('bool')} ? {value('any')} : {value('any')}",
            "?:": lambda _: f"{value('bool')} ?: {value('any')}",
            "let": lambda _: f"let q1 = {value('any')}; let q2 = {value('int')}; [q1, q2 + 1]",
            "sequence": lambda _: f"{value('any')}; {value('any')}",
            "slice": lambda _: f"{value('array')}[{value('int', 0)}:{value('int', 0)}]",
            "index": lambda _: f"{value('array map')}[{value('int text', 0)}]",
            "field": lambda _: f"({value('map', 1)}).{self._pick(['k', 'd', 'none', 'v'])}",
            "optional": lambda _: (
                f"({value('map nil', 1)})?.{self._pick(['k', 'q', 'none'])}?.{self._pick(['e', 'x'])}"
            ),
            "optional index": lambda _: f"({value('map nil', 1)})?.[{value('text', 0)}]",
            "coalesce": lambda _: f"({value('nil any', 1)} ?? {value('any')})",
            "unary": lambda _: f"{self._pick(['-', '+', 'not ', '!'])}({value('any', 1)})",
            "array": lambda _: f"[{value('any')}, {value('any')}, {value('any')}]",
            "map literal": lambda _: f"{{'a': {value('any')}, b: {value('any')}, (w): {value('any', 0)}}}",
            "pipe": lambda _: f"{value('array')} | filter(# != nil) | map([#]) | len()",
            "comparison chain": lambda _: f"{value('int')} < {value('int float')} <= {value('int float')}",
            "precedence": lambda _: " ".join(
                [value("int float", 0)] + [f"{self._pick(list('+-*%'))} {value('int', 0)}" for _ in range(3)]
            ),
            "comment": lambda _: f"{value('int')} /* {self._pick(['x', '* /', 'a'])} */ + {value('int')} // end",
            "global": lambda _: f"::len({value('array')})",
            "bytes": lambda _: f'len(b"{self._pick(["abc", "é", chr(92) + "xff"])}") + {value("int", 0)}',
            "env": lambda _: self._pick(["$env.i", '$env["s"]', '"i" in $env', '"zz" in $env', "len($env) > 3"]),
            "date method": lambda _: self._method("date"),
            "duration method": lambda _: self._method("duration"),
        }

    def _method(self, kind: str) -> str:
        name = self._pick(list(METHODS[kind]))
        layout = lambda: self._pick(LAYOUTS)  # noqa: E731
        arguments = [layout() if each == "layout" else self.value(each, 0) for each in METHODS[kind][name]]
        owner = self.value(kind, 1) if self._random.random() < 0.9 else self.value("any", 0)
        return f"{owner}.{name}({', '.join(arguments)})"


# --- the two ----------------------------------------------------------------------------------------------------------


def ask_expr(sources: list[str], program: Path) -> list[dict[str, Any]]:
    """What expr says of each."""
    questions = json.dumps({"environment": ENVIRONMENT, "sources": sources, "dynamic": True})
    run = subprocess.run([str(program)], input=questions, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def build(folder: Path) -> Path:
    """The program that asks expr."""
    program = folder / "oracle"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=ORACLE, check=True)
    return program


def ask_ours(source: str) -> dict[str, Any]:
    """What ours says of it."""
    try:
        return {"value": parse(source).evaluate(ENVIRONMENT, NOW)}
    except ExpressionError as error:
        return {"refused": error.reason}


def as_ours(value: Any) -> Any:
    """A value of expr's as it leaves an expression of ours."""
    if isinstance(value, list):
        return [as_ours(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$time": moment}:
            return moment
        case {"$duration": nanoseconds}:
            return duration_text(timedelta(microseconds=nanoseconds / 1_000))
        case {"$zone": name}:
            return name
        case {"$bytes": numbers}:
            return numbers
        case {"$pairs": pairs}:
            return {_key(key): as_ours(item) for key, item in pairs}
        case _:
            return {key: as_ours(item) for key, item in value.items()}


def _key(key: Any) -> str:
    if isinstance(key, dict):
        return str(as_ours(key))
    return (
        "<nil>"
        if key is None
        else str(key).lower()
        if isinstance(key, bool)
        else f"{key:g}"
        if isinstance(key, float)
        else str(key)
    )


def agree(left: Any, right: Any) -> bool:
    """The same JSON value: `3` and `3.0` are, `1` and `true` are not. Powers differ in their last digits."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(agree, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(agree(left[key], right[key]) for key in left)
    if isinstance(left, int | float) and isinstance(right, int | float):
        if isinstance(left, int) and isinstance(right, int):
            return left == right
        return math.isclose(left, right, rel_tol=1e-12)
    return type(left) is type(right) and left == right


def same(case: Case) -> bool:
    """Whether both refuse it, or give the same."""
    if "refused" in case.theirs or "refused" in case.ours:
        return "refused" in case.theirs and "refused" in case.ours
    return agree(as_ours(case.theirs["value"]), case.ours["value"])


# --- where they differ ------------------------------------------------------------------------------------------------


def _ours(pattern: str) -> Callable[[Case], bool]:
    """Ours refuses it with such a reason."""
    return lambda case: re.search(pattern, str(case.ours.get("refused", ""))) is not None


def _theirs(pattern: str) -> Callable[[Case], bool]:
    """expr refuses it with such a reason."""
    return lambda case: re.search(pattern, str(case.theirs.get("refused", ""))) is not None


def _both_give(pattern: str) -> Callable[[Case], bool]:
    """Both give a value, of a source like this."""
    return lambda case: "value" in case.theirs and "value" in case.ours and re.search(pattern, case.source) is not None


def _theirs_gives(pattern: str) -> Callable[[Case], bool]:
    """expr gives a value whose JSON is like this."""
    return lambda case: re.search(pattern, json.dumps(case.theirs.get("value"))) is not None


def _any_of(*rows: Callable[[Case], bool]) -> Callable[[Case], bool]:
    return lambda case: any(row(case) for row in rows)


STATIC = (
    r"^compile: (invalid operation: .*mismatched type|cannot use|type .* (does not support|is undefined|has no|\[)|"
    r"cannot slice|cannot (get|take|reverse|uniq|concat|flatten|transform|fetch)|builtin .* takes only|"
    r"array elements can only|invalid argument for|predicate should return|non-bool|non-integer slice|"
    r"not enough arguments|.* is not callable)"
)
DIFFERENCES: dict[str, Callable[[Case], bool]] = {
    "when the types are known beforehand": _theirs(STATIC),
    "`#index` in any predicate": _theirs("^compile: unknown pointer #index"),
    "`n?.x` of a number": lambda case: "?." in case.source and _theirs(r"cannot fetch|int\(string\)")(case),
    "a key that is not a text": _any_of(
        _theirs("not assignable to type string|unhashable|unsupported type: map"),
        _ours("a map has strings as keys"), _theirs_gives(r'"\$pairs"'),
    ),
    "two keys with the same text": _ours("for the key"),
    "a whole number, be it written `3` or `3.0`": _theirs(
        "float64 as argument|cannot (take|use) float64|float64 % int"
    ),
    "any infinite result": _any_of(
        _theirs_gives(r'"\$float"'), _ours("division by zero|too large for a decimal number|not a finite number")
    ),
    "`true && 5`": _any_of(
        _ours("must be a bool"),
        lambda case: re.search(r"(and|&&) \(false\)$|(or|\|\|) \(true\)$", case.source) is not None,
    ),
    "the fraction is cut off": _ours("must be a whole number, not -?[0-9]"),
    "of what is not a list": _ours("must be an array, not|in needs an array"),
    "of one value that is not a number": _ours("^(min|max) takes numbers"),
    "a duration is a number of nanoseconds": _any_of(
        _both_give(r"type\(.*duration"),
        _ours("not a duration$|a number and a duration|a duration and a (number|duration)"),
        lambda case: re.search(r'"-?PT', json.dumps(case.ours)) is not None and not _theirs_gives(r'"\$duration"')(case)
    ),
    "`string(date)`, a date or duration as a result": _both_give(
        r"(string|toJSON|String)\(.*(date|timezone|duration)\(|(date|timezone|duration)\(.*(string|toJSON|String)\("
    ),
    "64 bits, wrap around": _any_of(
        _ours("out of range|more than 64 bits|more than 8192 bits"), _both_give(r"\bbig\b|bitshl")
    ),
    "of a string | bytes": _any_of(
        _both_give('"héłło"'),
        lambda case: isinstance(case.theirs.get("value"), int) and len(str(case.ours.get("value"))) == 1,
    ),
    "an empty array": _both_give(r"(split|splitAfter|concat)\("),
    "bytes that are no UTF-8": _ours("is not base64"),
    "a time of day alone": _any_of(
        _theirs_gives("0000-"), lambda case: _ours("not a date that is known")(case) and "Monday January" in case.source
    ),
    "`a[9] ?? 1`": lambda case: "??" in case.source and _theirs("index out of range")(case),
    "`AddDate(nil, 1, 1)`": _ours("of AddDate must be a whole number, not nil"),
    "whole and decimal numbers within maps": _both_give(r"1\.0}"),
    "`string(1500000.5)`": _both_give(r"string\(1500000\.5\)"),
    "of a whole number | a decimal": _both_give(r"type\((ceil|floor|round)\("),
    "`+x` of what is not a number": _ours(r"^\+ needs a number"),
}  # fmt: skip


def explained(case: Case) -> str | None:
    """The first row that tells of the difference."""
    return next((row for row, tells in DIFFERENCES.items() if tells(case)), None)


def run(count: int, seed: int) -> list[Case]:
    """``count`` cases, held against expr."""
    made = list(Generator(seed).cases(count))
    with tempfile.TemporaryDirectory() as folder:
        answers = ask_expr([source for _, source in made], build(Path(folder)))
    return [
        Case(source, about, theirs, ask_ours(source)) for (about, source), theirs in zip(made, answers, strict=True)
    ]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cases", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    given = options.parse_args()
    cases = run(given.cases, given.seed)
    if given.record:
        rows = [{"about": case.about, "source": case.source, **case.theirs} for case in cases]
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        RECORDED.write_text(f'{{"seed": {given.seed}, "cases": [\n{lines}\n]}}\n')
    different = [case for case in cases if not same(case)]
    reported = Counter(explained(case) for case in different)
    for row, times in reported.most_common():
        print(f"{times:6} {row or 'NOT EXPLAINED'}")
    unexplained = [case for case in different if explained(case) is None]
    for case in unexplained[:100]:
        print(f"{case.source}\n    expr: {case.theirs}\n    ours: {case.ours}")
    print(f"{len(cases)} cases, {len(cases) - len(different)} the same, {len(unexplained)} not explained")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
