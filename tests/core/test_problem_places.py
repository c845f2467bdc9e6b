"""Where problems are: every rule of the parser has an example here, and what the parser says of it leads to a step and
a field that the modeller shows."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.core.graph import definition as definition_module
from penstock.core.graph.definition import DefinitionLimits, InvalidDefinition
from penstock.core.graph.graph import TooEntangled
from penstock.core.parsing import parsing, validation
from penstock.core.parsing.field_reader import FieldReader, Problems
from penstock.core.parsing.handlers import UNDO_STEP_ID
from penstock.rest.definition_schema import DEFINITION, STEP
from penstock.testing.definitions import Json, definition, end, fork, linear, service, step
from tests.core.test_draft import REFUSED as REFUSED_STEPS
from tests.core.test_validation import REFUSED as REFUSED_GRAPHS
from tests.core.upload_cases import with_decision, with_first, with_timer, with_top, with_transformations, with_wait

CORE = Path(str(definition_module.__file__)).parent
_PART = re.compile(r'\.?([A-Za-z_]\w*)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]')
LONG = "x" * 1_001
CALL: Json = {"type": "CALL_ACTIVITY", "jobType": ..., "definitionId": "other"}


def undone(step_id: str, next_step: str) -> Json:
    return service(step_id, next_step, compensation={"jobType": "undo"})


def with_each(**fields: object) -> Json:
    return with_first(forEach={"items": "${names}", **fields})


def with_undo(**fields: object) -> Json:
    return definition(undone("a", "undo"), step("undo", "COMPENSATE", nextStep="end", **fields), end())


MORE: list[Json] = [
    with_first(**{**CALL, "output": {"a": "b"}, "forEach": {"items": "${names}"}}),
    with_first(**{**CALL, "definitionVersion": -1}),
    with_first(**{**CALL, "businessKey": LONG}),
    with_wait(message={"name": "m", "correlationKey": LONG}),
    with_wait(message={"name": "m", "correlationKey": {"other": "x"}}),
    with_undo(steps=[]),
    with_undo(steps=["nobody"]),
    with_undo(steps=["end"]),
    with_undo(steps=["a", "a"]),
    definition(service("a", "undo"), step("undo", "COMPENSATE", nextStep="end"), end()),
    definition(undone("a", "a/compensation"), service("a/compensation", "end"), end()),
    definition(undone("a", UNDO_STEP_ID), service(UNDO_STEP_ID, "end"), end()),
    with_each(parallel=0),
    with_each(collect="${1}"),
    with_each(onError="SOON"),
    with_each(until="soon"),
    with_each(**{"as": "result"}),
    with_each(index="item"),
    with_top(onFailure="COMPENSATE"),
    with_top(onFailure="SOON"),
    with_top(searchAttributes={"1": "STRING"}),
    with_top(searchAttributes={"a": "x"}),
    with_top(searchAttributes={f"a{at}": "STRING" for at in range(30)}),
    with_top(metadata={"a": float("nan")}),
    with_first(flowKey="x" * 1_001),
    with_first(priority=-1),
    with_top(start={"dedupe": {"key": "k", "window": "PT1H", "more": 1}}),
    with_top(start={"dedupe": {"key": "k", "window": 1}}),
    with_top(start={"dedupe": {"key": "k", "window": "soon"}}),
]
BOUNDED: list[tuple[dict[str, int], Json]] = [
    ({"steps_max_count": 2}, linear(2)),
    ({"gateways_max_count": 0}, fork()),
    ({"branches_max_count": 2}, fork(0, 0, 0)),
    ({"branches_max_count": 0}, with_undo(steps=["a"])),
    ({"conditions_max_count": 1}, with_decision({"a": "end", "b": "end"})),
    ({"transformations_max_count": 1}, with_transformations({"a": 1, "b": 2})),
    ({"boundary_events_max_count": 0}, with_timer()),
    ({"expressions_max_chars": 1}, with_transformations({"a": "${abc}"})),
    ({"expression_nodes_max_count": 1}, with_transformations({"a": "${a + b}"})),
    ({"patterns_max_steps": 1}, with_decision({"a matches 'b'": "end"})),
    ({"metadata_max_bytes": 1}, with_top(metadata={"a": 1})),
    ({"body_max_bytes": 10}, linear(1)),
]


def sites() -> set[tuple[str, int]]:
    """Every place of the parser that says a problem: file and last line."""
    found: set[tuple[str, int]] = set()
    for path in CORE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 2:
                adds = node.func.attr == "add" and ast.unparse(node.func.value).endswith("problems")
                if node.func.attr == "refuse" or adds:
                    found |= {(path.name, line) for line in [node.end_lineno or node.lineno]}
    return found


def lines_of(file: str) -> dict[int, int]:
    """The last line of each call, by each of its lines."""
    tree = ast.parse((CORE / file).read_text())
    calls = sorted((one for one in ast.walk(tree) if isinstance(one, ast.Call)), key=lambda one: -(one.end_lineno or 0))
    return {line: c.end_lineno or 0 for c in calls for line in range(c.lineno, (c.end_lineno or 0) + 1)}


def lands(path: str, body: Json) -> bool:
    """Whether the modeller has a place for it: the definition or a step, and of it a field that it knows, or one that
    stands there."""
    parts = [name or (int(index) if index else json.loads(key)) for name, index, key in _PART.findall(path)]
    if not parts:
        return path == ""
    if parts[0] != "steps" or len(parts) == 1:
        return parts[0] in DEFINITION["properties"] or parts[0] in body
    steps = cast("list[Any]", body["steps"])
    if not isinstance(parts[1], int) or parts[1] >= len(steps):
        return False
    return len(parts) == 2 or parts[2] in STEP["properties"] or parts[2] in steps[parts[1]]


def test_every_rule_has_an_example_and_leads_to_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    said: set[tuple[str, int]] = set()
    add, refuse = Problems.add, FieldReader.refuse

    def note() -> None:
        frame = sys._getframe(2)
        said.add((Path(frame.f_code.co_filename).name, frame.f_lineno))

    def noting_add(self: Problems, path: str, reason: str, at: int | None = None) -> None:
        note()
        add(self, path, reason, at)

    def noting_refuse(self: FieldReader, name: str, reason: str) -> None:
        note()
        refuse(self, name, reason)

    monkeypatch.setattr(Problems, "add", noting_add)
    monkeypatch.setattr(FieldReader, "refuse", noting_refuse)

    def probe(body: Any, limits: DefinitionLimits) -> None:
        with pytest.raises(InvalidDefinition) as refused:
            parsing.parse_definition(body, limits=limits)
        for problem in refused.value.problems:
            assert not isinstance(body, dict) or lands(problem.path, cast(Json, body)), (problem, body)

    for body in [*(body for body, _ in (*REFUSED_STEPS.values(), *REFUSED_GRAPHS.values())), *MORE]:
        probe(body, DefinitionLimits())
    for limits, body in BOUNDED:
        probe(body, DefinitionLimits(**limits))

    def entangled(*_: object) -> None:
        raise TooEntangled

    monkeypatch.setattr(validation, "find_blocks", entangled)
    probe(fork(), DefinitionLimits())
    ends = {file: lines_of(file) for file, _ in said if (CORE / file).exists()}
    reached = {(file, ends[file].get(line, line)) for file, line in said if file in ends}
    assert sites() - reached == set()


def test_a_problem_without_a_place_would_be_found() -> None:
    assert not lands("steps[2].jobType", linear(1))
    assert not lands("steps[0].nowhere", linear(1))
    assert lands('steps[0].conditionalNextSteps["a > 1"]', linear(1))
