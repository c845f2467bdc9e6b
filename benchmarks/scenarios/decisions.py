"""Three service tasks with a transformation and decisions between them: completions that need the variables."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Bench, batch_workers, single_workers
from benchmarks.result import Run
from benchmarks.scenarios.linear import measure_work
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, decisions, variables_of


def run(bench: Bench, *, batched: bool) -> Run:
    workflow = decisions(bench.new_tag())
    plan = batch_workers(workflow) if batched else single_workers(workflow)
    instances = bench.size(20_000 if batched else 8_000, 500)
    return measure_work(bench, workflow, variables_of(START_VARIABLES_BYTES), plan, instances)


SCENARIOS = [
    Scenario(
        "decisions" if not batched else "decisions-batch",
        f"Decisions and a transformation between three service tasks, {'batch calls' if batched else 'one call each'}",
        partial(run, batched=batched),
    )
    for batched in (False, True)
]
