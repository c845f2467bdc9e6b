"""What people do at the console for instances: repair variables, do tasks one after the other; counted in clicks."""

from __future__ import annotations

import json
import re
from collections.abc import Generator

import pytest

from penstock.testing.definitions import definition, end, linear, step
from tests import postgres
from tests.browser.test_console import TIMEOUT_MS, Visitor, complete, fail, start, take, upload, violations
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

WRITTEN = "dialog input[name=variables]"
"""The text of the variables, whose editor is no field of a form."""
FORM = {
    "type": "object",
    "required": ["decision", "amount"],
    "properties": {
        "decision": {"title": "Decision", "enum": ["approve", "decline"]},
        "amount": {"title": "Approved amount", "type": "integer", "maximum": 92_000},
        "seen": {"title": "I have seen the identity document", "type": "boolean"},
        "reason": {"title": "Reason", "type": "string"},
        "until": {"title": "Until", "type": "string", "format": "date"},
    },
}


@pytest.fixture(scope="module")
def engine(postgres_server: postgres.PostgresServer) -> Generator[EngineProcess]:
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn) as process:
        process.wait_ready()
        review = step(
            "review", "USER_TASK", name="Review by an officer", jobType="officers", nextStep="end",
            boundaryEvents=[{"type": "TIMER", "duration": "PT2H", "targetStepId": "end", "interrupting": True}],
        )  # fmt: skip
        forms = {"review": {"schema": FORM, "summary": "who"}}
        upload(process, definition(review, end(), definition_id="loan", metadata={"forms": forms}))
        upload(
            process,
            definition(step("free", "USER_TASK", jobType="others", nextStep="end"), end(), definition_id="free"),
        )
        upload(process, linear(1, definition_id="mend", job_type="mend"))
        yield process


def test_bad_data_is_mended_and_retried_with_two_clicks(visitor: Visitor, engine: EngineProcess) -> None:
    instance = start(engine, "mend", "E-1", {"amount": "25 EUR", "keep": [2**53 + 1], "drop": True})
    fail(engine, instance, "mend", "amount is no number")
    visitor.go(f"instances/{instance}").see("amount is no number")
    visitor.click("button", "Edit variables…")
    written = visitor.page.get_by_label("Variables, as a JSON object")
    save = visitor.page.get_by_role("button", name="Save", exact=True)
    shown = visitor.page.locator(WRITTEN).input_value(timeout=TIMEOUT_MS)
    written.fill('{"amount": 25')
    save.click(timeout=TIMEOUT_MS)
    visitor.see("Variables are no JSON")
    # As they are kept, and as they are typed: with all of their digits.
    assert "9007199254740993" in shown
    written.fill('{"amount": 9007199254740995, "keep": [9007199254740993]}')
    visitor.page.get_by_role("alert").wait_for(state="detached", timeout=TIMEOUT_MS)
    visitor.page.get_by_label("Note, for the audit trail").fill("a typo")
    visitor.click("button", "Save and retry")
    visitor.see("The variables are saved.")
    visitor.see("waits for a worker")
    complete(engine, instance, "mend")
    visitor.see("Completed")
    assert visitor.clicks == 2
    assert engine.call("GET", f"/v1/instances/{instance}")[1]["variables"] == {"amount": 2**53 + 3, "keep": [2**53 + 1]}
    visitor.click("tab", "Audit")
    visitor.see("amount=9007199254740995, -drop: a typo")
    visitor.click("button", "Start again")
    again = visitor.page.get_by_role("dialog")
    assert "9007199254740993" in visitor.page.locator(WRITTEN).input_value(timeout=TIMEOUT_MS)
    again.get_by_label("Business key").fill("E-2")
    again.get_by_role("button", name="Start").click(timeout=TIMEOUT_MS)
    again.wait_for(state="detached", timeout=TIMEOUT_MS)
    (copy,) = engine.call("GET", "/v1/instances?businessKey=E-2")[1]["items"]
    assert copy["variables"] == {"amount": 2**53 + 3, "keep": [2**53 + 1]}


