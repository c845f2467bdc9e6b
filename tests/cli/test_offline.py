"""`penstock validate`, `draw` and `expr`: what they print, and what their exit codes say."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from penstock.cli import layout
from penstock.cli.app import app
from penstock.cli.options import print_page
from penstock.cli.shapes import EVENTS, MARKS, shape_of
from penstock.cli.svg import svg
from penstock.core.graph.definition import StepType
from penstock.core.parsing.parsing import parse_definition
from penstock.testing.definitions import definition, end, service, step, timer
from penstock.testing.random_definitions import definitions
from penstock.wire.page import Page

SVG = "{http://www.w3.org/2000/svg}"
EXAMPLES = Path(__file__).parents[2] / "examples"
WRONG = {
    "id": "orders",
    "name": "Orders",
    "steps": [
        {"id": "pay", "name": "Pay", "type": "SERVICE_TASK", "nextStep": "gone"},
        {"id": "end", "name": "End", "type": "END"},
    ],
}


def penstock(*arguments: object, given: str | None = None):
    return CliRunner().invoke(app, [str(each) for each in arguments], input=given)


@pytest.fixture
def wrong(tmp_path):
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(WRONG))
    return file


def test_valid_definitions_say_nothing():
    result = penstock("validate", *sorted(EXAMPLES.glob("*.json")))
    assert (result.exit_code, result.output) == (0, "")


def test_every_problem_is_reported_with_its_file_and_place(wrong):
    result = penstock("validate", EXAMPLES / "loan-process.json", wrong)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{wrong}: steps[0].jobType: required",
        f'{wrong}: steps[0].nextStep: unknown step "gone"',
        f'{wrong}: steps[1]: step "end" cannot be reached from the first step',
        f"{wrong}: steps: no END step can be reached from the first step",
    ]


def test_the_verdict_as_json(wrong):
    found = json.loads(penstock("validate", "--json", wrong).stdout)
    assert found["valid"] is False
    assert found["problems"][0] == {
        "path": "steps[0].jobType",
        "reason": "required",
        "file": str(wrong),
    }
    assert json.loads(penstock("validate", "--json", EXAMPLES / "loan-process.json").stdout) == {
        "valid": True,
        "problems": [],
    }


def test_hints_are_reported_and_change_no_verdict(tmp_path, wrong):
    steps = [{"id": "ask", "name": "Ask", "type": "USER_TASK", "nextStep": "end", "duration": "PT1H"}]
    steps += [{"id": "end", "name": "End", "type": "END"}]
    file = tmp_path / "odd.json"
    file.write_text(json.dumps({"id": "odd", "name": "Odd", "steps": steps}))
    text = "USER_TASK does not use it: it is kept, and does nothing"
    result = penstock("validate", file)
    assert (result.exit_code, result.stdout) == (0, f"{file}: hint: steps[0].duration: {text}\n")
    hint = {"path": "steps[0].duration", "text": text, "kind": "UNUSED", "file": str(file)}
    result = penstock("validate", "--json", file)
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"valid": True, "problems": [], "hints": [hint]})
    both = penstock("validate", "--json", wrong, file)
    assert (both.exit_code, json.loads(both.stdout)["valid"], json.loads(both.stdout)["hints"]) == (1, False, [hint])
    steps[0]["nextStep"] = "gone"
    file.write_text(json.dumps({"id": "odd", "name": "Odd", "steps": steps}))
    assert penstock("validate", file).stdout.splitlines()[-1] == f"{file}: hint: steps[0].duration: {text}"


def test_a_definition_may_come_from_standard_input(wrong):
    assert penstock("validate", "-", given=json.dumps(WRONG)).stdout.startswith("-: steps[0].jobType")


@pytest.mark.parametrize("command", ["validate", "draw"])
def test_an_unread_file_has_an_exit_code_of_its_own(command, tmp_path):
    result = penstock(command, tmp_path / "none.json")
    assert (result.exit_code, result.stderr) == (2, f"{tmp_path / 'none.json'}: No such file or directory\n")


def test_the_limit_of_the_settings_holds(monkeypatch):
    monkeypatch.setenv("WE_DEFINITION_MAX_STEPS", "2")
    result = penstock("validate", EXAMPLES / "loan-process.json")
    assert (result.exit_code, "more than 2" in result.stdout) == (1, True)


def test_a_picture_has_every_step_and_every_way():
    lines = penstock("draw", EXAMPLES / "loan-process.json").stdout.splitlines()
    assert lines[0] == "flowchart TD"
    assert '  s18(("Application finished<br>finished"))' in lines
    assert '  s9 -->|"score #62;= 700 #38;#38; not isLarge"| s15' in lines
    assert '  s3 -.->|"after PT2H, beside"| s5' in lines
    steps = json.loads((EXAMPLES / "loan-process.json").read_text())["steps"]
    drawn = [line for line in lines[1:] if "->" not in line]
    assert [step["id"] in line for step, line in zip(steps, drawn, strict=True)] == [True] * len(steps)


def test_a_picture_as_svg_has_every_step_and_every_way():
    drawn = penstock("draw", "--format", "svg", EXAMPLES / "loan-process.json").stdout
    root = ET.fromstring(drawn)
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    steps = json.loads((EXAMPLES / "loan-process.json").read_text())["steps"]
    named = {title.rpartition(": ")[0] for title in titles}
    assert {f"{step['name']} ({step['id']})" for step in steps} <= named
    assert "score >= 700 && not isLarge" in titles
    ways = penstock("draw", EXAMPLES / "loan-process.json").stdout.count("->")
    assert len([path for path in root.iter(f"{SVG}path") if "edge" in path.get("class", "")]) == ways + 1
    assert penstock("draw", "--format", "svg", EXAMPLES / "loan-process.json").stdout == drawn
    refused = penstock("draw", "--format", "png", EXAMPLES / "loan-process.json")
    assert (refused.exit_code, "mermaid, svg" in refused.output) == (2, True)


def test_a_picture_as_svg_has_the_shapes_of_the_console():
    events = [timer("wait"), {"type": "ERROR", "targetStepId": "wait"}]
    body = definition(
        service(
            "pay", "pack", compensation={"jobType": "refund"}, flowKey="${shop}", priority=3, boundaryEvents=events
        ),
        service("pack", "wait", forEach={"items": "${lines}", "as": "line"}),
        step("wait", "WAIT", message={"name": "paid", "correlationKey": "${order}"}, nextStep="undo"),
        step("undo", "COMPENSATE", nextStep="end"),
        end(),
    )
    root = ET.fromstring(svg(parse_definition(body)))
    drawn = Counter(path.get("d") for path in root.iter(f"{SVG}path"))
    tasks, undo = shape_of(StepType.SERVICE_TASK).icon, shape_of(StepType.COMPENSATE).icon
    assert (drawn[tasks], drawn[undo], drawn[shape_of(StepType.WAIT).icon]) == (2, 2, 0)
    assert {drawn[MARKS[name]] for name in ("message", "forEach", "flowKey", "priority")} == {1}
    assert [drawn[path] for path in EVENTS.values()] == [1, 1]
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert "pay (pay): service task, undone by refund, key ${shop}, priority 3" in titles
    assert len([group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}rect[@class='body']") is not None]) == 5


@given(definitions(max_steps=30))
@settings(deadline=None, max_examples=50)
def test_no_step_of_a_picture_stands_on_another(body):
    drawn = svg(parse_definition(body))
    boxes = []
    for group in ET.fromstring(drawn).iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect[@class='body']")
        if rect is not None:
            x, y = (float(part) for part in group.get("transform", "")[len("translate(") : -1].split())
            boxes.append((x, y, x + float(rect.get("width", "")), y + float(rect.get("height", ""))))
    assert len(boxes) >= len(body["steps"])
    for one, other in itertools.combinations(boxes, 2):
        beside = one[2] <= other[0] or other[2] <= one[0]
        assert beside or one[3] <= other[1] or other[3] <= one[1], (one, other)


def test_what_is_too_large_for_svg_says_so(monkeypatch):
    monkeypatch.setattr(layout, "POINTS_MAX", 3)
    result = penstock("draw", "--format", "svg", EXAMPLES / "loan-process.json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--format mermaid" in result.stderr


def test_what_is_not_valid_is_not_drawn(wrong):
    result = penstock("draw", wrong)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "steps[0].jobType" in result.stderr


@pytest.mark.parametrize("expression", ["sum(lines, .price) > 3", "${sum(lines, .price) > 3}"])
def test_an_expression_is_tried_against_variables(expression):
    result = penstock("expr", expression, '{"lines": [{"price": 2}, {"price": 3}]}')
    assert (result.exit_code, result.stdout) == (0, "true\n")


def test_variables_may_come_from_a_file(tmp_path):
    (tmp_path / "order.json").write_text('{"price": 10}')
    assert penstock("expr", "price * 2", "--file", tmp_path / "order.json").stdout == "20\n"
    assert penstock("expr", "price * 2", "--file", "-", given='{"price": 4}').stdout == "8\n"


def test_an_expression_that_fails_tells_the_place():
    result = penstock("expr", "price * 2", "{}")
    assert result.exit_code == 1
    assert result.stderr == "price is not defined (line 1, column 1 of `price * 2`)\n"


@pytest.mark.parametrize(
    ("variables", "reported"),
    [
        ("[1]", "variables: must be a JSON object\n"),
        ("{", "variables: not JSON: Expecting property name"),
        ('{"a": 1, "a": 2}', 'variables: the key "a" stands here more than once\n'),
    ],
)
def test_variables_must_be_an_object(variables, reported):
    result = penstock("expr", "a", variables)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(reported)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_list_that_was_cut_off_says_so(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    """As one by a rare flow key among very many instances."""
    print_page(Page([2, 1], next="x"), ("n",), lambda each: (str(each),), as_json=as_json, limit=20, narrower="--n")
    assert capsys.readouterr().err == "the list was cut off after 2: there may be more\n"
