"""What strangers stumbled over in the console (docs/console.md has their table)."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest

from penstock.testing.definitions import definition, end, linear, step
from tests import postgres
from tests.browser.test_console import TIMEOUT_MS, Visitor, fail, start, take, upload, violations
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

FAILED = 60
"""More than a page of the list has."""
ROW_OF_FILTERS_MAX_PX = 60
FIELDS = {"ok": {"type": "boolean", "title": "It is fine"}, "amount": {"type": "integer", "title": "Amount"}}


@pytest.fixture(scope="module")
def engine(postgres_server: postgres.PostgresServer) -> Generator[EngineProcess]:
    """With many that failed alike, and two tasks whose form begins with a box."""
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn) as process:
        process.wait_ready()
        upload(process, linear(1, definition_id="mail", job_type="mail"))
        items = [{"definitionId": "mail", "businessKey": f"M-{number}"} for number in range(FAILED)]
        assert process.call("POST", "/v1/instances/batch", {"items": items})[0] == 200
        polled = {"workerId": "w-1", "jobTypes": ["mail"], "maxJobs": 100, "waitSeconds": 20}
        for job in process.call("POST", "/v1/jobs/poll", polled)[1]["jobs"]:
            body = {"workerId": "w-1", "attempt": 1, "errorMessage": "smtp: refused", "retryable": False}
            assert process.call("POST", f"/v1/jobs/{job['id']}/fail", body)[0] in (200, 204)
        form = {"schema": {"type": "object", "properties": FIELDS}}
        ask = step("ask", "USER_TASK", name="Ask somebody", nextStep="end")
        upload(process, definition(ask, end(), definition_id="asked", metadata={"forms": {"ask": form}}))
        for key in ("Q-1", "Q-2"):
            start(process, "asked", key)
        yield process


def test_all_that_failed_alike_are_retried_from_the_overview(visitor: Visitor, engine: EngineProcess) -> None:
    """Also those beyond the first page, with the four clicks that are promised."""
    visitor.go().see(f"{FAILED} instances of mail v1 failed")
    visitor.click("link", f"Show {FAILED}")
    visitor.see(f"{FAILED} match")
    visitor.see_role("button", "Copy link to this view")
    one, other = (visitor.page.get_by_label(name).bounding_box() for name in ("Failed at step", "Started before"))
    assert one is not None
    assert other is not None
    assert other["y"] - one["y"] < ROW_OF_FILTERS_MAX_PX, "filters stand beside each other"
    visitor.click("button", "Select all that match")
    visitor.click("button", "Retry…")
    visitor.click("button", f"Retry {FAILED} instances")
    visitor.see(f"{FAILED} of {FAILED}")
    assert visitor.clicks == 4
    visitor.page.get_by_text("0 match", exact=True).wait_for(timeout=TIMEOUT_MS)
    assert engine.call("GET", "/v1/instances?definitionId=mail&status=FAILED")[1]["items"] == []


def test_letters_and_arrows_lead_on_wherever_the_keys_are(visitor: Visitor) -> None:
    page = visitor.page
    has_focus = "what => document.activeElement?.matches(what)"
    visitor.go().see("Needs attention")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_function(has_focus, arg="input[type=checkbox]", timeout=TIMEOUT_MS)
    page.keyboard.press("j")
    page.wait_for_url("**/tasks?task=*", timeout=TIMEOUT_MS)
    # What is searched takes the place of what was searched before, and what is called so opens.
    for text, place in (("Q-1", "**/instances/*"), ("mail", "**/search?q=mail"), ("asked", "**/definitions/asked")):
        page.keyboard.press("/")
        page.keyboard.type(text)
        page.keyboard.press("Enter")
        page.wait_for_url(place, timeout=TIMEOUT_MS)
    page.wait_for_function(has_focus, arg="#main", timeout=TIMEOUT_MS)
    visitor.see("Open now")
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("Complete the task").wait_for(timeout=TIMEOUT_MS)
    page.keyboard.press("Escape")
    page.keyboard.press(".")
    page.keyboard.press("Enter")
    page.wait_for_url("**/modeller/asked*", timeout=TIMEOUT_MS)
    page.wait_for_function(has_focus, arg="#main", timeout=TIMEOUT_MS)
    visitor.go("definitions/asked").see("Open now")
    page.get_by_role("tab", name="Open now").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(has_focus, arg="[role=tab][aria-selected=true]", timeout=TIMEOUT_MS)
    page.get_by_role("tab", name="Versions", selected=True).wait_for(timeout=TIMEOUT_MS)


def failed(engine: EngineProcess, definition_id: str, key: str) -> str:
    instance = start(engine, definition_id, key)
    fail(engine, instance, definition_id, "no paper")
    return instance


def test_what_a_refresh_takes_away_is_not_acted_on(visitor: Visitor, engine: EngineProcess) -> None:
    """And what was sent to the engine keeps its pane, whatever becomes of its rows."""
    upload(engine, linear(1, definition_id="gone", job_type="gone"))
    first, second, third = (failed(engine, "gone", f"G-{number}") for number in range(3))
    page = visitor.page
    pane = page.get_by_role("region", name="Retry many instances")

    def come_in(key: str, *retried: str) -> str:
        """One that failed comes into the list, and these leave it."""
        for instance in retried:
            assert engine.call("POST", f"/v1/instances/{instance}/retry", {})[0] in (200, 204)
            take(engine, "gone")
        added = failed(engine, "gone", key)
        visitor.click("button", re.compile("newer instance"))
        visitor.see_role("row", re.compile(key))
        return added

    visitor.go("instances?status=FAILED&definitionId=gone").see("G-2")
    visitor.click("checkbox", "All rows shown")
    visitor.see("3 selected")
    come_in("G-3", first)
    visitor.see("2 selected")
    visitor.click("button", "Retry…")
    visitor.see_role("button", "Retry 2 instances")
    sent: list[Any] = []

    def hold(route: Any) -> None:
        sent.append(route)

    page.route("**/v1/instances/bulk", hold)
    visitor.click("button", "Retry 2 instances")
    visitor.see_role("button", "Beginning…")
    come_in("G-4", second, third)
    assert pane.count() == 1
    sent[0].continue_()
    page.get_by_role("status").get_by_text("Retry 2 instances: begun.").wait_for(timeout=TIMEOUT_MS)
    assert (pane.count(), page.get_by_text("selected").count()) == (0, 0)
    assert violations(page) == []
    visitor.click("link", "How far it is")
    visitor.see("had nothing to do")
    items = engine.call("GET", "/v1/instances?status=FAILED&definitionId=gone")[1]["items"]
    assert [one["businessKey"] for one in items] == ["G-4", "G-3"]


@pytest.mark.parametrize("whole", [True, False], ids=["another-filter", "its-rows-gone"])
def test_a_refusal_is_told_whatever_is_listed_by_then(visitor: Visitor, engine: EngineProcess, whole: bool) -> None:
    name = f"refused-{whole}"
    upload(engine, linear(1, definition_id=name, job_type=name))
    failed(engine, name, "R-0")
    page = visitor.page
    pane = page.get_by_role("region", name="Retry many instances")
    visitor.go(f"instances?status=FAILED&definitionId={name}").see("R-0")
    visitor.click("checkbox", "All rows shown")
    if whole:
        visitor.click("button", "Select all that match")
    visitor.click("button", "Retry…")
    held: list[Any] = []
    page.route("**/v1/instances/bulk", lambda route: held.append(route))  # noqa: PLW0108 - Playwright asks for a signature
    visitor.click("button", "Retry 1 instance")
    visitor.see_role("button", "Beginning…")
    visitor.click("button", "Completed", exact=True)
    page.get_by_text("No results").wait_for(timeout=TIMEOUT_MS)
    assert pane.get_by_role("button", name="Beginning…").count() == 1
    held[0].fulfill(status=429, json={"error": "too_many_requests", "reason": "too many bulk operations"})
    reported = page.get_by_role("status").get_by_text("Retry 1 instance: refused. too many bulk operations")
    reported.wait_for(timeout=TIMEOUT_MS)
    assert pane.count() == 0
    assert violations(page) == []
    assert all("429" in text for text in visitor.complaints)  # the browser notes it by itself
    visitor.complaints.clear()


def test_pages_without_a_room_stand_in_one(visitor: Visitor) -> None:
    page = visitor.page
    current = page.get_by_role("navigation", name="Main").locator("[aria-current=page]")
    for place, title, room in (
        ("queues", "Queues with limits", "Jobs"),
        ("failures", "Failures by cause", "Overview"),
        ("bulk", "Bulk operations", "Instances"),
    ):
        visitor.go(place).see_role("heading", title)
        assert current.locator("span").first.inner_text() == room
        crumbs = page.get_by_role("navigation", name="Breadcrumb")
        crumbs.get_by_role("link", name=room).click(timeout=TIMEOUT_MS)
        visitor.see_role("heading", room)


def test_a_task_has_its_form_at_the_instance(visitor: Visitor, engine: EngineProcess) -> None:
    instance = start(engine, "asked", "Q-3")
    visitor.go(f"instances/{instance}")
    visitor.click("button", "Complete task…")
    visitor.page.get_by_label("Amount").fill("twelve")
    visitor.click("button", "Complete", exact=True)
    visitor.see("Not everything is filled in as it is asked for.")
    visitor.see("Not a number")
    assert violations(visitor.page) == []
    visitor.page.get_by_label("It is fine").check(timeout=TIMEOUT_MS)
    visitor.page.get_by_label("Amount").fill("12")
    visitor.click("button", "Complete", exact=True)
    visitor.see("Completed")
    assert engine.call("GET", f"/v1/instances/{instance}")[1]["variables"] == {"ok": True, "amount": 12}


def test_a_refused_retry_leaves_what_was_saved(visitor: Visitor, engine: EngineProcess) -> None:
    """It was told that nothing was changed."""
    upload(engine, linear(1, definition_id="keyed", job_type="keyed"))
    body = {"definitionId": "keyed", "instanceKey": "K-1"}
    instance = engine.call("POST", "/v1/instances", body)[1]["id"]
    fail(engine, instance, "keyed", "no")
    other = engine.call("POST", "/v1/instances", body)[1]["id"]
    visitor.go(f"instances/{instance}").click("button", "Edit variables…")
    visitor.page.get_by_label("Variables, as a JSON object").fill('{"amount": 3}')
    visitor.click("button", "Save and retry")
    visitor.see(f"The variables are saved, but it was not retried: instance '{other}' has the same instance key")
    visitor.click("button", "Save", exact=True)
    visitor.see("The variables are saved.")
    assert visitor.page.get_by_text("Nothing was changed.").count() == 0
    assert engine.call("GET", f"/v1/instances/{instance}")[1]["variables"] == {"amount": 3}
    visitor.complaints.clear()  # of the retry that was refused