def test_tasks_are_done_one_after_the_other_with_one_click(visitor: Visitor, engine: EngineProcess) -> None:
    names = ("Nadia Fiore", "Jan Kowal")
    started = [start(engine, "loan", f"L-{n}", {"who": name, "score": 668}) for n, name in enumerate(names)]
    visitor.go("tasks?jobType=officers").see_role("heading", "Review by an officer")
    visitor.see("timer in 1 h")
    visitor.see("668")
    page = visitor.page
    page.get_by_role("radio", name="approve").check()
    page.get_by_label("Approved amount").fill("95000")
    visitor.click("button", "Complete")
    visitor.see("At most 92,000")
    assert violations(page) == []
    page.get_by_label("Approved amount").fill("90000")
    page.get_by_label("Reason").fill("two statements")
    page.get_by_label("Until").focus()
    page.keyboard.type("1224")
    page.keyboard.press("Control+Enter")
    visitor.see("Not a whole date")
    page.get_by_label("Until").fill("2026-12-24")
    page.keyboard.press("Control+Enter")
    page.get_by_label("Task", exact=True).get_by_text("Jan Kowal").first.wait_for(timeout=TIMEOUT_MS)
    found = engine.call("GET", f"/v1/instances/{started[0]}")[1]
    assert (found["status"], found["variables"]) == (
        "COMPLETED",
        {"who": "Nadia Fiore", "score": 668, "decision": "approve", "amount": 90_000, "seen": False,
         "reason": "two statements", "until": "2026-12-24"},
    )  # fmt: skip
    page.get_by_role("radio", name="decline").check()
    page.get_by_label("Approved amount").fill("1")
    visitor.click("button", "Complete")
    visitor.see("Nothing waits for a person")
    assert visitor.clicks == 2, "one was refused, one task needed one"


def test_a_task_is_claimed_by_name_and_given_back(visitor: Visitor, engine: EngineProcess) -> None:
    instance = start(engine, "free", "C-7")
    visitor.go("tasks?jobType=others").see("C-7")
    visitor.page.get_by_label("Result, as a JSON object").wait_for(timeout=TIMEOUT_MS)
    visitor.click("button", "Claim")
    visitor.page.get_by_label("Your name").fill("ada")
    visitor.page.get_by_role("dialog").get_by_role("button", name="Claim").click(timeout=TIMEOUT_MS)
    visitor.see("ada has it")
    visitor.click("button", "Mine", exact=True)
    visitor.see_role("button", re.compile("C-7"))
    (item,) = engine.call("GET", "/v1/tasks?assignee=ada")[1]["items"]
    assert item["instanceId"] == instance
    visitor.click("button", "Give back")
    visitor.see("No task is yours")
    visitor.click("button", "Unassigned")
    visitor.see("C-7")
    visitor.page.get_by_label("Result, as a JSON object").fill('{"account": 9007199254740993}')
    visitor.click("button", "Complete")
    visitor.see("Nothing waits for a person")
    assert engine.call("GET", f"/v1/instances/{instance}")[1]["variables"] == {"account": 2**53 + 1}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_inbox_keeps_nobody_out(visitor: Visitor, engine: EngineProcess, theme: str) -> None:
    start(engine, "loan", "A-9", {"who": "Ines Duarte"})
    visitor.page.emulate_media(color_scheme=theme)
    for place, text in {"tasks?jobType=officers": "Ines Duarte", "tasks?whose=mine": "Which are yours?"}.items():
        visitor.go(place).see(text)
        assert violations(visitor.page) == [], place
    visitor.page.set_viewport_size({"width": 390, "height": 800})
    visitor.go("tasks?jobType=officers").see("Ines Duarte")
    assert visitor.page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_jobs_timers_and_settings_are_shown_where_they_stand(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, linear(1, definition_id="slow", job_type="slow"))
    instance = start(engine, "slow", "T-1")
    visitor.go("jobs?state=WAITING").see("Which queue?")
    visitor.page.get_by_label("Job type", exact=True).fill("slow")
    visitor.page.keyboard.press("Enter")
    visitor.see_role("link", instance)
    job = take(engine, "slow")
    visitor.click("tab", "In progress")
    visitor.see_role("row", re.compile(f"{instance}.*w-1"))
    visitor.click("button", "End lease…")
    visitor.page.get_by_label("Note, for the audit trail").fill("its host is gone")
    visitor.click("button", "End the lease")
    visitor.page.get_by_role("dialog").wait_for(state="detached", timeout=TIMEOUT_MS)
    assert take(engine, "slow")["attempt"] == job["attempt"] + 1
    start(engine, "loan", "T-2", {"who": "Piotr"})
    visitor.go("timers?kind=boundary").see("interrupts, goes to end")
    visitor.go("settings").see("idempotency_retention_hours")
    visitor.page.get_by_label("Search settings").fill("rest_port")
    visitor.page.get_by_text("idempotency_retention_hours").wait_for(state="detached", timeout=TIMEOUT_MS)
    visitor.see("rest_port")
    for place in ("jobs?state=LOCKED", "timers", "settings"):
        visitor.go(place).page.get_by_role("heading", level=1).wait_for(timeout=TIMEOUT_MS)
        assert violations(visitor.page) == [], place


