"""Some seconds of `python -m chaos orders` in the suite: durable workflows in processes that are killed."""

from __future__ import annotations

from collections.abc import Generator
from decimal import Decimal
from pathlib import Path

import pytest

from chaos.orders import Placed, Rig, attack
from chaos.runner import new_directory, remove_directory
from examples.durable_order import Line, Order, World, order
from penstock.durable import App


@pytest.fixture
def directory() -> Generator[Path]:
    directory = new_directory(Path("/var/tmp"), "test-orders")
    yield directory
    remove_directory(directory)


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_orders_end_shipped_or_undone_whatever_is_killed(directory: Path) -> None:
    report = await attack(directory, "suite-23", seconds=8, rate=3, executors=2)
    assert report.broken == []
    assert report.counts["kill"] >= 1
    assert sum(report.ends.values()) >= 10


async def test_an_order_that_was_cancelled_before_it_began_is_as_it_should_be(
    database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that is killed or slow has not taken it yet. One that has done something is to be undone."""
    monkeypatch.setattr(Rig, "tables", database_dsn)
    rig = Rig(tmp_path, "none", executors=0)
    async with App(at=database_dsn) as app:
        for number in range(2):
            placed = Placed(f"order-{number}", "shipped", cancelled=True)
            run = await app.start(order, Order(placed.id, [Line("desk", 1, Decimal(600))]), id=placed.id)
            await run.cancel("changed my mind")
            rig.placed.append(placed)
    World(rig.world).do("key", "reserve", "order-1")
    ends, records = rig.judge()
    assert (dict(ends), records) == ({"shipped: CANCELLED": 2}, 0)
    assert rig.broken == [
        "order-1 (shipped, CANCELLED): it is not undone: its world has {'reserve': 1}",
        "order-1 (shipped, CANCELLED): replayed it has not ended",
    ]
