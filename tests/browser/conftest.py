"""A real browser, and a web server with pages that mean no good."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Generator
from typing import Any

import pytest

from tests import postgres
from tests.browser.modeller import Modeller
from tests.browser.test_console import Visitor
from tests.runtime.engine_process import EngineProcess


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title><body>")

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the name of the base class
        """Quiet."""


@pytest.fixture(scope="session")
def web_port() -> Generator[int]:
    """Serves an empty page under any name and path."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def chromium() -> Generator[Any]:
    """All names that end with .test are this machine: an attacker's name server can say so too.

    No longer than its module: Playwright keeps an asyncio loop running in this thread, and no other test could run one.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--host-resolver-rules=MAP *.test 127.0.0.1"],
        )
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Generator[Any]:
    context = chromium.new_context()
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def visitor(page: Any, engine: EngineProcess) -> Generator[Visitor]:
    """Of the module's engine; at the end nothing was amiss."""
    found = Visitor(page, engine)
    yield found
    assert found.complaints == []


@pytest.fixture(scope="module")
def engine(postgres_server: postgres.PostgresServer) -> Generator[EngineProcess]:
    """With nothing in it. Modules that need more have one of their own."""
    with postgres_server.database(postgres.apply_schema) as dsn, EngineProcess(dsn) as process:
        process.wait_ready()
        yield process


@pytest.fixture
def modeller(visitor: Visitor) -> Modeller:
    return Modeller(visitor)
