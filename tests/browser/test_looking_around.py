"""Pages beside the twelve tasks: failures by cause, what a step wrote, timers, children, keys, what is hidden."""

from __future__ import annotations

import re
from collections.abc import Generator
from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock.testing.definitions import definition, end, linear, service, step, timer
from tests import postgres
from tests.browser.test_console import TIMEOUT_MS, Visitor, fail, start, take, upload, violations
from tests.runtime.engine_process import EngineProcess
from tests.runtime.waiting import wait_until
from tests.shapes import call

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]


@pytest.fixture(scope="module")
def engine(postgres_server: postgres.PostgresServer) -> Generator[EngineProcess]:
    """One that does not show what is called `card` and something."""
    with (
        postgres_server.database(postgres.apply_schema) as dsn,
        EngineProcess(dsn, console_hide_variables="card*") as process,
    ):
        process.wait_ready()
        yield process


def test_failures_of_a_cause_are_retried_where_they_failed(visitor: Visitor, engine: EngineProcess) -> None:
    pay, ship = service("pay", job_type="pay", next_step="ship"), service("ship", job_type="ship", next_step="end")
    shape = definition(pay, ship, end(), definition_id="shop")
    upload(engine, shape)
    keys = [f"F-{number}" for number in range(4)]
    started = [start(engine, "shop", key) for key in keys]
    for number, instance in enumerate(started):
        if number == 3:
            job = take(engine, "pay")
            body = {"workerId": "w-1", "attempt": job["attempt"]}
            assert engine.call("POST", f"/v1/jobs/{job['id']}/complete", body)[0] in (200, 204)
            fail(engine, instance, "ship", "gateway: 501")
        else:
            fail(engine, instance, "pay", f"gateway: 50{number}")
    visitor.go("failures").see_role("row", re.compile("shop v1.*ship"))
    assert violations(visitor.page) == []
    visitor.click("link", "Show 3")
    visitor.see("newest first")
    visitor.click("checkbox", "All rows shown")
    visitor.click("button", "Select all that match")
    visitor.click("button", "Retry…")
    visitor.click("button", "Retry 3 instances")

    def failed() -> list[str]:
        return [
            one["businessKey"]
            for one in engine.call("GET", "/v1/instances?definitionId=shop&status=FAILED")[1]["items"]
        ]

    wait_until(lambda: len(failed()) == 1)
    assert failed() == [keys[3]], "the other step's is left alone"
    visitor.go("bulk")
    visitor.page.get_by_role("link", name=re.compile("retry", re.IGNORECASE)).first.click(timeout=TIMEOUT_MS)
    visitor.see("Done")
    assert re.search(r"/bulk/\d+$", visitor.page.url), "a bulk operation has an address of its own"
    visitor.see("3")


def test_an_instance_shows_its_timers_and_its_children(visitor: Visitor, engine: EngineProcess) -> None:
    late = step("ask", "USER_TASK", jobType="people", nextStep="end", boundaryEvents=[timer("end", "PT2H")])
    upload(engine, definition(late, end(), definition_id="child"))
    upload(engine, definition(call("order", "child"), end(), definition_id="caller"))
    parent = start(engine, "caller", "P-1")

    def children() -> list[str]:
        return list(engine.call("GET", f"/v1/instances/{parent}/state")[1]["children"])

    wait_until(lambda: len(children()) == 1)
    (child,) = children()
    visitor.go(f"instances/{parent}")
    visitor.click("link", child)
    visitor.click("tab", re.compile("^Timers"))
    visitor.see_role("row", re.compile(r"ask boundary event, goes to .* 1 h 59 min"))
    visitor.click("link", parent)
    visitor.see_role("link", child)
    visitor.click("tab", "Calls")
    visitor.page.get_by_role("tabpanel").get_by_role("link", name="child").wait_for(timeout=TIMEOUT_MS)
    assert violations(visitor.page) == []
    visitor.go("timers").see_role("row", re.compile("goes to end.*child v1"))


def test_keys_lead_to_the_actions_and_out_again(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, linear(1, definition_id="keys", job_type="keys"))
    instance = start(engine, "keys", "K-1")
    visitor.go(f"instances/{instance}").see_role("button", "Repair…")  # needs the definition: "Cancel…" comes before it
    visitor.page.keyboard.press(".")
    assert visitor.page.evaluate("() => document.activeElement.textContent") == "Repair…"
    visitor.page.get_by_role("button", name="Cancel…").focus()
    visitor.page.keyboard.press("Enter")
    visitor.see_role("dialog", "Cancel this instance?")
    visitor.page.keyboard.press("Escape")
    visitor.page.get_by_role("dialog").wait_for(state="detached", timeout=TIMEOUT_MS)
    visitor.page.keyboard.press("g")
    visitor.page.keyboard.press("e")
    visitor.see_role("heading", "Engines and workers")
    assert engine.call("GET", f"/v1/instances/{instance}")[1]["status"] == "ACTIVE"
    assert visitor.clicks == 0


