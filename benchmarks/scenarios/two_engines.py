"""A second engine process on the same database: what 32 workers get done on one, and on two (16 each)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack

from benchmarks.bench import LOOK_INTERVAL_S, STUCK_AFTER_S, Bench, ScenarioFailed, single_workers
from benchmarks.deployment import Deployment, engine, work_directory
from benchmarks.load.counts import Count
from benchmarks.load.generator import Generators, generators
from benchmarks.result import Bound, Run
from benchmarks.scenarios.linear import WINDOW
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, Workflow, linear, variables_of

LENGTH = 3
WORKERS = 32
ENOUGH_CPUS = 6


def run(bench: Bench) -> Run:
    began = time.monotonic()
    options = bench.options
    instances = bench.size(10_000, 800)
    first = bench.deployment
    bench.need_database()
    with (
        work_directory(options.work_dir) as directory,
        engine(directory, options.settings, dsn=first.dsn) as second,
    ):
        one = _jobs_per_s(bench, [first], instances)
        two = _jobs_per_s(bench, [first, second], instances)
    figures = {"one_engine_jobs_per_s": one, "two_engines_jobs_per_s": two, "two_to_one": two / one}
    return bench.run_of(figures, began)


def _jobs_per_s(bench: Bench, deployments: Sequence[Deployment], instances: int) -> float:
    workflow = linear(bench.new_tag(), LENGTH)
    bench.upload(workflow)
    bench.seed(workflow, variables_of(START_VARIABLES_BYTES), instances)
    jobs = instances * LENGTH
    text = f"{len(deployments)} engine{'s' if len(deployments) > 1 else ''}"
    with ExitStack() as stack:
        loads = [stack.enter_context(_load(deployment, workflow, len(deployments))) for deployment in deployments]
        for load in loads:
            load.begin()
        marks = [_wait(bench, loads, int(jobs * share), jobs, text) for share in (*WINDOW, 1.0)]
        for load in loads:
            load.stop()
            bench.problems.extend(load.problems)
    return jobs * (WINDOW[1] - WINDOW[0]) / (marks[1] - marks[0])


def _load(deployment: Deployment, workflow: Workflow, of: int) -> AbstractContextManager[Generators]:
    plan = single_workers(workflow, workers=WORKERS // of, name=f"bench-{deployment.port}")
    return generators(deployment.host, deployment.port, [plan])


def _wait(bench: Bench, loads: Sequence[Generators], until: int, jobs: int, text: str) -> float:
    """When the count was reached."""
    reached, moved_at = -1, time.monotonic()
    while True:
        done = sum(load.counts()[Count.COMPLETED] for load in loads)
        now = time.monotonic()
        bench.progress(done / jobs, text)
        if done >= until:
            return now
        if done > reached:
            reached, moved_at = done, now
        elif now - moved_at > STUCK_AFTER_S:
            raise ScenarioFailed(f"no progress for {STUCK_AFTER_S:.0f} s at {done} of {jobs} jobs")
        for load in loads:
            load.check()
        time.sleep(LOOK_INTERVAL_S)


SCENARIOS = [
    Scenario(
        "two-engines",
        "Two engine processes on one database, 32 workers",
        run,
        (
            Bound(
                figure="two_to_one",
                row="second engine process: no loss on 2 cores; ≥ 1.7 × one where there are ≥ 6",
                at_least=1.7 if (os.cpu_count() or 1) >= ENOUGH_CPUS else 0.95,
            ),
        ),
        {"workers": WORKERS},
        own_engine=True,
    ),
]
