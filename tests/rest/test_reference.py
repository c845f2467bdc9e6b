"""docs/rest.md names every call and every error."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.rest.operations import OPERATIONS
from penstock.rest.problems import STATUS_BY_CODE

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "rest.md").read_text()


def test_every_call_stands_in_the_reference_under_a_heading_with_its_parameters() -> None:
    sections = {
        (method, path): rest
        for method, path, rest in re.findall(
            r"^### [^\n]+\n\n`([A-Z]+) (/[^`]*)`\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL
        )
    }
    assert sections.keys() == {(item.method, item.path) for item in OPERATIONS}
    missing = [
        f"{item.id}: {name}"
        for item in OPERATIONS
        for name in sorted(item.query_names)
        if f"| `{name}` | query |" not in sections[item.method, item.path]
    ]
    assert missing == []


def test_additions_are_a_column() -> None:
    rows = re.findall(r"^\| \[`([A-Z]+) (/[^`]*)`\]\(#[\w-]+\) \| .* \| (yes)? ?\|$", TEXT, re.MULTILINE)
    assert {(method, path) for method, path, _ in rows} == {(item.method, item.path) for item in OPERATIONS}
    marked = {(method, path) for method, path, addition in rows if addition}
    assert marked == {(item.method, item.path) for item in OPERATIONS if "(addition)" in item.summary}


def test_every_error_stands_in_the_reference_with_its_status() -> None:
    rows = re.findall(r"^\| (\d{3}) \| `([a-z-]+)`", TEXT, re.MULTILINE)
    reported = [(code, int(status)) for status, code in rows if (status, code) != ("422", "bad-request")]
    assert len(reported) == len(rows) - 1, "of arguments that a workflow does not take"
    assert dict(reported) == STATUS_BY_CODE
