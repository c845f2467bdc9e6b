"""docs/rest.md names every call and every error."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.rest.operations import OPERATIONS
from penstock.rest.problems import STATUS_BY_CODE

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "rest.md").read_text()


def test_every_call_stands_in_the_reference_and_nothing_else() -> None:
    rows = re.findall(r"^\| `([A-Z]+) (/[^`]*)`( \*\*\[\+\]\*\*)? \|", TEXT, re.MULTILINE)
    assert {(method, path) for method, path, _ in rows} == {(item.method, item.path) for item in OPERATIONS}
    marked = {(method, path) for method, path, addition in rows if addition}
    assert marked == {(item.method, item.path) for item in OPERATIONS if "(addition)" in item.summary}


def test_every_error_stands_in_the_reference_with_its_status() -> None:
    rows = re.findall(r"^\| (\d{3}) \| `([a-z-]+)`", TEXT, re.MULTILINE)
    assert {code: int(status) for status, code in rows} == STATUS_BY_CODE
