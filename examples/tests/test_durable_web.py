"""The durable order behind FastAPI and Flask, on a real database: an order is placed, paid and shipped over HTTP."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import durable_order
import httpx
import pytest
from durable_order import World

from penstock.client import Unavailable

BASKET = {"lines": [{"sku": "pen", "count": 2, "price": "3"}]}


def fresh(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As a server imports it: the database is named by the environment."""
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, penstock_dsn: str) -> None:
    monkeypatch.setattr(durable_order, "world", World(tmp_path / "world.sqlite3"))
    monkeypatch.setenv("PENSTOCK_AT", penstock_dsn)


def away(*args: object, **named: object) -> NoReturn:
    raise Unavailable("the database is away")


def test_an_order_over_fastapi(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fresh("durable_fastapi", monkeypatch)

    async def test() -> None:
        transport = httpx.ASGITransport(module.api)
        async with module.lifespan(module.api), httpx.AsyncClient(transport=transport, base_url="http://a") as browser:
            placed = await browser.put("/orders/A-1", json=BASKET)
            assert placed.status_code == 202
            assert (await browser.put("/orders/A-1", json=BASKET)).json() == placed.json()  # sent twice
            assert (await browser.put("/orders/A-1", json={"lines": []})).status_code == 409  # its number is taken
            assert (await browser.get("/orders/A-1/result")).status_code == 504
            assert (await browser.post("/orders/A-1/payment", json={"card": "visa"})).status_code == 202
            shipped = await browser.get("/orders/A-1/result?wait_s=30")
            assert (shipped.status_code, shipped.json()["amount"]) == (200, "6")
            assert (await browser.get("/orders/A-1")).json()["status"] == "COMPLETED"
            assert (await browser.get("/orders/none")).status_code == 404
            await browser.put("/orders/A-2", json=BASKET)
            await browser.post("/orders/A-2/payment", json={"card": "stolen"})
            assert (await browser.get("/orders/A-2/result?wait_s=30")).status_code == 409
            monkeypatch.setattr(module.app, "get", away)
            refused = await browser.get("/orders/A-1")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")

    asyncio.run(test())


def test_an_order_over_flask(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fresh("durable_flask", monkeypatch)
    with module.opened:
        browser = module.web.test_client()
        assert browser.put("/orders/B-1/pen/2").status_code == 202
        assert browser.post("/orders/B-1/payment/visa").status_code == 202
        shipped = browser.get("/orders/B-1/result")
        assert (shipped.status_code, list(shipped.get_json())) == (200, ["tracking"])
        assert browser.get("/orders/B-1").get_json()["status"] == "COMPLETED"
        assert browser.get("/orders/none").status_code == 404
        monkeypatch.setattr(module, "shop", away)
        refused = browser.get("/orders/B-1")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
