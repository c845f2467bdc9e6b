"""A second engine process on the same database: what 32 workers get done on one, and on two (16 each), in turn: one,
two, two, one.

On few cores the ratio of CPU per job tells more than that of jobs per second: two engines want all of the machine,
which one does not, so whatever else runs there counts against them only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial

from benchmarks.bench import POLL_INTERVAL_S, STUCK_AFTER_S, Bench, ScenarioFailed, single_workers
from benchmarks.deployment import Deployment, engine, work_directory
from benchmarks.load.counts import Count
from benchmarks.load.generator import Generators, generators
from benchmarks.meter import Meter, Snapshot, per_item
from benchmarks.result import Bound, Run
from benchmarks.scenarios.linear import WINDOW
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, Workflow, linear, variables_of

LENGTH = 3
WORKERS = 32
ENOUGH_CPUS = 6
COMPARED = ("engine_cpu_s_per_1000", "postgres_cpu_s_per_1000", "wal_bytes_per_item", "mean_batch")


def run(bench: Bench, *, processes: bool) -> Run:
    began = time.monotonic()
    options = bench.options
    instances = bench.size(5_000, 1_500)
    first = bench.deployment
    bench.need_database()
    settings = {**options.settings, "processes": "2"} if processes else options.settings
    with (
        work_directory(options.work_dir) as directory,
        engine(directory, settings, dsn=first.dsn) as second,
    ):
        of_one, of_two = [first], [second] if processes else [first, second]
        windows = [_measure(bench, engines, instances) for engines in (of_one, of_two, of_two, of_one)]
    one, two = _middle(windows[0], windows[3]), _middle(windows[1], windows[2])
    figures = {
        "one_engine_jobs_per_s": one["jobs_per_s"],
        "two_engines_jobs_per_s": two["jobs_per_s"],
        "two_to_one": two["jobs_per_s"] / one["jobs_per_s"],
        **{f"one_{name}": one[name] for name in COMPARED if name in one},
        **{f"two_{name}": two[name] for name in COMPARED if name in two},
    }
    return bench.run_of(figures, began)


def _middle(first: dict[str, float], last: dict[str, float]) -> dict[str, float]:
    return {name: (value + last[name]) / 2 for name, value in first.items() if name in last}


def _measure(bench: Bench, deployments: Sequence[Deployment], instances: int) -> dict[str, float]:
    """Figures per job while all of these engines work on one workflow."""
    workflow = linear(bench.new_tag(), LENGTH)
    bench.upload(workflow)
    bench.seed(workflow, variables_of(START_VARIABLES_BYTES), instances)
    jobs = instances * LENGTH
    text = f"{len(deployments)} engine{'s' if len(deployments) > 1 else ''}"
    meters = [Meter(deployment, bench.database if not index else None) for index, deployment in enumerate(deployments)]
    with ExitStack() as stack:
        loads = [stack.enter_context(_load(deployment, workflow, len(deployments))) for deployment in deployments]
        for load in loads:
            load.begin()
        snapshots: list[list[Snapshot]] = []
        for share in WINDOW:
            _wait(bench, loads, int(jobs * share), jobs, text)
            snapshots.append([meter.snapshot(load) for meter, load in zip(meters, loads, strict=True)])
        _wait(bench, loads, jobs, jobs, text)
        for load in loads:
            load.stop()
            bench.problems.extend(load.problems)
    before, after = (_sum(each) for each in snapshots)
    return per_item(before, after, Count.COMPLETED, "fast_path")


def _sum(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Of several engines on one database: the first one's snapshot has the counters of the database."""
    commit_queues: dict[str, tuple[float, float]] = {}
    for each in snapshots:
        for commit_queue, (items, batches) in each.commit_queues.items():
            before = commit_queues.get(commit_queue, (0.0, 0.0))
            commit_queues[commit_queue] = before[0] + items, before[1] + batches
    return replace(
        snapshots[0],
        counts=[sum(counts) for counts in zip(*(each.counts for each in snapshots), strict=True)],
        engine_cpu_s=sum(each.engine_cpu_s or 0.0 for each in snapshots),
        generator_cpu_s=sum(each.generator_cpu_s for each in snapshots),
        commit_queues=commit_queues,
    )


def _load(deployment: Deployment, workflow: Workflow, of: int) -> AbstractContextManager[Generators]:
    plan = single_workers(workflow, workers=WORKERS // of, name=f"bench-{deployment.port}")
    return generators(deployment.host, deployment.port, [plan])


def _wait(bench: Bench, loads: Sequence[Generators], until: int, jobs: int, text: str) -> None:
    """Until so many jobs are completed."""
    reached, moved_at = -1, time.monotonic()
    while True:
        done = sum(load.counts()[Count.COMPLETED] for load in loads)
        now = time.monotonic()
        bench.progress(done / jobs, text)
        if done >= until:
            return
        if done > reached:
            reached, moved_at = done, now
        elif now - moved_at > STUCK_AFTER_S:
            raise ScenarioFailed(f"no progress for {STUCK_AFTER_S:.0f} s at {done} of {jobs} jobs")
        for load in loads:
            load.check()
        time.sleep(POLL_INTERVAL_S)


SCENARIOS = [
    Scenario(
        name,
        title,
        partial(run, processes=processes),
        (
            Bound(
                figure="two_to_one",
                row="second engine process: no loss on 2 cores; ≥ 1.7 × one where there are ≥ 6",
                at_least=1.7 if (os.cpu_count() or 1) >= ENOUGH_CPUS else 1.0,
            ),
        ),
        {"workers": WORKERS},
        own_engine=True,
    )
    for name, title, processes in (
        ("two-engines", "Two engines on one database, 32 workers", False),
        ("two-processes", "One engine of two processes (--processes 2), 32 workers", True),
    )
]