def test_the_rail_tells_failures_tasks_engines_and_versions(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, linear(1, definition_id="rail", job_type="rail"))
    upload(engine, definition(step("ask", "USER_TASK", jobType="people", nextStep="end"), end(), definition_id="asks"))
    start(engine, "asks", "R-2")
    fail(engine, start(engine, "rail", "R-1"), "rail", "no rail")
    visitor.go("definitions").see_role("row", re.compile(r"^asks .* 1 1 0 % v1"))
    visitor.see("Open instances were counted")
    # During an upgrade an engine of the version before may answer, which does not tell when it counted.
    reported = {"id": "asks", "open": 7, "startedWithinHour": 1, "failedOfThese": 0}
    visitor.page.route("**/v1/definition-activity*", lambda route: route.fulfill(json={"items": [reported]}))
    visitor.go("definitions").see_role("row", re.compile(r"^asks .* 7 1 0 % v1"))
    visitor.page.unroute("**/v1/definition-activity*")
    visitor.go("settings")
    rail = visitor.page.get_by_role("navigation", name="Main")
    rail.get_by_role("link", name=re.compile(r"^Instances ?[1-9]\d* failed$")).wait_for(timeout=TIMEOUT_MS)
    rail.get_by_role("link", name=re.compile(r"^Tasks ?[1-9]\d* open$")).wait_for(timeout=TIMEOUT_MS)
    rail.get_by_role("link", name=re.compile(r"^Engines ?1$")).wait_for(timeout=TIMEOUT_MS)
    rail.get_by_text(re.compile(r"^penstock \d.*PostgreSQL 18\.\d+ · polling", re.DOTALL)).wait_for(timeout=TIMEOUT_MS)


def test_a_queue_with_limits_is_paused_and_resumed(visitor: Visitor, engine: EngineProcess) -> None:
    rate = {"limit": 10, "period": "PT1M", "burst": 2}
    policy = {"jobTypes": ["crm.read"], "concurrency": 3, "rate": rate, "runs": 7}
    assert engine.call("PUT", "/v1/queues/crm", policy)[0] == 200

    def paused() -> bool:
        return bool(engine.call("GET", "/v1/queues/crm")[1]["policy"].get("paused"))

    visitor.go("queues").see_role("row", re.compile(r"crm Open crm.read 3 any 10 in PT1M \(burst 2\) any 7"))
    visitor.click("button", "crm", exact=True)
    visitor.see("0 running, 0 runs open, 0 waiting")
    assert violations(visitor.page) == []
    visitor.click("button", "Pause crm")
    visitor.click("button", "Pause", exact=True)
    wait_until(paused)
    visitor.click("button", "Resume crm")
    visitor.click("button", "Resume", exact=True)
    wait_until(lambda: not paused())


def test_a_schedule_is_paused_run_now_and_caught_up(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, linear(1, definition_id="report", job_type="report"))
    spec = {"definitionId": "report", "every": "PT1H", "note": "What the bank asks for", "overlap": "ALLOW"}
    assert engine.call("PUT", "/v1/schedules/hourly", spec)[0] == 200

    def shown() -> dict[str, Any]:
        return dict(engine.call("GET", "/v1/schedules/hourly")[1])

    visitor.go("schedules").see_role("row", re.compile("hourly On every PT1H report in .* Nothing yet"))
    visitor.click("button", "hourly", exact=True)
    visitor.see("What the bank asks for")
    visitor.click("button", "Pause hourly")
    visitor.page.get_by_label("Why, shown with the schedule").fill("the bank is away")
    visitor.click("button", "Pause", exact=True)
    visitor.see("Paused: the bank is away")
    assert (shown()["paused"], shown()["pauseNote"]) == (True, "the bank is away")
    visitor.click("button", "Run hourly now")
    visitor.click("button", "Run now", exact=True)
    visitor.page.get_by_role("status").get_by_role("link", name="Started").wait_for(timeout=TIMEOUT_MS)
    visitor.see_role("row", re.compile("hourly Paused .* Started"))
    visitor.click("button", "Resume hourly")
    visitor.click("button", "Resume", exact=True)
    wait_until(lambda: not shown()["paused"])
    visitor.click("button", "Start times of the past…")
    now = datetime.now()  # noqa: DTZ005 - as somebody types it, in the browser's zone
    visitor.page.get_by_label("From, in your time zone").fill((now - timedelta(hours=4)).isoformat(timespec="seconds"))
    visitor.page.get_by_label("Up to").fill((now - timedelta(seconds=2)).isoformat(timespec="seconds"))
    visitor.page.get_by_label("How", exact=True).select_option("ALLOW")
    visitor.click("button", "Start them")
    wait_until(lambda: len([run for run in shown()["runs"] if run["outcome"] == "STARTED"]) >= 5)
    visitor.page.get_by_role("dialog").wait_for(state="detached", timeout=TIMEOUT_MS)
    assert violations(visitor.page) == []
    visitor.page.emulate_media(color_scheme="dark")
    assert violations(visitor.page) == []
