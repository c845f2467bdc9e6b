"""Some seconds of `python -m chaos orders` in the suite: durable workflows in processes that are killed."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from chaos.orders import attack
from chaos.runner import new_directory, remove_directory


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
