"""A machine that has no broker yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kafka import conftest
from tests.kafka.distribution import JARS_VARIABLE


class Item:
    """As much of a collected test as the hook looks at."""

    def __init__(self, *fixtures: str) -> None:
        self.fixturenames = fixtures
        self.markers: list[Any] = []

    def add_marker(self, marker: Any) -> None:
        self.markers.append(marker)


@pytest.mark.parametrize("is_warm", [True, False])
def test_only_a_broker_that_must_be_fetched_gets_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_warm: bool
) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    if is_warm:
        (tmp_path / "warm").touch()
    items: list[Any] = [Item("broker", "topics"), Item("own_broker"), Item("tmp_path")]
    conftest.pytest_collection_modifyitems(items)
    longer = [[marker.args[0] for marker in item.markers] for item in items]
    assert longer == ([[], [], []] if is_warm else [[720.0], [720.0], []])
