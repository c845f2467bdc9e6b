"""The inbox as a clerk found it: names, tasks of others, what is wrong in a form, what filters hide."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any

import pytest

from penstock.testing.definitions import definition, end, step
from tests import postgres
from tests.browser.test_console import TIMEOUT_MS, Visitor, start, upload, violations
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

FORM = {
    "type": "object",
    "required": ["decision", "amount"],
    "properties": {
        "decision": {"title": "Decision", "enum": ["approve", "decline"]},
        "amount": {"title": "Amount", "type": "integer"},
        **{f"note{number}": {"title": f"Note {number}", "type": "string"} for number in range(9)},
        "seen": {"title": "I have seen it", "type": "boolean"},
    },
}
FOCUS_IN_SIGHT = """what => {
    const at = document.activeElement, field = at.closest(".field")?.getBoundingClientRect();
    const around = document.querySelector("#main").getBoundingClientRect();
    return at.matches(what) && field.top >= around.top && field.bottom <= innerHeight;
}"""
IN_SIGHT = """what => {
    const box = document.querySelector(what).getBoundingClientRect();
    return box.top >= document.querySelector("#main").getBoundingClientRect().top && box.bottom <= innerHeight;
}"""
HAS_FOCUS = "what => document.activeElement?.matches(what)"
PRESSED = """() => [...document.querySelectorAll(".inbox :is(button, input, textarea, a:not(p a))")]
    .map(one => one.closest("label") ?? one)
    .map(one => [one.textContent || one.name || one.id, one.getBoundingClientRect()])
    .map(([name, box]) => [name, Math.min(box.width, box.height), box.height])"""
FINGER_PX = 44
REFUSED = (("check", "refuseds", "sign"), ("sign", "signers", "end"))
"""Two tasks of an instance: of what is completed, for whom, and what follows."""


@pytest.fixture(scope="module")
def engine(postgres_server: postgres.PostgresServer) -> Generator[EngineProcess]:
    """Without authentication. Each test has tasks for somebody else."""
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn) as process:
        process.wait_ready()
        yield process


def ask(engine: EngineProcess, whom: str, *keys: str, form: object = None) -> dict[str, str]:
    """Instances that wait for a person, by business key."""
    body = {"metadata": {"forms": {"check": {"schema": form}}}} if form else {}
    check = step("check", "USER_TASK", name="Check it", jobType=whom, nextStep="end")
    upload(engine, definition(check, end(), definition_id=whom, **body))
    return {key: start(engine, whom, key) for key in keys}


def ask_in_circles(engine: EngineProcess, whom: str, *keys: str) -> dict[str, str]:
    """As `ask`: until somebody is done, the step comes again."""
    check = step("check", "USER_TASK", name="Check it", jobType=whom, nextStep="again")
    again = step("again", "DECISION", conditionalNextSteps={"done": "end", "true": "check"})
    upload(engine, definition(check, again, end(), definition_id=whom))
    return {key: start(engine, whom, key, {"done": False}) for key in keys}


def execution_of(engine: EngineProcess, instance: str) -> str:
    """Of its one open task."""
    (item,) = engine.call("GET", f"/v1/tasks?instanceId={instance}")[1]["items"]
    execution: str = item["executionId"]
    return execution


def claim(engine: EngineProcess, instance: str, by: str) -> None:
    assert engine.call("POST", f"/v1/tasks/{instance}/check/claim", {"by": by})[0] == 200


def complete(engine: EngineProcess, instance: str, by: str) -> None:
    done = engine.call("POST", f"/v1/instances/{instance}/user-tasks/check/complete", {"completedBy": by})
    assert done[0] in (200, 204)


def who_completed(engine: EngineProcess, instance: str) -> list[str | None]:
    records = engine.call("GET", f"/v1/instances/{instance}/audit")[1]["items"]
    return [record.get("actor") for record in records if record["kind"] == "USER_TASK_COMPLETED"]


def in_task(page: Any, text: str) -> None:
    page.get_by_label("Task", exact=True).get_by_text(text).first.wait_for(timeout=TIMEOUT_MS)


def say_who(page: Any, name: str, verb: str) -> None:
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Your name").fill(name)
    dialog.get_by_role("button", name=verb, exact=True).click(timeout=TIMEOUT_MS)
    dialog.wait_for(state="detached", timeout=TIMEOUT_MS)


def test_a_name_that_was_given_outlives_a_reload(visitor: Visitor, engine: EngineProcess) -> None:
    claim(engine, ask(engine, "namers", "M-1")["M-1"], "ada")
    page = visitor.page
    visitor.go("tasks?whose=mine&jobType=namers").see("Which are yours?")
    assert page.get_by_text("is yours").count() == 0
    visitor.click("button", "Say who you are")
    say_who(page, "ada", "Show mine")
    visitor.see_role("button", re.compile("M-1"))
    page.reload()
    visitor.see_role("button", re.compile("M-1"))
    visitor.see("You are ada.")
    assert violations(page) == []
    visitor.click("button", "Somebody else?")
    say_who(page, "bo", "That is me")
    visitor.see("No task is yours for “namers”")


def test_the_next_task_is_one_nobody_else_has(visitor: Visitor, engine: EngineProcess) -> None:
    made = ask(engine, "nexts", "N-1", "N-2", "N-3")
    claim(engine, made["N-2"], "bo")
    page = visitor.page
    visitor.go("tasks?jobType=nexts").see_role("button", re.compile("N-3"))
    for key, then in {"N-1": "The next one is open.", "N-3": "Others have the rest."}.items():
        in_task(page, key)
        visitor.click("button", "Complete")
        said = page.get_by_label("Task", exact=True).get_by_role("status")
        said.get_by_text(f"Completed: Check it ({key}). {then}").wait_for(timeout=TIMEOUT_MS)
    visitor.see("Others have all that is listed")
    assert engine.call("GET", f"/v1/instances/{made['N-2']}")[1]["status"] == "WAITING"


def test_an_answer_that_comes_late_leaves_another_task_alone(visitor: Visitor, engine: EngineProcess) -> None:
    made = ask(engine, "lates", "L-1", "L-2", "L-3")
    page, held = visitor.page, list[Any]()

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/user-tasks/check/complete", hold)
    visitor.go("tasks?jobType=lates").see_role("button", re.compile("L-3"))
    in_task(page, "L-1")
    with page.expect_request("**/user-tasks/check/complete", timeout=TIMEOUT_MS):
        visitor.click("button", "Complete")
    page.get_by_role("button", name=re.compile("L-3")).click(timeout=TIMEOUT_MS)
    in_task(page, "L-3")
    page.get_by_label("Result, as a JSON object").fill('{"of": "L-3"}')
    held[0].continue_()
    visitor.see("Completed: Check it (L-1).")
    in_task(page, "L-3")
    assert page.get_by_label("Result, as a JSON object").input_value() == '{"of": "L-3"}'
    assert engine.call("GET", f"/v1/instances/{made['L-1']}")[1]["status"] == "COMPLETED"


def test_a_task_that_is_read_stays_when_it_ends(visitor: Visitor, engine: EngineProcess) -> None:
    """Also where the same step comes again, which is another task; and how it ended is asked for once."""
    made, page, asked = ask_in_circles(engine, "readers", "S-1", "S-2"), visitor.page, list[str]()
    page.on("request", lambda request: asked.append(request.url))
    visitor.go("tasks?jobType=readers").see_role("button", re.compile("S-2"))
    in_task(page, "S-1")
    complete(engine, made["S-1"], "bo")
    alert = page.get_by_label("Task", exact=True).get_by_role("alert")
    alert.get_by_text("bo has completed this task").wait_for(timeout=TIMEOUT_MS)
    assert "typed" not in alert.inner_text()
    in_task(page, "S-1")
    assert page.get_by_role("button", name="Complete", exact=True).count() == 0
    page.get_by_role("button", name=re.compile("S-1")).wait_for(timeout=TIMEOUT_MS)  # the second time
    visitor.click("button", "Next task")
    in_task(page, "S-2")
    assert alert.count() == 0
    assert [url for url in asked if "/v1/" in url and "/audit" in url] == [
        f"{visitor.home[:-9]}/v1/instances/{made['S-1']}/audit?limit=1000"
    ]


def test_an_address_of_a_task_opens_no_other(visitor: Visitor, engine: EngineProcess) -> None:
    """Of one that has ended, and of one that the filter leaves out; what was typed is there when one comes back."""
    made, page = ask_in_circles(engine, "addressed", "P-1", "P-2"), visitor.page
    first, second = (execution_of(engine, made[key]) for key in ("P-1", "P-2"))
    complete(engine, made["P-1"], "bo")
    visitor.go(f"tasks?jobType=addressed&task={first}").see("bo has completed this task")
    visitor.see_role("button", re.compile("P-1"))
    assert page.get_by_label("Result, as a JSON object").count() == 0
    assert violations(page) == []
    visitor.click("button", "Next task")
    in_task(page, "P-2")
    visitor.go(f"tasks?jobType=nobody&task={second}").see("not among those listed here")
    in_task(page, "P-2")
    page.get_by_label("Result, as a JSON object").fill('{"of": "P-2"}')
    visitor.click("button", "Clear the filter")
    visitor.click("button", re.compile("P-1"))
    in_task(page, "P-1")
    assert page.get_by_label("Result, as a JSON object").input_value() == "{}"
    visitor.click("button", re.compile("P-2"))
    in_task(page, "P-2")
    assert page.get_by_label("Result, as a JSON object").input_value() == '{"of": "P-2"}'


def test_an_instance_asks_as_the_inbox_does(visitor: Visitor, engine: EngineProcess) -> None:
    """Whose the task is, and who completes it; and a late completion is not one of the step's next time."""
    made, page = ask_in_circles(engine, "instances", "I-1")["I-1"], visitor.page
    visitor.go(f"instances/{made}").click("button", "Complete task…")
    page.get_by_label("Variables, as a JSON object").fill('{"done": true}')
    complete(engine, made, "bo")
    visitor.click("button", "Complete", exact=True)
    visitor.see("bo has completed this task. What you have typed was not sent.")
    assert all("404" in text for text in visitor.complaints)
    visitor.complaints.clear()  # of the completion that was refused
    visitor.click("button", "Back")
    claim(engine, made, "bo")
    visitor.click("button", "Complete task…")
    visitor.see("Whoever completes it takes it from them.")
    page.get_by_label("Variables, as a JSON object").fill('{"done": true}')
    visitor.click("button", "Complete", exact=True)
    question = page.get_by_role("dialog", name="bo has this task")
    question.wait_for(timeout=TIMEOUT_MS)
    assert violations(page) == []
    question.get_by_role("button", name="Back").click(timeout=TIMEOUT_MS)
    visitor.see("It was not completed.")
    visitor.click("button", "Complete", exact=True)
    question.get_by_label("Your name").fill("ada")
    question.get_by_role("button", name="Complete it anyway").click(timeout=TIMEOUT_MS)
    page.wait_for_function("() => document.querySelector('dialog') === null", timeout=TIMEOUT_MS)
    assert who_completed(engine, made) == ["bo", "ada"]


