"""Three parallel branches of one service task each, a join, and a service task behind it."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Bench, batch_workers, single_workers
from benchmarks.result import Run
from benchmarks.scenarios.linear import measure_work
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, fork_join, variables_of

BRANCHES = 3


def run(bench: Bench, *, batched: bool) -> Run:
    workflow = fork_join(bench.new_tag(), BRANCHES)
    plan = batch_workers(workflow) if batched else single_workers(workflow)
    instances = bench.size(15_000 if batched else 6_000, 500)
    return measure_work(bench, workflow, variables_of(START_VARIABLES_BYTES), plan, instances)


SCENARIOS = [
    Scenario(
        "fork-join" if not batched else "fork-join-batch",
        f"{BRANCHES} parallel branches and a join, {'batch calls' if batched else 'one call per completed job'}",
        partial(run, batched=batched),
        parameters={"branches": BRANCHES},
    )
    for batched in (False, True)
]
