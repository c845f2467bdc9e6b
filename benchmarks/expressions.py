"""What expressions cost: evaluating and parsing ordinary ones, the loser (walking the tree), and the worst that a
hostile one can do within the default limits.

Run: python benchmarks/expressions.py. Prints microseconds and milliseconds of processor time, the best of several.
"""

from __future__ import annotations

import contextlib
import json
import time
import timeit
from collections.abc import Callable
from datetime import UTC, datetime

from benchmarks.calibration import print_line
from penstock.core.expression import DEFAULT, ExpressionError, parse
from penstock.core.expression.access import field
from penstock.core.expression.frame import Frame
from penstock.core.expression.nodes import Binary, Comparison, Field, Fold, Literal, Name, Node, Path
from penstock.core.expression.operators import ORDERINGS
from penstock.core.expression.parser import Parser
from penstock.core.expression.values import boolean, equal, ordered

NOW = datetime(2031, 5, 4, tzinfo=UTC)
TYPICAL = "amount > 1000 && customer.tier == 'gold'"
VARIABLES = {"amount": 2000, "customer": {"tier": "gold"}, "items": [{"price": n} for n in range(100)], "s": "a-17"}
ORDINARY = [
    TYPICAL,
    "amount",
    "${now()}",
    "amount * 1.19 + 4.9",
    "any(items, .price > 50)",
    "sum(map(items, .price))",
    "s matches '^[a-z]-[0-9]+$'",
    "customer?.address?.city ?? 'nowhere'",
]
TEXT = "x" * 250_000
HOSTILE_VARIABLES = {
    "n": list(range(10_000)),
    "text": TEXT,
    "ab": "ab" * 50_000,
    "m": {f"k{n}": n for n in range(10_000)},
    "big": 7**2_900,
    "js": json.dumps([{"a": [1, 2, 3]}] * 8_000),
    "objects": [{"price": n, "name": f"n{n}"} for n in range(5_000)],
    "short": "a" * 2_400,
    "awkward": "a" * 600 + "b" + "a" * 600,
}
HOSTILE = [
    "any(1..1000, any(1..1000, # < 0))",
    "map(1..100000, text + 'x')",
    "any(1..100000, len(fromJSON(js)) < 0)",
    "any(1..100000, toJSON(# / 7) == '')",
    "map(1..100000, toJSON(m))",
    "map(1..100000, string(big))",
    "any(1..100000, m == {})",
    "any(1..100000, short contains awkward)",
    "any(1..100000, ab matches '[ab]*a[ab]{20}c')",
    "any(1..100000, 'a' matches string(#))",
    "any(1..100000, date('Mon, 02 Jan 2006 15:04:05 UTC') > now())",
    "any(1..100000, len(sort(n)) < 0)",
    "map(1..5000, objects)",
    "9**9**9",
]
HOSTILE_SOURCES = {
    "2,000 terms of or": "||".join(["a"] * 2_000),
    "700 patterns": " || ".join(f"s matches 'x{n}'" for n in range(700)),
    "2,000 brackets": "(" * 2_000 + "1" + ")" * 2_000,
}


def microseconds(call: Callable[[], object], number: int = 5_000) -> float:
    return min(timeit.repeat(call, number=number, repeat=5, timer=time.process_time)) / number * 1e6


def milliseconds(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(5):
        before = time.process_time()
        with contextlib.suppress(ExpressionError):
            call()
        best = min(best, time.process_time() - before)
    return best * 1e3


def walk(node: Node, frame: Frame) -> object:
    """The loser: the same semantics without compiling, as far as TYPICAL needs them."""
    match node:
        case Literal():
            return node.value
        case Name():
            return frame.variables[node.name]
        case Path():
            value = walk(node.base, frame)
            for access in node.accesses:
                assert isinstance(access, Field)
                value = field(value, access.name)
            return value
        case Fold():
            value = walk(node.first, frame)
            for step in node.steps:
                match step:
                    case Comparison():
                        _, operator, right = step.comparisons[0]
                        value = ordered(frame, value, walk(right, frame), operator, ORDERINGS[operator])
                    case Binary(operator="and"):
                        value = boolean(value, "and") and boolean(walk(step.right, frame), "and")
                    case Binary():
                        value = equal(frame, value, walk(step.right, frame))
                    case _:
                        raise AssertionError(step)
            return value
        case _:
            raise AssertionError(node)


def main() -> None:
    print_line()
    print("ordinary expressions: evaluate | parse and compile")
    for source in ORDINARY:
        expression = parse(source)
        evaluated = microseconds(lambda expression=expression: expression.evaluate(VARIABLES, NOW))
        parsed = microseconds(lambda source=source: parse(source), 500)
        print(f"{evaluated:10.2f} µs | {parsed:7.1f} µs  {source}")

    tree = Parser(TYPICAL, DEFAULT).parse()
    frame = Frame(VARIABLES, NOW, DEFAULT, 0, DEFAULT.steps)
    run = parse(TYPICAL)._run  # pyright: ignore[reportPrivateUsage] - what is measured is the evaluation alone
    print(f"\nclosures against walking the tree: {microseconds(lambda: run(frame)):.2f} µs", end=", ")
    print(f"{microseconds(lambda: walk(tree, frame)):.2f} µs  {TYPICAL}")

    print("\nhostile evaluations, until a limit stops them")
    for source in HOSTILE:
        expression = parse(source)
        spent = milliseconds(lambda expression=expression: expression.evaluate(HOSTILE_VARIABLES, NOW))
        print(f"{spent:10.2f} ms  {source}")

    print("\nhostile sources, parsed or refused")
    for name, source in HOSTILE_SOURCES.items():
        print(f"{milliseconds(lambda source=source: parse(source)):10.2f} ms  {name}")


if __name__ == "__main__":
    main()