def test_what_another_has_is_completed_only_when_confirmed(visitor: Visitor, engine: EngineProcess) -> None:
    made = ask(engine, "owners", "O-1")
    claim(engine, made["O-1"], "bo")
    page = visitor.page
    visitor.go("tasks?jobType=owners").click("button", re.compile("O-1"))
    in_task(page, "has this task.")
    assert violations(page) == []
    page.get_by_label("Result, as a JSON object").fill('{"ok": true}')
    page.keyboard.press("Control+Enter")
    visitor.see_role("dialog", "bo has this task")
    assert violations(page) == []
    visitor.click("button", "Back", exact=True)
    assert engine.call("GET", f"/v1/instances/{made['O-1']}")[1]["status"] == "WAITING"
    for verb in ("Back", "Give it back anyway"):
        in_task(page, "bo has it")
        visitor.click("button", "Give back")
        visitor.see_role("dialog", "bo has this task")
        page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click(timeout=TIMEOUT_MS)
        page.get_by_role("dialog").wait_for(state="detached", timeout=TIMEOUT_MS)
    visitor.see_role("button", "Claim")
    claim(engine, made["O-1"], "bo")
    in_task(page, "bo has it")
    visitor.click("button", "Complete")
    say_who(page, "ada", "Complete it anyway")
    visitor.see("Completed: Check it (O-1).")
    assert who_completed(engine, made["O-1"]) == ["ada"]
    assert engine.call("GET", f"/v1/instances/{made['O-1']}")[1]["variables"] == {"ok": True}


