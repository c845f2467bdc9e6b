"""The modeller: a definition from nothing, by keys and by mouse; what it leaves alone; what it says of problems."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.testing.definitions import definition, end, linear, service, step, timer
from tests.browser.modeller import Modeller
from tests.browser.test_console import TIMEOUT_MS, upload, violations
from tests.core.test_draft import REFUSED as REFUSED_STEPS
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_process_is_drawn_tried_and_uploaded_by_keys_alone(modeller: Modeller, engine: EngineProcess) -> None:
    """No mouse, and no focus but where keys lead it."""
    page = modeller.page
    modeller.visitor.go().see("Needs attention")
    modeller.press("g", "m")
    modeller.expect_step("end")
    modeller.tab_to("end")
    # Drawn and edited.
    modeller.press("s")
    modeller.expect_focus("task")
    modeller.press("Enter")
    modeller.expect_field("Id")
    page.keyboard.type("charge")
    modeller.press("Tab")
    modeller.expect_step("charge")
    modeller.press("Control+a")
    page.keyboard.type("Charge the card")
    modeller.press("Escape")
    modeller.expect_focus("charge")
    modeller.press("Enter")
    modeller.expect_field("Id")
    page.keyboard.type("debit")
    modeller.press("Escape")
    modeller.expect_focus("debit")
    modeller.press("Control+z")
    modeller.expect_focus("charge")
    modeller.press("d")
    modeller.expect_focus("decide")
    modeller.press("ArrowDown")
    modeller.expect_focus("end")
    modeller.press("ArrowUp", "Delete")
    modeller.expect_focus("end")
    modeller.press("Control+z")
    modeller.expect_step("decide")
    # Connected: another way out of the decision, back to the task.
    modeller.press("ArrowUp")
    modeller.expect_focus("decide")
    modeller.press("Enter")
    modeller.expect_field("Id")
    modeller.tab_to("Add to conditional next steps")
    modeller.press("Enter")
    modeller.expect_field("Conditional next steps 1: condition")
    modeller.press("Control+a")
    page.keyboard.type("1 > 2")  # no completions behind a number
    modeller.tab_to("Conditional next steps 1: goes to")
    page.keyboard.type("ch")
    page.locator('.surface .hit[data-from="decide"][data-to="charge"]').wait_for(state="attached", timeout=TIMEOUT_MS)
    modeller.expect_status("No problems")
    modeller.press("Escape")
    modeller.expect_focus("decide")
    # Several at once.
    modeller.press("Shift+ArrowDown")
    modeller.properties.get_by_role("heading", name="2 steps").wait_for(timeout=TIMEOUT_MS)
    modeller.press("Escape")
    # Tried, and kept as a test.
    modeller.tab_to("Try it", back=True)
    modeller.press("Enter")
    page.get_by_role("region", name="Charge the card", exact=True).wait_for(timeout=TIMEOUT_MS)
    modeller.tab_to("Complete")
    modeller.press("Enter")
    page.get_by_role("heading", name="It has ended").wait_for(timeout=TIMEOUT_MS)
    modeller.tab_to("Save as a test")
    with page.expect_download(timeout=TIMEOUT_MS) as started:
        modeller.press("Enter")
    assert "run.assert_path('charge', 'decide', 'end')" in Path(started.value.path()).read_text()
    # Uploaded.
    modeller.tab_to("Upload…", back=True)
    modeller.press("Enter")
    page.get_by_role("dialog").get_by_text("new-workflow is new: this becomes its version 1.").wait_for(
        timeout=TIMEOUT_MS
    )
    modeller.tab_to("Upload")
    modeller.press("Enter")
    modeller.visitor.see("Uploaded as version 1")
    page.wait_for_url("**/modeller/new-workflow?uploaded=1", timeout=TIMEOUT_MS)
    page.get_by_text("no changes", exact=True).wait_for(timeout=TIMEOUT_MS)
    stored = engine.call("GET", "/v1/definitions/new-workflow")[1]
    charge, decide, _ = stored["steps"]
    assert [one["id"] for one in stored["steps"]] == ["charge", "decide", "end"]
    assert (charge["name"], charge["nextStep"]) == ("Charge the card", "decide")
    assert list(decide["conditionalNextSteps"].items()) == [("1 > 2", "charge"), ("true", "end")]
    assert violations(page) == []
    upload(engine, {name: value for name, value in stored.items() if name != "version"} | {"name": "Another"})
    modeller.visitor.go("modeller/new-workflow?version=1")
    modeller.visitor.click("button", "Upload…")
    asked = page.get_by_role("dialog")
    said = "Version 1 has this text already: nothing changes, and version 2 stays the latest."
    asked.get_by_text(said).wait_for(timeout=TIMEOUT_MS)
    asked.get_by_role("button", name="Upload").click(timeout=TIMEOUT_MS)
    page.locator(".uploaded").get_by_text(said).wait_for(timeout=TIMEOUT_MS)
    page.get_by_text("from v1", exact=True).wait_for(timeout=TIMEOUT_MS)


def test_each_problem_lands_on_its_step_and_field(modeller: Modeller, engine: EngineProcess) -> None:
    bad = definition(
        service("pay", job_type="pay", next_step="gone"),
        step("when", "WAIT", duration="P1M", nextStep="end"),
        end(),
        definition_id="wrong",
    )
    bad["surprise"] = 1
    modeller.visitor.go("modeller")
    modeller.open("wrong.json", json.dumps(bad))
    check = engine.call("POST", "/v1/definitions/validate", bad)[1]
    reported, hints = check["problems"], check["hints"]
    assert [one["path"] for one in hints] == ["steps[0].jobType"]
    modeller.expect_status(f"{len(reported)} problems")
    shown = modeller.page.get_by_role("list", name="Problems and hints").get_by_role("listitem")
    modeller.expect_whole_list()
    lines = shown.all_inner_texts()
    assert len(lines) == len(reported) + len(hints)
    for problem, line in zip(reported, lines, strict=False):
        assert problem["path"] in line
        assert problem["reason"] in line
        assert problem.get("stepId", "The definition") in line
    for name in {problem["stepId"] for problem in reported if "stepId" in problem}:
        marked = modeller.page.locator(f'.surface .node[data-step="{name}"]')
        assert "problem" in (marked.get_attribute("aria-label") or "")
    modeller.page.get_by_role("button", name="when", exact=True).first.click(timeout=TIMEOUT_MS)
    (reason,) = [each["reason"] for each in reported if each["path"] == "steps[1].duration"]
    modeller.properties.get_by_text(reason).wait_for(timeout=TIMEOUT_MS)
    modeller.field("Duration").fill("P30D")
    modeller.expect_status(f"{len(reported) - 1} problems")
    modeller.press("Escape")
    modeller.press("Escape")
    modeller.properties.get_by_role("button", name="Remove surprise").click(timeout=TIMEOUT_MS)
    modeller.expect_status(f"{len(reported) - 2} problems")
    assert violations(modeller.page) == []
    # Until the engine has answered again, none is told of the step that stands there now.
    (lost,) = [each["reason"] for each in reported if each["path"] == "steps[0].nextStep"]
    first, second = (modeller.page.locator(f'.surface .node[data-step="{name}"]') for name in ("pay", "when"))
    assert lost in (first.get_attribute("aria-label") or "")
    modeller.page.route("**/v1/definitions/validate", lambda _: None)
    first.focus()
    modeller.press("Delete")
    first.wait_for(state="detached", timeout=TIMEOUT_MS)
    assert lost not in (second.get_attribute("aria-label") or "")


def test_what_nobody_touched_is_exported_byte_for_byte(modeller: Modeller) -> None:
    source = (EXAMPLES / "loan-process.json").read_text()
    modeller.visitor.go("modeller")
    for number, text in enumerate(
        (
            source,
            json.dumps(json.loads(source), separators=(",", ":")),
            source.replace("\n", "\r\n"),
            f"\ufeff{source}",
        )
    ):
        modeller.open(f"loan-{number}.json", text)
        modeller.expect_status("No problems")
        assert modeller.text() == text
    modeller.open("loan.json", source)
    modeller.expect_step("approve")
    modeller.expect_laid_out()
    modeller.page.locator('.node[data-step="approve"]').dblclick(timeout=TIMEOUT_MS)
    modeller.field("Name").fill("Approve it")
    named = source.replace('"name": "Approve"', '"name": "Approve it"')
    assert modeller.text() == named
    # A byte order mark, and the line ends of another system, are in nobody's way.
    page = modeller.page
    modeller.open("marked.json", f"\ufeff{source}")
    page.get_by_role("button", name="Try it").click(timeout=TIMEOUT_MS)
    page.get_by_role("heading", name="What happens next?").wait_for(timeout=TIMEOUT_MS)
    modeller.open("lines.json", source.replace("\n", "\r\n"))
    page.get_by_role("button", name="JSON", exact=True).click(timeout=TIMEOUT_MS)
    modeller.write_json(named)
    assert modeller.text() == named.replace("\n", "\r\n")
    # What is no JSON waits until it is repaired.
    broken = named.replace("{", "", 1)
    modeller.write_json(broken)
    page.get_by_role("button", name="Picture").click(timeout=TIMEOUT_MS)
    page.get_by_role("alert").get_by_text("The text is no JSON").wait_for(timeout=TIMEOUT_MS)
    modeller.expect_laid_out()
    page.get_by_role("region", name="Add a step").get_by_role("button", name="Wait").click(timeout=TIMEOUT_MS)
    modeller.field("Name").fill("Lost")
    page.locator('.node[data-step="approve"]').focus()
    modeller.press("Delete")
    assert modeller.text() == broken.replace("\n", "\r\n")


def test_places_of_the_existing_modeller_are_kept(modeller: Modeller) -> None:
    places = {"charge": {"x": 40, "y": 300}, "end": {"x": 420.5, "y": -60}}
    drawn = definition(service("charge", job_type="charge", next_step="end"), end(), definition_id="drawn")
    drawn["metadata"] = {"workflowModeller": {"layout": places, "edgeHandles": {"charge->end": "right"}}}
    text = json.dumps(drawn)
    modeller.visitor.go("modeller")
    modeller.open("drawn.json", text)
    modeller.expect_step("charge")
    modeller.expect_status("No problems")
    for name, place in places.items():
        node = modeller.page.locator(f'.node[data-step="{name}"]')
        assert node.get_attribute("transform") == f"translate({place['x']} {place['y']})"
    assert modeller.text() == text


def test_more_steps_than_can_be_drawn_are_a_list(modeller: Modeller) -> None:
    text = json.dumps(linear(501, definition_id="long", job_type="work"))
    modeller.visitor.go("modeller")
    modeller.open("long.json", text)
    modeller.page.get_by_role("button", name="task-250", exact=True).first.click(timeout=TIMEOUT_MS)
    modeller.field("Name").fill("The middle")
    modeller.visitor.see_role("button", "The middle")
    assert modeller.definition()["steps"][249]["name"] == "The middle"


def test_by_mouse_steps_are_moved_connected_and_dropped(modeller: Modeller) -> None:
    page = modeller.page
    modeller.visitor.go("modeller")
    modeller.expect_step("end")
    page.get_by_role("button", name="Timer").click(timeout=TIMEOUT_MS)
    page.get_by_role("alert").get_by_text("Choose the task or the wait first").wait_for(timeout=TIMEOUT_MS)
    page.get_by_role("button", name="User task").drag_to(page.locator('.node[data-step="end"]'), timeout=TIMEOUT_MS)
    modeller.expect_step("ask")
    modeller.expect_laid_out()
    page.get_by_role("button", name="Service task").drag_to(
        page.locator(".surface"), target_position={"x": 80, "y": 80}, timeout=TIMEOUT_MS
    )
    modeller.expect_step("task")
    modeller.expect_laid_out()
    page.locator('.node[data-step="task"] .body').click(timeout=TIMEOUT_MS)
    grip = page.locator('[data-grip="connect"]').bounding_box()
    target = page.locator('.node[data-step="end"] .body').bounding_box()
    assert grip is not None
    assert target is not None
    page.mouse.move(grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2)
    page.mouse.down()
    page.mouse.move(target["x"] + 20, target["y"] + 10, steps=5)
    page.mouse.up()
    page.wait_for_function("() => document.querySelectorAll('.surface .hit').length === 2", timeout=TIMEOUT_MS)
    made = modeller.definition()
    by_id = {one["id"]: one for one in made["steps"]}
    assert by_id["ask"]["nextStep"] == by_id["task"]["nextStep"] == "end"
    before = made["metadata"]["workflowModeller"]["layout"]["task"]
    box = page.locator('.node[data-step="task"] .body').bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 60, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + 90, steps=8)
    page.mouse.up()
    after = modeller.definition()["metadata"]["workflowModeller"]["layout"]["task"]
    assert after["x"] == before["x"]
    assert after["y"] > before["y"]
    page.get_by_role("button", name="Tidy").click(timeout=TIMEOUT_MS)
    assert "metadata" not in modeller.definition()


def test_expressions_complete_and_tell_what_they_give(modeller: Modeller, engine: EngineProcess) -> None:
    body = json.loads((EXAMPLES / "loan-process.json").read_text())
    upload(engine, body)
    modeller.visitor.go(f"modeller/{body['id']}")
    modeller.expect_status("No problems")
    modeller.page.locator('.node[data-step="decide"]').focus()
    modeller.press("Enter")
    modeller.properties.get_by_text("Variables to try expressions with").click(timeout=TIMEOUT_MS)
    given = {"identityConfirmed": True, "score": 200, "applicant": {"id": "c-1"}}
    modeller.field("Variables to try expressions with").fill(json.dumps(given))
    field = modeller.field("Conditional next steps 1: condition")
    field.focus()
    modeller.properties.get_by_text("gives true").wait_for(timeout=TIMEOUT_MS)
    completions = modeller.page.get_by_role("listbox", name="Completions").locator(":visible")
    # What a variable holds, where it is wrong (also when nobody is in it), and what a word is for.
    written = modeller.said("Conditional next steps 1: condition")
    field.fill("len(applicant.")
    completions.get_by_text("id", exact=True).wait_for(timeout=TIMEOUT_MS)
    modeller.press("ArrowDown", "Enter")
    wrong = modeller.properties.locator(".cm-lintRange-error, .cm-lintPoint-error")
    wrong.wait_for(state="attached", timeout=TIMEOUT_MS)
    field.blur()
    modeller.expect_status("1 problem")
    wrong.wait_for(state="attached", timeout=TIMEOUT_MS)
    assert violations(modeller.page) == []
    field.hover(position={"x": 14, "y": 14})
    modeller.properties.get_by_role("tooltip").get_by_text("characters of a string").wait_for(timeout=TIMEOUT_MS)
    field.focus()
    modeller.press("Home")
    modeller.properties.locator("p", has_text="characters of a string, items of an array").wait_for(timeout=TIMEOUT_MS)
    field.fill(written)
    modeller.press("End")
    modeller.page.keyboard.type(" && appl")
    # As long as it is the list of a letter before, Enter takes what was typed.
    taken = modeller.page.locator(".cm-tooltip-autocomplete:not(.cm-tooltip-autocomplete-disabled) [aria-selected]")
    taken.get_by_text("applicant", exact=True).wait_for(timeout=TIMEOUT_MS)
    modeller.press("Enter")
    modeller.page.keyboard.type(".id == 'c-2'")
    modeller.properties.get_by_text("gives false").wait_for(timeout=TIMEOUT_MS)
    tried = modeller.said("Conditional next steps 1: condition")
    started = {"definitionId": body["id"], "variables": {**given, "applicant": {"id": "c-2"}, "far": 2**53 + 1}}
    modeller.field("Instance id").fill(engine.call("POST", "/v1/instances", started)[1]["id"])
    modeller.press("Enter")
    field.focus()
    modeller.properties.get_by_text("gives true").wait_for(timeout=TIMEOUT_MS)
    field.fill("far + 0")
    modeller.properties.get_by_text("a condition must give true or false").wait_for(timeout=TIMEOUT_MS)
    assert '"far": 9007199254740993' in modeller.field("Variables to try expressions with").input_value()
    field.fill(tried)
    modeller.press("Enter")
    modeller.expect_laid_out()
    modeller.page.locator('.node[data-step="manual-review"]').dblclick(timeout=TIMEOUT_MS)
    preview = modeller.page.get_by_role("region", name="Preview of the form")
    preview.get_by_text("Decision").first.wait_for(timeout=TIMEOUT_MS)
    title = modeller.field("Form for people: schema: properties 1: value: title")
    title.fill("What is decided")
    summary = modeller.field("Form for people: summary")
    said = modeller.said("Form for people: summary")
    summary.fill("deci")
    completions.get_by_text("decision", exact=True).wait_for(timeout=TIMEOUT_MS)
    summary.fill(said)
    preview.get_by_text("What is decided").wait_for(timeout=TIMEOUT_MS)
    assert violations(modeller.page) == []
    modeller.page.get_by_role("button", name="Differences").click(timeout=TIMEOUT_MS)
    modeller.page.get_by_role("button", name="changed: conditionalNextSteps").first.wait_for(timeout=TIMEOUT_MS)
    modeller.page.get_by_text("The text, line by line").click(timeout=TIMEOUT_MS)
    lines = modeller.page.get_by_role("region", name="The text, line by line").locator("del, .cm-changedLine")
    lines.first.wait_for(timeout=TIMEOUT_MS)
    assert [tried in one for one in lines.all_text_contents()] == [False, True, False, False]
    modeller.page.get_by_role("heading", name="Which running instances does this touch?").wait_for(timeout=TIMEOUT_MS)
    assert violations(modeller.page) == []


def test_a_draft_is_tried_and_kept_as_a_test(modeller: Modeller) -> None:
    timers = [timer("remind", "P1D"), timer("escalate", "P3D", interrupting=True)]
    approve = step("approve", "USER_TASK", jobType="lead", nextStep="pay", boundaryEvents=timers)
    tasks = [service("pay", "end", retryCount=1), service("remind"), service("escalate", "end")]
    fields: dict[str, Any] = {
        "approved": {"title": "Approve it", "type": "boolean"},
        "sum": {"type": "integer", "minimum": 1},
        "papers": {"type": "array", "items": {"type": "string", "maxLength": 40}},
    }
    form = {"schema": {"type": "object", "properties": fields, "required": ["sum"]}}
    metadata = {"exampleVariables": {"amount": 240}, "forms": {"approve": form}}
    body = definition(approve, *tasks, end(), definition_id="tried", metadata=metadata)
    page = modeller.page
    modeller.visitor.go("modeller")
    modeller.open("tried.json", json.dumps(body))
    page.get_by_role("button", name="Try it").focus()
    modeller.press("Enter")
    clock = page.get_by_role("region", name="Try it").get_by_role("status")
    page.get_by_role("region", name="approve", exact=True).wait_for(timeout=TIMEOUT_MS)
    page.get_by_role("button", name=re.compile("To the next timer: 1 d")).focus()
    modeller.press("Enter")
    clock.get_by_text("1 d after the start").wait_for(timeout=TIMEOUT_MS)
    page.locator('.node[data-step="remind"].st-run').wait_for(timeout=TIMEOUT_MS)
    page.wait_for_function("document.activeElement?.textContent === 'What happens next?'", timeout=TIMEOUT_MS)
    # The task's own form, and as JSON what the form's numbers could not hold.
    modeller.press("Tab", "Tab", "Space", "Tab")
    page.keyboard.type("9007199254740993")
    modeller.press("Tab", "Enter")
    page.locator('input[type="text"]:focus').wait_for(timeout=TIMEOUT_MS)  # what was added has the keys
    page.keyboard.type("id.pdf")
    modeller.press("Tab", "Tab", "Tab", "Tab")
    page.keyboard.type("ann")
    modeller.press("Tab", "Enter")
    page.get_by_text("of more this form would lose digits").wait_for(timeout=TIMEOUT_MS)
    assert violations(page) == []
    modeller.press("Shift+Tab", "Shift+Tab", "Enter")
    assert '"papers": [\n    "id.pdf"\n  ]' in page.get_by_label("Variables of approve").input_value()
    modeller.press("Shift+Tab", "Control+a")
    page.keyboard.type('{"approved": true, "sum": 9007199254740993')
    page.get_by_text("Not JSON: ends where , is due").wait_for(timeout=TIMEOUT_MS)
    page.keyboard.type("}")
    modeller.press("Tab", "Tab", "Tab", "Enter")
    page.get_by_role("region", name="pay", exact=True).wait_for(timeout=TIMEOUT_MS)
    assert violations(page) == []
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/v1/simulations", hold)
    page.get_by_role("region", name="pay", exact=True).get_by_role("button", name="Fail, try again").click()
    page.get_by_role("region", name="Try it").and_(page.locator("[aria-busy=true]")).wait_for(timeout=TIMEOUT_MS)
    page.get_by_role("region", name="pay", exact=True).get_by_role("button", name="Complete").click()
    for route in held:
        route.continue_()
    page.unroute("**/v1/simulations")
    page.get_by_text("failed 1×").wait_for(timeout=TIMEOUT_MS)
    modeller.press("Control+z")
    page.get_by_text("failed 1×").wait_for(state="detached", timeout=TIMEOUT_MS)
    page.get_by_role("region", name="pay", exact=True).get_by_role("button", name="Complete").click()
    page.get_by_role("heading", name="It has ended").wait_for(timeout=TIMEOUT_MS)
    shown = ["amount", "240", "approved", "true from approve", "sum", "9007199254740993 from approve"]
    assert page.locator(".values").inner_text().split("\n") == shown
    assert '"sum":9007199254740993' in page.locator(".sofar").inner_text()
    assert violations(page) == []
    panel, hints = page.locator(".tryit").bounding_box(), page.get_by_role("region", name="Problems").bounding_box()
    assert panel is not None
    assert hints is not None
    assert panel["y"] + panel["height"] <= hints["y"] + 1
    with page.expect_download(timeout=TIMEOUT_MS) as started:
        page.get_by_role("button", name="Save as a test").click(timeout=TIMEOUT_MS)
    assert started.value.suggested_filename == "test_tried.py"
    saved = Path(started.value.path()).read_text()  # such a file is run by tests/testing/test_try_it.py
    assert (
        "run.complete_task('approve', {'approved': True, 'sum': 9007199254740993}, by='ann')\n    penstock.settle()\n"
        in saved
    )
    again = page.get_by_role("heading", name="What happens next?")
    for variables, reported in (('{"refused": "\\u0000"}', page.get_by_text("has a NUL character")), ("{}", again)):
        page.get_by_text("Start with other variables").click(timeout=TIMEOUT_MS)
        page.get_by_label("Variables to start with").fill(variables, timeout=TIMEOUT_MS)
        page.get_by_role("button", name="Start with these").click(timeout=TIMEOUT_MS)
        reported.wait_for(timeout=TIMEOUT_MS)
    assert all("400" in text for text in modeller.visitor.complaints)
    modeller.visitor.complaints.clear()
    page.get_by_role("button", name="JSON", exact=True).click(timeout=TIMEOUT_MS)
    modeller.write_json("{")
    page.get_by_role("button", name="Try it").click(timeout=TIMEOUT_MS)
    page.get_by_text("You can try it once the text is JSON.").wait_for(timeout=TIMEOUT_MS)
    page.get_by_role("button", name="JSON", exact=True).click(timeout=TIMEOUT_MS)
    modeller.write_json("{}")
    page.get_by_role("button", name="Try it").click(timeout=TIMEOUT_MS)
    page.get_by_text("You can try it once its problems are repaired").wait_for(timeout=TIMEOUT_MS)


def test_every_rule_of_steps_lands_at_its_field(modeller: Modeller, engine: EngineProcess) -> None:
    """The parser's examples, a step each, in one definition: what is said first of a step is shown with it."""
    broken: list[dict[str, Any]] = []
    for body, problems in REFUSED_STEPS.values():
        steps: Any = body.get("steps")
        first = steps[0] if isinstance(steps, list) and steps else None
        whole = [path for path, _ in problems if not path.startswith("steps[0]") or path.endswith((".id", ".name"))]
        if isinstance(first, dict) and not whole:
            name = f"case-{len(broken)}"
            broken.append({**cast("dict[str, Any]", first), "id": name, "name": name})
    many = definition(*broken, end(), definition_id="many")
    reported = engine.call("POST", "/v1/definitions/validate", many)[1]["problems"]
    first_reported: dict[str, str] = {}
    for problem in reported:
        first_reported.setdefault(problem.get("stepId", ""), problem["reason"])
    assert len(first_reported) > 40
    modeller.visitor.go("modeller")
    modeller.open("many.json", json.dumps(many))
    modeller.expect_status(f"{len(reported)} problems")
    rows = modeller.page.get_by_role("list", name="Problems and hints")
    modeller.expect_whole_list()
    for step_id, reason in first_reported.items():
        rows.get_by_role("button", name=step_id or "The definition", exact=True).first.dispatch_event("click")
        modeller.properties.get_by_text(reason).first.wait_for(timeout=TIMEOUT_MS)


