"""The modeller's fields: where the keys go, what is said beside them, and of all while one is half typed."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Route

from penstock.testing.definitions import definition, end, service, step
from tests.browser.modeller import Modeller
from tests.browser.test_console import TIMEOUT_MS, violations
from tests.shapes import choose

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

FIELDS = "Form for people: schema: properties"


def test_what_is_added_has_the_keys_and_a_tick(modeller: Modeller) -> None:
    page, properties = modeller.page, modeller.properties
    decision = {"title": "Decision", "type": "string", "enum": ["approve", "decline"]}
    form = {"schema": {"type": "object", "properties": {"decision": decision}, "required": ["decision"]}}
    ask = step("ask", "USER_TASK", nextStep="end")
    modeller.visitor.go("modeller")
    modeller.open("asked.json", json.dumps(definition(ask, end(), metadata={"forms": {"ask": form}})))
    modeller.expect_laid_out()
    page.locator('.node[data-step="ask"]').dblclick(timeout=TIMEOUT_MS)
    # Its name begins with what is seen of it.
    properties.get_by_role("button", name="Add to properties").click(timeout=TIMEOUT_MS)
    modeller.expect_field(f"{FIELDS} 2: name")
    page.keyboard.type("note")
    modeller.press("Enter")
    ticks = [modeller.field(f"{FIELDS} {at}: needed") for at in (1, 2)]
    assert [one.is_checked() for one in ticks] == [True, False]
    ticks[1].check(timeout=TIMEOUT_MS)
    assert properties.get_by_role("group", name="Required").count() == 0
    modeller.field(f"{FIELDS} 2: name").fill("reason")
    modeller.press("Enter")
    schema = modeller.definition()["metadata"]["forms"]["ask"]["schema"]
    assert (list(schema["properties"]), schema["required"]) == (["decision", "reason"], ["decision", "reason"])
    choices = page.get_by_role("region", name="Preview of the form").get_by_role("radiogroup", name="Decision")
    assert choices.get_attribute("aria-invalid") == "true"
    choices.get_by_label("approve").check(timeout=TIMEOUT_MS)
    assert choices.get_attribute("aria-invalid") == "false"
    assert violations(page) == []
    properties.get_by_role("button", name=f"Remove {FIELDS} 2").click(timeout=TIMEOUT_MS)
    # What takes a row out goes with it: the keys are where another one is added.
    page.wait_for_function(
        "() => document.activeElement?.ariaLabel?.startsWith('Add to properties')", timeout=TIMEOUT_MS
    )
    schema = modeller.definition()["metadata"]["forms"]["ask"]["schema"]
    assert (list(schema["properties"]), schema["required"]) == (["decision"], ["decision"])
    modeller.field(f"{FIELDS} 1: value: type").select_option("object", timeout=TIMEOUT_MS)
    modeller.field(f"{FIELDS} 1: value: properties").fill('{"street": {}, "town": {}}')
    properties.get_by_role("button", name="Add to required").click(timeout=TIMEOUT_MS)
    modeller.expect_field(f"{FIELDS} 1: value: required 1")
    assert modeller.field(f"{FIELDS} 1: value: required 1").locator("option").all_inner_texts() == ["street", "town"]
    modeller.field(f"{FIELDS} 1: value: required 1").select_option("town", timeout=TIMEOUT_MS)
    field = modeller.definition()["metadata"]["forms"]["ask"]["schema"]["properties"]["decision"]
    assert field["required"] == ["town"]
    # Text that is cut is text: the step that is chosen stays.
    modeller.field("Form for people: summary").focus(timeout=TIMEOUT_MS)
    page.locator(".cm-content:focus").wait_for(timeout=TIMEOUT_MS)
    page.keyboard.type("decision")
    modeller.press("Control+a", "Control+x")
    made = modeller.definition()
    assert ([one["id"] for one in made["steps"]], page.locator("dialog").count()) == (["ask", "end"], 0)


def test_a_timer_says_its_time_and_whose_job_it_is(modeller: Modeller) -> None:
    page, properties = modeller.page, modeller.properties
    modeller.visitor.go("modeller")
    modeller.open("late.json", json.dumps(definition(step("ask", "USER_TASK", nextStep="end"), end())))
    modeller.expect_laid_out()
    page.locator('.node[data-step="ask"]').focus()
    modeller.press("m")
    asked = page.get_by_role("dialog", name="A timer on ask")
    asked.get_by_text("1 hour. PT30M is 30 minutes, PT1H 1 hour, P30D 30 days.").wait_for(timeout=TIMEOUT_MS)
    asked.get_by_label("After").fill("P1DT12H")
    asked.get_by_text("1 day 12 hours.").wait_for(timeout=TIMEOUT_MS)
    asked.get_by_label("After").fill("30 days")
    asked.get_by_text("Not a duration.").wait_for(timeout=TIMEOUT_MS)
    asked.get_by_label("After").fill("P2D")
    assert violations(page) == []
    asked.get_by_role("button", name="Add").click(timeout=TIMEOUT_MS)
    modeller.expect_step("task")
    modeller.expect_laid_out()
    page.locator('.node[data-step="task"]').dblclick(timeout=TIMEOUT_MS)
    given = properties.get_by_text("Came with the step: nobody has chosen it yet.")
    given.wait_for(timeout=TIMEOUT_MS)
    modeller.field("Name").fill("Escalate")
    given.wait_for(timeout=TIMEOUT_MS)
    modeller.field("Id").fill("escalate")
    modeller.press("Enter")
    modeller.expect_step("escalate")
    assert modeller.field("Job type").input_value() == "escalate"
    assert given.count() == 0
    page.get_by_role("button", name="Undo").click(timeout=TIMEOUT_MS)
    modeller.expect_step("task")
    assert [one.get("jobType") for one in modeller.definition()["steps"]] == [None, "task", None]


@pytest.mark.parametrize("files", ["**/assets/editor-*.js", "none"], ids=["plain", "editor"])
def test_a_condition_that_nobody_typed_is_typed_over(modeller: Modeller, files: str) -> None:
    page, labels = modeller.page, [f"Conditional next steps {at}: condition" for at in (1, 2)]
    page.route(files, lambda route: route.abort())
    body = json.dumps(definition(choose("fork", {"false": "end", "false || false": "end", "true": "end"}), end()))
    modeller.visitor.go("modeller")
    modeller.open("fork.json", body)
    modeller.expect_laid_out()
    page.locator('.node[data-step="fork"]').dblclick(timeout=TIMEOUT_MS)
    if files == "none":
        page.locator(".cm-content").nth(1).wait_for(timeout=TIMEOUT_MS)
    # Whoever only looks changes nothing.
    modeller.field(labels[0]).click(timeout=TIMEOUT_MS)
    modeller.tab_to(labels[1])
    assert modeller.text() == body
    modeller.field(labels[0]).click(timeout=TIMEOUT_MS)
    page.keyboard.type("n > 5")
    modeller.tab_to(labels[1])
    page.keyboard.type("m > 5")
    modeller.press("Enter")
    modeller.expect_definition(
        lambda made: list(made["steps"][0]["conditionalNextSteps"]) == ["n > 5", "m > 5", "true"]
    )
    # What somebody typed is gone on with where it is clicked.
    modeller.field(labels[0]).click(timeout=TIMEOUT_MS)
    modeller.press("End")
    page.keyboard.type("0")
    modeller.press("Enter")
    modeller.expect_definition(lambda made: "n > 50" in made["steps"][0]["conditionalNextSteps"])
    modeller.visitor.complaints.clear()  # of the files that were kept from it


def test_what_is_half_typed_is_not_said_to_be_sound(modeller: Modeller) -> None:
    page, status = modeller.page, modeller.status
    body = definition(choose("fork", {"n > 1": "pay", "true": "end"}), service("pay", "end", job_type="pay"), end())
    modeller.visitor.go("modeller")
    modeller.open("fork.json", json.dumps(body))
    modeller.expect_status("No problems")
    modeller.expect_laid_out()
    page.locator('.node[data-step="fork"]').dblclick(timeout=TIMEOUT_MS)
    # What is added is typed over, also where its editor comes under the keys.
    modeller.properties.get_by_role("button", name="Add to conditional next steps").click(timeout=TIMEOUT_MS)
    modeller.expect_field("Conditional next steps 2: condition")
    page.keyboard.type("n > 5")
    modeller.press("Enter")
    modeller.expect_definition(
        lambda made: list(made["steps"][0]["conditionalNextSteps"]) == ["n > 1", "n > 5", "true"]
    )
    modeller.properties.get_by_role("button", name="Remove Conditional next steps 2").click(timeout=TIMEOUT_MS)
    condition = modeller.field("Conditional next steps 1: condition")
    condition.fill("n >")
    modeller.properties.get_by_text("unexpected the end").first.wait_for(timeout=TIMEOUT_MS)
    status.get_by_text("Not checked: a field holds what the definition has not yet").wait_for(timeout=TIMEOUT_MS)
    assert "No problems" not in status.inner_text()
    # Taken over it is a problem, and what is hinted at stays.
    condition.press("Enter")
    modeller.expect_status(re.compile("1 problem.*1 hint, which keeps nothing from an upload"))
    rows = page.get_by_role("list", name="Problems and hints").get_by_role("listitem")
    assert [("nobody polls for pay" in one) for one in rows.all_inner_texts()] == [False, True]
    condition.fill("n > 1 &&")
    modeller.expect_status("but for what a field holds that the definition has not yet")
    condition.fill("n > 2")
    condition.press("Enter")
    modeller.expect_status("No problems")
    # An id that two steps have is told at once, at both places.
    page.get_by_role("button", name="JSON", exact=True).click(timeout=TIMEOUT_MS)
    page.route("**/v1/definitions/validate", lambda _: None)  # no answer
    modeller.write_json(json.dumps(body, indent=1).replace('"id": "pay"', '"id": "fork"'))
    page.get_by_text("two steps have the id fork").wait_for(timeout=TIMEOUT_MS)
    page.wait_for_function("() => document.querySelectorAll('.cm-lintRange-error').length === 2", timeout=TIMEOUT_MS)
    assert page.locator(".cm-lintRange-error").all_text_contents() == ['"fork"', '"fork"']
    assert violations(page) == []
    page.unroute("**/v1/definitions/validate")
    modeller.visitor.complaints.clear()  # of the requests that came to nothing


def test_an_upload_leaves_the_page_as_it_is(modeller: Modeller) -> None:
    """Until the version that comes of it can be shown, however long the engine takes."""
    page, held = modeller.page, list[Route]()
    modeller.visitor.go("modeller")
    modeller.open("shown.json", json.dumps(definition(service("a", "end"), end(), definition_id="shown")))
    modeller.expect_status("No problems")

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/v1/definitions/shown*", hold)
    modeller.visitor.click("button", "Upload…")
    with page.expect_request("**/v1/definitions/shown*", timeout=TIMEOUT_MS):
        page.get_by_role("dialog").get_by_role("button", name="Upload").click(timeout=TIMEOUT_MS)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.get_by_role("heading", name="shown", exact=True).is_visible()
    for route in held:
        route.continue_()
    page.unroute("**/v1/definitions/shown*")
    modeller.visitor.see("Uploaded as version 1")
    page.get_by_text("from v1", exact=True).wait_for(timeout=TIMEOUT_MS)
