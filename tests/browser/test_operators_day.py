"""An operator acknowledges failures, retries them and follows up, rolls back, and is told that the engine hangs."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from penstock.testing.definitions import linear
from tests.browser.test_console import TIMEOUT_MS, Visitor, start, take, upload, violations
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]
TRACE = "Traceback (most recent call last):\nValueError: no paper"
HUNG_MS = 60_000
"""The page says it after 4.8 s at most (`console/src/watch/leader.test.ts`); a busy machine takes longer."""


def fail_for_good(engine: EngineProcess, job_type: str) -> None:
    job = take(engine, job_type)
    body = {"workerId": "w-1", "attempt": job["attempt"], "errorMessage": "no paper", "stackTrace": TRACE}
    assert engine.call("POST", f"/v1/jobs/{job['id']}/fail", body)[0] in (200, 204)


def test_many_failures_are_acknowledged_retried_and_followed(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, linear(1, definition_id="print", job_type="print"))
    for number in range(2):
        start(engine, "print", f"P-{number}")
        fail_for_good(engine, "print")
    page = visitor.page
    visitor.go().see("2 instances of print v1 failed")
    visitor.click("button", re.compile("^Acknowledge: 2 instances"))
    page.get_by_label("Note for those who look next").fill("paper is ordered")
    assert violations(page) == []
    page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click(timeout=TIMEOUT_MS)
    page.get_by_text("1 acknowledged").click(timeout=TIMEOUT_MS)
    visitor.see("paper is ordered")
    made = engine.call("POST", "/v1/instances/bulk", {"action": "retry", "filter": {"status": "FAILED"}})[1]["id"]
    wait_until(lambda: engine.call("GET", f"/v1/bulk/{made}")[1]["state"] == "DONE")
    fail_for_good(engine, "print")
    visitor.go(f"bulk/{made}").see("1 still running")
    visitor.click("link", "1 failed again")
    page.get_by_role("row", name=re.compile("no paper")).click(timeout=TIMEOUT_MS)
    visitor.click("button", re.compile("task-1, failed"))
    page.get_by_text("Stack trace").first.click(timeout=TIMEOUT_MS)
    visitor.see("ValueError: no paper")
    assert violations(page) == []


def test_the_former_version_is_activated_and_times_have_a_zone(visitor: Visitor, engine: EngineProcess) -> None:
    for name in ("One", "Two"):
        upload(engine, linear(1, definition_id="roll", job_type="roll") | {"name": name})
    visitor.go("definitions/roll?tab=versions")
    visitor.click("button", "Activate version 1")
    visitor.page.get_by_role("dialog").get_by_role("button", name="Activate").click(timeout=TIMEOUT_MS)
    visitor.see_role("button", "Activate version 2")
    assert start(engine, "roll", "R-1")
    visitor.click("button", "UTC", exact=True)
    visitor.go("instances?definitionId=roll")
    shown = visitor.page.locator("tbody time").first
    shown.wait_for(timeout=TIMEOUT_MS)
    assert re.search(r"\d\d:\d\d:\d\d.* UTC\n", shown.get_attribute("title"))


def test_an_engine_that_hangs_is_told_on_a_phone(chromium: Any, engine: EngineProcess) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 800})
    try:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{engine.port}/console/instances")
        page.get_by_role("heading", name="Instances").wait_for(timeout=TIMEOUT_MS)
        engine.process.send_signal(signal.SIGSTOP)
        try:
            page.get_by_text("Engine unreachable").locator("visible=true").first.wait_for(timeout=HUNG_MS)
        finally:
            engine.process.send_signal(signal.SIGCONT)
        page.get_by_text("Engine unreachable").locator("visible=true").first.wait_for(
            state="hidden", timeout=TIMEOUT_MS
        )
    finally:
        context.close()
