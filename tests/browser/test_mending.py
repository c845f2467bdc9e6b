"""Instances that stand where they should not are repaired at the console: one, and all that match a filter."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.testing.definitions import definition, end, linear, service, step
from tests.browser.test_console import TIMEOUT_MS, Visitor, fail, start, take, upload, violations
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]


def shop(second: str) -> dict[str, Any]:
    steps = [service("pay", second, job_type="pay"), service(second, "end", job_type="ship"), end()]
    return definition(*steps, definition_id="shop")


def asking(what: str) -> dict[str, Any]:
    return definition(step(what, "USER_TASK", jobType="people", nextStep="end"), end(), definition_id="many")


def repair_by_hand(visitor: Visitor, way: str, verb: str, note: str) -> None:
    """The dialog's last steps; it closes when the engine has done it."""
    visitor.click("button", way, exact=True)
    visitor.page.get_by_label("Note, for the audit trail").fill(note)
    visitor.click("button", verb, exact=True)
    visitor.page.get_by_role("dialog").wait_for(state="detached", timeout=TIMEOUT_MS)


def test_one_is_skipped_retried_moved_and_migrated(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, shop("ship"))
    upload(engine, shop("send"))
    instance = start(engine, "shop", "S-1", {"amount": 3})
    page = visitor.page
    # the latest version is where it began; it goes back to the first one
    visitor.go(f"instances/{instance}").click("button", "Repair…")
    assert page.get_by_label("Step", exact=True).locator("option").all_inner_texts() == ["pay, waits for a worker"]
    assert violations(page) == []
    page.get_by_label("Variables, as a JSON object").fill('{"paid": true}')
    repair_by_hand(visitor, "Skip a step", "Skip the step", "the bank did it")
    visitor.see("send waits for a worker")
    fail(engine, instance, "ship", "no van")
    visitor.see("send failed (not retryable): no van")
    visitor.click("button", "Retry")
    page.get_by_label("Go on at").select_option("pay")
    page.get_by_label("Note, for the audit trail").fill("once more from the bank")
    page.get_by_role("dialog").get_by_role("button", name="Retry").click(timeout=TIMEOUT_MS)
    visitor.see("pay waits for a worker")
    visitor.click("button", "Repair…")
    visitor.click("button", "Move it", exact=True)
    assert (
        page.get_by_label("To", exact=True).input_value() == page.get_by_label("Step", exact=True).input_value() == ""
    )
    page.get_by_label("Step", exact=True).select_option(label="pay, waits for a worker")
    page.get_by_label("To", exact=True).select_option("send")
    page.get_by_label("Note, for the audit trail").fill("paid already")
    page.get_by_role("dialog").get_by_role("button", name="Move it").last.click(timeout=TIMEOUT_MS)
    visitor.see("send waits for a worker")
    visitor.click("button", "Repair…")
    visitor.click("button", "To another version")
    visitor.see("It can't go on in version 1:")
    assert page.get_by_role("button", name="Migrate", exact=True).is_disabled()
    page.get_by_label("send becomes").select_option("ship")
    visitor.see("It can go on in version 1.")
    assert violations(page) == []
    repair_by_hand(visitor, "To another version", "Migrate", "the van is back")
    visitor.see("ship waits for a worker")
    found = engine.call("GET", f"/v1/instances/{instance}")[1]
    assert (found["definitionVersion"], found["currentStepIds"]) == (1, ["ship"])
    assert found["variables"] == {"amount": 3, "paid": True}
    audit = engine.call("GET", f"/v1/instances/{instance}/audit")[1]["items"]
    notes = ["the bank did it", "once more from the bank", "paid already", "the van is back"]
    said = [(one["kind"], note) for one in audit for note in notes if note in one.get("detail", "")]
    kinds = [kind for kind, _ in said if not kind.startswith("STEP_")]
    assert kinds == ["SKIPPED", "RETRIED", "MOVED", "MIGRATED"]


