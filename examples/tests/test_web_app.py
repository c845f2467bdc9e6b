"""A web application with a worker in it: the engine listens on a port, and time stays the test's."""

from __future__ import annotations

import asyncio
import importlib
import sys

import order_worker
import pytest

from penstock.testing import TestEngine


def test_an_order_from_the_browser_to_the_parcel(penstock: TestEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    penstock.use(order_worker.worker)
    del penstock.stubs["customer.notify"]  # that is what the application does itself

    async def test() -> None:
        async with penstock.serve() as url:
            monkeypatch.setenv("PENSTOCK_URL", url)
            monkeypatch.delitem(sys.modules, "web_app", raising=False)
            web_app = importlib.import_module("web_app")
            async with web_app.app.test_app() as app:
                browser = app.test_client()
                order = {"orderId": "B-1", "amount": 3, "items": ["pen"]}
                placed = await (await browser.post("/orders", json=order)).get_json()
                assert await (await browser.post("/orders", json=order)).get_json() == placed  # sent twice
                await penstock.settle()
                await web_app.client.wait_until_ended(placed["id"], timeout_s=20)
                shown = await (await browser.get(f"/orders/{placed['id']}")).get_json()
                assert shown == {"status": "COMPLETED", "steps": [], "notified": 1}
                assert (await browser.get("/orders/zz")).status_code == 404
            penstock.run(placed["id"]).assert_variables(trackingNumber="PS-B-1")

    asyncio.run(test())
