"""Starts and completions at the same time: a bounded number of instances in flight, each that ends starts another.

Workers are often parked here, so most jobs are handed over at birth: the other end of what `linear` measures, where
everything waits in the queue. The figures are per job and include its share (a third) of a start.
"""

from __future__ import annotations

import time
from functools import partial

from benchmarks.bench import Bench, batch_workers, single_workers
from benchmarks.load.counts import Count
from benchmarks.load.scripts import StartPlan
from benchmarks.result import Run
from benchmarks.scenarios.linear import WINDOW
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, linear, variables_of

LENGTH = 3
SINGLE_IN_FLIGHT = 32
BATCH_IN_FLIGHT = 128
BATCH_STARTS = 16


def run(bench: Bench, *, batched: bool) -> Run:
    began = time.monotonic()
    workflow = linear(bench.new_tag(), LENGTH)
    bench.upload(workflow)
    if bench.database is not None:
        bench.database.checkpoint()
    instances = bench.size(30_000 if batched else 10_000, 800)
    starts = StartPlan(
        connections=4,
        instances=instances,
        body=workflow.start_body(variables_of(START_VARIABLES_BYTES)),
        batch=BATCH_STARTS if batched else 0,
        in_flight=BATCH_IN_FLIGHT if batched else SINGLE_IN_FLIGHT,
    )
    figures = bench.window(
        starts,
        batch_workers(workflow) if batched else single_workers(workflow),
        count=Count.COMPLETED,
        items=instances * LENGTH,
        commit_queue="fast_path",
        text="starting and completing",
        since=WINDOW[0],
        until=WINDOW[1],
        timed=["start", "complete"],
        processes=1,  # who starts must hear who ends
    )
    return bench.run_of(figures, began)


SCENARIOS = [
    Scenario(
        f"flow-{'batch' if batched else 'single'}",
        f"Starts and completions together, {'batch calls' if batched else 'one call each'}",
        partial(run, batched=batched),
        parameters={"instances in flight": BATCH_IN_FLIGHT if batched else SINGLE_IN_FLIGHT},
    )
    for batched in (False, True)
]
