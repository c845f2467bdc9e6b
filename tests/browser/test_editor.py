"""The editors of the console: JSON text, expressions and what differs, by keys, on a phone, and without their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.definitions import definition, end, service, step
from tests.browser.drawing import frames_while, large
from tests.browser.modeller import Modeller
from tests.browser.test_console import TIMEOUT_MS, Visitor, upload, violations
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]

EXAMPLES = Path(__file__).parents[2] / "examples"
LABEL = "The definition as JSON"
FORK = definition(
    step("fork", "DECISION", conditionalNextSteps={"amount > 1": "pay", "true": "end"}),
    service("pay", "end", job_type="pay"),
    end(),
    definition_id="fork",
)
STEPS = 200
TASK_MAX_CPU_MS = 50
"""Of the page's thread, for a key typed in the JSON text of 200 steps."""
CONDITIONS = 30
PANEL_MAX_CPU_MS = 120
"""38 were measured; all editors at once took 175 to 248."""

BEFORE_THE_PAGE_DRAWS = """editor => {
    const clip = new DataTransfer();
    clip.setData("text/plain", "x");
    editor.dispatchEvent(new ClipboardEvent("paste", {clipboardData: clip, bubbles: true, cancelable: true}));
    const press = key => editor.dispatchEvent(new KeyboardEvent("keydown", {...key, bubbles: true, cancelable: true}));
    press({key: "Backspace", keyCode: 8});
    press({key: "z", keyCode: 90, ctrlKey: true});
}"""
"""A paste, its deletion and a step back in one turn of the page, as a busy one takes them."""


IN_ONE_TURN = """async (_, [text, key]) => {
    document.execCommand("insertText", false, text);
    await null;  // the editor hears of it
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
}"""
"""Letters and the key after them, before the page draws or a list of completions comes."""


def open_json(modeller: Modeller, text: str, name: str = "open.json") -> Any:
    """The JSON text's editor, once it is there, with the text of a file."""
    modeller.visitor.go("modeller")
    modeller.open(name, text)
    modeller.page.get_by_role("button", name="JSON", exact=True).click(timeout=TIMEOUT_MS)
    editor = modeller.page.locator(".cm-content").and_(modeller.page.get_by_label(LABEL))
    editor.wait_for(timeout=TIMEOUT_MS)
    return editor


def open_fork(modeller: Modeller) -> None:
    """The fields of its decision, once their editors are there."""
    modeller.visitor.go("modeller")
    modeller.open("fork.json", json.dumps(FORK))
    modeller.expect_status("No problems")
    modeller.page.locator('.node[data-step="fork"]').dblclick(timeout=TIMEOUT_MS)
    modeller.page.locator(".cm-content").first.wait_for(timeout=TIMEOUT_MS)


def test_json_is_edited_by_keys_with_the_drafts_own_history(modeller: Modeller) -> None:
    page, text = modeller.page, json.dumps(FORK, indent=2).replace("\n", "\r\n")
    editor = open_json(modeller, text)
    modeller.expect_status("No problems")
    assert modeller.text() == text
    # Each of these is one step back, in the picture, too.
    editor.focus()
    modeller.press("Control+f")
    search = page.get_by_role("textbox", name="Find")
    search.wait_for(timeout=TIMEOUT_MS)
    page.keyboard.type("amount")
    modeller.press("Enter", "Escape")
    page.keyboard.type("price")
    renamed = text.replace("amount", "price")
    assert modeller.text() == renamed
    editor.focus()
    modeller.press("End", "Enter")
    page.keyboard.type('"price > 5": "end",')
    modeller.expect_status("No problems")
    longer = modeller.text()
    assert longer.replace("\r\n", "").find("\n") < 0
    assert list(json.loads(longer)["steps"][0]["conditionalNextSteps"]) == ["price > 1", "price > 5", "true"]
    page.get_by_role("button", name="Picture", exact=True).click(timeout=TIMEOUT_MS)
    page.locator('.surface .hit[data-from="fork"]').nth(2).wait_for(state="attached", timeout=TIMEOUT_MS)
    modeller.press("Control+z")
    page.get_by_role("button", name="JSON", exact=True).click(timeout=TIMEOUT_MS)
    editor.focus()
    for _ in range(6):
        modeller.press("Control+z")
    page.get_by_role("button", name="Undo", exact=True).and_(page.locator(":disabled")).wait_for(timeout=TIMEOUT_MS)
    page.get_by_role("button", name="Redo", exact=True).click(timeout=TIMEOUT_MS)
    assert modeller.text() == text, "the first step is the file that was opened"
    # Tab indents, and Escape then Tab leads out of it.
    editor.focus()
    modeller.press("Control+Home", "Tab")
    assert modeller.text() == f"  {text}"
    modeller.press("Control+z", "Escape", "Tab")
    page.wait_for_function("() => !document.activeElement.closest('.cm-editor')", timeout=TIMEOUT_MS)
    assert modeller.text() == text
    page.get_by_text("leaves the editor").wait_for(timeout=TIMEOUT_MS)


