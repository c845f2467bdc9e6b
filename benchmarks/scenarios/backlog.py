"""Claims with a million ready and a million finished jobs, against claims with few: by buffers read and PostgreSQL CPU.

A workflow of one service task, worked on in batches. First among few rows, then among the million (copied by SQL from
instances that the engine made).
"""

from __future__ import annotations

import json
import time

from benchmarks.bench import Bench, ScenarioFailed, batch_workers
from benchmarks.load.counts import Count
from benchmarks.result import Bound, Run
from benchmarks.scenarios.copies import copy_finished, copy_ready
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, Workflow, linear, variables_of

ROW = "claims with 1,000,000 ready and 1,000,000 finished jobs: as fast as with 1,000"
REPORTED_AFTER_S = 10.5
"""PostgreSQL's sessions report their statistics at the latest when they have been idle for 10 s."""
COMPARED = ("buffers_per_item", "postgres_cpu_s_per_1000")


def run(bench: Bench) -> Run:
    began = time.monotonic()
    database = bench.need_database()
    backlog, jobs = bench.size(1_000_000, 20_000), bench.size(20_000, 2_000)
    workflow = linear(bench.new_tag(), 1)
    bench.upload(workflow)
    bench.seed(workflow, variables_of(START_VARIABLES_BYTES), jobs)
    small = _work(bench, workflow, jobs, jobs)

    finished, ready = _model(bench, workflow, "COMPLETED"), _start_one(bench, workflow)
    bench.progress(0.2, f"making {backlog:,} finished instances")
    copy_finished(database, finished, backlog)
    bench.progress(0.6, f"making {backlog:,} ready jobs")
    copy_ready(database, ready, backlog)
    bench.progress(0.9, "vacuum")
    database.vacuum()
    database.checkpoint()
    figures = _work(bench, workflow, jobs, jobs)
    figures.pop("wal_bytes_per_item", None)  # full-page images of a million rows that were written just before
    for figure in COMPARED:
        if small.get(figure) and figure in figures:
            figures[f"small_{figure}"] = small[figure]
            figures[f"{figure}_to_small"] = figures[figure] / small[figure]
    return bench.run_of(figures, began)


def _work(bench: Bench, workflow: Workflow, jobs: int, shown: int) -> dict[str, float]:
    """Complete ``jobs`` jobs; those that are left stay. Buffers are those of all of them: a window of the statistics
    of sessions, which come once a second, would be chance."""
    database = bench.need_database()
    time.sleep(REPORTED_AFTER_S)
    idle = database.counters()
    with bench.load(batch_workers(workflow)) as load:
        load.begin()
        bench.wait_count(load, Count.COMPLETED, jobs // 10, show=("claiming", shown))
        before = bench.meter.snapshot(load)
        bench.wait_count(load, Count.COMPLETED, jobs * 9 // 10, show=("claiming", shown))
        after = bench.meter.snapshot(load)
        bench.wait_count(load, Count.COMPLETED, jobs)
        samples = load.stop()
        done = load.counts()[Count.COMPLETED]
    figures = bench.figures(before, after, Count.COMPLETED, "fast_path", samples, ["complete"])
    time.sleep(REPORTED_AFTER_S)
    figures["buffers_per_item"] = (database.counters().buffers - idle.buffers) / done
    return figures


def _model(bench: Bench, workflow: Workflow, status: str) -> int:
    _, answer = bench.call("GET", f"/v1/instances?definitionId={workflow.id}&status={status}&pageSize=1")
    if not answer["items"]:
        raise ScenarioFailed(f"no instance of {workflow.id} is {status}")
    return int(answer["items"][0]["id"], 16)


def _start_one(bench: Bench, workflow: Workflow) -> int:
    variables = json.loads(variables_of(START_VARIABLES_BYTES))
    status, answer = bench.call("POST", "/v1/instances", {"definitionId": workflow.id, "variables": variables})
    if status != 201:
        raise ScenarioFailed(f"the start was answered {status}: {answer}")
    return int(answer["id"], 16)


SCENARIOS = [
    Scenario(
        "backlog",
        "Claims among 1,000,000 ready and 1,000,000 finished jobs",
        run,
        (
            Bound(figure="buffers_per_item_to_small", row=ROW, at_most=1.25),
            Bound(figure="postgres_cpu_s_per_1000_to_small", row=ROW, at_most=1.25),
        ),
        long=True,
    ),
]
