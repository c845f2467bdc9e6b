"""A run of a durable workflow at the console: its branches, what it waits for, its journal."""

from __future__ import annotations

import re
from collections.abc import Generator
from decimal import Decimal
from pathlib import Path

import pytest

from examples import durable_order
from examples.durable_order import Line, Order, World, order
from penstock.durable import App
from tests import postgres
from tests.browser.test_console import Visitor, violations
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]


@pytest.fixture
def engine(
    postgres_server: postgres.PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[EngineProcess]:
    monkeypatch.setattr(durable_order, "world", World(tmp_path / "world.sqlite3"))
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn) as process:
        process.wait_ready()
        with App(order, at=dsn).in_thread() as shop:
            shop.start(order, Order("A-1", [Line("desk", 1, Decimal(900))]), id="A-1")
            yield process


def test_a_runs_branches_and_journal_are_shown(visitor: Visitor, engine: EngineProcess) -> None:
    visitor.go("instances?businessKey=A-1").see_role("row", "A-1")
    visitor.page.keyboard.press("j")
    visitor.page.keyboard.press("Enter")
    branches = visitor.page.get_by_role("region", name="Branches")
    branches.get_by_text("reserve").first.wait_for(timeout=40_000)
    branches.get_by_text("Custom status").wait_for(timeout=40_000)
    visitor.click("tab", "Journal")
    visitor.see("ask_for_approval")
    visitor.see("run was parked by its worker until")
    visitor.see("Nobody has the run now")
    name = visitor.page.get_by_role("tabpanel").get_by_role("cell", name="ask_for_approval", exact=True)
    assert name.evaluate("cell => cell.scrollWidth <= cell.clientWidth"), "the name of an operation is cut"
    assert violations(visitor.page) == []
    (run,) = engine.call("GET", "/v1/instances?businessKey=A-1")[1]["items"]
    for name, payload in (("approval", {"by": "ann", "granted": True}), ("payment", {"card": "visa"})):
        message = {"name": name, "payload": payload}
        assert engine.call("POST", f"/v1/instances/{run['id']}/messages", message)[0] == 204
    visitor.see("Completed")
    visitor.see("Those that are marked were there")
    visitor.see_role("row", re.compile("done replayed reserve"))


def test_a_journal_is_stepped_through_with_the_keys_of_a_debugger(visitor: Visitor, engine: EngineProcess) -> None:
    (run,) = engine.call("GET", "/v1/instances?businessKey=A-1")[1]["items"]
    visitor.go(f"instances/{run['id']}?tab=journal").see("Nobody has the run now")
    page = visitor.page
    page.get_by_text("Waits for message 'approval'").wait_for(timeout=40_000)
    visitor.click("button", "Step through")
    steps = page.get_by_role("region", name="Step through")
    steps.get_by_text("Record 1 of 2: The step gave a value – reserve /0").wait_for(timeout=40_000)
    main = steps.get_by_role("region", name="Branches then").get_by_role("row").nth(1)
    main.get_by_text("reserve (/0)").wait_for(timeout=40_000)
    assert "ask_for_approval" in main.inner_text()
    steps.get_by_text("None yet.").wait_for(timeout=40_000)
    assert violations(page) == []
    page.keyboard.press("n")
    steps.get_by_text("Record 2 of 2: The step gave a value – ask_for_approval").wait_for(timeout=40_000)
    main.get_by_text("in /2, with its branches").wait_for(timeout=40_000)
    approval = steps.get_by_role("region", name="Branches then").get_by_role("row", name="approval")
    approval.get_by_text(
        re.compile(r"waits for receive approval /2\S+, at durable_order.py:\d+, which is open now")
    ).wait_for(timeout=40_000)
    assert "reserve-1" in steps.get_by_role("region", name="Values before").inner_text()
    # The record is in the address; a key at the end of the journal finds what came since.
    second = engine.call("GET", f"/v1/instances/{run['id']}/journal")[1]["items"][1]["pos"]
    page.wait_for_url(re.compile(f"at={second}$"), timeout=40_000)
    address = page.url
    message = {"name": "approval", "payload": {"by": "ann", "granted": True}}
    assert engine.call("POST", f"/v1/instances/{run['id']}/messages", message)[0] == 204
    page.get_by_text("Waits for message 'payment'").wait_for(timeout=40_000)
    page.keyboard.press("F10")
    steps.get_by_text(re.compile(r"Record 3 of \d: A message came – approval")).wait_for(timeout=40_000)
    page.keyboard.press("Shift+F10")
    steps.get_by_text(re.compile(r"Record 2 of \d")).wait_for(timeout=40_000)
    page.keyboard.press("<")
    steps.get_by_text(re.compile(r"Record 1 of \d")).wait_for(timeout=40_000)
    page.keyboard.press("p")
    page.keyboard.press(">")
    steps.get_by_text(re.compile(r"Record 4 of 4: The step gave a value – pack")).wait_for(timeout=40_000)
    page.keyboard.press("p")
    steps.get_by_text(re.compile(r"Record 3 of 4")).wait_for(timeout=40_000)
    page.goto(address)
    steps.get_by_text("Record 2 of 4: The step gave a value – ask_for_approval").wait_for(timeout=40_000)
    visitor.click("button", "Show as a list")
    visitor.see("All that came into the code from outside")


