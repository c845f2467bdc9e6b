"""Start → completed of one instance of three steps on an idle engine, workers parked in long polls or Work streams.

Between two instances is a pause, after which the caches of the processors are cold, as for a call to an engine that is
idle. What instances take without a pause, one right after the other, tells how much of it that is.

Such an instance waits for four durable commits. What four bare ones in a row take on the same PostgreSQL, without an
engine and with the same pause behind each row, is measured right before and right after, because the latency of a
shared disk wanders. So is what they take without a pause, and what the four statements of an instance take without an
engine, which tells how much of the rest is the server's and the driver's. No bound is compared with these two, and
pairs of checkouts leave them out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.bench import Bench
from benchmarks.calibration import commits_in_a_row_ms
from benchmarks.load.counts import Count
from benchmarks.load.grpc_probe import StreamProbePlan
from benchmarks.load.probe import ProbePlan
from benchmarks.meter import latencies
from benchmarks.result import Bound, Run
from benchmarks.scenarios.scenario import Scenario
from benchmarks.statements_alone import statements_in_a_row_ms
from benchmarks.workflows import START_VARIABLES_BYTES, linear, variables_of

WORKERS = 8
COMMITS = 4
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
    dsn = bench.deployment.dsn
    alone = partial(
        statements_in_a_row_ms,
        rounds=bench.size(100, 30),
        variables=variables_of(START_VARIABLES_BYTES),
        outputs=list(workflow.outputs.values()),
        pause_s=plan.pause_s,
    )
    in_pairs = bench.options.items is not None
    row_s = 1.0 if in_pairs else bench.size(4, 2)
    commits = [] if dsn is None else [commits_in_a_row_ms(dsn, row_s, COMMITS, plan.pause_s)]
    statements = [] if dsn is None or in_pairs else [alone(dsn)]
    figures = _measured(bench, plan, ("round", "start", "complete", "pickup"))
    if dsn is not None:
        commits.append(commits_in_a_row_ms(dsn, row_s, COMMITS, plan.pause_s))
        if statements:
            statements.append(alone(dsn))
    for name, *taken in zip(("p50", "p99"), *commits, strict=True) if commits else ():
        four_ms = sum(taken) / len(taken)
        figures[f"four_commits_{name}_ms"] = four_ms
        figures[f"round_{name}_over_four_commits_ms"] = figures[f"round_{name}_ms"] - four_ms
    if statements and None not in statements:
        for name, *taken in zip(("p50", "p99"), *filter(None, statements), strict=True):
            figures[f"four_statements_{name}_ms"] = sum(taken) / len(taken)
    if not in_pairs:
        warm = _measured(bench, replace(plan, pause_s=0.0), ("round",))
        figures |= {f"warm_{name}": value for name, value in warm.items()}
        if dsn is not None:
            figures["warm_commits_p50_ms"], figures["warm_commits_p99_ms"] = commits_in_a_row_ms(dsn, 1.0, COMMITS)
    figures["errors"] = figures.pop("errors") + figures.pop("warm_errors", 0.0)  # they stand last
    return bench.run_of(figures, began)


def _measured(bench: Bench, plan: ProbePlan, kinds: Sequence[str]) -> dict[str, float]:
    with bench.load(plan, processes=1) as load:
        load.begin()
        bench.wait_count(load, Count.ENDED, WARM_UP_ROUNDS)
        since = time.monotonic()
        bench.wait_count(load, Count.ENDED, plan.rounds, show=("instances one after the other", plan.rounds))
        until = time.monotonic()
        figures = {"errors": float(load.counts()[Count.ERRORS])}
        samples = load.stop()
    for kind in kinds:
        figures |= latencies(samples, kind, since, until)
    return figures


BOUNDS = (
    Bound(
        figure="round_p50_over_four_commits_ms",
        row="start → completed of three steps, idle engine: p50 ≤ that of 4 commits with the same pauses + 4 ms",
        at_most=4,
    ),
    Bound(
        figure="round_p99_over_four_commits_ms",
        row="the same: p99 ≤ that of 4 durable commits + 10 ms",
        at_most=10,
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
