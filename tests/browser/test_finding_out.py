"""What people come to the console for to find out, or to send: tasks 6 to 9 of its specification, clicks counted."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

from penstock.testing.definitions import definition, end, linear, service, step
from tests import postgres
from tests.browser.test_console import TIMEOUT_MS, Visitor, complete, start, take, upload, violations
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]


@pytest.fixture(scope="module")
def engine(postgres_server: postgres.PostgresServer) -> Generator[EngineProcess]:
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn) as process:
        process.wait_ready()
        upload(process, linear(2, definition_id="shop", job_type="charge"))
        papers = step("papers", "WAIT", name="Wait for the papers", nextStep="end")
        upload(process, definition(papers, end(), definition_id="papers"))
        early = service("first", job_type="early", next_step="papers")
        upload(process, definition(early, papers, end(), definition_id="early"))
        yield process


def find(visitor: Visitor, key: str) -> None:
    visitor.page.keyboard.press("/")
    visitor.page.keyboard.type(key)
    visitor.page.keyboard.press("Enter")


def test_who_did_what_to_an_order_is_one_click_away(visitor: Visitor, engine: EngineProcess) -> None:
    instance = start(engine, "shop", "A-88213")
    start(engine, "shop", "A-882130")
    complete(engine, instance, "charge")
    assert engine.call("POST", f"/v1/instances/{instance}/cancel", {"reason": "sent twice"})[0] == 200
    visitor.go().see_role("heading", "Overview")
    find(visitor, "A-88213")
    visitor.see_role("button", re.compile("task-1, completed"))
    visitor.click("tab", "Audit")
    visitor.see_role("row", re.compile("completed.*task-1"))
    visitor.see("sent twice")
    assert visitor.clicks == 1
    assert violations(visitor.page) == []


def test_a_slow_attempt_shows_where_its_time_went(visitor: Visitor, engine: EngineProcess) -> None:
    """Nothing is clicked: the row of the step has a part for the queue and one for each attempt."""
    slow = step("task-1", "SERVICE_TASK", jobType="slow", retryCount=3, nextStep="end")
    upload(engine, definition(slow, end(), definition_id="slow"))
    instance = start(engine, "slow", "S-1")
    job = take(engine, "slow")
    body = {
        "workerId": "w-1",
        "attempt": job["attempt"],
        "errorMessage": "slow",
        "retryable": True,
        "retryAfterSeconds": 1,
    }
    assert engine.call("POST", f"/v1/jobs/{job['id']}/fail", body)[0] in (200, 204)
    complete(engine, instance, "slow")
    visitor.go(f"instances/{instance}").see("2 attempts")
    row = visitor.page.get_by_role("button", name=re.compile("task-1.*2 attempts"))
    bars = row.locator(".track i")
    assert [bar.get_attribute("class") for bar in bars.all()] == ["queue", "fail", "backoff", "ok"]
    assert bars.first.get_attribute("title") == "in the queue"
    assert bars.nth(3).get_attribute("title") == "attempt 2 by w-1"
    assert visitor.clicks == 0


def test_whom_a_new_version_touches_is_seen_before_anything_else(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, linear(2, definition_id="grown", job_type="grown"))
    start(engine, "grown", "G-1")
    upload(engine, linear(2, definition_id="grown", job_type="grown-2"))
    visitor.go("definitions/grown")
    visitor.click("tab", "Differences")
    touched = visitor.page.get_by_role("region", name="Which running instances it touches")
    touched.get_by_role("row", name=re.compile(r"v1\s+1\s+1\s+0")).wait_for(timeout=TIMEOUT_MS)
    visitor.see("- jobType grown")
    visitor.see("+ jobType grown-2")
    assert visitor.clicks == 1
    assert violations(visitor.page) == []


def test_a_missing_signal_is_sent_with_three_clicks(visitor: Visitor, engine: EngineProcess) -> None:
    instance = start(engine, "papers", "W-1")
    visitor.go("instances?businessKey=W-1").see_role("row", re.compile("W-1"))
    visitor.click("link", instance)
    visitor.see("Wait for the papers")
    visitor.click("button", "Signal…")
    visitor.page.get_by_label("Variables, as a JSON object").fill('{"papers": 2}')
    visitor.click("button", "Send")
    visitor.see("Completed")
    assert visitor.clicks == 3
    assert engine.call("GET", f"/v1/instances/{instance}")[1]["variables"] == {"papers": 2}


def test_a_signal_that_came_early_is_seen_to_be_kept(visitor: Visitor, engine: EngineProcess) -> None:
    instance = start(engine, "early", "K-1")
    visitor.go(f"instances/{instance}").see("waits for a worker")
    visitor.click("button", "Signal…")
    visitor.page.get_by_label("Variables, as a JSON object").fill('{"papers": 1}')
    visitor.click("button", "Send")
    visitor.see("1 signal is kept for later")
    assert violations(visitor.page) == []


def test_a_key_is_found_by_how_it_begins(visitor: Visitor, engine: EngineProcess) -> None:
    for number in range(3):
        start(engine, "papers", f"PRE-{number}")
    visitor.go().see_role("heading", "Overview")
    find(visitor, "PRE-")
    visitor.see("PRE-0")
    visitor.see("PRE-2")
    visitor.go("instances?businessKeyPrefix=PRE-").see("3 of 3 shown")
    start(engine, "shop", "PRO-1")
    wait_until(lambda: "charge" in {row["jobType"] for row in engine.call("GET", "/v1/job-types")[1]["items"]})
    find(visitor, "charge")
    visitor.click("link", "charge", exact=True)
    visitor.see("Workers of charge")
    assert visitor.page.url.endswith("jobs?jobType=charge&state=WAITING")


LAYOUTS_KEPT_MAX = 200
_LAYOUTS = """new Promise((done, failed) => {
    const asked = indexedDB.open("penstock.layouts", 1);
    asked.onsuccess = () => done(asked.result.transaction("layouts", "readwrite").objectStore("layouts"));
    asked.onerror = () => failed(asked.error);
}).then(store => new Promise(done => {
    %s
    store.count().onsuccess = counted => done(counted.target.result);
}))"""
"""How many the browser keeps."""
MANY_LAYOUTS = _LAYOUTS % (
    "for (let n = 0; n < 250; n++) store.put({key: `old ${n}`, made: {id: 'root'}, at: n, bytes: 10});"
)
FEW_LAYOUTS = f"async most => await {_LAYOUTS % ''} <= most"


def test_a_picture_is_walked_with_the_arrow_keys(visitor: Visitor, engine: EngineProcess) -> None:
    start(engine, "shop", "K-9")
    visitor.go("definitions/shop").see_role("button", re.compile("task-1"))
    page = visitor.page
    page.locator('.node[data-step="task-1"]').focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("step=task-2"))
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("step=task-1"))
    outline = page.get_by_role("list", name="The steps in words")
    assert "to task-2" in outline.inner_text()
    # The next time the picture comes of what the browser keeps, which is bounded; without it, of a worker.
    assert len(page.workers) == 1
    assert page.evaluate(MANY_LAYOUTS) > LAYOUTS_KEPT_MAX
    page.reload()
    page.locator('.node[data-step="task-2"]').wait_for(timeout=TIMEOUT_MS)
    assert page.workers == []
    visitor.go("definitions/papers").page.locator(".node").first.wait_for(timeout=TIMEOUT_MS)
    page.wait_for_function(FEW_LAYOUTS, arg=LAYOUTS_KEPT_MAX, timeout=TIMEOUT_MS)
    page.add_init_script("Object.defineProperty(window, 'indexedDB', {get() { throw new Error('none here'); }})")
    page.reload()
    page.locator(".node").first.wait_for(timeout=TIMEOUT_MS)
    assert len(page.workers) == 1
    # A page whose files are gone leaves the rail where it is, and goes on once it is loaded anew.
    page.route("**/assets/timers-*.js", lambda route: route.abort())
    visitor.click("link", "Timers")
    page.get_by_role("alert").get_by_text("This page could not be shown").wait_for(timeout=TIMEOUT_MS)
    visitor.click("link", "Definitions")
    visitor.see_role("link", "papers")
    page.unroute("**/assets/timers-*.js")
    visitor.complaints.clear()
    visitor.go("timers").see_role("heading", "Timers")