def test_a_task_completed_meanwhile_says_by_whom(visitor: Visitor, engine: EngineProcess) -> None:
    """Wherever the form was scrolled to; what was typed stays, in a form as wide as before."""
    made = ask(engine, "meanwhiles", "B-1", "B-2", form=FORM)
    page = visitor.page
    visitor.go("tasks?jobType=meanwhiles").see_role("button", re.compile("B-2"))
    page.get_by_label("Amount").fill("17")
    form = page.locator(".task form")
    before = form.bounding_box()
    page.get_by_label("I have seen it").focus()
    complete(engine, made["B-1"], "bo")
    alert = page.get_by_label("Task", exact=True).get_by_role("alert")
    alert.get_by_text("bo has completed this task").wait_for(timeout=TIMEOUT_MS)
    page.wait_for_function(IN_SIGHT, arg=".task [role=alert]", timeout=TIMEOUT_MS)
    after = form.bounding_box()
    assert (after["x"], after["width"]) == (before["x"], before["width"])
    assert page.get_by_label("Amount").input_value() == "17"
    assert page.get_by_role("button", name="Complete", exact=True).count() == 0
    assert violations(page) == []
    visitor.click("button", "Next task")
    in_task(page, "B-2")
    alert.wait_for(state="detached", timeout=TIMEOUT_MS)
    assert page.get_by_label("Amount").input_value() == ""


