"""The crawler's workflow and handler; how often it fetches is the queue's affair."""

from __future__ import annotations

import crawler

from penstock.testing import SyncTestEngine


def test_a_page_that_fails_stops_no_other(penstock_sync: SyncTestEngine) -> None:
    penstock_sync.deploy(crawler.WORKFLOW)
    penstock_sync.use(crawler.worker)
    with crawler.site() as port:
        urls = [f"http://127.0.0.1:{port}/a", "http://127.0.0.1:1/nobody-listens", f"http://localhost:{port}/b"]
        run = penstock_sync.start("crawl", {"pages": crawler.pages_of(urls)}).finish()
    run.assert_completed()
    first, failed, last = run.variables["titles"]
    assert (first, last) == ("page a", "page b")
    assert "refused" in failed["error"]["message"].lower()
