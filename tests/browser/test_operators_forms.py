"""An operator's lists and forms at the console: sorted and filtered lists, variables in an editor, migrations with
timers; schedules, queues, batches, messages and the audit page, made and changed by clicks."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from examples import durable_order
from examples.durable_order import Line, Order, World, order
from penstock.durable import App
from penstock.testing.definitions import definition, end, linear, step
from tests import postgres
from tests.browser.test_console import TIMEOUT_MS, Visitor, fail, start, upload, violations
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]
WRITTEN = "dialog input[name=variables]"


def listed(visitor: Visitor) -> list[str]:
    """The business keys of the rows that are shown."""
    return [text.strip() for text in visitor.page.locator("tbody tr td:nth-child(4)").all_inner_texts()]


def shows(visitor: Visitor, keys: list[str]) -> None:
    wait_until(lambda: listed(visitor) == keys)


def form(page: Any) -> Any:
    """The dialog that is open."""
    return page.get_by_role("dialog")


def confirm(visitor: Visitor, verb: str) -> None:
    dialog = visitor.page.get_by_role("dialog")
    dialog.get_by_role("button", name=verb, exact=True).click(timeout=TIMEOUT_MS)
    dialog.wait_for(state="detached", timeout=TIMEOUT_MS)


def test_a_list_is_sorted_filtered_by_step_and_variable_and_copied_from(
    visitor: Visitor, engine: EngineProcess
) -> None:
    loan = definition(
        step("check", "USER_TASK", jobType="people", nextStep="pay"),
        step("pay", "SERVICE_TASK", jobType="pay", nextStep="end"),
        end(), definition_id="loan", searchAttributes={"amount": "NUMBER"},
    )  # fmt: skip
    upload(engine, loan)
    ids = {key: start(engine, "loan", key, {"amount": n}) for n, key in enumerate(("L-2", "L-3", "L-1"))}
    done = engine.call("POST", f"/v1/instances/{ids['L-3']}/user-tasks/check/complete", {"variables": {}})
    assert done[0] in (200, 204)
    visitor.go("instances?definitionId=loan")
    shows(visitor, ["L-1", "L-3", "L-2"])
    visitor.click("button", "Started")
    shows(visitor, ["L-2", "L-3", "L-1"])
    visitor.see_role("columnheader", "Started")
    assert visitor.page.locator("th[aria-sort=ascending]").inner_text().startswith("Started")
    visitor.click("button", "Business key", exact=True)
    shows(visitor, ["L-1", "L-2", "L-3"])
    visitor.see("only those that have one")
    assert "order=businessKey" in visitor.page.url
    visitor.page.get_by_text("Columns", exact=True).click(timeout=TIMEOUT_MS)
    visitor.page.get_by_label("Changed", exact=True).check(timeout=TIMEOUT_MS)
    visitor.click("button", "Changed", exact=True)
    shows(visitor, ["L-3", "L-1", "L-2"])
    visitor.page.get_by_label("Ended", exact=True).check(timeout=TIMEOUT_MS)
    status, _ = engine.call("POST", f"/v1/instances/{ids['L-2']}/cancel", {})
    assert status == 200
    visitor.click("button", "Ended", exact=True)
    shows(visitor, ["L-2"])
    visitor.see("only those that have ended")
    visitor.click("button", "Business key", exact=True)
    visitor.page.get_by_text("More filters").click(timeout=TIMEOUT_MS)
    visitor.page.get_by_label("Stands on step").fill("check")
    visitor.click("button", "Apply")
    shows(visitor, ["L-1"])
    visitor.page.get_by_label("Stands on step").fill("")
    visitor.page.get_by_label("Variable that is a search attribute").fill("amount.from = 1")
    visitor.page.get_by_label("Variable that is a search attribute").press("Enter")
    visitor.see("order: businessKey can only be combined with")
    visitor.go("instances?definitionId=loan&attr.amount.from=1")
    shows(visitor, ["L-1", "L-3"])
    assert visitor.page.get_by_label("Variable that is a search attribute").input_value() == "amount.from=1"
    visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.click("button", f"Copy {ids['L-3']}")
    visitor.see_role("button", f"Copied: {ids['L-3']}")
    assert visitor.page.evaluate("() => navigator.clipboard.readText()") == ids["L-3"]
    assert visitor.page.url.endswith("attr.amount.from=1")  # the row did not open
    for key, title in (("c", "Cancel many instances"), ("m", "Skip a step of many instances")):
        visitor.go("instances?definitionId=loan").see("newest first")
        for press in ("j", "x", "b", key):
            visitor.page.keyboard.press(press)
        visitor.page.get_by_role("region", name=title).wait_for(timeout=TIMEOUT_MS)
    visitor.click("button", "To another version")
    visitor.page.get_by_label("To version", exact=True).wait_for(timeout=TIMEOUT_MS)  # picked, as all are of one
    assert visitor.page.get_by_label("To version", exact=True).evaluate("field => field.tagName") == "SELECT"
    assert violations(visitor.page) == []
    visitor.complaints.clear()  # of the list that was refused


def test_variables_have_an_editor_that_says_what_is_amiss_and_what_changes(
    visitor: Visitor, engine: EngineProcess
) -> None:
    upload(engine, linear(1, definition_id="edit", job_type="edit"))
    instance = start(engine, "edit", "V-1", {"amount": "25 EUR", "keep": [1, 2]})
    fail(engine, instance, "edit", "no number")
    page = visitor.page
    visitor.go(f"instances/{instance}").click("button", "Edit variables…")
    page.locator("dialog .cm-editor").wait_for(timeout=TIMEOUT_MS)
    written = page.get_by_label("Variables, as a JSON object")
    written.fill('{\n  "amount": 25,\n  "keep": [1, 2\n}')
    visitor.see("Line 4, column 1:")
    assert page.get_by_role("button", name="Format").is_disabled()
    marked = page.locator("dialog .cm-lintRange-error, dialog .cm-lintPoint-error")
    marked.first.wait_for(state="attached", timeout=TIMEOUT_MS)  # the editor hears of it once the line is drawn
    assert marked.count() == 1
    written.fill('{"amount":25,"keep":[1,2],"new":true}')
    visitor.see("Valid JSON")
    visitor.click("button", "Format")
    assert json.loads(page.locator(WRITTEN).input_value()) == {"amount": 25, "keep": [1, 2], "new": True}
    assert page.locator(WRITTEN).input_value().count("\n") > 4
    changes = page.get_by_role("status", name="What changes")
    assert changes.locator("del").all_inner_texts() == ['- amount: "25 EUR"\n']
    assert changes.locator("ins").all_inner_texts() == ["+ amount: 25\n", "+ new: true\n"]
    written.press("Control+z")
    wait_until(lambda: page.locator(WRITTEN).input_value() == '{"amount":25,"keep":[1,2],"new":true}')
    assert violations(page) == []
    written.press("Tab")
    assert page.evaluate("() => document.activeElement.closest('.cm-editor')") is None
    confirm(visitor, "Save")
    found = engine.call("GET", f"/v1/instances/{instance}")[1]["variables"]
    assert found == {"amount": 25, "keep": [1, 2], "new": True}
    visitor.go("audit?kind=VARIABLES_EDITED").see("amount=25, new=true")
    visitor.see('before: amount="25 EUR"')


def remind(after: str) -> dict[str, Any]:
    waits = step("ask", "USER_TASK", jobType="people", nextStep="end", boundaryEvents=[
        {"type": "TIMER", "duration": after, "interrupting": False, "targetStepId": "late"}])  # fmt: skip
    late = step("late", "SERVICE_TASK", jobType="late", nextStep="end")
    return definition(waits, late, end(), definition_id="remind")


def test_a_migration_asks_what_becomes_of_timers_with_their_numbers(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, remind("PT1H"))
    instance = start(engine, "remind", "R-1")
    upload(engine, remind("PT0.001S"))
    page = visitor.page
    visitor.go(f"instances/{instance}").click("button", "Repair…")
    visitor.click("button", "To another version")
    visitor.see("1 is due at once")
    visitor.see("none is due at once")
    assert page.get_by_role("radio", name=re.compile("FROM_ENTRY")).is_checked()
    page.get_by_role("radio", name=re.compile("KEEP_DEADLINE")).check()
    assert violations(page) == []
    page.get_by_role("dialog").get_by_role("button", name="Migrate", exact=True).click(timeout=TIMEOUT_MS)
    page.get_by_role("dialog").wait_for(state="detached", timeout=TIMEOUT_MS)
    assert engine.call("GET", f"/v1/instances/{instance}")[1]["definitionVersion"] == 2
    (timer,) = engine.call("GET", f"/v1/instances/{instance}/state")[1]["timers"]
    began = engine.call("GET", f"/v1/instances/{instance}")[1]["startedAt"]
    assert timer["fireAt"][:10] >= began[:10]
    assert engine.call("GET", f"/v1/instances/{instance}/history")[1]["items"][0]["status"] == "RUNNING"
    for number in range(2):
        start(engine, "remind", f"R-{number}")
    visitor.go("instances?definitionId=remind&status=WAITING").click("button", "Repair all…")
    visitor.click("button", "To another version")
    page.get_by_role("radio", name=re.compile("FROM_NOW")).check()
    visitor.see("none is due at once")


def test_a_schedule_is_made_and_changed(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, linear(1, definition_id="nightly", job_type="nightly"))
    page = visitor.page
    visitor.go("schedules").click("button", "New schedule")
    form(page).get_by_label("Name", exact=True).fill("every-night")
    form(page).get_by_label("Definition", exact=True).fill("nightly")
    form(page).get_by_label("Cron").fill("0 2 * * *")
    form(page).get_by_label("Time zone").fill("Europe/Berlin")
    form(page).get_by_label("Overlap policy").select_option("BUFFER_ONE")
    form(page).get_by_label("Variables, as a JSON object").fill('{"of": 7}')
    assert violations(page) == []
    confirm(visitor, "Make the schedule")
    visitor.see_role("row", re.compile("every-night"))
    made = engine.call("GET", "/v1/schedules/every-night")[1]
    wanted = {"cron": ["0 2 * * *"], "timeZone": "Europe/Berlin", "overlap": "BUFFER_ONE", "variables": {"of": 7}}
    assert {name: made[name] for name in wanted} == wanted
    visitor.click("button", "Change every-night")
    visitor.click("button", "By an interval")
    form(page).get_by_label("Interval", exact=True).fill("PT15")
    visitor.click("button", "Change", exact=True)
    page.get_by_role("alert").wait_for(timeout=TIMEOUT_MS)  # the engine's own reason
    form(page).get_by_label("Interval", exact=True).fill("PT15M")
    confirm(visitor, "Change")
    changed = engine.call("GET", "/v1/schedules/every-night")[1]
    assert (changed["every"], changed["overlap"], changed["variables"]) == ("PT15M", "BUFFER_ONE", {"of": 7})
    assert not changed.get("cron")
    visitor.go("audit?contains=every-night").see_role("row", re.compile("schedule changed"))
    visitor.see("before:")
    assert violations(page) == []
    visitor.complaints.clear()  # of what was refused


def test_a_queue_is_made_and_its_limits_are_changed(visitor: Visitor, engine: EngineProcess) -> None:
    page = visitor.page
    visitor.go("queues").click("button", "New queue")
    form(page).get_by_label("Name", exact=True).fill("crm")
    form(page).get_by_label("Job types").fill("mail, call")
    form(page).get_by_label("Concurrency; empty").fill("3")
    form(page).get_by_label("Jobs per period; empty").fill("10")
    form(page).get_by_label("Period, such as").fill("PT1M")
    assert violations(page) == []
    confirm(visitor, "Make the queue")
    visitor.see_role("row", re.compile("crm"))
    policy = engine.call("GET", "/v1/queues/crm")[1]["policy"]
    assert sorted(policy["jobTypes"]) == ["call", "mail"]
    assert (policy["concurrency"], policy["rate"]["limit"], policy["rate"]["period"]) == (3, 10, "PT1M")
    visitor.click("button", "Change crm")
    form(page).get_by_label("Concurrency; empty").fill("5")
    form(page).get_by_label("Jobs per period; empty").fill("")
    confirm(visitor, "Change")
    policy = engine.call("GET", "/v1/queues/crm")[1]["policy"]
    assert policy["concurrency"] == 5
    assert "rate" not in policy
    visitor.go("audit?kind=QUEUE_CHANGED").see_role("row", re.compile('before:.*"concurrency": ?3'))


def test_a_batch_is_started_and_cancelled(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, linear(1, definition_id="many", job_type="many"))
    page = visitor.page
    visitor.go("batches").click("button", re.compile("Start a batch|New batch"))
    items = form(page).get_by_label("Starts, a JSON object on each line")
    items.fill('{"definitionId": "many"}\n{"definitionId"')
    visitor.click("button", "Start", exact=True)
    visitor.see("Line 2 is no JSON")
    items.fill("\n".join(json.dumps({"definitionId": "many", "businessKey": f"B-{n}"}) for n in range(3)))
    form(page).get_by_label("Note, shown with the batch").fill("of the morning")
    assert violations(page) == []
    confirm(visitor, "Start")
    visitor.see("of the morning")
    wait_until(lambda: engine.call("GET", "/v1/instances?definitionId=many")[1]["total"] == 3)
    visitor.click("button", re.compile("^Cancel batch"))
    form(page).get_by_label("Why, shown with the batch").fill("not today")
    confirm(visitor, "Cancel the batch")
    wait_until(lambda: engine.call("GET", "/v1/instances?definitionId=many&status=CANCELLED")[1]["total"] == 3)


@pytest.fixture
def shop(
    postgres_server: postgres.PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[EngineProcess]:
    """With a run that waits for an approval."""
    monkeypatch.setattr(durable_order, "world", World(tmp_path / "world.sqlite3"))
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn) as process:
        process.wait_ready()
        with App(order, at=dsn).in_thread() as app:
            app.start(order, Order("A-1", [Line("desk", 1, Decimal(900))]), id="A-1")
            yield process


def test_a_run_is_sent_the_message_that_it_waits_for(page: Any, shop: EngineProcess) -> None:
    visitor = Visitor(page, shop)
    (run,) = shop.call("GET", "/v1/instances?businessKey=A-1")[1]["items"]
    visitor.go(f"instances/{run['id']}").click("button", "Send a message…")
    form(page).get_by_label("Name", exact=True).fill("approval")
    form(page).get_by_label("Payload, as JSON").fill('{"by": "ann", "granted": ')
    visitor.click("button", "Send", exact=True)
    page.get_by_role("alert").wait_for(timeout=TIMEOUT_MS)
    form(page).get_by_label("Payload, as JSON").fill('{"by": "ann", "granted": true}')
    assert violations(page) == []
    confirm(visitor, "Send")
    message = {"name": "payment", "payload": {"card": "visa"}}
    assert shop.call("POST", f"/v1/instances/{run['id']}/messages", message)[0] == 204
    visitor.see("Completed")
