"""What the modeller says is of the text that stands there: verdicts, differences, whom a change touches, what goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.testing.definitions import definition, end, service, step
from tests.browser.modeller import Modeller
from tests.browser.test_console import TIMEOUT_MS, start, upload, violations
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

WAYS = "() => [...document.querySelectorAll('.half .edge[marker-end]')].map(one => one.getAttribute('d'))"
TOUCHED = """told => told ===
    [...document.querySelectorAll('.touches tbody td:not(:last-child)')].map(one => one.textContent).join()"""


def test_no_problems_is_said_of_what_was_checked_alone(modeller: Modeller) -> None:
    """Not while the engine does not answer; and it is asked again until it does."""
    page = modeller.page
    modeller.visitor.go("modeller")
    modeller.expect_status("No problems")
    page.route("**/v1/definitions/validate", lambda _: None)  # no answer
    modeller.field("Name").fill("")
    modeller.properties.get_by_text("is needed, and empty").wait_for(timeout=TIMEOUT_MS)
    modeller.status.get_by_text("Being checked by the engine").wait_for(timeout=TIMEOUT_MS)
    assert "No problems" not in modeller.status.inner_text()
    modeller.field("Name").fill("Named")
    modeller.properties.get_by_text("is needed, and empty").wait_for(state="detached", timeout=TIMEOUT_MS)
    page.unroute("**/v1/definitions/validate")
    page.route("**/v1/definitions/validate", lambda route: route.abort())
    modeller.field("Name").fill("Named again")
    modeller.status.get_by_text("Not checked: The engine does not answer.").wait_for(timeout=TIMEOUT_MS)
    page.unroute("**/v1/definitions/validate")
    modeller.expect_status("No problems")
    modeller.visitor.complaints.clear()  # of the requests that came to nothing


def test_what_leads_to_a_last_step_is_asked_about(modeller: Modeller) -> None:
    page = modeller.page
    body = definition(service("a", "b"), service("b", "end"), end(), definition_id="last")
    modeller.visitor.go("modeller")
    modeller.open("last.json", json.dumps(body))
    modeller.expect_step("b")
    modeller.expect_laid_out()
    page.locator('.node[data-step="end"]').focus()
    modeller.press("Delete")
    asked = page.get_by_role("dialog", name="Delete end?")
    leads = asked.get_by_label("What leads there leads to")
    leads.wait_for(timeout=TIMEOUT_MS)
    assert leads.locator("option").all_inner_texts() == ["nowhere", "a", "b"]
    assert violations(page) == []
    leads.select_option("a")
    asked.get_by_role("button", name="Delete").click(timeout=TIMEOUT_MS)
    modeller.expect_definition(lambda made: [one["id"] for one in made["steps"]] == ["a", "b"])
    assert modeller.definition()["steps"][1]["nextStep"] == "a"


def test_differences_and_whom_it_touches_follow_the_draft(modeller: Modeller, engine: EngineProcess) -> None:
    """Also of a draft that came from a file, whose id the engine has."""
    page = modeller.page
    pick = step("pick", "DECISION", conditionalNextSteps={"n > 1": "two", "n > 0": "six", "true": "one"})
    rest = [service("two", "end"), service("six", "end"), end()]

    def drawn_to(target: str, *others: dict[str, Any]) -> dict[str, Any]:
        steps = [pick, service("one", target, job_type="one"), *(others or rest)]
        return definition(*steps, definition_id="touched", name="Touched")

    upload(engine, drawn_to("two"))
    start(engine, "touched", "T-1", {"n": 0})
    modeller.visitor.go("modeller")
    modeller.open("touched.json", json.dumps(drawn_to("six")))
    modeller.expect_step("six")
    page.get_by_role("button", name="Differences").click(timeout=TIMEOUT_MS)
    page.get_by_role("button", name="changed: nextStep").first.wait_for(timeout=TIMEOUT_MS)
    row = page.get_by_role("region", name="Which running instances it touches").locator("tbody td:not(:last-child)")
    row.first.wait_for(timeout=TIMEOUT_MS)
    assert row.all_inner_texts() == ["v1", "1", "1", "0"]
    drawn = page.evaluate(WAYS)
    assert len(drawn) == 12
    # Another target with as many letters is another picture; a change elsewhere touches nobody.
    described = drawn_to("two", rest[0], {**rest[1], "description": "seldom come to"}, rest[2])
    conditions = {"n > 1": "two", "n > 0": "six", "true": "first"}
    first = service("first", "two", job_type="one", name="one")
    renamed = {**drawn_to("two"), "steps": [{**pick, "conditionalNextSteps": conditions}, first, *rest]}
    for made, reported, touched in (
        (renamed, "conditionalNextSteps", "v1,1,0,1,0"),
        (drawn_to("end"), "nextStep", "v1,1,1,0"),
        (described, "description", "v1,1,0,0"),
    ):
        page.get_by_role("button", name="JSON", exact=True).click(timeout=TIMEOUT_MS)
        modeller.write_json(json.dumps(made))
        modeller.expect_status("No problems")
        page.get_by_role("button", name="Differences").click(timeout=TIMEOUT_MS)
        page.get_by_role("button", name=f"changed: {reported}").first.wait_for(timeout=TIMEOUT_MS)
        page.wait_for_function(TOUCHED, arg=touched, timeout=TIMEOUT_MS)
        page.wait_for_function(f"before => ({WAYS})().join() !== before.join()", arg=drawn, timeout=TIMEOUT_MS)
        drawn = page.evaluate(WAYS)
        # To the engine it is gone: the instance stays on it, and a migration has to be told what it is called now.
        assert page.get_by_text("renamed, now first", exact=True).count() == int(made is renamed)
