"""forEach: 10,000 items of one instance, 100 under way at once, workers that complete in batches."""

from __future__ import annotations

from benchmarks.bench import Bench, batch_workers
from benchmarks.result import Bound, Run
from benchmarks.scenarios.linear import measure_work
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import items, variables_of

ITEMS = 10_000
PARALLEL = 100
START_BYTES = 64


def run(bench: Bench) -> Run:
    workflow = items(bench.new_tag(), bench.size(ITEMS, 1_000), PARALLEL)
    return measure_work(bench, workflow, variables_of(START_BYTES), batch_workers(workflow), 1)


SCENARIOS = [
    Scenario(
        "map-10k",
        "forEach: 10,000 items of one instance, batch calls",
        run,
        (
            Bound(figure="jobs_per_s", row="10,000 items of one instance: ≥ 1,000 items/s", at_least=1_000),
            Bound(figure="wal_bytes_per_item", row="WAL per item: ≤ 1.5 × a job", at_most=900),
        ),
        {"items": ITEMS, "parallel": PARALLEL},
    ),
]
