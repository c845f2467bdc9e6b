"""The console's pages as pictures, in docs/images/console: `make pictures`, or `python -m tests.browser.pictures`.

Each page of `PAGES` at two widths, light and dark, of an engine that `stage` furnished. A picture is taken when the
page says its sentence, so what it shows was there; `test_pictures` sees to that in CI and compares no pixels.
"""

from __future__ import annotations

import base64
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests import postgres
from tests.browser.stage import Furnished, furnish
from tests.runtime.engine_process import EngineProcess

FOLDER = Path(__file__).resolve().parents[2] / "docs/images/console"
SIZES = {1440: 900, 390: 844}
THEMES = ("light", "dark")
TIMEOUT_MS = 40_000
QUALITY = 55
"""Of WebP: letters stay sharp."""
OLD_ENOUGH = 'li:has-text("No workers for")'
"""What the overview says when a queue has waited without workers."""

RAIL_IS_WHOLE = """() => document.querySelectorAll(".nav .n").length === 3
    && document.querySelector(".nav .foot").textContent.includes("PostgreSQL")"""
"""Failed instances, open tasks and engines are counted once the page has what it needs."""

ALONE_PX = 900
"""So narrow a page of tasks shows the list or one of them."""


class Page(NamedTuple):
    """Where it is, and what says that it has come."""

    place: Callable[[Furnished], str]
    says: str


def _at(place: str) -> Callable[[Furnished], str]:
    return lambda _: place


PAGES = {
    "overview": Page(_at(""), "card gateway: 503"),
    "instances": Page(_at("instances?status=FAILED&definitionId=order-fulfilment"), "newest first"),
    "failures": Page(_at("failures"), "For example"),
    "bulk": Page(_at("instances?status=FAILED&definitionId=order-fulfilment"), "Those that start meanwhile"),
    "instance": Page(lambda made: f"instances/{made.loan}?step=send-contract", "Attempt 2"),
    "variables": Page(lambda made: f"instances/{made.loan}?tab=variables", "payslip-1.pdf"),
    "audit": Page(lambda made: f"instances/{made.loan}?tab=audit", "instance failed"),
    "run": Page(lambda made: f"instances/{made.run}?tab=journal", "ask_for_approval"),
    "tasks": Page(_at("tasks"), "What is known"),
    "jobs": Page(_at("jobs?jobType=payment.charge"), "Workers of payment.charge"),
    "mend": Page(lambda made: f"instances/{made.order}", "It can go on in version 2"),
    "queues": Page(_at("queues?queue=letters"), "waiting, the first for"),
    "schedules": Page(_at("schedules?schedule=nightly-expenses"), "Catch-up policy"),
    "timers": Page(_at("timers"), "also goes to remind"),
    "definition": Page(_at("definitions/order-fulfilment?version=1"), "instances are open"),
    "differences": Page(_at("definitions/order-fulfilment?tab=differences"), "Which running instances"),
    "modeller": Page(_at("modeller/LOS::loan"), "No problems"),
    "try": Page(_at("modeller/LOS::loan?view=try"), "What happens next?"),
    "definitions": Page(_at("definitions"), "expense-approval"),
    "engines": Page(_at("engines"), "Workers seen within a day"),
    "settings": Page(_at("settings"), "postgres_dsn"),
}


def name_of(page: str, width: int, theme: str) -> str:
    return f"{page}-{width}-{theme}.webp"


def show(page: Any, home: str, name: str, made: Furnished) -> None:
    """Opens a page and waits for what it has to say."""
    page.goto(home + PAGES[name].place(made))
    if name == "bulk":
        page.get_by_role("checkbox", name="All rows shown").check(timeout=TIMEOUT_MS)
        page.get_by_role("button", name="Select all that match").click(timeout=TIMEOUT_MS)
        page.get_by_role("button", name="Retry…").click(timeout=TIMEOUT_MS)
    if name == "mend":
        page.get_by_role("button", name="Repair…").click(timeout=TIMEOUT_MS)
        page.get_by_role("button", name="To another version").click(timeout=TIMEOUT_MS)
    if name == "tasks" and page.viewport_size["width"] <= ALONE_PX:
        page.locator(".tasks li button").first.click(timeout=TIMEOUT_MS)
    page.get_by_text(PAGES[name].says).first.wait_for(timeout=TIMEOUT_MS)
    page.wait_for_function(
        "() => document.querySelector('.skeleton, .canvas:not(:has(svg))') === null", timeout=TIMEOUT_MS
    )
    if name == "modeller":
        page.locator('.surface[aria-busy="false"]').wait_for(timeout=TIMEOUT_MS)
    page.evaluate("() => document.fonts.ready")


def take(page: Any) -> bytes:
    """As WebP, which Playwright has no name for."""
    session = page.context.new_cdp_session(page)
    taken = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    session.detach()
    return base64.b64decode(taken["data"])


def take_all(browser: Any, home: str, made: Furnished) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.webp"):
        old.unlink()
    for theme in THEMES:
        for width, height in SIZES.items():
            context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": height})
            page = context.new_page()
            page.goto(home)
            page.locator(OLD_ENOUGH).first.wait_for(timeout=60_000)
            for name in PAGES:
                show(page, home, name, made)
                page.wait_for_function(RAIL_IS_WHOLE, timeout=TIMEOUT_MS)
                (FOLDER / name_of(name, width, theme)).write_bytes(take(page))
            context.close()


@contextmanager
def furnished() -> Generator[tuple[Any, str, Furnished]]:
    """A browser, where the console is, and what is in it."""
    from playwright.sync_api import sync_playwright

    directory = postgres.run_directory(durable=False)
    with (
        postgres.shared_server(directory, durable=False) as server,
        server.database(postgres.apply_schema) as dsn,
        EngineProcess(dsn) as engine,
        sync_playwright() as playwright,
    ):
        engine.wait_ready()
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with furnish(engine) as made:
            yield browser, f"http://127.0.0.1:{engine.port}/console/", made
        browser.close()


def main() -> None:
    with furnished() as (browser, home, made):
        take_all(browser, home, made)
    sizes = [path.stat().st_size for path in FOLDER.glob("*.webp")]
    print(f"{len(sizes)} pictures, {sum(sizes) / 1e6:.1f} MB, in {FOLDER}", file=sys.stderr)


if __name__ == "__main__":
    main()
