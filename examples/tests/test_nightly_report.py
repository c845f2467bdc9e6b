"""The report of the night: its handler, as a run that a schedule started has it."""

from __future__ import annotations

import nightly_report
import pytest

from penstock.testing import SyncTestEngine


@pytest.mark.parametrize(
    ("at", "day"),
    [
        ("2026-03-29T01:00:00Z", "Saturday, 28 March 2026"),  # the clock goes forward in that night
        ("2026-10-25T00:00:00Z", "Saturday, 24 October 2026"),
        ("2026-05-05T00:00:00Z", "Monday, 04 May 2026"),
    ],
)
def test_a_report_is_of_the_day_before(penstock_sync: SyncTestEngine, at: str, day: str) -> None:
    penstock_sync.deploy(nightly_report.WORKFLOW)
    penstock_sync.use(nightly_report.worker)
    run = penstock_sync.start("nightly-report", {"schedule": {"id": "nightly-report", "at": at}}).finish()
    run.assert_completed()
    run.assert_variables(report=f"sales of {day}")
