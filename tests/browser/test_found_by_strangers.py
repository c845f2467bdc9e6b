"""What strangers stumbled over in the console (docs/console.md has their table)."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from penstock.testing.definitions import definition, end, linear, step
from tests import postgres
from tests.browser.test_console import TIMEOUT_MS, Visitor, start, upload
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow]

FAILED = 60
"""More than a page of the list has."""
ROW_OF_FILTERS_MAX_PX = 60


@pytest.fixture(scope="module")
def engine(postgres_server: postgres.Server) -> Generator[EngineProcess]:
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
        form = {"schema": {"type": "object", "properties": {"ok": {"type": "boolean", "title": "It is fine"}}}}
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
    page.keyboard.press(".")
    page.keyboard.press("Enter")
    page.wait_for_url("**/modeller/asked*", timeout=TIMEOUT_MS)
    page.wait_for_function(has_focus, arg="#main", timeout=TIMEOUT_MS)
    visitor.go("definitions/asked").see("Open now")
    page.get_by_role("tab", name="Open now").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(has_focus, arg="[role=tab][aria-selected=true]", timeout=TIMEOUT_MS)
    page.get_by_role("tab", name="Versions", selected=True).wait_for(timeout=TIMEOUT_MS)
