"""Two versions, or a version and a draft, beside each other: by mouse, by keys alone, on narrow screens."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from penstock.testing.definitions import definition, end, service, step
from tests.browser.modeller import Modeller
from tests.browser.test_console import TIMEOUT_MS, complete, start, upload, violations
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

PLACES = """name => Object.fromEntries([...document.querySelectorAll(`.twin[aria-label="${name}"] .node`)]
    .map(one => [one.dataset.step, one.getAttribute("transform")]))"""
"""Of the steps of a picture."""
VIEWS = "() => [...document.querySelectorAll('.twin .graph > g')].map(one => one.getAttribute('transform'))"
MARKS = 'name => [...document.querySelectorAll(`.twin[aria-label="${name}"] .diff`)].map(one => one.textContent)'
CHOSEN = """told => told ===
    [...document.querySelectorAll('.twin .node[aria-pressed="true"]')].map(one => one.dataset.step).join()"""
LAYOUTS = """() => {
    const { postMessage } = Worker.prototype;
    window.layouts = 0;
    Worker.prototype.postMessage = function (message, ...rest) {
        window.layouts += message.cmd === "layout";
        return postMessage.call(this, message, ...rest);
    };
}"""
"""Counts those that are asked of the worker from now on."""
BOXES = """() => [...document.querySelectorAll('.twin .canvas')].map(one => {
    const { left, top, width } = one.getBoundingClientRect();
    return [left, top, width];
})"""


def check(step_id: str, condition: str, then: str, otherwise: str) -> dict[str, Any]:
    return step(step_id, "DECISION", conditionalNextSteps={condition: then, "true": otherwise})


def orders(definition_id: str) -> dict[str, Any]:
    steps = [
        service("validate", "reserve", job_type=definition_id),
        service("reserve", "charge"),
        service("charge", "pack"),
    ]
    return definition(*steps, service("pack", "end"), end(), definition_id=definition_id, name="Orders")


def careful(definition_id: str) -> dict[str, Any]:
    """With two steps more, one changed, one gone and one that is called otherwise."""
    steps = [
        service("validate", "is-risky", job_type=definition_id),
        check("is-risky", 'amount > 5000 || customer.tier == "new"', "fraud", "charge"),
        service("fraud", "charge", job_type="fraud.check"),
        service("charge", "wrap", retryCount=9),
        service("wrap", "end", name="pack"),
    ]
    return definition(*steps, end(), definition_id=definition_id, name="Orders")


@pytest.fixture(scope="module", autouse=True)
def _orders(engine: EngineProcess) -> None:
    """All of them: what is open is counted once a minute."""
    whole = {"amount": 1, "customer": {"tier": "gold"}}
    for name in ("beside", "keys", "reads", "wide-390", "wide-1440"):
        upload(engine, orders(name))
        complete(engine, start(engine, name, f"{name}-1", {"amount": 1}), name)
        for key in (2, 3):
            start(engine, name, f"{name}-{key}", whole if key == 3 else {"amount": 1})


def compare(modeller: Modeller, body: dict[str, Any]) -> None:
    """By keys alone, from the modeller on."""
    modeller.page.get_by_role("button", name="JSON", exact=True).focus()
    modeller.press("Enter")
    modeller.write_json(json.dumps(body))
    modeller.expect_status("No problems")
    modeller.page.get_by_role("button", name="Differences").focus()
    modeller.press("Enter")
    modeller.page.get_by_role("heading", name="Which running instances does this touch?").wait_for(timeout=TIMEOUT_MS)
    modeller.page.locator(".twin").nth(1).locator(".node").first.wait_for(timeout=TIMEOUT_MS)


def test_what_did_not_change_stands_at_one_place(modeller: Modeller) -> None:
    page = modeller.page
    page.set_viewport_size({"width": 1440, "height": 900})
    modeller.visitor.go("modeller/beside?view=differences")
    page.get_by_text("Nothing has changed").wait_for(timeout=TIMEOUT_MS)
    page.evaluate(LAYOUTS)
    compare(modeller, careful("beside"))
    assert page.evaluate("() => window.layouts") == 1  # of both
    old, new = page.evaluate(PLACES, "v1"), page.evaluate(PLACES, "Draft")
    assert set(old) == {"validate", "reserve", "charge", "pack", "end"}
    assert set(new) == {"validate", "is-risky", "fraud", "charge", "wrap", "end"}
    assert {name: new[name] for name in ("validate", "charge", "end")} == {
        name: old[name] for name in ("validate", "charge", "end")
    }
    assert new["wrap"] == old["pack"]
    assert page.evaluate(MARKS, "v1") == ["changed", "removed", "changed", "renamed"]
    assert page.evaluate(MARKS, "Draft") == ["changed", "added", "added", "changed", "renamed"]
    page.get_by_role("region", name="v1").get_by_text("with 3 open instances").wait_for(timeout=TIMEOUT_MS)
    page.get_by_role("button", name="validate, 2 open, changed: nextStep").wait_for(timeout=TIMEOUT_MS)
    page.get_by_role("button", name="reserve, 1 open, removed").wait_for(timeout=TIMEOUT_MS)
    page.get_by_text("2 steps added, 2 changed, 1 renamed, 1 removed").wait_for(timeout=TIMEOUT_MS)
    # Moved and zoomed together, by the mouse.
    left, right = page.evaluate(BOXES)
    assert (left[1], left[2]) == (right[1], right[2])
    before = page.evaluate(VIEWS)
    assert before[0] == before[1]
    page.mouse.move(right[0] + 20, right[1] + 20)
    page.mouse.down()
    page.mouse.move(right[0] + 60, right[1] + 50, steps=4)
    page.mouse.up()
    dragged = page.evaluate(VIEWS)
    assert dragged[0] == dragged[1] != before[0]
    page.get_by_role("button", name="Zoom in").click(timeout=TIMEOUT_MS)
    page.wait_for_function(f"before => ({VIEWS})()[0] !== before", arg=dragged[0], timeout=TIMEOUT_MS)
    zoomed = page.evaluate(VIEWS)
    assert zoomed[0] == zoomed[1]


def test_differences_are_read_by_keys_alone(modeller: Modeller) -> None:
    page = modeller.page
    modeller.visitor.go("modeller/keys")
    compare(modeller, careful("keys"))
    # In a picture arrows lead along its own ways; what is chosen is chosen in both.
    page.get_by_role("region", name="Draft").locator('.node[data-step="is-risky"]').focus()
    modeller.press("ArrowDown")
    modeller.expect_focus("fraud")
    modeller.press("ArrowDown", "Enter")
    modeller.expect_focus("charge")
    page.wait_for_function(CHOSEN, arg="charge,charge", timeout=TIMEOUT_MS)
    page.get_by_role("region", name="What differs").get_by_role("button", name="pack").focus()
    modeller.press("Enter")
    page.wait_for_function(CHOSEN, arg="pack,wrap", timeout=TIMEOUT_MS)
    # To those that run, and back.
    page.get_by_role("link", name="Running instances of v1").focus()
    modeller.press("Enter")
    page.wait_for_url("**/instances?status=ACTIVE&definitionId=keys&definitionVersion=1", timeout=TIMEOUT_MS)
    modeller.visitor.see_role("row", re.compile("keys-1"))


def test_new_variables_are_reported_and_made_safe(modeller: Modeller) -> None:
    page = modeller.page
    modeller.visitor.go("modeller/reads")
    compare(modeller, careful("reads"))
    reported = page.get_by_role("region", name="New variables it reads")
    reported.get_by_text("is in all of the last 3 runs").wait_for(timeout=TIMEOUT_MS)
    reported.get_by_text("is missing in 2 of the last 3 runs: there an expression that reads it fails").wait_for(
        timeout=TIMEOUT_MS
    )
    reported.get_by_role("button", name="Use (customer?.tier ?? nil)").focus()
    modeller.press("Enter")
    reported.get_by_text("It is read only where it may be").wait_for(timeout=TIMEOUT_MS)
    assert reported.get_by_role("button").count() == 0
    assert page.evaluate("() => document.activeElement.textContent") == "New variables it reads"
    made = modeller.definition()["steps"][1]["conditionalNextSteps"]
    assert list(made) == ['amount > 5000 || (customer?.tier ?? nil) == "new"', "true"]
    modeller.press("Control+z")
    reported.get_by_role("button", name="Use (customer?.tier ?? nil)").wait_for(timeout=TIMEOUT_MS)


@pytest.mark.parametrize("width", [390, 1440])
def test_differences_keep_nobody_out(modeller: Modeller, engine: EngineProcess, width: int) -> None:
    page = modeller.page
    page.set_viewport_size({"width": width, "height": 900})
    name = f"wide-{width}"
    modeller.visitor.go(f"modeller/{name}")
    compare(modeller, careful(name))
    page.get_by_role("region", name="New variables it reads").wait_for(timeout=TIMEOUT_MS)
    first, second = page.evaluate(BOXES)
    assert (first[0] == second[0]) is (width == 390)
    assert (first[1] == second[1]) is (width == 1440)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    upload(engine, careful(name))
    for place in (None, f"definitions/{name}?tab=differences"):
        if place is not None:
            modeller.visitor.go(place)
            page.get_by_role("button", name="validate, 2 open, changed: nextStep").wait_for(timeout=TIMEOUT_MS)
            page.get_by_role("region", name="Which running instances it touches").wait_for(timeout=TIMEOUT_MS)
        for theme in ("dark", "light"):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
            assert violations(page) == [], (place, theme)


def test_of_very_many_steps_those_near_a_change_are_drawn(modeller: Modeller, engine: EngineProcess) -> None:
    names = [f"t{number}" for number in range(450)]
    steps = [service(name, after) for name, after in zip(names, [*names[1:], "end"], strict=True)]
    upload(engine, definition(*steps, end(), definition_id="long"))
    steps[300] |= {"retryCount": 3}
    upload(engine, definition(*steps, end(), definition_id="long"))
    modeller.visitor.go("definitions/long?tab=differences").see("steps are drawn: those near the first change")
    drawn = [f"t{number}" for number in range(297, 304)]
    for name in ("v1", "v2"):
        modeller.page.get_by_role("region", name=name).locator('[data-step="t300"]').wait_for(timeout=TIMEOUT_MS)
        assert list(modeller.page.evaluate(PLACES, name)) == drawn
        assert modeller.page.evaluate(MARKS, name) == ["changed"]
