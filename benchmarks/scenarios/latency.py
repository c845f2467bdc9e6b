"""Start → completed of one instance of three steps on an idle engine, workers parked in long polls or Work streams.

The latency of one durable commit of the same PostgreSQL is taken right before and right after, because that of a shared
disk wanders.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from benchmarks.bench import Bench
from benchmarks.calibration import commit_p50_ms
from benchmarks.load.counts import Count
from benchmarks.load.grpc_probe import StreamProbePlan
from benchmarks.load.probe import ProbePlan
from benchmarks.meter import latencies
from benchmarks.result import Bound, Run
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, linear, variables_of

WORKERS = 8
WARM_UP_ROUNDS = 20


def run(bench: Bench, *, stream: bool) -> Run:
    began = time.monotonic()
    workflow = linear(bench.new_tag(), 3)
    bench.upload(workflow)
    rounds = WARM_UP_ROUNDS + bench.size(400, 60)
    given: dict[str, Any] = {
        "rounds": rounds,
        "workers": WORKERS,
        "body": workflow.start_body(variables_of(START_VARIABLES_BYTES)),
        "job_types": workflow.job_types,
        "outputs": workflow.outputs,
    }
    plan = StreamProbePlan(**given, address=bench.need_grpc()) if stream else ProbePlan(**given)
    commits = [_commit(bench)]
    with bench.load(plan, processes=1) as load:
        load.begin()
        bench.wait_count(load, Count.ENDED, WARM_UP_ROUNDS)
        since = time.monotonic()
        bench.wait_count(load, Count.ENDED, rounds, show=("instances one after the other", rounds))
        until = time.monotonic()
        errors = load.counts()[Count.ERRORS]
        samples = load.stop()
    commits.append(_commit(bench))
    figures: dict[str, float] = {}
    for kind in ("round", "start", "complete", "pickup"):
        figures |= latencies(samples, kind, since, until)
    known = [commit for commit in commits if commit is not None]
    if known:
        figures["commit_p50_ms"] = sum(known) / len(known)
        figures["round_over_four_commits_ms"] = figures["round_p50_ms"] - 4 * figures["commit_p50_ms"]
    figures["errors"] = float(errors)
    return bench.run_of(figures, began)


def _commit(bench: Bench) -> float | None:
    dsn = bench.deployment.dsn
    return None if dsn is None else commit_p50_ms(dsn, bench.size(2, 1))


BOUNDS = (
    Bound(
        figure="round_over_four_commits_ms",
        row="start → completed, idle engine: p50 ≤ 4 × (one durable commit) + 6 ms",
        at_most=6,
    ),
    Bound(figure="pickup_p99_ms", row="pick-up of a job by a parked worker, same engine", at_most=5),
)

SCENARIOS = [
    Scenario(
        f"latency{'-stream' if stream else ''}",
        f"One instance of three steps on an idle engine, workers on {'Work streams' if stream else 'long polls'}",
        partial(run, stream=stream),
        BOUNDS,
        {"workers parked": WORKERS},
    )
    for stream in (False, True)
]
