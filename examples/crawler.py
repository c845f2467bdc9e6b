"""A crawler that is polite: so many pages a second of each host, however many crawls and workers there are.

    python examples/crawler.py --try       crawls a small site of its own under two names, and shows how fast
    python examples/crawler.py             works, until Ctrl-C
    python examples/crawler.py URL URL …   crawls these pages; some worker has to run

All need an engine, e.g. `penstock serve`; PENSTOCK_URL says where, by default http://127.0.0.1:8080. The step gives
each of its jobs the page's host as flow key (crawl.json), and the queue limits how often jobs of one key begin. Another
limit is a `penstock queue set` away: no deploy, no restart.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import msgspec

from penstock.client import Client, QueuePolicy, Rate
from penstock.worker import Worker

ENGINE = os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080")
WORKFLOW = Path(__file__).with_name("crawl.json")
FETCH_TIMEOUT_S = 10
PAGE_MAX_BYTES = 1_000_000
POLITE = QueuePolicy(["crawl.fetch"], rate_per_key=Rate(5, "PT1S", burst=1), concurrency_per_key=2)
"""A page each 0.2 s of a host, and no more than two under way."""
TITLE = re.compile(r"<title>(.*?)</title>", re.IGNORECASE | re.DOTALL)

worker = Worker(ENGINE, concurrency=20)


class Page(msgspec.Struct):
    host: str
    url: str


class Fetch(msgspec.Struct):
    page: Page


@worker.handler("crawl.fetch")
def fetch(job: Fetch) -> dict[str, object]:
    """One page. Runs in a thread, as it is no coroutine."""
    with urllib.request.urlopen(job.page.url, timeout=FETCH_TIMEOUT_S) as answer:
        text = answer.read(PAGE_MAX_BYTES).decode(errors="replace")
    found = TITLE.search(text)
    return {"title": found[1].strip() if found else job.page.url}


def pages_of(urls: Sequence[str]) -> list[dict[str, str]]:
    """With the host, by which they are limited."""
    return [{"host": urlsplit(url).netloc, "url": url} for url in urls]


async def prepare(client: Client) -> None:
    """To put the same again changes nothing."""
    await client.upload_definition(WORKFLOW)
    await client.put_queue("crawl", POLITE)


async def crawl(urls: Sequence[str]) -> None:
    async with Client(ENGINE) as client:
        await prepare(client)
        started = await client.start_instance("crawl", {"pages": pages_of(urls)})
        ended = await client.wait_until_ended(started.id, timeout_s=600)
        for url, title in zip(urls, ended.variables["titles"], strict=True):
            print(url, title)


class Site(BaseHTTPRequestHandler):
    """Any page, with its path as title."""

    def do_GET(self) -> None:
        body = f"<title>page {self.path[1:]}</title>".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """In silence."""


@contextmanager
def site() -> Generator[int]:
    """Its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


async def try_it() -> None:
    with site() as port:
        hosts = [f"127.0.0.1:{port}", f"localhost:{port}"]
        urls = [f"http://{host}/{number}" for number in range(5) for host in hosts]
        began = anyio.current_time()
        async with worker:
            await crawl(urls)
        print(f"{len(urls)} pages of {len(hosts)} hosts, 5 a second of each, in {anyio.current_time() - began:.1f} s")


if __name__ == "__main__":
    if "--try" in sys.argv:
        anyio.run(try_it)
    elif sys.argv[1:]:
        anyio.run(crawl, sys.argv[1:])
    else:
        anyio.run(worker.run)
