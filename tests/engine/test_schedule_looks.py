"""What schedules cost while none is due."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from penstock.engine.advance.timers import SCAN_INTERVAL_MAX_S
from penstock.store.db.connection import TrioConnection
from tests.engine.driver import Driver
from tests.engine.test_schedules import begun

ROUNDS = 3


async def test_idle_schedules_cost_a_statement_in_five_seconds(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    await begun(driver)
    asked: list[Any] = []
    send, scanned = trio.open_memory_channel[None](1)
    fetch, roundtrip = TrioConnection.fetch, TrioConnection.roundtrip

    async def noting(self: TrioConnection, *args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        return await fetch(self, *args, **kwargs)

    async def noting_all(self: TrioConnection, statements: Any, *args: Any, **kwargs: Any) -> Any:
        asked.extend(statements)
        return await roundtrip(self, statements, *args, **kwargs)

    async def scan() -> None:
        while True:
            await driver.engine.schedules.wait_due()
            await driver.engine.schedules.fire_once()
            send.send_nowait(None)

    monkeypatch.setattr(TrioConnection, "fetch", noting)
    monkeypatch.setattr(TrioConnection, "roundtrip", noting_all)
    mock_clock.jump(SCAN_INTERVAL_MAX_S)
    nursery.start_soon(scan)
    await scanned.receive()
    asked.clear()
    for done in range(ROUNDS):
        mock_clock.jump(SCAN_INTERVAL_MAX_S - 0.1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked) == done
        mock_clock.jump(0.1)
        await scanned.receive()
    assert len(asked) == ROUNDS
    nursery.cancel_scope.cancel()
