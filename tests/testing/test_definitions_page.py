"""docs/definitions.md and docs/exercise.md: examples are definitions, pictures are theirs, and their tests pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.cli.drawing import mermaid
from penstock.core.parsing.parsing import parse_definition
from tests.house.sources import TOP
from tests.testing.test_plugin import run_pytest

PAGE = (TOP / "docs" / "definitions.md").read_text()
EXERCISE = (TOP / "docs" / "exercise.md").read_text()
BLOCKS = re.findall(r"^```(\w+) (\w+\.(?:json|py))\n(.*?)^```$", PAGE + EXERCISE, re.DOTALL | re.MULTILINE)
SOLUTION = Path(__file__).with_name("order.json")
DRAWN = re.findall(r"^```json \w+\.json\n(.*?)^```\n\n```mermaid\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_each_picture_is_of_the_definition_above_it() -> None:
    assert DRAWN
    for text, picture in DRAWN:
        assert picture == mermaid(parse_definition(text.encode())) + "\n"


@pytest.mark.slow(reason="runs the page's tests")
def test_the_examples_run(tmp_path: Path) -> None:
    (tmp_path / SOLUTION.name).write_text(SOLUTION.read_text())
    tests = 0
    for _, name, text in BLOCKS:
        (tmp_path / name).write_text(text)
        tests += len(re.findall(r"^def test_", text, re.MULTILINE))
    result = run_pytest(tmp_path, "-p", "no:xdist", "-p", "no:trio")
    assert result.returncode == 0, result.stdout
    assert f"{tests} passed" in result.stdout