def test_a_refused_completion_is_reported_in_plain_words(visitor: Visitor, engine: EngineProcess) -> None:
    """The list does not know of it yet, and the instance goes on."""
    steps = [step(name, "USER_TASK", jobType=whom, nextStep=then) for name, whom, then in REFUSED]
    upload(engine, definition(*steps, end(), definition_id="refuseds"))
    made = {"R-1": start(engine, "refuseds", "R-1")}
    page, listed = visitor.page, json.dumps(engine.call("GET", "/v1/tasks?jobType=refuseds")[1])
    visitor.go("tasks?jobType=refuseds").see_role("button", re.compile("R-1"))
    page.get_by_label("Result, as a JSON object").fill('{"of": "R-1"}')
    page.route("**/v1/tasks?*", lambda route: route.fulfill(body=listed, content_type="application/json"))
    complete(engine, made["R-1"], "bo")
    visitor.click("button", "Complete")
    page.get_by_role("alert").get_by_text("bo has completed this task").wait_for(timeout=TIMEOUT_MS)
    assert page.get_by_text("is not open").count() == 0
    assert page.get_by_label("Result, as a JSON object").input_value() == '{"of": "R-1"}'
    assert who_completed(engine, made["R-1"]) == ["bo"]
    page.unroute("**/v1/tasks?*")
    visitor.click("button", "Leave it")
    visitor.see("No task is open for “refuseds”")
    assert all("404" in text for text in visitor.complaints)
    visitor.complaints.clear()  # of the completion that was refused


@pytest.mark.parametrize(("width", "height"), [(390, 800), (720, 450)], ids=["phone", "twice as large"])
def test_what_is_wrong_is_seen_after_complete(visitor: Visitor, engine: EngineProcess, width: int, height: int) -> None:
    ask(engine, f"wrongs-{width}", "W-1", form=FORM)
    page = visitor.page
    page.set_viewport_size({"width": width, "height": height})
    visitor.go(f"tasks?jobType=wrongs-{width}").click("button", re.compile("W-1"))
    visitor.see("Amount")
    choices = page.get_by_role("radiogroup", name="Decision")
    assert choices.get_attribute("aria-invalid") == "false"
    visitor.click("button", "Complete")
    page.wait_for_function(FOCUS_IN_SIGHT, arg="[type=radio]", timeout=TIMEOUT_MS)
    assert choices.get_attribute("aria-invalid") == "true"
    page.get_by_role("radio", name="approve").check()
    visitor.click("button", "Complete")
    page.wait_for_function(FOCUS_IN_SIGHT, arg="[aria-invalid=true]", timeout=TIMEOUT_MS)
    page.get_by_label("Amount").fill("1.5")
    page.keyboard.press("Control+Enter")
    visitor.see("A whole number")
    page.wait_for_function(FOCUS_IN_SIGHT, arg="[aria-invalid=true]", timeout=TIMEOUT_MS)
    assert violations(page) == []


