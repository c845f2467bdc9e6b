"""One set of kinds, states and outcomes: the core's, what REST documents, and what the proto files number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest

from penstock.core.graph.definition import StepType
from penstock.core.parsing.draft import FIELDS_BY_TYPE, REQUIRED_BY_TYPE
from penstock.core.rules.fencing import FenceDecision
from penstock.core.rules.state import HistoryKind, InstanceStatus
from penstock.engine.instances.views import STATUS_OF_KIND
from penstock.rest.openapi import openapi_document
from tests.house.sources import TOP, modules, tree

STEP_TYPES = {kind.value for kind in StepType}
STATUSES = {status.name for status in InstanceStatus} | {"WAITING"}  # ACTIVE with a user task or wait open
OUTCOMES = {verdict.value for verdict in FenceDecision} - {"apply", "ignored"} | {"invalid", "unavailable"}
"""APPLY is no answer, IGNORED is told as OK; the last two are of calls that were not judged."""


def proto(path: str, name: str) -> set[str]:
    body = re.search(rf"enum {name} \{{(.*?)\}}", (TOP / "proto" / path).read_text(), re.DOTALL)
    assert body
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() + "_"
    members = [member.removeprefix(prefix) for member in re.findall(r"^\s*(\w+) = \d+;", body[1], re.MULTILINE)]
    assert members[0] == "UNSPECIFIED"
    return set(members[1:])


def documented(value: object, found: list[set[str]] | None = None) -> list[set[str]]:
    """All enums of the OpenAPI document."""
    found = [] if found is None else found
    if isinstance(value, dict):
        if isinstance(value.get("enum"), list):
            found.append(set(value["enum"]))
        for each in value.values():
            documented(each, found)
    elif isinstance(value, list):
        for each in value:
            documented(each, found)
    return found


def test_step_types() -> None:
    assert proto("workflow/v1/engine.proto", "StepType") == STEP_TYPES
    enums = [enum for enum in documented(openapi_document()) if "SERVICE_TASK" in enum]
    assert enums
    assert all(enum == STEP_TYPES for enum in enums)


@pytest.mark.parametrize("path", ["workflow/v1/engine.proto", "penstock/v1/worker.proto"])
def test_statuses_of_instances(path: str) -> None:
    assert proto(path, "InstanceStatus") == STATUSES
    of_batches = "REFUSED"  # what an item of a batch may be, too, and an instance not
    enums = [enum for enum in documented(openapi_document()) if "ACTIVE" in enum and of_batches not in enum]
    assert enums
    assert all(enum == STATUSES for enum in enums)


def test_statuses_of_step_executions() -> None:
    shown = set(STATUS_OF_KIND.values()) | {"RUNNING"}
    assert proto("workflow/v1/engine.proto", "StepExecutionStatus") == shown
    assert shown in documented(openapi_document())
    assert set(STATUS_OF_KIND) == {kind for kind in HistoryKind if kind < HistoryKind.ATTEMPT_FAILED}


def test_outcomes_of_calls_on_jobs() -> None:
    assert {name.lower().replace("_", "-") for name in proto("penstock/v1/worker.proto", "Outcome")} == OUTCOMES
    enums = [enum for enum in documented(openapi_document()) if "lease-lost" in enum and "ok" in enum]
    assert enums
    assert all(enum == OUTCOMES for enum in enums)


@pytest.mark.parametrize("table", [FIELDS_BY_TYPE, REQUIRED_BY_TYPE], ids=["allowed", "required"])
def test_every_step_type_says_which_fields_it_has(table: dict[Enum, frozenset[str]]) -> None:
    assert set(table) == set(StepType)


CLOSED: set[str] = {"StepType", "TokenState", "InstanceStatus", "HistoryKind", "FenceDecision", "CallKind", "Trigger"}


def open_matches(path: Path) -> Iterator[str]:
    """Matches over members of these enums whose last case takes what is left without `assert_never`."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Match):
            continue
        named = {
            each.value.id
            for case in node.cases
            for each in ast.walk(case.pattern)
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name)
        }
        last = node.cases[-1]
        takes_all = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
        if named & CLOSED and (not takes_all or "assert_never" not in ast.dump(last)):
            yield f"{path.name}:{node.lineno}"


def test_every_match_over_the_machines_enums_is_closed() -> None:
    """So a new member fails mypy at each place that needs it."""
    assert [found for path in modules() for found in open_matches(path)] == []


def test_an_open_match_is_found(tmp_path: Path) -> None:
    file = tmp_path / "open.py"
    file.write_text("match kind:\n    case StepType.END:\n        pass\n    case _:\n        pass\n")
    assert list(open_matches(file)) == ["open.py:1"]
    closed = tmp_path / "closed.py"
    closed.write_text("match kind:\n    case StepType.END:\n        pass\n    case _:\n        assert_never(kind)\n")
    assert list(open_matches(closed)) == []