def test_a_definitions_versions_are_compared_beside_each_other(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, linear(2, definition_id="grown", job_type="grown"))
    start(engine, "grown", "G-1")
    upload(engine, linear(3, definition_id="grown", job_type="grown"))
    visitor.go("definitions/grown?version=1").see("1 instance is open")
    visitor.see_role("button", re.compile("task-1, 1 open"))
    visitor.click("tab", "Versions")
    visitor.click("button", "v2")
    visitor.click("tab", "Differences")
    visitor.see_role("button", re.compile("task-3, added"))
    visitor.see_role("button", re.compile("task-2, changed: nextStep"))
    visitor.see("+ nextStep task-3")
    assert visitor.page.url.endswith("definitions/grown?version=2&tab=differences")
    assert violations(visitor.page) == []


BACK_AT_THE_TAB = "() => { window.back ??= setInterval(() => dispatchEvent(new Event('visibilitychange')), 100); }"
"""What it shows is read again then."""


def test_what_others_write_while_somebody_edits_stays(visitor: Visitor, engine: EngineProcess) -> None:
    """And what is typed, while the engine is away."""
    upload(engine, linear(1, definition_id="edited", job_type="edited"))
    instance = start(engine, "edited", "E-3", {"mine": 1, "theirs": 1})
    fail(engine, instance, "edited", "no")
    page, read = visitor.page, f"**/v1/instances/{instance}"
    visitor.go(f"instances/{instance}").click("button", "Edit variables…")
    written = page.get_by_label("Variables, as a JSON object")
    written.fill('{"mine": 2, "theirs": 1}')
    page.route(read, lambda route: route.abort())
    for _ in range(3):  # it is asked so often
        with page.expect_event("requestfailed", lambda one: one.url.endswith(instance), timeout=TIMEOUT_MS):
            page.evaluate(BACK_AT_THE_TAB)
    page.unroute(read)
    assert engine.call("POST", f"/v1/instances/{instance}/variables", {"set": {"theirs": 2}})[0] == 200
    with page.expect_response(read, timeout=TIMEOUT_MS) as answer:
        page.evaluate(BACK_AT_THE_TAB)
    answer.value.finished()
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.evaluate("() => clearInterval(window.back)")
    assert page.locator(WRITTEN).input_value() == '{"mine": 2, "theirs": 1}'
    visitor.click("button", "Save", exact=True)
    visitor.see("The variables are saved.")
    assert engine.call("GET", f"/v1/instances/{instance}")[1]["variables"] == {"mine": 2, "theirs": 2}
    visitor.complaints.clear()  # of the requests that came to nothing


def test_what_is_typed_is_not_for_the_next_task(visitor: Visitor, engine: EngineProcess) -> None:
    """Also where somebody else has completed it meanwhile."""
    upload(
        engine, definition(step("note", "USER_TASK", jobType="typists", nextStep="end"), end(), definition_id="typed")
    )
    first, second = (start(engine, "typed", key) for key in ("T-8", "T-9"))
    page = visitor.page
    result = page.get_by_label("Result, as a JSON object")
    visitor.go("tasks?jobType=typists").see_role("button", re.compile("T-9"))
    result.fill('{"of": "the first"}')
    assert page.get_by_role("alert").count() == 0
    done = engine.call("POST", f"/v1/instances/{first}/user-tasks/note/complete", {"variables": {}})
    assert done[0] in (200, 204)
    visitor.see("Somebody has completed this task")
    assert result.input_value() == '{"of": "the first"}'
    assert violations(page) == []
    result.focus()
    page.keyboard.press("Control+Enter")
    visitor.click("button", re.compile("T-9"))
    page.get_by_text("Somebody has completed this task").wait_for(state="detached", timeout=TIMEOUT_MS)
    assert result.input_value() == "{}"
    assert engine.call("GET", f"/v1/instances/{second}")[1]["status"] == "WAITING"