def test_a_filter_is_applied_while_it_is_typed(visitor: Visitor, engine: EngineProcess) -> None:
    """And what is typed in the task stays."""
    ask(engine, "typists", "F-1")
    ask(engine, "others", "F-2")
    page = visitor.page
    visitor.go("tasks").see_role("button", re.compile("F-2"))
    visitor.click("button", re.compile("F-1"))
    result = page.get_by_label("Result, as a JSON object")
    result.fill('{"of": "F-1"}')
    page.get_by_label("For whom").fill("others")
    page.get_by_role("button", name=re.compile("F-1")).wait_for(state="detached", timeout=TIMEOUT_MS)
    assert page.url.endswith("tasks?jobType=others")
    assert result.input_value() == '{"of": "F-1"}'
    in_task(page, "not among those listed")
    page.get_by_label("For whom").fill("")
    visitor.see_role("button", re.compile("F-1"))
    assert page.url.endswith("/tasks")
    assert result.input_value() == '{"of": "F-1"}'


def test_a_filter_that_hides_all_tasks_is_cleared(visitor: Visitor, engine: EngineProcess) -> None:
    ask(engine, "hiddens", "H-1")
    page = visitor.page
    visitor.go("tasks?whose=nobody&jobType=hidden").see("No task is free for “hidden”")
    visitor.see("Other tasks wait")
    assert page.get_by_text("Nothing waits for a person").count() == 0
    assert violations(page) == []
    visitor.click("button", "Clear the filter")
    visitor.see_role("button", re.compile("H-1"))
    assert page.get_by_label("For whom").input_value() == ""
    assert page.url.endswith("/tasks")


def test_the_keys_go_on_in_the_form_after_claims(visitor: Visitor, engine: EngineProcess) -> None:
    ask(engine, "claimers", "K-1")
    page = visitor.page
    visitor.go("tasks?jobType=claimers").see("K-1")
    visitor.click("button", "Claim", exact=True)
    say_who(page, "ada", "Claim")
    visitor.see("ada has it")
    page.wait_for_function(HAS_FOCUS, arg="#result", timeout=TIMEOUT_MS)
    visitor.click("button", "Give back")
    page.get_by_role("button", name="Claim", exact=True).wait_for(timeout=TIMEOUT_MS)
    page.wait_for_function(HAS_FOCUS, arg="#result", timeout=TIMEOUT_MS)
    visitor.click("button", "Claim", exact=True)
    visitor.see("ada has it")
    page.wait_for_function(HAS_FOCUS, arg="#result", timeout=TIMEOUT_MS)


def test_a_phone_shows_the_list_or_a_task(chromium: Any, engine: EngineProcess) -> None:
    """Each from its top, with the keys where they are needed, and all that is pressed as large as a finger."""
    ask(engine, "fingers", "T-1", "T-2", form=FORM)
    context = chromium.new_context(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    visitor = Visitor(context.new_page(), engine)
    page = visitor.page
    row, seen = page.get_by_role("button", name=re.compile("T-2")), page.get_by_label("I have seen it")
    visitor.go("tasks?jobType=fingers")
    row.wait_for(timeout=TIMEOUT_MS)
    assert seen.count() == 0
    check_touch_targets(page)
    row.tap()
    seen.wait_for(timeout=TIMEOUT_MS)
    page.wait_for_function(HAS_FOCUS, arg=".work > h2", timeout=TIMEOUT_MS)
    assert row.count() == 0
    assert page.evaluate(IN_SIGHT, ".task > .link")
    check_touch_targets(page)
    page.get_by_label("Amount").fill("17")
    page.get_by_role("button", name="All tasks").tap()
    page.wait_for_function(HAS_FOCUS, arg="[id^=task-]", timeout=TIMEOUT_MS)
    assert row.evaluate("one => one === document.activeElement")
    row.tap()
    assert page.get_by_label("Amount").input_value(timeout=TIMEOUT_MS) == "17"
    page.get_by_role("radio", name="approve").check()
    page.get_by_role("button", name="Complete", exact=True).tap()
    visitor.see("The next one is open.")
    in_task(page, "T-1")
    page.wait_for_function(HAS_FOCUS, arg=".work > h2", timeout=TIMEOUT_MS)
    page.get_by_label("Amount").fill("1")
    page.get_by_role("radio", name="approve").check()
    page.get_by_role("button", name="Complete", exact=True).tap()
    visitor.see("It was the last one here.")
    visitor.see_role("heading", "Tasks")
    assert violations(page) == []
    assert visitor.complaints == []
    context.close()


def check_touch_targets(page: Any) -> None:
    assert [one for one in page.evaluate(PRESSED) if min(one[1:]) < FINGER_PX] == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert violations(page) == []
