"""`python -m tests.fuzz.guided PARSER [--seconds 60]`: the parsers on inputs that atheris finds by what they reach.

An input that takes more than 2 s, or raises what is no refusal, ends it with an error and is kept in a file. atheris is
no requirement of ours: `pip install atheris`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import Any, Final

SECONDS_PER_INPUT: Final = 2
INPUT_MAX_BYTES: Final = 65_536
MEMORY_MAX_MB: Final = 2_048


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.fuzz.guided", description=__doc__)
    parser.add_argument("parser", choices=["http", "http2", "message", "expression", "definition", "variables"])
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["penstock", "hpack"]):
        from tests.fuzz import parsers
        from tests.fuzz.test_parsers import MESSAGES, PREFACE, REQUESTS, package_of

    kinds: list[tuple[type[Any], str]] = [(type(each), package_of(type(each)) or "workflow.v1") for each in MESSAGES]

    def message(data: bytes) -> None:
        kind, package = kinds[data[0] % len(kinds)] if data else kinds[0]
        parsers.message(data[1:], kind, package)

    readers: dict[str, Callable[[bytes], None]] = {
        "http": lambda data: parsers.http(REQUESTS + data, 1 + len(data) % 400),
        "http2": lambda data: parsers.http2(PREFACE + data, 1 + len(data) % 600),
        "message": message,
        "expression": lambda data: parsers.expression(data.decode("utf-8", "replace")),
        "definition": parsers.definition,
        "variables": parsers.variables,
    }
    limits = [f"-timeout={SECONDS_PER_INPUT}", f"-max_len={INPUT_MAX_BYTES}", f"-rss_limit_mb={MEMORY_MAX_MB}"]
    atheris.Setup([sys.argv[0], f"-max_total_time={options.seconds}", *limits], readers[options.parser])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
