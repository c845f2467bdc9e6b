"""The modeller by mouse, as by keys: copied steps, the small picture that moves the large one, a trial to its end."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any

import pytest

from penstock.testing.definitions import definition, end, linear, service, step, timer
from tests import postgres
from tests.browser.drawing import LARGE_STEPS, frames_while, large
from tests.browser.modeller import Modeller
from tests.browser.test_console import TIMEOUT_MS, Visitor, upload, violations
from tests.browser.test_drawing import FORK, IN_VIEW, TASK_MAX_CPU_MS
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

PLAIN_HOST = "console.test"
"""Of HTTP without TLS: to pages of such a host browsers give no clipboard."""
REFUSE = """() => {
    const no = () => Promise.reject(new DOMException("no", "NotAllowedError"));
    Object.assign(navigator.clipboard, {readText: no, writeText: no});
    document.execCommand = () => false;
}"""
"""As a browser whose user refuses a page its clipboard altogether."""
CHANGES = """() => {
    window.changed = new Set();
    new MutationObserver(seen => seen.forEach(one => window.changed.add(one.target.getAttribute("class"))))
        .observe(document.querySelector(".minimap"), {attributes: true, childList: true, subtree: true});
}"""
HOLD_LAYOUTS = """() => {
    const [post, later] = [Worker.prototype.postMessage, window.setTimeout];
    window.held = [];
    Worker.prototype.postMessage = function (...what) { window.held.push(() => post.apply(this, what)); };
    window.setTimeout = (act, ms, ...more) => (ms === 120 && held.length ? held.push(act) : later(act, ms, ...more));
    window.release = () => {
        Worker.prototype.postMessage = post;
        window.held.shift()();
    };
}"""
"""What the page asks of its worker waits, and after it the next delay of 120 ms (LAID_OUT_AFTER_MS of canvas.tsx)."""
MAP = ".minimap"


@pytest.fixture(scope="module")
def engine(postgres_server: postgres.PostgresServer) -> Generator[EngineProcess]:
    with (
        postgres_server.database(postgres.apply_schema) as dsn,
        EngineProcess(dsn, allowed_hosts=PLAIN_HOST) as process,
    ):
        process.wait_ready()
        yield process


def opened(modeller: Modeller, body: dict[str, Any]) -> Modeller:
    modeller.visitor.go("modeller")
    modeller.open(f"{body['id']}.json", json.dumps(body))
    modeller.expect_step(body["steps"][0]["id"])
    modeller.expect_laid_out()
    return modeller


def press(modeller: Modeller, name: str) -> None:
    modeller.properties.get_by_role("button", name=name, exact=True).click(timeout=TIMEOUT_MS)


def choose(modeller: Modeller, *step_ids: str) -> None:
    for at, step_id in enumerate(step_ids):
        body = modeller.page.locator(f'.node[data-step="{step_id}"] .body')
        body.click(modifiers=["Shift"] if at else [], timeout=TIMEOUT_MS)


def beside(modeller: Modeller) -> None:
    """A click on nothing: the definition is what its fields are of."""
    modeller.page.locator(".canvas").click(position={"x": 8, "y": 8}, timeout=TIMEOUT_MS)
    modeller.properties.get_by_role("heading", name="The definition").wait_for(timeout=TIMEOUT_MS)


def ids(modeller: Modeller) -> list[str]:
    return [one["id"] for one in modeller.definition()["steps"]]


def test_steps_are_copied_cut_and_pasted_by_buttons(modeller: Modeller) -> None:
    page = modeller.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened(modeller, FORK)
    choose(modeller, "many")
    press(modeller, "Copy")
    modeller.properties.get_by_role("button", name="Copied", exact=True).wait_for(timeout=TIMEOUT_MS)
    (copied,) = json.loads(page.evaluate("() => navigator.clipboard.readText()"))
    assert copied["id"] == "many"
    beside(modeller)
    press(modeller, "Paste steps")
    modeller.expect_step("many-2")
    modeller.expect_focus("many-2")
    pasted = modeller.definition()["steps"][-1]
    assert pasted == {**copied, "id": "many-2"}
    modeller.expect_laid_out()
    # Several, which ask nothing when all of them lead to one.
    choose(modeller, "crowd", "few")
    modeller.properties.get_by_role("heading", name="2 steps").wait_for(timeout=TIMEOUT_MS)
    assert violations(page) == []
    press(modeller, "Cut")
    page.locator('.node[data-step="few"]').wait_for(state="detached", timeout=TIMEOUT_MS)
    modeller.expect_focus("end")
    assert ids(modeller) == ["fork", "many", "end", "many-2"]
    press(modeller, "Paste")
    modeller.expect_focus("few")
    assert ids(modeller) == ["fork", "many", "end", "many-2", "crowd", "few"]
    # What is no step is told, beside the palette.
    page.evaluate("() => navigator.clipboard.writeText('[1]')")
    page.reload()  # with it goes what was copied here
    modeller.expect_step("few")
    modeller.expect_laid_out()
    press(modeller, "Paste steps")
    page.get_by_role("alert").get_by_text("No steps were copied").wait_for(timeout=TIMEOUT_MS)
    assert violations(page) == []


def test_keys_come_back_with_a_step_pasted_after_a_cut(modeller: Modeller) -> None:
    """It is drawn where it stood, goes with the layout that was asked for before it, and comes with its own."""
    page = modeller.page
    opened(modeller, FORK)
    choose(modeller, "few")
    page.evaluate(HOLD_LAYOUTS)
    modeller.press("Control+x")
    page.wait_for_function("() => window.held.length === 1", timeout=TIMEOUT_MS)
    modeller.press("Control+v")
    modeller.expect_focus("few")
    page.wait_for_function("() => window.held.length === 2", timeout=TIMEOUT_MS)
    page.evaluate("() => window.release()")
    page.locator('.node[data-step="few"]').wait_for(state="detached", timeout=TIMEOUT_MS)
    page.evaluate("() => window.release()")
    modeller.expect_focus("few")
    modeller.expect_laid_out()


def test_the_right_button_offers_what_keys_do(modeller: Modeller) -> None:
    page = modeller.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened(modeller, FORK)
    menu = page.get_by_role("menu")
    page.locator('.node[data-step="few"] .body').click(button="right", timeout=TIMEOUT_MS)
    menu.get_by_text("Add after few").wait_for(timeout=TIMEOUT_MS)
    assert violations(page) == []
    menu.get_by_role("menuitem", name="Copy").click(timeout=TIMEOUT_MS)
    modeller.expect_focus("few")
    page.locator(".canvas").click(button="right", position={"x": 8, "y": 8}, timeout=TIMEOUT_MS)
    menu.get_by_text("Add here").wait_for(timeout=TIMEOUT_MS)
    assert menu.get_by_role("menuitem", name="Cut").count() == 0
    menu.get_by_role("menuitem", name="Paste").click(timeout=TIMEOUT_MS)
    modeller.expect_focus("few-2")
    modeller.expect_laid_out()
    # The same by the key that opens such menus, from the last to the first.
    modeller.press("Shift+F10")
    menu.get_by_text("Add after few").wait_for(timeout=TIMEOUT_MS)
    modeller.press("End", "Enter")
    page.locator('.node[data-step="few-2"]').wait_for(state="detached", timeout=TIMEOUT_MS)
    modeller.expect_laid_out()
    # A step where it was pressed.
    page.locator(".canvas").click(button="right", position={"x": 40, "y": 60}, timeout=TIMEOUT_MS)
    menu.get_by_role("menuitem", name="Wait").click(timeout=TIMEOUT_MS)
    modeller.expect_focus("wait")
    made = modeller.definition()
    assert [*made["metadata"]["workflowModeller"]["layout"]] == ["wait"]
    assert "nextStep" not in made["steps"][-1]


def test_a_menu_that_could_not_be_loaded_comes_later(modeller: Modeller) -> None:
    page, file = modeller.page, "**/assets/pressed-*.js"
    page.route(file, lambda route: route.abort())
    opened(modeller, FORK)
    page.locator('.node[data-step="few"]').focus()
    with page.expect_event("requestfailed", timeout=TIMEOUT_MS):
        modeller.press("+")
    page.unroute(file)
    assert page.get_by_role("menu").count() == 0
    modeller.press("+")
    page.get_by_role("menu").get_by_text("Add after few").wait_for(timeout=TIMEOUT_MS)
    modeller.visitor.complaints.clear()  # of the file that was kept from it


@pytest.mark.parametrize("without", ["a plain host", "the user's leave"])
def test_steps_go_to_other_tabs_without_the_clipboard(modeller: Modeller, engine: EngineProcess, without: str) -> None:
    """One that was open when they were copied, one that came later; by keys alone."""
    first, refused = modeller.visitor, without == "the user's leave"
    if refused:
        first.page.context.add_init_script(f"({REFUSE})()")
    else:
        first.home = first.home.replace("127.0.0.1", PLAIN_HOST)
    upload(engine, {**FORK, "id": f"fork-{refused}"})
    first.go(f"modeller/fork-{refused}")
    modeller.expect_step("few")
    modeller.expect_laid_out()
    assert first.page.evaluate("() => isSecureContext") is refused
    early = another_tab(first, engine)
    first.page.bring_to_front()
    first.page.locator('.node[data-step="few"]').focus()
    modeller.press("Enter")
    modeller.expect_field("Id")
    modeller.tab_to("Copy", back=True)
    modeller.press("Enter")
    modeller.properties.get_by_role("button", name=re.compile("^Copied")).wait_for(timeout=TIMEOUT_MS)
    modeller.tab_to("Cut")  # the keys have not gone elsewhere
    paste_steps(early)
    early.page.close()
    paste_steps(another_tab(first, engine))
    # And here: what was cut comes back.
    first.page.bring_to_front()
    modeller.press("Enter")
    first.page.locator('.node[data-step="few"]').wait_for(state="detached", timeout=TIMEOUT_MS)
    modeller.expect_focus("end")
    modeller.press("Enter")
    modeller.expect_field("Id")
    modeller.tab_to("Paste", back=True)
    modeller.press("Enter")
    modeller.expect_focus("few")


def another_tab(first: Visitor, engine: EngineProcess) -> Modeller:
    other = Visitor(first.page.context.new_page(), engine)
    other.home = first.home
    other.go("modeller")
    found = Modeller(other)
    found.expect_step("end")
    return found


def paste_steps(other: Modeller) -> None:
    """By keys; what came is taken back, so that the next tab begins anew."""
    other.page.bring_to_front()
    other.tab_to("Paste steps")
    other.press("Enter")
    other.expect_focus("few")
    assert [one["jobType"] for one in other.definition()["steps"] if one["id"] == "few"] == ["few"]
    other.press("Control+z")
    other.page.locator('.node[data-step="few"]').wait_for(state="detached", timeout=TIMEOUT_MS)
    assert other.visitor.complaints == []


def test_the_small_picture_moves_the_large_one(modeller: Modeller) -> None:
    page = modeller.page
    opened(modeller, linear(12, definition_id="long", job_type="work"))
    small = page.locator(MAP)
    modeller.visitor.click("button", "Fit", exact=True)
    assert small.count() == 0
    for _ in range(4):
        modeller.visitor.click("button", "Zoom in")
    small.wait_for(timeout=TIMEOUT_MS)
    assert violations(page) == []
    # A press shows what is there, a drag of the frame moves it.
    box = small.bounding_box()
    assert box is not None
    middle, bottom = box["x"] + box["width"] / 2, box["y"] + box["height"]
    page.mouse.click(middle, bottom - 3)
    page.wait_for_function(IN_VIEW, arg="end", timeout=TIMEOUT_MS)
    frame = page.locator(f"{MAP} .seen").bounding_box()
    assert frame is not None
    page.mouse.move(middle, frame["y"] + min(frame["height"], bottom - frame["y"]) / 2)
    page.mouse.down()
    page.mouse.move(middle, box["y"], steps=8)
    page.mouse.up()
    page.wait_for_function(IN_VIEW, arg="task-1", timeout=TIMEOUT_MS)
    # What is selected stays, and nothing of it is on the way of the keys or of those who see nothing.
    choose(modeller, "task-1")
    page.mouse.click(middle, box["y"] + box["height"] / 2)
    modeller.properties.get_by_role("heading", name="task-1").wait_for(timeout=TIMEOUT_MS)
    assert small.get_attribute("aria-hidden") == "true"
    assert small.evaluate("one => one.querySelectorAll('[tabindex]').length + one.tabIndex") < 0
    page.set_viewport_size({"width": 800, "height": 720})
    small.wait_for(state="hidden", timeout=TIMEOUT_MS)
    page.set_viewport_size({"width": 1280, "height": 720})
    small.wait_for(timeout=TIMEOUT_MS)
    modeller.visitor.click("button", "Fit", exact=True)
    small.wait_for(state="detached", timeout=TIMEOUT_MS)


def test_the_small_picture_of_200_steps_costs_no_frames(modeller: Modeller) -> None:
    page = modeller.page
    opened(modeller, large(LARGE_STEPS))
    for _ in range(8):
        modeller.visitor.click("button", "Zoom in")
    small = page.locator(MAP)
    small.wait_for(timeout=TIMEOUT_MS)
    box = small.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"]
    page.evaluate(CHANGES)

    def act() -> None:
        page.mouse.move(x, y + 2)
        page.mouse.down()
        for n in range(60):
            page.mouse.move(x, y + 2 + n * (box["height"] - 4) / 60)
        page.mouse.up()

    seen = frames_while(page, act)
    print(f"dragged in the small picture: {seen}")
    assert max(seen.task_cpu_ms) < TASK_MAX_CPU_MS
    assert page.evaluate("() => [...window.changed]") == ["seen"], "its steps and ways were drawn anew"


def test_a_trial_goes_on_to_its_end(modeller: Modeller) -> None:
    page = modeller.page
    remind = timer("remind", "P1D")
    ask = step("ask", "USER_TASK", jobType="lead", nextStep="pay", boundaryEvents=[remind])
    hour = step("hour", "WAIT", duration="PT1H", nextStep="ask")
    tasks = [service("pay", "again"), service("remind")]
    again = step("again", "DECISION", conditionalNextSteps={"approved": "end", "true": "round"})
    circle = [service("round", "turn"), step("turn", "DECISION", conditionalNextSteps={"true": "round"})]
    opened(
        modeller, definition(service("book", "hour"), hour, ask, *tasks, again, *circle, end(), definition_id="ends")
    )
    page.get_by_role("button", name="Try it").click(timeout=TIMEOUT_MS)
    on = page.get_by_role("button", name="To the end", exact=True)
    on.click(timeout=TIMEOUT_MS)
    # A person's answer is not made up, and its timers are not let fire over it.
    tried = page.get_by_role("region", name="Try it")
    tried.get_by_text("ask waits for an answer: give it below, or let time go on.").wait_for(timeout=TIMEOUT_MS)
    tried.get_by_role("status").get_by_text("1 h after the start").wait_for(timeout=TIMEOUT_MS)
    assert page.locator(".sofar > li > b").all_inner_texts() == ["Started", "book completed", "Time went on"]
    assert violations(page) == []
    # By keys, with an answer: it is given, and the rest goes on.
    page.get_by_label("Variables of ask").fill('{"approved": true}')
    modeller.tab_to("To the end", back=True)
    modeller.press("Enter")
    page.get_by_role("heading", name="It has ended").wait_for(timeout=TIMEOUT_MS)
    tried.get_by_text("It has ended.", exact=True).wait_for(timeout=TIMEOUT_MS)
    assert on.is_disabled()
    assert page.locator(".sofar > li > b").all_inner_texts()[3:] == [
        'ask completed with {"approved":true}',
        "pay completed",
    ]
    modeller.tab_to("Back", back=True)
    modeller.press("Enter")
    page.get_by_role("region", name="pay", exact=True).wait_for(timeout=TIMEOUT_MS)
    tried.get_by_text("It has ended.", exact=True).wait_for(state="detached", timeout=TIMEOUT_MS)
    modeller.press("Control+z")
    # A circle: so many moves, and it stops.
    page.get_by_label("Variables of ask").fill('{"approved": false}')
    on.click(timeout=TIMEOUT_MS)
    tried.get_by_text("200 moves were made, and it has not ended").wait_for(timeout=TIMEOUT_MS)
    page.locator(".sofar > li").nth(202).wait_for(timeout=TIMEOUT_MS)  # once the engine has answered
    assert page.locator(".sofar > li").count() == 203
    # Stop, while the engine is asked.
    page.get_by_role("button", name="Start again").click(timeout=TIMEOUT_MS)
    page.get_by_role("region", name="book", exact=True).wait_for(timeout=TIMEOUT_MS)
    held: list[Any] = []
    page.route("**/v1/simulations", lambda route: held.append(route))  # noqa: PLW0108 - Playwright asks for a signature
    with page.expect_request("**/v1/simulations", timeout=TIMEOUT_MS):
        on.click(timeout=TIMEOUT_MS)
    page.get_by_role("button", name="Stop", exact=True).click(timeout=TIMEOUT_MS)
    for route in held:
        route.continue_()
    page.unroute("**/v1/simulations")
    tried.get_by_text("Stopped.", exact=True).wait_for(timeout=TIMEOUT_MS)
    on.wait_for(timeout=TIMEOUT_MS)


def test_back_and_a_changed_draft_stop_the_way(modeller: Modeller) -> None:
    """Back leaves a way to the end as if it had not begun; later it takes back a move, or all of the way's at once."""
    page = modeller.page
    opened(modeller, definition(service("one", "two"), service("two", "end"), end(), definition_id="left"))
    modeller.field("Name").fill("Another name")
    page.get_by_role("button", name="Try it").click(timeout=TIMEOUT_MS)
    on = page.get_by_role("button", name="To the end", exact=True)
    moves = page.locator(".sofar > li > b")
    page.get_by_role("region", name="one", exact=True).get_by_role("button", name="Complete").click(timeout=TIMEOUT_MS)
    page.get_by_role("region", name="two", exact=True).wait_for(timeout=TIMEOUT_MS)
    held: list[Any] = []

    holds = False

    def hold(route: Any) -> None:
        if holds:
            held.append(route)
        else:
            route.continue_()

    page.route("**/v1/simulations", hold)
    for leave in (lambda: modeller.press("Control+z"), page.get_by_role("button", name="Undo").click):
        holds = True
        with page.expect_request("**/v1/simulations", timeout=TIMEOUT_MS):
            on.click(timeout=TIMEOUT_MS)
        page.get_by_role("button", name="Stop", exact=True).wait_for(timeout=TIMEOUT_MS)
        leave()
        on.wait_for(timeout=TIMEOUT_MS)
        holds = False
        while held:
            held.pop().continue_()
        page.locator(".tryit .side[aria-busy=false]").wait_for(timeout=TIMEOUT_MS)
        assert moves.all_inner_texts() == ["Started", "one completed"]
    on.click(timeout=TIMEOUT_MS)
    page.get_by_role("button", name="Take it all back").click(timeout=TIMEOUT_MS)
    page.get_by_role("region", name="two", exact=True).wait_for(timeout=TIMEOUT_MS)
    assert moves.all_inner_texts() == ["Started", "one completed"]