def test_what_can_be_mended_at_once_is_one_press(modeller: Modeller) -> None:
    body = definition(service("a", "edn"), service("lost", retries=1), end(), definition_id="mend")
    modeller.visitor.go("modeller")
    modeller.open("mend.json", json.dumps(body))
    modeller.expect_status("5 problems")
    modeller.page.get_by_role("button", name="Lead it to end").focus()
    modeller.press("Enter")
    modeller.expect_status("2 problems")
    modeller.page.get_by_role("button", name="Remove it").click(timeout=TIMEOUT_MS)
    modeller.expect_status("1 problem")
    modeller.page.get_by_role("button", name="Put it after a").click(timeout=TIMEOUT_MS)
    modeller.expect_status(re.compile("No problems.*2 hints, which keep nothing from an upload"))
    made = [(one["id"], one.get("nextStep")) for one in modeller.definition()["steps"]]
    assert made == [("a", "lost"), ("lost", "end"), ("end", None)]
    label = modeller.page.locator('.surface .node[data-step="a"].st-hint').get_attribute("aria-label")
    assert "hint: nobody polls for" in (label or "")
    modeller.press("Control+z")
    modeller.expect_status("1 problem")
    # In the text it is where it stands; without an answer nobody says that there are none.
    modeller.page.get_by_role("button", name="JSON").click(timeout=TIMEOUT_MS)
    rows = modeller.page.get_by_role("list", name="Problems and hints")
    rows.get_by_role("button", name="lost").first.click(timeout=TIMEOUT_MS)
    assert json.loads(str(modeller.page.evaluate("() => getSelection().toString()")))["id"] == "lost"
    modeller.page.route("**/v1/definitions/validate", lambda route: route.abort())
    modeller.page.get_by_label("The definition as JSON").press("End")
    modeller.page.keyboard.type(" ")
    modeller.status.get_by_text("Not checked: The engine does not answer.").wait_for(timeout=TIMEOUT_MS)
    modeller.visitor.complaints.clear()  # of the request that came to nothing