def test_a_message_that_does_not_fit_is_dropped_and_corrected_by_clicks(
    visitor: Visitor, engine: EngineProcess
) -> None:
    visitor.go("instances?businessKey=A-1").see_role("row", "A-1")
    visitor.page.keyboard.press("j")
    visitor.page.keyboard.press("Enter")
    page = visitor.page
    page.get_by_text("Waits for message 'approval'").wait_for(timeout=40_000)

    def send(payload: str) -> None:
        page.get_by_role("button", name="Send a message…").click()
        page.get_by_label("Name").fill("approval")
        page.get_by_label("Payload, as JSON; empty: null").fill(payload)
        page.get_by_role("button", name="Send", exact=True).click()

    send('{"by": 7, "granted": true}')
    visitor.see("by: must be text, not 7")
    assert all("422" in text for text in visitor.complaints)
    visitor.complaints.clear()
    page.keyboard.press("Escape")
    (run,) = engine.call("GET", "/v1/instances?businessKey=A-1")[1]["items"]
    for by in (7, 8):
        message = {"name": "approval", "payload": {"by": by, "granted": True}, "force": True}
        assert engine.call("POST", f"/v1/instances/{run['id']}/messages", message)[0] == 204
    rejected = page.get_by_role("region", name="Rejected messages")
    items = rejected.get_by_role("listitem")
    items.nth(1).get_by_text("Expected `str`, got `int`").wait_for(timeout=40_000)
    assert violations(page) == []
    items.nth(0).get_by_role("button", name="Drop…").click()
    page.get_by_label("Note for the audit trail").fill("sent twice")
    page.get_by_role("button", name="Drop", exact=True).click()
    items.nth(1).wait_for(state="detached", timeout=40_000)
    items.nth(0).get_by_role("button", name="Send it corrected…").click()
    page.get_by_label("Payload, as JSON").fill('{"by": "ann", "granted": true}')
    page.get_by_role("button", name="Send", exact=True).click()
    rejected.wait_for(state="detached", timeout=40_000)
    page.get_by_text("Waits for message 'payment'").wait_for(timeout=40_000)
    reported = engine.call("GET", f"/v1/instances/{run['id']}/audit")[1]["items"]
    assert [(record["kind"], record["detail"]) for record in reported if record["kind"].startswith("MESSAGE")] == [
        ("MESSAGE_DROPPED", "approval: sent twice"), ("MESSAGE_CORRECTED", "approval"),
    ]  # fmt: skip


def test_a_run_is_run_again_from_an_operation_by_clicks(visitor: Visitor, engine: EngineProcess) -> None:
    visitor.go("instances?businessKey=A-1").see_role("row", "A-1")
    visitor.page.keyboard.press("j")
    visitor.page.keyboard.press("Enter")
    page = visitor.page
    page.get_by_text("Waits for message 'approval'").wait_for(timeout=40_000)
    (run,) = engine.call("GET", "/v1/instances?businessKey=A-1")[1]["items"]
    visitor.click("tab", "Journal")
    row = page.get_by_role("row").filter(has_text="reserve")
    row.get_by_role("button", name="Run again from /").click()
    assert violations(page) == []
    page.get_by_label("Id of the new run, which is started once under it").fill("A-1-again")
    page.get_by_role("button", name="Run again", exact=True).click()
    page.get_by_text(f"Forked from {run['id']} at /").wait_for(timeout=40_000)
    page.get_by_text("Waits for message 'approval'").wait_for(timeout=40_000)
    (fork,) = engine.call("GET", "/v1/instances?businessKey=A-1-again")[1]["items"]
    tree = engine.call("GET", f"/v1/instances/{fork['id']}/tree")[1]
    assert tree["forkedFrom"]["id"] == run["id"]
    page.get_by_role("link", name=run["id"]).click()
    page.wait_for_url(f"**/instances/{run['id']}*", timeout=40_000)
