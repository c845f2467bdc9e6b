"""An idle engine with 1,000 workers parked on 50 job types: what waiting costs."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.bench import SETTLE_S, Bench
from benchmarks.deployment import Deployment
from benchmarks.load.counts import Count
from benchmarks.load.scripts import ParkPlan
from benchmarks.result import Bound, Run
from benchmarks.scenarios.scenario import Scenario

WORKERS = 1_000
JOB_TYPES = 50
ROW = "idle engine, 1,000 workers parked on 50 job types"
STATEMENT_MARKS = (b"LOG:  execute ", b"LOG:  statement: ")


def run(bench: Bench) -> Run:
    began = time.monotonic()
    tag = bench.new_tag()
    plan = ParkPlan(workers=WORKERS, job_types=tuple(f"bench.{tag}.idle-{number}" for number in range(JOB_TYPES)))
    seconds = bench.size(30, 5)
    with bench.load(plan) as load:
        load.begin()
        _pause(bench, 3.0, "parking")
        before = bench.meter.snapshot(load)
        _pause(bench, seconds, "idle")
        after = bench.meter.snapshot(load)
        memory_mib = bench.meter.engine_memory_mib()
        statements = _statements_per_s(bench, bench.size(10, 3))
        errors = load.counts()[Count.ERRORS]
        load.stop()
    elapsed = after.at - before.at
    figures: dict[str, float] = {"errors": float(errors)}
    if before.engine_cpu_s is not None and after.engine_cpu_s is not None:
        figures["engine_core_percent"] = (after.engine_cpu_s - before.engine_cpu_s) / elapsed * 100
    if before.postgres_cpu_s is not None and after.postgres_cpu_s is not None:
        figures["postgres_core_percent"] = (after.postgres_cpu_s - before.postgres_cpu_s) / elapsed * 100
    if before.database is not None and after.database is not None:
        figures["transactions_per_s"] = (after.database.commits - before.database.commits) / elapsed
    if statements is not None:
        figures["statements_per_s"] = statements
    if memory_mib is not None:
        figures["engine_memory_mib"] = memory_mib
    return bench.run_of(figures, began)


def _pause(bench: Bench, seconds: float, text: str) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        bench.progress(1 - left / seconds, text)
        time.sleep(min(left, 0.5))


def _statements_per_s(bench: Bench, seconds: float) -> float | None:
    """Counted in the log of an engine's own PostgreSQL, for a while of its own: logging costs CPU. None elsewhere."""
    database, log = bench.database, _server_log(bench.deployment)
    if database is None or log is None or not database.set_logging(True):
        return None
    try:
        time.sleep(SETTLE_S)
        start, began = log.stat().st_size, time.monotonic()
        _pause(bench, seconds, "counting statements")
        elapsed = time.monotonic() - began
        with log.open("rb") as lines:
            lines.seek(start)
            written = lines.read()
    finally:
        database.set_logging(False)
    return sum(written.count(mark) for mark in STATEMENT_MARKS) / elapsed


def _server_log(deployment: Deployment) -> Path | None:
    if not deployment.own or deployment.log is None:
        return None
    path = deployment.log.parent / "postgres.log"
    return path if path.exists() else None


SCENARIOS = [
    Scenario(
        "idle-fleet",
        "1,000 workers parked on 50 job types, nothing to do",
        run,
        (
            Bound(figure="statements_per_s", row=ROW, at_most=20),
            Bound(figure="engine_core_percent", row=ROW, at_most=3),
            Bound(figure="engine_memory_mib", row=ROW, at_most=150),
        ),
        {"workers": WORKERS, "job types": JOB_TYPES},
    ),
]