def test_what_is_shown_is_the_draft_after_quick_keys(modeller: Modeller) -> None:
    text = json.dumps(FORK, indent=2)
    editor = open_json(modeller, text)
    editor.focus()
    modeller.press("Control+Home", "ArrowRight")
    editor.evaluate(BEFORE_THE_PAGE_DRAWS)
    modeller.page.get_by_text("a name in quotes is due here").first.wait_for(timeout=TIMEOUT_MS)
    assert modeller.text() == "{x" + text[1:]
    assert modeller.page.locator(".cm-line").first.text_content() == "{x"


def test_an_editor_that_comes_again_begins_a_step(modeller: Modeller) -> None:
    page, text = modeller.page, json.dumps(FORK, indent=2)
    editor = open_json(modeller, text)
    editor.focus()
    modeller.press("Control+Home", "Space")
    page.get_by_role("button", name="Picture", exact=True).click(timeout=TIMEOUT_MS)
    modeller.expect_laid_out()
    page.get_by_role("button", name="JSON", exact=True).click(timeout=TIMEOUT_MS)
    editor.wait_for(timeout=TIMEOUT_MS)
    editor.focus()
    modeller.press("Control+End", "Space")
    assert modeller.text() == f" {text} "
    page.get_by_role("button", name="Undo", exact=True).click(timeout=TIMEOUT_MS)
    assert modeller.text() == f" {text}"


def test_a_field_takes_no_text_back_of_another_step(modeller: Modeller) -> None:
    steps = [
        step(name, "TRANSFORMATION", transformations={"x": f"${{{name} + 1}}"}, nextStep=after)
        for name, after in (("first", "second"), ("second", "end"))
    ]
    modeller.visitor.go("modeller")
    modeller.open("two.json", json.dumps(definition(*steps, end(), definition_id="two")))
    modeller.page.locator('.surface .node[data-step="first"]').click(timeout=TIMEOUT_MS)
    editor = modeller.properties.locator(".cm-content")
    editor.filter(has_text="first + 1").click(timeout=TIMEOUT_MS)
    modeller.press("End", "ArrowLeft")
    modeller.page.keyboard.type("0")
    modeller.press("Escape", "Delete")
    editor.filter(has_text="second + 1").click(timeout=TIMEOUT_MS)
    modeller.press("Control+z", "Control+z")
    left = modeller.definition()["steps"]
    assert [one["id"] for one in left] == ["second", "end"]
    assert left[0]["transformations"] == {"x": "${second + 1}"}


