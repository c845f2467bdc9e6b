"""The engines of tests/engine."""

from __future__ import annotations

import pytest

from penstock.engine.queues import fairness_order
from penstock.engine.queues.low_water_marks import LowWaterMarks
from tests.engine.conftest import driver, make_driver

__all__ = ["driver", "make_driver"]


@pytest.fixture(autouse=True)
def whole_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """No loop of these engines looks at the whole queue now and then, so every claim does: else a job of a better
    priority would stay below what was taken."""
    monkeypatch.setattr(LowWaterMarks, "mark_taken", lambda *_: None)
    for pause in ("FRUITLESS_S", "FRUITLESS_SHARE", "REASSIGN_INTERVAL_S"):
        monkeypatch.setattr(fairness_order, pause, 0.0)
