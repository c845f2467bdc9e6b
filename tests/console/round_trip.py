"""Definitions through the modeller that ships, without a browser: what nobody touched stays byte for byte.

    python -m tests.console.round_trip [NUMBER, default 1000] [--tests PATH …]

Every definition among the examples, the tests' files and the documentation, NUMBER random ones, each written in another
way, and with ``--tests`` every valid one that pytest parses there in its own process. Of each the ways that the picture
has are compared with those of `penstock draw`. Exit code 1 when something differs.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from playwright._impl._driver import compute_driver_executable

from penstock.cli.drawing import edges
from penstock.core.graph.definition import Definition, InvalidDefinition
from penstock.core.parsing import parsing
from penstock.testing.random_definitions import random_definition, with_start, with_turns

TOP: Final = Path(__file__).resolve().parents[2]
SCRIPT: Final = Path(__file__).with_name("round_trip.mjs")
RECORDED_MAX: Final = 50_000
_BLOCK: Final = re.compile(r"```json\n(.*?)```", re.DOTALL)
_PARSE: Final = parsing.parse_definition
_WRITTEN: Final[tuple[Callable[[object], str], ...]] = (
    json.dumps,
    lambda body: json.dumps(body, indent=2) + "\n",
    lambda body: json.dumps(body, indent=4, ensure_ascii=False),
    lambda body: json.dumps(body, separators=(",", ":")),
    lambda body: "\ufeff" + json.dumps(body, indent=1).replace("\n", "\r\n"),
    lambda body: json.dumps(body, indent="\t", separators=(" , ", " : ")),
)


def node() -> str:
    """The one on the path, or the one that Playwright brings."""
    return shutil.which("node") or str(compute_driver_executable()[0])


def written() -> Iterator[str]:
    """Texts of examples, of the tests' files and of the documentation that are valid definitions."""
    for folder in ("examples", "tests"):
        for path in sorted((TOP / folder).rglob("*.json")):
            yield from _valid(path.read_text())
    for path in sorted((TOP / "docs").rglob("*.md")):
        for block in _BLOCK.findall(path.read_text()):
            yield from _valid(block)


def _valid(text: str) -> Iterator[str]:
    try:
        _PARSE(text.encode())
    except InvalidDefinition:
        return
    yield text


def randomly(number: int) -> Iterator[str]:
    """Random valid definitions, by their numbers, each written in one of several ways."""
    for seed in range(number):
        source = random.Random(seed)
        body = random_definition(source, max_steps=5 + seed % 40)
        if seed % 3 == 0:
            body = with_start(with_turns(body, source), source)
        yield _WRITTEN[seed % len(_WRITTEN)](body)


class Recorder:
    """A plugin of pytest that keeps what tests parse, as far as it is valid."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}

    def pytest_collection_finish(self) -> None:
        for module in list(sys.modules.values()):
            if getattr(module, "parse_definition", None) is _PARSE:
                module.__dict__["parse_definition"] = self._parse

    def _parse(self, body: Any, **options: Any) -> Definition:
        parsed = _PARSE(body, **options)
        if len(self.texts) < RECORDED_MAX:
            self.texts.setdefault(body.decode() if isinstance(body, bytes) else json.dumps(body))
        return parsed


def differences(texts: Sequence[str]) -> list[str]:
    """What the modeller changes that it should not, and ways that its picture has otherwise than `penstock draw`."""
    (module,) = (TOP / "src/penstock/console/static/assets").glob("modeller-core-*.js")
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run(
        [node(), str(SCRIPT), str(module)], input=lines, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        return [done.stderr[-2000:]]
    answers = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
    return [
        f"{wrong}: {text[:200]}"
        for text, answer in zip(texts, answers, strict=True)
        for wrong in [*answer["wrong"], *other_ways(text, answer["edges"])]
    ]


def other_ways(text: str, drawn: Iterable[tuple[str, str, str, str]]) -> list[str]:
    """What of (from, to, kind, label) is not as `penstock draw` has it."""
    definition = _PARSE(text.encode())
    steps = definition.steps
    visible = len(json.loads(text.removeprefix("\ufeff"))["steps"])
    expected = Counter(
        (step.id, steps[edge.target].id, edge.boundary)
        for step in steps[:visible]
        for edge in edges(step)
        if edge.target < visible
    )
    found = Counter((start, to, kind in ("timer", "timer-int", "error")) for start, to, kind, _ in drawn)
    conditions = [condition.source for step in steps[:visible] for condition, _ in step.conditions]
    labels = [label for *_, kind, label in drawn if kind == "cond"]
    wrong = [] if found == expected else [f"ways {found - expected} for {expected - found}"]
    return wrong if labels == [one for one in conditions if one != "true"] else [*wrong, f"conditions {labels}"]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.console.round_trip")
    parser.add_argument("number", nargs="?", type=int, default=1000)
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH")
    options = parser.parse_args(arguments)
    recorder = Recorder()
    if options.tests and pytest.main(["-q", "-n0", "--assert=plain", *options.tests], plugins=[recorder]) != 0:
        return 1
    recorded = [text for each in recorder.texts for text in _valid(each)]
    texts = [*written(), *recorded, *randomly(options.number)]
    wrong = differences(texts)
    kinds = f"{len(recorded)} of tests, {options.number} random"
    print("\n".join([*wrong[:20], f"{len(texts)} definitions ({kinds}): {len(wrong)} differences"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
