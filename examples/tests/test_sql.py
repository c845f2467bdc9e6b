"""The row of an order and the start of its workflow are one transaction: FastAPI with SQLAlchemy, and Django."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from types import ModuleType

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.client.builder import WorkflowBuilder
from penstock.testing import SyncTestEngine, TestEngine

for library in ("sqlalchemy", "asyncpg", "django"):
    pytest.importorskip(library, reason=f"{library} is missing: `python3 bootstrap.py dev` installs it")

flow = WorkflowBuilder("order", "Order")
flow.service_task("ship", "ship")
flow.end("end")


@pytest.fixture
def shop(penstock_dsn: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The database of the orders, where a role may start workflows."""
    parts = {name: str(value) for name, value in conninfo_to_dict(penstock_dsn).items()}
    command = [sys.executable, "-m", "penstock", "migrate", "--may-start", parts["user"]]
    subprocess.run(command, env={**os.environ, "WE_POSTGRES_DSN": penstock_dsn}, check=True, timeout=120)
    monkeypatch.setenv("PENSTOCK_SCHEMA", "public")
    return parts


def fresh(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As a server imports it: the database is named by the environment."""
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


@pytest.mark.slow(reason="runs the command that lets a role start workflows")
def test_an_order_over_fastapi(penstock: TestEngine, shop: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    where = f"host={shop['host']}&port={shop.get('port', '5432')}"
    monkeypatch.setenv("DATABASE", f"postgresql+asyncpg://{shop['user']}@/{shop['dbname']}?{where}")
    module = fresh("sql_fastapi", monkeypatch)

    async def test() -> None:
        await penstock.deploy(flow)
        penstock.stub("ship", {})
        transport = httpx.ASGITransport(module.api)
        async with module.lifespan(module.api), httpx.AsyncClient(transport=transport, base_url="http://a") as browser:
            placed = await browser.put("/orders/17")
            assert placed.status_code == 201, placed.text
            again = await browser.put("/orders/17")
            assert (again.status_code, again.json()["detail"]) == (409, "this order is being carried out")
            await penstock.settle()
            penstock.run(placed.json()["instance"]).assert_completed()
            again = await browser.put("/orders/17")
            assert (again.status_code, again.json()["detail"]) == (409, "this order is placed already")
            await penstock.settle()
            assert len((await penstock.client.list_instances()).items) == 1, "no workflow without a row"

    asyncio.run(test())


@pytest.mark.slow(reason="runs the command that lets a role start workflows")
def test_an_order_of_django(
    penstock_sync: SyncTestEngine, shop: dict[str, str], penstock_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, key in (("PGDATABASE", "dbname"), ("PGHOST", "host"), ("PGPORT", "port"), ("PGUSER", "user")):
        if key in shop:
            monkeypatch.setenv(name, shop[key])
    penstock_sync.deploy(flow)
    penstock_sync.stub("ship", {})
    module = fresh("sql_django", monkeypatch)
    from django.db import IntegrityError, connection, transaction

    try:
        with connection.schema_editor() as editor:
            editor.create_model(module.Order)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            module.place(17)
            raise ZeroDivisionError
        order = module.place(17)
        penstock_sync.settle()
        penstock_sync.run(order.instance).assert_completed()
        with pytest.raises(IntegrityError):
            module.place(17)
        penstock_sync.settle()
        assert len(penstock_sync.client.list_instances().items) == 1
        with psycopg.connect(penstock_dsn) as eyes:
            assert eyes.execute("SELECT id, instance FROM django_orders").fetchall() == [(17, order.instance)]
    finally:
        connection.close()
