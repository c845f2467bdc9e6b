"""Tabs of one browser: one of them asks the engine for all, and another goes on when it is closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.testing.definitions import linear
from tests import postgres
from tests.browser.test_console import TIMEOUT_MS, complete, start, upload
from tests.runtime.engine_process import EngineProcess

REPEATED = ("/readyz", "/v1/watch", "/v1/overview")
HIDE = """() => {
    Object.defineProperty(document, 'hidden', {value: true});
    document.dispatchEvent(new Event('visibilitychange'));
}"""

pytestmark = [pytest.mark.browser, pytest.mark.slow(reason="drives the console in Chromium")]


@pytest.fixture(scope="module")
def engine(postgres_server: postgres.PostgresServer) -> Generator[EngineProcess]:
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn) as process:
        process.wait_ready()
        for name in ("one", "two"):
            upload(process, linear(1, definition_id=name, job_type=name))
        yield process


class Tab:
    """A page, and what it asked the engine again and again."""

    def __init__(self, page: Any, home: str) -> None:
        self.page = page
        self._home = home
        self.asked: Counter[str] = Counter()
        page.on("request", lambda request: self.asked.update([urlsplit(request.url).path]))

    def go(self, place: str, text: str) -> None:
        self.page.goto(self._home + place)
        self.see(text)

    def see(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for(timeout=TIMEOUT_MS)

    def next(self, path: str) -> None:
        with self.page.expect_request(lambda request: urlsplit(request.url).path == path, timeout=TIMEOUT_MS):
            pass


@pytest.fixture
def open_tab(page: Any, engine: EngineProcess) -> Callable[[], Tab]:
    home = f"http://127.0.0.1:{engine.port}/console/"
    return lambda: Tab(page.context.new_page(), home)


def test_one_tab_asks_for_all_until_it_is_closed(open_tab: Callable[[], Tab], engine: EngineProcess) -> None:
    first, second = (start(engine, job_type, job_type) for job_type in ("one", "two"))
    leader, page, overview = (open_tab() for _ in range(3))
    leader.go("", "Needs attention")
    page.go(f"instances/{first}", "waits for a worker")
    overview.go("", "Needs attention")
    complete(engine, first, "one")
    page.see("Completed")
    leader.next("/readyz")
    assert leader.asked["/v1/watch"] > 0
    assert [tab.asked[path] for tab in (page, overview) for path in REPEATED] == [0] * 6

    page.go(f"instances/{second}", "waits for a worker")
    leader.page.close()
    complete(engine, second, "two")
    page.see("Completed")
    asked = sorted(tab.asked["/v1/watch"] for tab in (page, overview))
    assert asked[0] == 0 < asked[1], "one of those that are left asks for both"


def test_a_hidden_tab_asks_nothing_and_leads_no_more(open_tab: Callable[[], Tab]) -> None:
    leader, other = open_tab(), open_tab()
    leader.go("", "Needs attention")
    other.go("", "Needs attention")
    assert [other.asked[path] for path in REPEATED] == [0] * 3
    leader.page.evaluate(HIDE)
    other.next("/readyz")
    before = leader.asked.copy()
    for _ in range(3):
        other.next("/readyz")
    assert leader.asked == before
