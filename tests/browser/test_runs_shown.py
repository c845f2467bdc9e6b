"""A run of a workflow written as code at the console: its branches, what it waits for, its journal."""

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
    postgres_server: postgres.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert violations(visitor.page) == []
    (run,) = engine.call("GET", "/v1/instances?businessKey=A-1")[1]["items"]
    for name, payload in (("approval", {"by": "ann", "granted": True}), ("payment", {"card": "visa"})):
        message = {"name": name, "payload": payload}
        assert engine.call("POST", f"/v1/instances/{run['id']}/messages", message)[0] == 204
    visitor.see("Completed")
    visitor.see("Those that are marked were there")
    visitor.see_role("row", re.compile("done replayed reserve"))
