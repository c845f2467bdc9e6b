"""One instance that runs 100,000 steps: a service task and a decision in a loop. The last must cost what the first
did.
"""

from __future__ import annotations

import time

from benchmarks.bench import Bench
from benchmarks.load.counts import Count
from benchmarks.load.scripts import WorkPlan
from benchmarks.meter import per_item
from benchmarks.result import Bound, Run
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, loop, variables_of

WINDOW_STEPS = 1_000
COMPARED = ("engine_cpu_s_per_1000", "postgres_cpu_s_per_1000", "wal_bytes_per_item")


def run(bench: Bench) -> Run:
    began = time.monotonic()
    rounds = bench.size(50_000, 2_000)
    window = WINDOW_STEPS // 2
    workflow = loop(bench.new_tag(), rounds)
    bench.upload(workflow)
    if bench.database is not None:
        bench.database.checkpoint()
    start = workflow.start_body(variables_of(START_VARIABLES_BYTES))
    plan = WorkPlan(workers=2, job_types=workflow.job_types, outputs=workflow.outputs, counter="n")
    shown = ("rounds", rounds)
    with bench.load(plan, processes=1) as load:
        load.begin()
        _start(bench, start)
        figures: dict[str, float] = {}
        for name, since in (("first", window), ("last", rounds - window)):
            bench.wait_count(load, Count.COMPLETED, since, show=shown)
            before = bench.meter.snapshot(load)
            bench.wait_count(load, Count.COMPLETED, since + window, show=shown)
            part = per_item(before, bench.meter.snapshot(load), Count.COMPLETED, "full_path")
            figures |= {f"{name}_{figure}": part[figure] for figure in COMPARED if figure in part}
            if name == "last":
                figures["jobs_per_s"] = part["jobs_per_s"]
        figures["errors"] = float(load.counts()[Count.ERRORS])
        load.stop()
    costs = [
        sum(figures.get(f"{name}_{who}_cpu_s_per_1000", 0.0) for who in ("engine", "postgres"))
        for name in ("first", "last")
    ]
    if costs[0]:
        figures["last_to_first"] = costs[1] / costs[0]
    return bench.run_of(figures, began)


def _start(bench: Bench, body: bytes) -> None:
    import json

    status, answer = bench.call("POST", "/v1/instances", json.loads(body))
    if status != 201:
        raise RuntimeError(f"the start was answered {status}: {answer}")


SCENARIOS = [
    Scenario(
        "long-loop",
        "One instance of 100,000 steps",
        run,
        (
            Bound(
                figure="last_to_first",
                row="a run of 100,000 steps: the last 1,000 cost what the first did (± 25 %)",
                at_most=1.25,
            ),
        ),
        {"steps per round": 2},
        long=True,
    ),
]
