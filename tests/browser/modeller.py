"""Somebody in front of the modeller, with a mouse and keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.browser.test_console import TIMEOUT_MS, Visitor

MIDDLE = """way => {
    const at = way.getPointAtLength(way.getTotalLength() / 2).matrixTransform(way.getScreenCTM());
    return {x: at.x, y: at.y};
}"""
"""Of a way's path, on the screen."""
HAS_FOCUS = """() => {
    const at = document.activeElement;
    return at.dataset.step ?? at.ariaLabel ?? at.labels?.[0]?.textContent ?? at.textContent;
}"""
TO_THE_END = """() => {
    const list = document.querySelector(".findings ul");
    if (list) list.scrollTop = list.scrollHeight;
    return list !== null && String(list.children.length) === list.firstChild.ariaSetSize;
}"""
"""Of what the engine says, as far as it is here; whether that is all."""
TABS_MAX = 200


class Modeller:
    """Somebody in front of the modeller."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor
        self.page = visitor.page
        self.status = self.page.get_by_role("region", name="Problems").get_by_role("status")
        self.properties = self.page.get_by_role("region", name="Properties")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def tab_to(self, name: str, *, back: bool = False) -> None:
        """By the one key, as somebody without a mouse comes there; `name`: a step's id, a field's or a button's."""
        for _ in range(TABS_MAX):
            self.page.keyboard.press("Shift+Tab" if back else "Tab")
            if str(self.page.evaluate(HAS_FOCUS)).strip() == name:
                return
        raise AssertionError(f"no Tab leads to {name}")

    def expect_whole_list(self) -> None:
        """Of what the engine says, scrolled to its end, which more of it comes to."""
        self.page.wait_for_function(TO_THE_END, timeout=TIMEOUT_MS)

    def expect_step(self, name: str) -> None:
        self.page.locator(f'.surface .node[data-step="{name}"]').wait_for(timeout=TIMEOUT_MS)

    def open(self, name: str, text: str) -> None:
        """A file by Import, whatever it takes the place of; each has a name of its own."""
        self.page.locator("input[type=file]").set_input_files(
            {"name": name, "mimeType": "application/json", "buffer": text.encode()}
        )
        opened, asked = (
            self.page.get_by_text(f"Opened {name}", exact=True),
            self.page.get_by_role("button", name="Open it"),
        )
        opened.or_(asked).wait_for(state="attached", timeout=TIMEOUT_MS)
        if asked.is_visible():
            asked.click(timeout=TIMEOUT_MS)
        opened.wait_for(state="attached", timeout=TIMEOUT_MS)

    def expect_laid_out(self) -> None:
        self.page.locator('.surface[aria-busy="false"]').wait_for(timeout=TIMEOUT_MS)

    def expect_focus(self, name: str) -> None:
        self.page.wait_for_function(
            "name => document.activeElement?.dataset?.step === name", arg=name, timeout=TIMEOUT_MS
        )

    def expect_field(self, label: str) -> None:
        page = self.page
        page.wait_for_function("label => document.activeElement?.ariaLabel === label", arg=label, timeout=TIMEOUT_MS)

    def expect_status(self, text: str | re.Pattern[str]) -> None:
        self.status.filter(has_text=text).filter(has_text="checked by the engine").filter(
            has_not_text="being checked"
        ).wait_for(timeout=TIMEOUT_MS)

    def field(self, label: str) -> Any:
        return self.properties.get_by_label(label, exact=True)

    def said(self, label: str) -> str:
        """What stands in an expression's field."""
        return str(self.field(label).evaluate("one => one.value ?? one.innerText"))

    def text(self) -> str:
        """The definition, as Export gives it."""
        with self.page.expect_download(timeout=TIMEOUT_MS) as started:
            self.page.get_by_role("button", name="Export").click(timeout=TIMEOUT_MS)
        return Path(started.value.path()).read_bytes().decode()

    def write_json(self, text: str) -> None:
        """In place of all of it, by keys: an editor that was just given the focus loses what a script selected."""
        editor = self.page.locator(".cm-content").and_(self.page.get_by_label("The definition as JSON"))
        editor.focus(timeout=TIMEOUT_MS)  # not the plain field, in whose place it comes
        self.press("Control+a")
        self.page.keyboard.insert_text(text)

    def definition(self) -> dict[str, Any]:
        return dict(json.loads(self.text()))

    def expect_definition(self, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """As Export gives it once it is so: what was done comes to the page a frame later.

        Chromium drops, without a word, what is more than ten downloads of a page in a second.
        """
        made: dict[str, Any] = {}
        for _ in range(50):
            if done(made := self.definition()):
                return made
            self.page.wait_for_timeout(150)
        raise AssertionError(made)

    def see_addition(self, step_id: str, what: str) -> None:
        self.page.locator(f'.node[data-step="{step_id}"] [data-addition="{what}"]').wait_for(timeout=TIMEOUT_MS)

    def ways(self, start: str) -> list[str]:
        """The paths of the ways out of a step, in the order of the definition."""
        found = self.page.locator(f'.surface .hit[data-from="{start}"]')
        return [str(one.get_attribute("d")) for one in found.all()]

    def choose_way(self, start: str, to: str) -> None:
        """By a click on its middle."""
        way = self.page.locator(f'.surface .hit[data-from="{start}"][data-to="{to}"]')
        at = way.evaluate(MIDDLE)
        self.page.mouse.click(at["x"], at["y"])
        chosen = self.page.locator(f'.surface .chosen .hit[data-from="{start}"][data-to="{to}"]')
        chosen.wait_for(state="attached", timeout=TIMEOUT_MS)
        self.page.locator('[data-grip="end"]').wait_for(timeout=TIMEOUT_MS)

    def drag(self, grip: str, onto: str) -> None:
        """With all of the picture in sight: the panel of what is chosen takes a part of it."""
        self.page.get_by_role("button", name="Fit", exact=True).click(timeout=TIMEOUT_MS)
        start, target = self.page.locator(grip).bounding_box(), self.page.locator(onto).bounding_box()
        assert start is not None
        assert target is not None
        self.page.mouse.move(start["x"] + start["width"] / 2, start["y"] + start["height"] / 2)
        self.page.mouse.down()
        self.page.mouse.move(target["x"] + target["width"] / 2, target["y"] + target["height"] / 2, steps=5)
        self.page.mouse.up()
