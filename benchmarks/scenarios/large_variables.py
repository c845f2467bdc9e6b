"""Large start variables, of which each step changes one key: 16 kB through three steps, 256 kB through ten.

What a step writes must not depend on the variables' size; what a worker reads does, as it is given all of them.
"""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Bench, single_workers
from benchmarks.result import Bound, Run
from benchmarks.scenarios.linear import measure_work
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import linear, variables_of

WAL_AT_200_BYTES = 850
"""The bound of the small variables: 16 kB may cost 10 % more of it, and 256 kB must not show either."""


def run(bench: Bench, *, size_bytes: int, length: int, instances: int, quick_instances: int) -> Run:
    workflow = linear(bench.new_tag(), length)
    plan = single_workers(workflow, workers=8 if size_bytes > 100_000 else 32)
    return measure_work(bench, workflow, variables_of(size_bytes), plan, bench.size(instances, quick_instances))


SCENARIOS = [
    Scenario(
        "variables-16k",
        "16 kB of variables, three service tasks",
        partial(run, size_bytes=16_384, length=3, instances=6_000, quick_instances=300),
        (
            Bound(
                figure="wal_bytes_per_item", row="WAL per job, the same ± 10 % at 16 kB", at_most=1.1 * WAL_AT_200_BYTES
            ),
        ),
        {"variables": "16 kB"},
    ),
    Scenario(
        "variables-256k",
        "256 kB of variables, one key changed by each of ten steps",
        partial(run, size_bytes=262_144, length=10, instances=300, quick_instances=20),
        (
            Bound(
                figure="wal_bytes_per_item",
                row="256 kB of variables: WAL per step independent of them",
                at_most=1.1 * WAL_AT_200_BYTES,
            ),
        ),
        {"variables": "256 kB"},
    ),
]
