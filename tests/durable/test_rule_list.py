"""The list of rules (`README.md` beside this) names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.sources import TOP

POINTER = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_each_rule_is_shown_by_tests_that_are_there():
    page = Path(__file__).with_name("README.md").read_text()
    pointers = POINTER.findall(page)
    rows = [line for line in page.splitlines() if line.startswith("|") and not re.match(r"\|(-|.*shown by \|$)", line)]
    assert [row for row in rows if not POINTER.search(row)] == []
    sources: dict[str, str] = {}
    for file, _ in pointers:
        sources.setdefault(file, "".join(path.read_text() for path in (TOP / "tests").rglob(file)))
    assert [f"{file}::{name}" for file, name in pointers if f"def {name}(" not in sources[file]] == []
