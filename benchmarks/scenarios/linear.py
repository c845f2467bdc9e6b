"""Service tasks one after the other, started before the window: completing jobs with one call each, and in batches."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.bench import (
    BATCH_JOBS,
    BATCH_WORKERS,
    CLIENT_JOBS,
    SINGLE_WORKERS,
    Bench,
    batch_workers,
    single_workers,
)
from benchmarks.load.counts import Count
from benchmarks.load.scripts import Plan
from benchmarks.result import Bound, Run
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, Workflow, linear, variables_of

SINGLE_ROW = "one call per completed job, REST, 32 workers"
BATCH_ROW = "batch calls (REST), 128 jobs in flight"
WAL_ROW = "WAL per job, start excluded"
COMMITS_ROW = "commits per job at 32 workers, or mean batch"

WINDOW = (0.1, 0.95)
"""The shares of all jobs between which is measured: neither the first batches, nor the end where few are left."""


def measure_work(bench: Bench, workflow: Workflow, variables: bytes, plan: Plan, instances: int) -> Run:
    """Start the instances, then have the workers complete all their jobs; the figures are of the latter."""
    began = time.monotonic()
    bench.upload(workflow)
    bench.seed(workflow, variables, instances)
    figures = bench.window(
        plan,
        count=Count.COMPLETED,
        items=instances * workflow.jobs_per_instance,
        commit_queue="fast_path",
        text="completing jobs",
        since=WINDOW[0],
        until=WINDOW[1],
        timed=["complete"],
    )
    return bench.run_of(figures, began)


def run(bench: Bench, *, length: int, batched: bool) -> Run:
    workflow = linear(bench.new_tag(), length)
    jobs = bench.size(120_000 if batched else 40_000, 3_000)
    plan = batch_workers(workflow) if batched else single_workers(workflow)
    return measure_work(bench, workflow, variables_of(START_VARIABLES_BYTES), plan, jobs // length)


def run_clients(bench: Bench) -> Run:
    workflow = linear(bench.new_tag(), 3)
    plan = single_workers(workflow, max_jobs=CLIENT_JOBS)
    return measure_work(bench, workflow, variables_of(START_VARIABLES_BYTES), plan, bench.size(40_000, 3_000) // 3)


def _bounds(length: int, *, batched: bool) -> tuple[Bound, ...]:
    if length != 3:
        return ()
    wal = Bound(figure="wal_bytes_per_item", row=WAL_ROW, at_most=850)
    if batched:
        return (
            Bound(figure="jobs_per_s", row=BATCH_ROW, at_least=8_000),
            Bound(figure="engine_cpu_s_per_1000", row=BATCH_ROW, at_most=0.10),
            Bound(figure="postgres_cpu_s_per_1000", row=BATCH_ROW, at_most=0.06),
            wal,
        )
    return (
        Bound(figure="jobs_per_s", row=SINGLE_ROW, at_least=3_000),
        Bound(figure="engine_cpu_s_per_1000", row=SINGLE_ROW, at_most=0.25),
        Bound(figure="generator_cpu_s_per_1000", row=SINGLE_ROW, at_most=0.2),
        wal,
        Bound(figure="mean_batch", row=COMMITS_ROW, at_least=6),
    )


SCENARIOS = [
    Scenario(
        f"{'batch' if batched else 'single'}-{length}",
        f"{length} service task{'s' if length > 1 else ''}, "
        f"{'batch calls' if batched else 'one call per completed job'}",
        partial(run, length=length, batched=batched),
        _bounds(length, batched=batched),
        {"workers": BATCH_WORKERS, "jobs per poll": BATCH_JOBS}
        if batched
        else {"workers": SINGLE_WORKERS, "jobs per poll": 1},
    )
    for length in (3, 1, 10)
    for batched in (False, True)
] + [
    Scenario(
        "clients-3",
        "3 service tasks, as clients' libraries come: polls of ten, one call per completed job",
        run_clients,
        (Bound(figure="wal_bytes_per_item", row=WAL_ROW, at_most=850),),
        {"workers": SINGLE_WORKERS, "jobs per poll": CLIENT_JOBS},
    )
]
