"""Some seconds of `python -m chaos families` in the suite: runs that call each other, in processes that are killed."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from chaos.families import attack
from chaos.runner import new_directory, remove_directory


@pytest.fixture
def directory() -> Generator[Path]:
    directory = new_directory(Path("/var/tmp"), "test-families")
    yield directory
    remove_directory(directory)


@pytest.mark.slow(reason="attacks engine processes for seconds")
async def test_families_end_as_undisturbed_ones_whatever_is_killed(directory: Path) -> None:
    report = await attack(directory, "suite-250", seconds=4, rate=2.5, executors=2)
    assert report.broken == []
    assert report.counts["kill"] >= 1
    assert report.instances >= 20
    assert set(report.ends) <= {"COMPLETED", "CANCELLED"}
