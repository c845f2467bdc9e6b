"""`benchmarks.worker_grid`: a small round of it, and what it advises."""

from __future__ import annotations

import pytest

from benchmarks.worker_grid import Cell, Idle, advised, measure, parsed, shown


def cell(workers: int, per_poll: int, jobs_per_s: float, wait_s: float = 20.0) -> Cell:
    return Cell(workers, per_poll, wait_s, jobs_per_s, 0.1, 0.05, 0)


def test_the_fewest_jobs_in_flight_that_are_nearly_as_fast_are_advised() -> None:
    cells = [cell(1, 1, 100), cell(4, 8, 950), cell(32, 1, 950), cell(16, 8, 1000), cell(64, 32, 990)]
    assert advised(cells) == cells[1]
    assert advised([*cells, cell(64, 32, 5000)]).jobs_per_s == 5000
    text = shown(cells, [Idle(64, 20.0, 0.5, 0.1)])
    assert "| 4 | 8 | 20 s | 950 | 0.100 | 0.050 |" in text
    assert text.endswith("start with 32 jobs in flight: 4 workers × 8 per poll, 950 jobs/s")


@pytest.mark.slow(reason="starts an engine and a PostgreSQL")
def test_each_way_to_work_is_measured() -> None:
    words = ["--workers", "1", "3", "--per-poll", "1", "4", "--wait", "0.2", "--jobs", "300", "--idle-seconds", "0.5"]
    cells, idle = measure(parsed(words))
    assert [(cell.workers, cell.per_poll) for cell in cells] == [(1, 1), (1, 4), (3, 1), (3, 4)]
    assert all(cell.jobs_per_s > 0 and cell.errors == 0 for cell in cells)
    assert [(each.workers, each.wait_s) for each in idle] == [(3, 0.2)]