def test_what_failed_follows_a_retry_from_outside(visitor: Visitor, engine: EngineProcess) -> None:
    """More rows than are read at once, and a page."""
    upload(engine, linear(1, definition_id="again", job_type="again"))
    started = [start(engine, "again", "R-1") for _ in range(25)]
    for _ in started:
        job = take(engine, "again")
        body = {"workerId": "w-1", "attempt": job["attempt"], "errorMessage": "no van", "retryable": False}
        assert engine.call("POST", f"/v1/jobs/{job['id']}/fail", body)[0] in (200, 204)
    page = visitor.page
    rows = page.locator("tbody tr")
    with page.expect_response(
        lambda answer: "/v1/watch" in answer.url and started[0] in answer.url, timeout=TIMEOUT_MS
    ):
        visitor.go("instances?definitionId=again").see("no van")
    assert rows.filter(has_text="Failed").count() == 25
    instance = page.context.new_page()
    instance.goto(f"{visitor.home}instances/{started[0]}")
    retry = instance.get_by_role("button", name="Retry")
    retry.wait_for(timeout=TIMEOUT_MS)
    assert engine.call("POST", "/v1/instances/bulk", {"action": "retry", "ids": started})[0] == 202
    instance.get_by_text("waits for a worker").first.wait_for(timeout=TIMEOUT_MS)
    assert retry.count() == 0
    rows.filter(has_text="Failed").first.wait_for(state="detached", timeout=TIMEOUT_MS)
    assert rows.filter(has_text="task-1, in the queue").count() == 25
    page.get_by_role("cell", name="R-1").last.click(timeout=TIMEOUT_MS)
    visitor.see("waits for a worker")
    assert page.url == f"{visitor.home}instances/{started[0]}"


def test_all_that_match_are_migrated_changed_and_skipped(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, asking("pay"))
    started = [start(engine, "many", f"M-{number}", {"old": number}) for number in range(3)]
    upload(engine, asking("charge"))

    def standing() -> list[tuple[str, list[str], int]]:
        found = [engine.call("GET", f"/v1/instances/{id}")[1] for id in started]
        return [(one["status"], one["currentStepIds"], one["definitionVersion"]) for one in found]

    def variables() -> list[object]:
        return [engine.call("GET", f"/v1/instances/{id}")[1]["variables"] for id in started]

    def choose() -> None:
        visitor.go("instances?definitionId=many&status=WAITING").see("newest first")
        visitor.click("checkbox", "All rows shown")
        visitor.click("button", "Select all that match")
        visitor.click("button", "Repair…")

    choose()
    visitor.click("button", "To another version")
    visitor.see("3 of 3 that were looked at can't be migrated")
    visitor.page.get_by_label("pay becomes").select_option("charge")
    visitor.page.get_by_label("Note for the audit trail").fill("the shop has one step now")
    visitor.see("Of 3 that were looked at all can be migrated.")
    assert violations(visitor.page) == []
    visitor.click("button", "Migrate 3 instances")
    wait_until(lambda: standing() == [("WAITING", ["charge"], 2)] * 3)
    choose()
    visitor.click("button", "Change variables", exact=True)
    visitor.page.get_by_label("Variables to set, as a JSON object").fill('{"rate": 2}')
    visitor.page.get_by_label("Variables to take out").fill("old")
    visitor.click("button", "Change variables of 3 instances")
    wait_until(lambda: variables() == [{"rate": 2}] * 3)
    choose()
    visitor.page.get_by_label("Step that counts as done").fill("charge")
    visitor.click("button", "Skip a step of 3 instances")
    wait_until(lambda: [one[0] for one in standing()] == ["COMPLETED"] * 3)
    visitor.go("bulk").page.get_by_role("link", name=re.compile("^Migrate")).click(timeout=TIMEOUT_MS)
    visitor.see('to version 2, {"pay":"charge"}')
    visitor.see("the shop has one step now")
