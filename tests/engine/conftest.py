"""An engine on a real database, its batchers running in the test's nursery."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import pytest
import trio

from penstock.engine.engine import Engine
from penstock.metrics import Metrics
from penstock.settings import Settings
from penstock.store.database import Database
from tests.engine.driver import Driver

MakeDriver = Callable[..., Driver]


@pytest.fixture
async def make_driver(database_dsn: str, nursery: trio.Nursery) -> AsyncGenerator[MakeDriver]:
    """Makes engines on one database; each has a pool and batchers of its own."""
    databases: list[Database] = []

    def make(number: int = 0, **settings: object) -> Driver:
        database = Database(database_dsn, max_connections=8, acquire_timeout_s=10)
        databases.append(database)
        engine = Engine(database, Settings(**settings), Metrics("test"), number)  # type: ignore[arg-type]
        for batcher in engine.batchers():
            nursery.start_soon(batcher.run)
        return Driver(engine, database_dsn)

    yield make
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        for database in databases:
            await database.close(2)


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    """One engine."""
    return make_driver()
