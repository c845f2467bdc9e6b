"""Starting instances of three service tasks, with 200 bytes of variables: one call each, and batched."""

from __future__ import annotations

import time

from benchmarks.bench import Bench
from benchmarks.load.counts import Count
from benchmarks.load.scripts import StartPlan
from benchmarks.result import Bound, Run
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, linear, variables_of

ROW = "starting instances: one call each / batched"
SINGLE_CONNECTIONS = 32
BATCH_CONNECTIONS = 4
BATCH_ITEMS = 50


def start_single(bench: Bench) -> Run:
    return _start(bench, SINGLE_CONNECTIONS, 0, bench.size(20_000, 1_000))


def start_batch(bench: Bench) -> Run:
    return _start(bench, BATCH_CONNECTIONS, BATCH_ITEMS, bench.size(60_000, 2_000))


def _start(bench: Bench, connections: int, batch: int, instances: int) -> Run:
    began = time.monotonic()
    workflow = linear(bench.new_tag(), 3)
    bench.upload(workflow)
    if bench.database is not None:
        bench.database.checkpoint()
    plan = StartPlan(
        connections=connections,
        instances=instances,
        body=workflow.start_body(variables_of(START_VARIABLES_BYTES)),
        batch=batch,
    )
    figures = bench.window(
        plan,
        count=Count.STARTED,
        items=instances,
        commit_queue="start",
        text="starting instances",
        since=0.1,
        until=0.95,
        timed=["start"],
    )
    return bench.run_of(figures, began)


SCENARIOS = [
    Scenario(
        "start-single",
        "Starting instances, one call each",
        start_single,
        (Bound(figure="instances_per_s", row=ROW, at_least=2_000),),
        {"connections": SINGLE_CONNECTIONS},
    ),
    Scenario(
        "start-batch",
        "Starting instances in batches",
        start_batch,
        (Bound(figure="instances_per_s", row=ROW, at_least=8_000),),
        {"connections": BATCH_CONNECTIONS, "items per call": BATCH_ITEMS},
    ),
]
