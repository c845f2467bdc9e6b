"""docs/rest.md names every call and every error."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.rest.operations import OPERATIONS
from penstock.rest.problems import STATUS_BY_CODE

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "rest.md").read_text()

IN_PROSE = {"page", "pageSize", "cursor", "limit"}
"""Of all lists alike."""
ELSEWHERE = {
    "countInstances": "those of the list",
    "signalByKey": "those of the signal by id",
    "finishSignIn": "the issuer's",
}
"""Calls whose row names others for its parameters."""


def test_every_parameter_of_the_query_stands_in_its_row() -> None:
    rows = {
        (method, path): row for method, path, row in re.findall(r"^\| `([A-Z]+) (/[^`]*)`(.*)$", TEXT, re.MULTILINE)
    }
    missing = [
        f"{item.id}: {name}"
        for item in OPERATIONS
        if item.id not in ELSEWHERE
        for name in sorted(item.query_names - IN_PROSE)
        if re.search(rf"\b{name}\b", rows[item.method, item.path].partition("→")[0]) is None
    ]
    assert missing == []
    assert ELSEWHERE.keys() <= {item.id for item in OPERATIONS}


def test_every_call_stands_in_the_reference_and_nothing_else() -> None:
    rows = re.findall(r"^\| `([A-Z]+) (/[^`]*)`( \*\*\[\+\]\*\*)? \|", TEXT, re.MULTILINE)
    assert {(method, path) for method, path, _ in rows} == {(item.method, item.path) for item in OPERATIONS}
    marked = {(method, path) for method, path, addition in rows if addition}
    assert marked == {(item.method, item.path) for item in OPERATIONS if "(addition)" in item.summary}


def test_every_error_stands_in_the_reference_with_its_status() -> None:
    rows = re.findall(r"^\| (\d{3}) \| `([a-z-]+)`", TEXT, re.MULTILINE)
    told = [(code, int(status)) for status, code in rows if (status, code) != ("422", "bad-request")]
    assert len(told) == len(rows) - 1, "of arguments that a workflow does not take"
    assert dict(told) == STATUS_BY_CODE