def test_keys_held_down_complete_one_task(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, definition(step("ok", "USER_TASK", jobType="holders", nextStep="end"), end(), definition_id="held"))
    for key in ("K-1", "K-2"):
        start(engine, "held", key)
    page, asked = visitor.page, list[str]()
    page.on("request", lambda request: asked.append(request.url))
    visitor.go("tasks?jobType=holders").see_role("button", re.compile("K-2"))
    page.get_by_label("Result, as a JSON object").focus(timeout=TIMEOUT_MS)
    page.keyboard.down("Control")
    page.keyboard.down("Enter")
    page.get_by_label("Task", exact=True).get_by_text("K-2").wait_for(timeout=TIMEOUT_MS)
    page.wait_for_function("() => document.activeElement?.id === 'result'", timeout=TIMEOUT_MS)
    page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    page.keyboard.up("Control")
    visitor.click("button", "Claim")
    page.get_by_role("dialog").wait_for(timeout=TIMEOUT_MS)
    assert len([url for url in asked if url.endswith("/complete")]) == 1
    (left,) = engine.call("GET", "/v1/tasks?jobType=holders")[1]["items"]
    assert left["businessKey"] == "K-2"


def test_a_task_that_can_not_be_given_back_says_why(visitor: Visitor, engine: EngineProcess) -> None:
    start(engine, "free", "C-8")
    visitor.go("tasks?jobType=others").see("C-8")
    visitor.click("button", "Claim")
    visitor.page.get_by_label("Your name").fill("eva")
    visitor.page.get_by_role("dialog").get_by_role("button", name="Claim").click(timeout=TIMEOUT_MS)
    visitor.see("eva has it")
    visitor.page.route("**/release", lambda route: route.abort())
    visitor.click("button", "Give back")
    visitor.page.get_by_role("alert").get_by_text("The engine does not answer.").wait_for(timeout=TIMEOUT_MS)
    visitor.page.unroute("**/release")
    visitor.click("button", "Give back")
    visitor.see_role("button", "Claim")
    visitor.page.get_by_role("alert").wait_for(state="detached", timeout=TIMEOUT_MS)
    visitor.complaints.clear()  # of the request that came to nothing


def test_a_file_is_uploaded_once_its_form_can_be_read(visitor: Visitor, engine: EngineProcess) -> None:
    """And what is known of the version before is asked for again."""
    page = visitor.page

    def choose(body: object) -> None:
        given = {"name": "filed.json", "mimeType": "application/json", "buffer": json.dumps(body).encode()}
        page.locator("input[type=file]").set_input_files(given)

    visitor.go("definitions").see_role("heading", "Definitions")
    choose(linear(1, definition_id="filed", job_type="filed"))
    variables = page.get_by_label("Variables, as a JSON object")
    variables.fill('{"amount": ')
    visitor.click("button", "Upload and start")
    visitor.see("Variables are no JSON")
    assert engine.call("GET", "/v1/definitions/filed")[0] == 404
    variables.fill('{"amount": 9007199254740993}')
    visitor.click("button", "Upload and start")
    visitor.see("waits for a worker")
    (item,) = engine.call("GET", "/v1/instances?definitionId=filed")[1]["items"]
    assert item["variables"] == {"amount": 2**53 + 1}
    visitor.go("modeller/filed").see("from v1")
    visitor.click("link", "Definitions", exact=True)
    choose(linear(2, definition_id="filed", job_type="filed"))
    visitor.click("button", "Upload", exact=True)
    page.wait_for_url("**/definitions/filed", timeout=TIMEOUT_MS)
    page.go_back()
    page.go_back()
    visitor.see("from v2")
