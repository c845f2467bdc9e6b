"""How many workers to start with: throughput by workers, jobs per poll and how long a poll waits.

    python -m benchmarks.worker_grid [--workers 1 4 16 64] [--per-poll 1 8 32] [--wait 0.1 20] [--jobs 12000]

An engine of its own on the embedded PostgreSQL (fsync on), whose workers do nothing but ask and answer. In each cell
they complete what was started before, up to ``--jobs`` jobs, three of each instance; a worker that polls for several
jobs completes them in one call. Then the most workers wait, each way, without any job: what that costs. Prints a table,
and the fewest jobs in flight (workers × jobs per poll) that come within a tenth of the best cell: what to start with
where handlers take no time. Exit code 1 when a call was refused.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.bench import Bench, Options, ScenarioFailed
from benchmarks.calibration import print_line
from benchmarks.command import DEFAULT_WORK_DIR
from benchmarks.database import Database
from benchmarks.deployment import engine, work_directory
from benchmarks.load.counts import Count
from benchmarks.load.scripts import ParkPlan, WorkPlan
from benchmarks.scenarios.linear import measure_work
from benchmarks.workflows import START_VARIABLES_BYTES, linear, variables_of

LENGTH: Final = 3
PER_SLOT: Final = 300
"""Jobs for each that may be in flight: a cell of few workers would take minutes for all of them."""
NEAR: Final = 0.9
"""Of the best throughput."""
SETTLE_S: Final = 1.0


class Cell(NamedTuple):
    """One way to work. Costs are seconds of CPU for 1,000 jobs."""

    workers: int
    per_poll: int
    wait_s: float
    jobs_per_s: float
    engine_s: float
    postgres_s: float
    errors: int

    @property
    def in_flight(self) -> int:
        return self.workers * self.per_poll


class Idle(NamedTuple):
    """Workers that wait for jobs. Shares of a core, in percent."""

    workers: int
    wait_s: float
    engine_percent: float
    postgres_percent: float


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--per-poll", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--wait", type=float, nargs="+", default=[0.1, 20.0], help="Seconds that a poll waits.")
    parser.add_argument("--jobs", type=int, default=12_000, help="Of a cell, at most.")
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    parser.add_argument("--work-dir", type=Path, default=DEFAULT_WORK_DIR)
    return parser.parse_args(words)


def work(bench: Bench, workers: int, per_poll: int, wait_s: float, jobs: int) -> Cell:
    """Measure one cell."""
    workflow = linear(bench.new_tag(), LENGTH)
    plan = WorkPlan(workers, workflow.job_types, workflow.outputs, per_poll, batch=per_poll > 1, wait_s=wait_s)
    instances = max(LENGTH, min(jobs, PER_SLOT * workers * per_poll) // LENGTH)
    figures = measure_work(bench, workflow, variables_of(START_VARIABLES_BYTES), plan, instances).figures
    costs = figures["engine_cpu_s_per_1000"], figures["postgres_cpu_s_per_1000"]
    return Cell(workers, per_poll, wait_s, figures["jobs_per_s"], *costs, int(figures["errors"]))


def rest(bench: Bench, workers: int, wait_s: float, seconds: float) -> Idle:
    """Measure workers that wait."""
    with bench.load(ParkPlan(workers, (f"bench.{bench.new_tag()}.idle",), wait_s)) as load:
        load.begin()
        time.sleep(SETTLE_S)
        before = bench.meter.snapshot(load)
        time.sleep(seconds)
        after = bench.meter.snapshot(load)
        errors = load.counts()[Count.ERRORS]
        load.stop()
    if errors:
        raise ScenarioFailed(f"{errors} polls were refused")

    def share(until: float | None, since: float | None) -> float:
        assert until is not None
        assert since is not None
        return 100 * (until - since) / took_s

    took_s = after.at - before.at
    engine_percent = share(after.engine_cpu_s, before.engine_cpu_s)
    return Idle(workers, wait_s, engine_percent, share(after.postgres_cpu_s, before.postgres_cpu_s))


def measure(options: argparse.Namespace) -> tuple[list[Cell], list[Idle]]:
    """Measure all cells, and what waiting costs."""

    def progress(share: float, text: str) -> None:
        print(f"\r{text}: {share:.0%}    ", end="", file=sys.stderr, flush=True)

    with work_directory(options.work_dir) as directory, engine(directory, {}) as deployment:
        assert deployment.dsn is not None
        print_line(deployment.dsn)
        database = Database(deployment.dsn)
        try:
            bench = Bench(deployment, database, Options(work_dir=options.work_dir), progress)
            ways = product(options.wait, options.workers, options.per_poll)
            cells = [work(bench, workers, per_poll, wait_s, options.jobs) for wait_s, workers, per_poll in ways]
            idle = [rest(bench, max(options.workers), wait_s, options.idle_seconds) for wait_s in options.wait]
        finally:
            database.close()
    return cells, idle


def advised(cells: Sequence[Cell]) -> Cell:
    """Choose what to start with: the fewest jobs in flight near the best throughput, of these the fewest workers."""
    best = max(cell.jobs_per_s for cell in cells)
    near = [cell for cell in cells if cell.jobs_per_s >= NEAR * best]
    return min(near, key=lambda cell: (cell.in_flight, cell.workers, -cell.wait_s))


def shown(cells: Sequence[Cell], idle: Sequence[Idle]) -> str:
    """The table, as Markdown, and what follows of it."""
    lines = ["| workers | jobs per poll | a poll waits | jobs/s | engine CPU s/1,000 | PostgreSQL CPU s/1,000 |"]
    lines.append("|---|---|---|---|---|---|")
    for cell in cells:
        figures = f"{cell.jobs_per_s:,.0f} | {cell.engine_s:.3f} | {cell.postgres_s:.3f}"
        lines.append(f"| {cell.workers} | {cell.per_poll} | {cell.wait_s:g} s | {figures} |")
    lines.append("")
    for each in idle:
        shares = f"{each.engine_percent:.1f} % of a core in the engine, {each.postgres_percent:.1f} % in PostgreSQL"
        lines.append(f"{each.workers} workers without a job, polls that wait {each.wait_s:g} s: {shares}")
    start = advised(cells)
    lines.append(
        f"start with {start.in_flight} jobs in flight: {start.workers} workers × {start.per_poll} per poll,"
        f" {start.jobs_per_s:,.0f} jobs/s"
    )
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """The exit code."""
    cells, idle = measure(parsed(words))
    print(f"\n{shown(cells, idle)}")
    return int(any(cell.errors for cell in cells))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
