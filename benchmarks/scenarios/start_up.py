"""How long `penstock serve` takes until /readyz says yes: embedded and cold, embedded and warm, with a database.

Without the start of the measuring process, with Python's and the imports'.
"""

from __future__ import annotations

import time

from benchmarks.bench import Bench
from benchmarks.deployment import engine, work_directory
from benchmarks.result import Bound, Run
from benchmarks.scenarios.scenario import Scenario

ROW = "penstock serve until ready"


def run(bench: Bench) -> Run:
    began = time.monotonic()
    options = bench.options
    figures: dict[str, float] = {}
    with work_directory(options.work_dir) as directory:
        with engine(directory, options.settings) as cold:
            figures["ready_cold_s"] = cold.ready_s
        with engine(directory, options.settings) as warm:
            figures["ready_warm_s"] = warm.ready_s
            with engine(directory, options.settings, dsn=warm.dsn) as second:
                figures["ready_with_database_s"] = second.ready_s
    return bench.run_of(figures, began)


SCENARIOS = [
    Scenario(
        "start-up",
        "From the command to readiness",
        run,
        (
            Bound(figure="ready_with_database_s", row=ROW, at_most=1),
            Bound(figure="ready_cold_s", row=ROW, at_most=4),
        ),
        own_engine=True,
    ),
]
