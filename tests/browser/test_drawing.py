"""The modeller at work: an example drawn from nothing, 200 steps, the first five minutes."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests import postgres
from tests.browser.drawing import EXAMPLES, LARGE_STEPS, Artist, first_minutes, frames_of_drag, frames_of_layout, large
from tests.browser.test_console import TIMEOUT_MS, Visitor, violations
from tests.browser.test_modelling import Modeller
from tests.runtime.engine_process import EngineProcess

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DRAWN = os.environ.get("DRAWN", "order-fulfilment")
"""`DRAWN=loan-process` takes half a minute; `python -m tests.browser.drawing film FOLDER` films it step by step."""
HELD_MAX_MS = 10_000
"""No task may hold the page as long as that, on whatever machine: the layout of 200 steps in it would."""
HEAP_MAX_BYTES = 150_000_000
IN_VIEW = """name => {
    const inner = document.querySelector(`.node[data-step="${name}"]`).getBoundingClientRect();
    const canvas = document.querySelector(".canvas");
    const outer = canvas.getBoundingClientRect();
    return canvas.scrollTop === 0 && inner.top >= outer.top && inner.bottom <= outer.bottom
        && inner.left >= outer.left && inner.right <= outer.right;
}"""


@pytest.fixture(scope="module")
def engine(postgres_server: postgres.Server) -> Generator[EngineProcess]:
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn) as process:
        process.wait_ready()
        yield process


def test_a_process_is_drawn_from_nothing(visitor: Visitor, tmp_path: Path) -> None:
    body = json.loads((EXAMPLES / f"{DRAWN}.json").read_text())
    artist = Artist(visitor.page)
    artist.draw(body, visitor.home, every=4)
    modeller = Modeller(visitor)
    modeller.expect_status("No problems")
    made = modeller.definition()
    by_id = {one["id"]: one for one in made["steps"]}
    assert by_id == {one["id"]: one for one in body["steps"]}
    assert {**made, "steps": []} == {**body, "steps": []}
    assert made["steps"][0]["id"] == body["steps"][0]["id"]
    for at, picture in enumerate(artist.pictures):
        (tmp_path / f"{at:03}.png").write_bytes(picture)
    assert len(set(artist.pictures)) == len(artist.pictures) > 2
    assert violations(visitor.page) == []


def test_the_page_draws_on_while_much_is_laid_out(visitor: Visitor) -> None:
    layout = frames_of_layout(visitor.page, visitor.home, large(LARGE_STEPS))
    drag = frames_of_drag(visitor.page, "d20", 60)
    print(f"layout: {layout}\ndrag: {drag}")
    assert len(drag.frame_ms) > 10
    assert max([*layout.long_task_ms, *drag.long_task_ms], default=0) < HELD_MAX_MS
    assert visitor.page.evaluate("() => performance.memory.usedJSHeapSize") < HEAP_MAX_BYTES
    # What the keys go to is brought into view.
    for _ in range(8):
        visitor.click("button", "Zoom in")
    for name in ("m38", "d0"):
        node = visitor.page.locator(f'.node[data-step="{name}"]')
        node.focus()
        visitor.page.wait_for_function(IN_VIEW, arg=name, timeout=TIMEOUT_MS)


def test_the_first_five_minutes_are_six_clicks(visitor: Visitor) -> None:
    path = first_minutes(visitor)
    print(path)
    assert path.clicks == 6
    visitor.page.get_by_text("Nobody").or_(visitor.page.get_by_text("waits")).first.wait_for(timeout=TIMEOUT_MS)
