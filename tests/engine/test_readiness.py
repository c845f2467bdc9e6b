"""Whether the engine can serve is anybody's to ask: many who ask at once are one question to the database."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from penstock.errors import Unavailable
from penstock.store.db.database import Database
from tests.engine.driver import Driver


async def test_a_crowd_that_asks_costs_one_look_or_two(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = 0
    fetch = Database.fetch

    async def counted(database: Database, name: str, *rest: Any) -> Any:
        nonlocal probes
        probes += name == "now"
        return await fetch(database, name, *rest)

    monkeypatch.setattr(Database, "fetch", counted)
    async with trio.open_nursery() as nursery:
        for _ in range(500):
            nursery.start_soon(driver.engine.ready)
    assert probes in (1, 2)
    before = probes
    await driver.engine.ready()
    assert probes == before + 1


async def test_each_who_waits_hears_of_a_database_that_fails(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = 0

    async def away(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise ConnectionError("away")

    async def ask() -> None:
        nonlocal failed
        with pytest.raises(Unavailable, match="the database does not answer"):
            await driver.engine.ready()
        failed += 1

    with monkeypatch.context() as patched:
        patched.setattr(Database, "fetch", away)
        patched.setattr("penstock.engine.engine.DatabaseError", ConnectionError)
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
    assert failed == 10
    await driver.engine.ready()
