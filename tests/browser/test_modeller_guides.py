"""The modeller where people go wrong: what leads to the fault, what asks first, what two tabs make of one draft."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.testing.definitions import definition, end, service, step, timer
from tests.browser.modeller import Modeller
from tests.browser.test_console import TIMEOUT_MS, Visitor, fail, start, upload, violations
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

HAS_FOCUS = "label => document.activeElement?.ariaLabel === label"


def test_the_way_of_an_error_is_drawn_as_taken(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, definition(service("book", "end", job_type="book"), end(), definition_id="booking"))
    caught = {"type": "ERROR", "targetStepId": "sorry"}
    call = step("call", "CALL_ACTIVITY", definitionId="booking", nextStep="end", boundaryEvents=[caught])
    sorry = step("sorry", "USER_TASK", nextStep="end")
    upload(engine, definition(call, sorry, end(), definition_id="trip"))
    instance = start(engine, "trip", "T-1")
    visitor.go(f"instances/{instance}").see("Calls")
    child = visitor.page.request.get(f"{visitor.home.removesuffix('console/')}v1/instances?definitionId=booking")
    fail(engine, child.json()["items"][0]["id"], "book", "no seat is left")
    visitor.page.locator('.node.st-wait[data-step="sorry"]').wait_for(timeout=TIMEOUT_MS)
    visitor.page.locator(".edge.error.taken").wait_for(state="attached", timeout=TIMEOUT_MS)
    assert visitor.page.locator(".edge.next.taken").count() == 0
    assert visitor.page.locator('.clock.taken[data-event="error"]').count() == 1


def test_two_tabs_of_one_draft_overwrite_nothing(modeller: Modeller) -> None:
    first = modeller.page
    modeller.visitor.go("modeller")
    modeller.expect_step("end")
    second = first.context.new_page()
    second.goto(f"{modeller.visitor.home}modeller")
    for page in (first, second):
        page.get_by_text("Open in another tab, too, since").wait_for(timeout=TIMEOUT_MS)
    name, other = (
        page.get_by_role("region", name="Properties").get_by_label("Name", exact=True) for page in (first, second)
    )
    name.fill("Of the first")
    changed = "Another tab has changed this draft"
    second.get_by_text(changed).wait_for(timeout=TIMEOUT_MS)
    # What is typed there meanwhile stays there, and is not kept in place of the other.
    other.fill("Of the second")
    second.get_by_text("1 change, not kept").wait_for(timeout=TIMEOUT_MS)
    assert first.get_by_text(changed).count() == 0
    kept = "() => localStorage.getItem('penstock.draft. ')"
    assert json.loads(first.evaluate(kept))["name"] == "Of the first"
    second.get_by_role("button", name="Keep this one").click(timeout=TIMEOUT_MS)
    first.get_by_text(changed).wait_for(timeout=TIMEOUT_MS)
    assert json.loads(first.evaluate(kept))["name"] == "Of the second"
    assert name.input_value() == "Of the first"
    assert violations(first) == []
    first.get_by_role("button", name="Take that one").click(timeout=TIMEOUT_MS)
    first.get_by_role("heading", name="Of the second").wait_for(timeout=TIMEOUT_MS)
    first.get_by_role("button", name="Undo").click(timeout=TIMEOUT_MS)
    first.get_by_role("heading", name="Of the first").wait_for(timeout=TIMEOUT_MS)
    second.get_by_text(changed).wait_for(timeout=TIMEOUT_MS)
    second.close()
    first.get_by_text("Open in another tab").wait_for(state="detached", timeout=TIMEOUT_MS)


def test_a_problem_leads_to_the_field_at_fault(modeller: Modeller) -> None:
    late = timer("end", "P1M", interrupting=True)
    pay = service("pay", "split", job_type="pay", boundaryEvents=[timer("end", "PT1H", interrupting=True), late])
    split = step("split", "PARALLEL_GATEWAY", parallelNextSteps=["a", "gone"], joinStep="join")
    call = step("call", "CALL_ACTIVITY", definitionId="other", input={"x": "${1 +}"}, nextStep="choose")
    choose = step("choose", "DECISION", conditionalNextSteps={"a >": "end", "b > 1": "nowhere", "true": "end"})
    body = definition(
        pay, split, service("a", "join"), step("join", "JOIN_GATEWAY", nextStep="call"), call, choose, end()
    )
    modeller.visitor.go("modeller")
    modeller.open("wrong.json", json.dumps(body))
    rows = modeller.page.get_by_role("list", name="Problems and hints").get_by_role("listitem")
    for path, label in (
        ("boundaryEvents[1].duration", "Boundary events 2: duration"),
        ("parallelNextSteps[1]", "Parallel next steps 2"),
        ("input.x", "Input 1: value"),
        ('["a >"]', "Conditional next steps 1: condition"),
        ('["b > 1"]', "Conditional next steps 2: goes to"),
    ):
        row = rows.filter(has=modeller.page.locator("code", has_text=path)).first
        row.get_by_role("button").first.click(timeout=TIMEOUT_MS)
        modeller.page.wait_for_function(HAS_FOCUS, arg=label, timeout=TIMEOUT_MS)
        field = modeller.field(label)
        assert field.get_attribute("aria-invalid") == "true"
        reported = modeller.page.locator(f"#{field.get_attribute('aria-describedby')}".replace(":", "\\:")).inner_text()
        assert reported.split("\n")[0] in row.inner_text()
    assert violations(modeller.page) == []


def test_hints_of_a_form_lead_there_and_are_folded(modeller: Modeller) -> None:
    amount = {"title": "Amount", "type": "integer"}
    form = {"summary": "string(amuont)", "schema": {"properties": {"amount": amount}, "required": ["amount", "note"]}}
    ask = step("ask", "USER_TASK", nextStep="end")
    body = definition(ask, end(), definition_id="asked", metadata={"forms": {"ask": form}})
    modeller.visitor.go("modeller")
    modeller.open("asked.json", json.dumps(body))
    modeller.expect_status("2 hints, which keep nothing from an upload")
    rows = modeller.page.get_by_role("list", name="Problems and hints").get_by_role("listitem")
    rows.filter(has_text='is "amount" meant?').get_by_role("button").first.click(timeout=TIMEOUT_MS)
    modeller.expect_field("Form for people: summary")
    rows.filter(has_text='no field of the form is called "note"').get_by_role("button").first.click(timeout=TIMEOUT_MS)
    modeller.expect_field("Form for people: schema: required 2")
    modeller.page.get_by_role("button", name="Hide hints").click(timeout=TIMEOUT_MS)
    rows.first.wait_for(state="detached", timeout=TIMEOUT_MS)
    assert violations(modeller.page) == []
    modeller.page.reload()
    modeller.expect_status("2 hints")
    assert rows.count() == 0
    modeller.page.get_by_role("button", name="Show hints").click(timeout=TIMEOUT_MS)
    rows.nth(1).wait_for(timeout=TIMEOUT_MS)


def test_letters_add_steps_as_soon_as_it_is_open(modeller: Modeller) -> None:
    modeller.visitor.go().see("Needs attention")
    modeller.press("g", "m")
    modeller.expect_step("end")
    modeller.press("s")
    modeller.expect_focus("task")
    # Of two keys the second is no letter of its own, and a letter behind them is.
    modeller.press("g", "m", "u")
    modeller.expect_focus("ask")
    assert [one["id"] for one in modeller.definition()["steps"]] == ["task", "ask", "end"]
    modeller.page.get_by_role("navigation", name="Main").get_by_role("link", name="Overview").click(timeout=TIMEOUT_MS)
    modeller.page.get_by_role("navigation", name="Main").get_by_role("link", name="Modeller").click(timeout=TIMEOUT_MS)
    modeller.expect_step("ask")
    modeller.press("w")
    modeller.expect_step("wait")


def test_plus_at_a_step_offers_what_may_follow(modeller: Modeller) -> None:
    page = modeller.page
    modeller.visitor.go("modeller")
    modeller.expect_step("end")
    menu = page.get_by_role("menu")
    page.locator('.node[data-step="end"] .body').click(timeout=TIMEOUT_MS)
    page.locator('[data-grip="add"]').click(timeout=TIMEOUT_MS)
    menu.get_by_text("Add before End").wait_for(timeout=TIMEOUT_MS)
    assert menu.get_by_role("menuitem", name="Timer").count() == 0
    assert violations(page) == []
    menu.get_by_role("menuitem", name="Service task").click(timeout=TIMEOUT_MS)
    modeller.expect_focus("task")
    menu.wait_for(state="detached", timeout=TIMEOUT_MS)
    # By keys: Esc leads back, an arrow and Enter, or the letter, choose.
    modeller.press("+")
    menu.get_by_text("Add after Service task").wait_for(timeout=TIMEOUT_MS)
    modeller.press("Escape")
    modeller.expect_focus("task")
    modeller.tab_to("Add after Service task")
    modeller.press("Enter")
    menu.wait_for(timeout=TIMEOUT_MS)
    modeller.press("ArrowDown", "Enter")
    modeller.expect_focus("ask")
    modeller.press("+")
    menu.wait_for(timeout=TIMEOUT_MS)
    modeller.press("m")
    page.get_by_role("dialog", name="A timer on User task").wait_for(timeout=TIMEOUT_MS)
    modeller.press("Escape")
    assert [one["id"] for one in modeller.definition()["steps"]] == ["task", "ask", "end"]


def test_a_file_over_a_changed_draft_asks_first(modeller: Modeller) -> None:
    page = modeller.page
    modeller.visitor.go("modeller")
    modeller.expect_step("end")
    modeller.field("Name").fill("Of an hour's work")
    text = json.dumps(definition(service("a", "end"), end(), definition_id="other", name="Other"))
    file: Any = {"name": "other.json", "mimeType": "application/json", "buffer": text.encode()}
    page.locator("input[type=file]").set_input_files(file)
    asked = page.get_by_role("dialog", name="Open other.json in place of this draft?")
    asked.get_by_text("What was changed in Of an hour's work is not uploaded.").wait_for(timeout=TIMEOUT_MS)
    asked.get_by_role("button", name="Back").click(timeout=TIMEOUT_MS)
    assert modeller.definition()["name"] == "Of an hour's work"
    page.locator("input[type=file]").set_input_files(file)
    asked.get_by_role("button", name="Open it").click(timeout=TIMEOUT_MS)
    modeller.expect_step("a")
    modeller.press("Control+z")
    page.get_by_role("heading", name="Of an hour's work").wait_for(timeout=TIMEOUT_MS)


def test_a_draft_that_is_too_long_is_reported(modeller: Modeller) -> None:
    text = json.dumps(definition(end(), definition_id="long") | {"description": "x" * 1_000_001})
    modeller.visitor.go("modeller")
    modeller.open("long.json", text)
    modeller.page.get_by_text("not kept: too much for this browser").wait_for(timeout=TIMEOUT_MS)
    modeller.open("short.json", json.dumps(definition(end(), definition_id="short")))
    modeller.page.get_by_text("kept in this browser").wait_for(timeout=TIMEOUT_MS)
