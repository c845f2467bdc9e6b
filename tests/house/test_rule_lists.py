"""The lists of rules and of the tests that show them name tests that are there."""

from __future__ import annotations

import re

import pytest

from tests.house.sources import TOP

POINTER = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


@pytest.mark.parametrize("page", ["tests/durable/README.md", "tests/console/README.md"])
def test_each_rule_is_shown_by_tests_that_are_there(page):
    text = (TOP / page).read_text()
    pointers = POINTER.findall(text)
    rows = [line for line in text.splitlines() if line.startswith("|") and not re.match(r"\|(-|.*shown by \|$)", line)]
    assert rows
    assert [row for row in rows if not POINTER.search(row)] == []
    sources: dict[str, str] = {}
    for file, _ in pointers:
        sources.setdefault(file, "".join(path.read_text() for path in (TOP / "tests").rglob(file)))
    assert [f"{file}::{name}" for file, name in pointers if f"def {name}(" not in sources[file]] == []
