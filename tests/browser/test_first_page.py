"""One page of the console in a real Chromium, for the quick tier: the other modules are slow."""

from __future__ import annotations

import pytest

from penstock.testing.definitions import linear
from tests.browser.test_console import TIMEOUT_MS, Visitor, start, take, upload, violations
from tests.browser.test_looking_around import engine
from tests.runtime.engine_process import EngineProcess

__all__ = ["engine"]  # pytest finds the fixture here

pytestmark = pytest.mark.browser


def test_a_step_tells_what_it_wrote_and_hides_cards(visitor: Visitor, engine: EngineProcess) -> None:
    upload(engine, linear(2, definition_id="written", job_type="write"))
    instance = start(engine, "written", "W-1", {"card_number": "4711", "amount": 5})
    for variables in ({"amount": 7, "state": "new"}, {"amount": 9}):
        job = take(engine, "write")
        body = {"workerId": "w-1", "attempt": job["attempt"], "variables": variables}
        assert engine.call("POST", f"/v1/jobs/{job['id']}/complete", body)[0] in (200, 204)
    visitor.go(f"instances/{instance}?step=task-2")
    here = visitor.page.get_by_label("Variables here", exact=True)
    here.get_by_text("- amount 7").wait_for(timeout=TIMEOUT_MS)
    assert here.locator("ins").all_inner_texts() == ["+ amount 9\n"]
    visitor.click("button", "all 3")
    variables = visitor.page.get_by_role("tabpanel", name="Variables")
    variables.get_by_text("written here").wait_for(timeout=TIMEOUT_MS)
    assert variables.locator("del").all_inner_texts() == ["7"]
    variables.get_by_text('"***"').wait_for(timeout=TIMEOUT_MS)
    assert "4711" not in visitor.page.content()
    visitor.click("button", "Start again with these variables")
    visitor.see("Not shown here, and not touched unless you write them: card_number.")
    assert "card_number" not in visitor.page.locator("dialog input[name=variables]").input_value()
    assert violations(visitor.page) == []
