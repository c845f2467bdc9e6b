"""An engine on a real database, its batchers in the test's nursery. After each test the invariants are checked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
import trio

from penstock.engine.engine import Engine
from penstock.settings import Settings
from penstock.store.db.database import LOCKED, Database
from penstock.store.db.replica import Replica
from penstock.store.db.vault import make_vault
from penstock.telemetry.metrics import Metrics
from penstock.telemetry.spans import Spans
from penstock.testing.invariants import assert_invariants
from tests.engine.driver import Driver
from tests.store.proxy import Proxy

MakeDriver = Callable[..., Driver]


@pytest.fixture
async def make_driver(database_dsn: str) -> AsyncGenerator[MakeDriver]:
    """Makes engines on one database; each has a pool and batchers of its own.

    Their tasks have ended before the pools are closed: one that was just connecting would find its pool closed.
    """
    databases: list[Database] = []
    drivers: list[Driver] = []

    async with trio.open_nursery() as nursery:

        def make(
            number: int | None = None,
            *,
            services: bool = False,
            dsn: str = database_dsn,
            spans: Spans | None = None,
            replica: Replica | None = None,
            **settings: Any,
        ) -> Driver:
            """``services``: with the loops that the runtime gives an engine, for polls and timers that wait."""
            number = len(databases) if number is None else number
            given = Settings(**settings)
            keys = given.encryption_keys
            vault = make_vault(None if keys is None else keys.reveal())
            database = Database(
                dsn,
                max_connections=8,
                acquire_timeout_s=10,
                answer_timeout_s=given.db_answer_timeout_seconds,
                vault=vault,
            )
            databases.append(database)
            engine = Engine(database, given, Metrics("test"), number, spans=spans, replica=replica)
            for batcher in engine.batchers():
                nursery.start_soon(batcher.run)
            if services:
                nursery.start_soon(_probe, engine)
                nursery.start_soon(_fire_timers, engine)
            drivers.append(Driver(engine, dsn))
            return drivers[-1]

        yield make
        nursery.cancel_scope.cancel()
    for driver in drivers:
        driver.close()
    with trio.CancelScope(shield=True):
        for database in databases:
            await database.close(2)
    assert_invariants(database_dsn)


async def _probe(engine: Engine) -> None:
    while True:
        await engine.polls.wait_probe()
        await engine.polls.probe_once()


async def _fire_timers(engine: Engine) -> None:
    while True:
        await engine.timers.wait_due()
        try:
            await engine.timers.fire_once()
        except LOCKED:  # as the runtime does with what is away
            engine.timers.hint(0.1)


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Driver:
    """One engine."""
    return make_driver()


@pytest.fixture
async def proxy(database_dsn: str, nursery: trio.Nursery) -> Proxy:
    """In front of the database: what passes can be held, lost or cut."""
    proxy = Proxy(database_dsn)
    await nursery.start(proxy.serve)
    return proxy