def test_problems_stand_at_their_characters(modeller: Modeller) -> None:
    page = modeller.page
    bad = json.loads(json.dumps(FORK))
    bad["steps"][1]["nextStep"] = "gone"
    bad["steps"][1]["retryCount"] = -4
    bad["steps"][0]["conditionalNextSteps"] = {"1 + (amount": "pay", "true": "end"}
    text = json.dumps(bad, indent=2).replace("\n", "\r\n")
    editor = open_json(modeller, text)
    modeller.expect_status("3 problems")
    marked = page.locator(".cm-lintRange-error")
    marked.nth(1).wait_for(timeout=TIMEOUT_MS)  # the editor hears of them once the status is drawn
    assert sorted(marked.all_text_contents()) == ['"gone"', "-4"]  # what is missing has its place, and no characters
    page.locator(".cm-line", has_text="1 + (amount").locator(".cm-lintPoint-error").wait_for(
        state="attached", timeout=TIMEOUT_MS
    )
    editor.focus()
    modeller.press("F8")
    page.locator(".cm-tooltip .cm-diagnostic").first.wait_for(timeout=TIMEOUT_MS)
    for theme in ("dark", "light"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        assert violations(page) == []
    editor.fill(text.replace('"gone"', '"end"').replace("-4", "4").replace("1 + (amount", "amount > 1"))
    modeller.expect_status("No problems")
    marked.first.wait_for(state="detached", timeout=TIMEOUT_MS)
    # What is no JSON is told at once, where it is.
    modeller.press("Control+End", "Backspace")
    page.get_by_text("ends where , is due").first.wait_for(timeout=TIMEOUT_MS)
    page.locator(".cm-lintRange-error, .cm-lintPoint-error").wait_for(state="attached", timeout=TIMEOUT_MS)
    # Folded it is out of sight, and as it was.
    modeller.press("Control+z", "Control+Home", "Control+Shift+BracketLeft")
    page.get_by_label("folded code").wait_for(timeout=TIMEOUT_MS)
    assert editor.locator(".cm-line").count() == 1
    modeller.press("Control+Shift+BracketRight")
    page.get_by_label("folded code").wait_for(state="detached", timeout=TIMEOUT_MS)


def test_editors_are_loaded_where_one_is_shown(modeller: Modeller) -> None:
    page, asked = modeller.page, list[str]()
    page.on("request", lambda request: asked.append(str(request.url)))
    modeller.visitor.go("modeller")
    modeller.open("fork.json", json.dumps(FORK))
    modeller.expect_laid_out()
    modeller.expect_status("No problems")
    assert [url for url in asked if "/editor" in url] == []
    page.locator('.node[data-step="fork"]').dblclick(timeout=TIMEOUT_MS)
    page.locator(".cm-content").first.wait_for(timeout=TIMEOUT_MS)
    loaded = [url for url in asked if "/editor" in url]
    assert loaded
    assert [url for url in loaded if "json" in url or "merge" in url] == []


def test_a_field_works_while_its_editor_can_not_be_loaded(modeller: Modeller) -> None:
    page = modeller.page
    page.route("**/assets/editor-*.js", lambda route: route.abort())
    modeller.visitor.go("modeller")
    modeller.open("fork.json", json.dumps(FORK))
    page.locator('.node[data-step="fork"]').dblclick(timeout=TIMEOUT_MS)
    condition = modeller.field("Conditional next steps 1: condition")
    condition.fill("amount >")
    modeller.properties.get_by_text("unexpected the end").first.wait_for(timeout=TIMEOUT_MS)
    condition.fill("amount > 2")
    condition.press("Enter")
    modeller.expect_definition(lambda made: "amount > 2" in made["steps"][0]["conditionalNextSteps"])
    page.get_by_role("button", name="JSON", exact=True).click(timeout=TIMEOUT_MS)
    page.get_by_label(LABEL).fill(json.dumps(FORK))
    modeller.expect_status("No problems")
    assert page.locator(".cm-editor").count() == 0
    assert modeller.text() == json.dumps(FORK)
    modeller.visitor.complaints.clear()  # of the files that were kept from it


def test_typing_in_a_plain_field_goes_on_in_its_editor(modeller: Modeller) -> None:
    page, held = modeller.page, list[Any]()

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/assets/editor-*.js", hold)
    modeller.visitor.go("modeller")
    modeller.open("fork.json", json.dumps(FORK))
    page.locator('.node[data-step="fork"]').dblclick(timeout=TIMEOUT_MS)
    condition = modeller.field("Conditional next steps 1: condition")
    condition.focus()
    modeller.press("Home")
    page.keyboard.type("1 + ")
    while held:
        held.pop().continue_()
    page.locator(".cm-content:focus").wait_for(timeout=TIMEOUT_MS)
    page.keyboard.type("2 + ")
    modeller.press("Enter")
    modeller.expect_definition(lambda made: "1 + 2 + amount > 1" in made["steps"][0]["conditionalNextSteps"])


def test_what_is_typed_while_the_editor_comes_stays_in_its_order(modeller: Modeller) -> None:
    """On a slow machine the editor came between a letter and what the browser tells of its caret."""
    page, held = modeller.page, list[Any]()

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/assets/editor-*.js", hold)
    modeller.visitor.go("modeller")
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": 6})
    modeller.open("fork.json", json.dumps(FORK))
    page.locator('.node[data-step="fork"]').dblclick(timeout=TIMEOUT_MS)
    modeller.field("Conditional next steps 1: condition").focus(timeout=TIMEOUT_MS)
    modeller.press("Home")
    while held:
        held.pop().continue_()
    typed = " ".join(f"{number} +" for number in range(60))
    page.keyboard.type(f"{typed} ")
    page.locator(".cm-content:focus").wait_for(timeout=TIMEOUT_MS)
    modeller.press("Enter")
    modeller.expect_definition(lambda made: f"{typed} amount > 1" in made["steps"][0]["conditionalNextSteps"])


@pytest.mark.parametrize("key", ["Enter", "Tab"])
def test_a_key_takes_what_the_last_letter_begins(modeller: Modeller, key: str) -> None:
    """However fast: the list is still that of the letter before, or not there yet."""
    page, condition = modeller.page, modeller.field("Conditional next steps 1: condition")
    open_fork(modeller)
    condition.focus()
    modeller.press("End")
    page.keyboard.type(" + a")
    condition.evaluate(IN_ONE_TURN, ["mo", key])
    assert modeller.said("Conditional next steps 1: condition") == "amount > 1 + amount"
    modeller.expect_field("Conditional next steps 1: condition")
    # A word that is complete is what was typed, and so is what begins nothing: all of it.
    for typed, said in ((" + amount", "amount > 1 + amount + amount"), (" + 1", "amount > 1 + amount + amount + 1")):
        condition.focus()
        modeller.press("End")
        condition.evaluate(IN_ONE_TURN, [typed, "Enter"])
        modeller.expect_definition(lambda made, said=said: said in made["steps"][0]["conditionalNextSteps"])


def test_what_is_selected_stays_selected_in_the_editor(modeller: Modeller) -> None:
    page, held = modeller.page, list[Any]()

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/assets/editor-*.js", hold)
    modeller.visitor.go("modeller")
    page.get_by_role("button", name="JSON", exact=True).click(timeout=TIMEOUT_MS)
    page.get_by_label(LABEL).focus()
    modeller.press("Control+a")
    while held:
        held.pop().continue_()
    page.locator(".cm-content:focus").wait_for(timeout=TIMEOUT_MS)
    text = json.dumps(FORK)
    page.keyboard.insert_text(text)
    modeller.expect_status("No problems")
    assert modeller.text() == text


@pytest.mark.parametrize("key", ["F3", "Control+g"])
def test_the_first_key_that_searches_opens_the_search(modeller: Modeller, key: str) -> None:
    editor = open_json(modeller, json.dumps(FORK))
    editor.focus()
    modeller.press(key)
    modeller.page.locator(".cm-search input[name=search]:focus").wait_for(timeout=TIMEOUT_MS)


def test_search_that_can_not_be_loaded_is_reported(modeller: Modeller) -> None:
    """The next press is for the browser's own search, and one after it, once it can be loaded, for the editor's."""
    page = modeller.page
    page.route("**/assets/editor-search-*.js", lambda route: route.abort())
    editor = open_json(modeller, json.dumps(FORK))
    editor.focus()
    page.evaluate("""() => document.addEventListener("keydown", event => window.taken = event.defaultPrevented)""")
    modeller.press("Control+f")
    reported = page.get_by_text("Searching could not be loaded")
    reported.wait_for(timeout=TIMEOUT_MS)
    assert page.evaluate("window.taken") is True
    page.unroute("**/assets/editor-search-*.js")
    modeller.press("Control+f")
    assert page.evaluate("window.taken") is False
    reported.wait_for(state="detached", timeout=TIMEOUT_MS)
    editor.focus()
    modeller.press("Control+f")
    page.locator(".cm-search input[name=search]:focus").wait_for(timeout=TIMEOUT_MS)
    modeller.visitor.complaints.clear()  # of the file that was kept from it


def test_typing_in_two_hundred_steps_holds_nothing_up(visitor: Visitor) -> None:
    text = json.dumps(large(STEPS), indent=2)
    editor = open_json(Modeller(visitor), text)
    Modeller(visitor).expect_status("No problems")
    editor.focus()
    text = '\n  "description": "one after the other",'
    typed = frames_while(visitor.page, lambda: visitor.page.keyboard.type(text, delay=60))
    print(typed)
    assert len(typed.frame_ms) > 20
    assert max(typed.task_cpu_ms) < TASK_MAX_CPU_MS


def test_dozens_of_conditions_hold_nothing_up(modeller: Modeller) -> None:
    ways = {f"amount > {n} && kind == 'k{n}'": "end" for n in range(CONDITIONS)}
    fork = step("fork", "DECISION", conditionalNextSteps={**ways, "true": "end"})
    modeller.visitor.go("modeller")
    modeller.open("dozens.json", json.dumps(definition(service("first", "fork"), fork, end(), definition_id="dozens")))
    modeller.expect_laid_out()
    editors = modeller.page.locator(".props .cm-editor")

    def show() -> None:
        modeller.page.locator('.node[data-step="fork"]').focus()
        modeller.press("Escape", "Space")
        editors.nth(CONDITIONS - 1).wait_for(timeout=TIMEOUT_MS)

    show()  # with what it loads
    modeller.page.locator('.node[data-step="first"]').focus()
    modeller.press("Escape", "Space")
    editors.nth(CONDITIONS - 1).wait_for(state="detached", timeout=TIMEOUT_MS)
    shown = frames_while(modeller.page, show)
    print(shown)
    assert editors.count() == CONDITIONS
    assert max(shown.task_cpu_ms) < PANEL_MAX_CPU_MS


@pytest.mark.parametrize("width", [400, 1800])
def test_texts_are_compared_beside_or_within_each_other(modeller: Modeller, engine: EngineProcess, width: int) -> None:
    page = modeller.page
    page.set_viewport_size({"width": width, "height": 900})
    body = json.loads((EXAMPLES / "order-fulfilment.json").read_text())
    upload(engine, body | {"id": f"compared-{width}"})
    upload(engine, body | {"id": f"compared-{width}", "name": "Another name"})
    modeller.visitor.go(f"definitions/compared-{width}?tab=differences")
    page.get_by_text("The text, line by line").click(timeout=TIMEOUT_MS)
    texts = page.get_by_role("region", name="The text, line by line")
    texts.locator(".cm-changedLine").first.wait_for(timeout=TIMEOUT_MS)
    assert texts.locator(".cm-content").count() == (1 if width < 1000 else 2)
    gone = texts.locator(".cm-deletedChunk" if width < 1000 else ".cm-merge-a .cm-changedLine")
    assert gone.all_text_contents() == [f'  "name": "{body["name"]}",']
    came = texts.locator(".cm-merge-b .cm-changedLine")
    assert came.all_text_contents() == ['  "name": "Another name",']
    sign = "gutter => getComputedStyle(gutter, '::after').content"
    assert texts.locator(".cm-merge-b .cm-changedLineGutter").evaluate(sign) == '"+"'
    for theme in ("dark", "light"):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        assert violations(page) == []
    page.get_by_label("Lines that are the same, too").check(timeout=TIMEOUT_MS)
    texts.locator(".cm-collapsedLines").first.wait_for(state="detached", timeout=TIMEOUT_MS)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_on_a_phone_an_expression_and_json_are_typed(chromium: Any, engine: EngineProcess) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    context.set_default_timeout(TIMEOUT_MS)
    visitor = Visitor(context.new_page(), engine)
    modeller, page = Modeller(visitor), visitor.page
    editor = open_json(modeller, json.dumps(FORK, indent=2))
    editor.tap(position={"x": 60, "y": 10})
    modeller.press("Control+Home", "End")
    page.keyboard.type('"description": "typed",')
    modeller.expect_definition(lambda made: made.get("description") == "typed")
    page.get_by_role("button", name="Picture", exact=True).tap()
    page.locator('.node[data-step="fork"]').tap()
    field = modeller.field("Conditional next steps 1: condition")
    field.tap()
    modeller.press("Control+a")
    page.keyboard.type("a + am")
    page.get_by_role("listbox", name="Completions").get_by_text("amount", exact=True).tap()
    page.keyboard.type(" > 1 && amount > 2 && amount > 3 && amount > 4 && amount > 5")
    box = field.bounding_box()
    assert box is not None
    assert box["height"] > 40, "it does not grow with what it says"
    modeller.press("Enter")
    modeller.expect_definition(lambda made: "a + amount > 1 &&" in json.dumps(made["steps"][0]))
    assert visitor.complaints == []
    context.close()
