"""CALL_ACTIVITY: one empty child at a time on an idle engine, and 1,000 children of one instance.

Taken from the rows: from the start of the caller's transaction to that of its end. What a client waits for beside that
is in `latency`.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.bench import STUCK_AFTER_S, Bench, ScenarioFailed
from benchmarks.calibration import commit_p50_ms
from benchmarks.result import Bound, Run
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import END, Workflow, definition

CHILDREN = 1_000
WARM_UP_ROUNDS = 5
POLL_INTERVAL_S = 0.005


def call_step(definition_id: str, **fields: object) -> dict[str, object]:
    return {
        "id": "call",
        "name": "call",
        "type": "CALL_ACTIVITY",
        "definitionId": definition_id,
        "nextStep": "end",
        **fields,
    }


def run(bench: Bench) -> Run:
    began = time.monotonic()
    bench.need_database()
    tag = bench.new_tag()
    child = definition(tag, "child", [END])
    one = definition(tag, "call", [call_step(child["id"], input={}), END])
    each = {"items": f"${{1..{CHILDREN}}}", "parallel": CHILDREN}
    many = definition(tag, "calls", [call_step(child["id"], input={}, forEach=each), END])
    for made in (child, one, many):
        bench.upload(Workflow(made, {}, 0))
    rounds = WARM_UP_ROUNDS + bench.size(100, 20)
    taken: list[float] = []
    for number in range(rounds):
        bench.progress(number / rounds, "one call after the other")
        taken.append(_run_of(bench, one))
    commit_ms = commit_p50_ms(bench.need_database().dsn, bench.options.calibration_s)
    figures = {
        "call_p50_ms": statistics.median(taken[WARM_UP_ROUNDS:]) * 1e3,
        "children_1000_s": min(_run_of(bench, many) for _ in range(bench.size(3, 1))),
        "commit_p50_ms": commit_ms,
    }
    return bench.run_of(figures, began)


def _run_of(bench: Bench, made: dict[str, Any]) -> float:
    """Seconds from the start of an instance to its end. Raises ScenarioFailed."""
    database = bench.need_database()
    status, view = bench.call("POST", "/v1/instances", {"definitionId": made["id"]})
    if status != 201:
        raise ScenarioFailed(f"a start was answered {status}: {view}")
    deadline = time.monotonic() + STUCK_AFTER_S
    while time.monotonic() < deadline:
        rows = database.fetch(
            "SELECT extract(epoch FROM ended_at - started_at)::float8 FROM instance"
            " WHERE id = %s AND ended_at IS NOT NULL",
            (int(view["id"], 16),),
        )
        if rows:
            return float(rows[0][0])
        time.sleep(POLL_INTERVAL_S)
    raise ScenarioFailed(f"instance {view['id']} did not end within {STUCK_AFTER_S:.0f} s")


SCENARIOS = [
    Scenario(
        "call",
        "A call of an empty child on an idle engine, and 1,000 children of one instance",
        run,
        (
            Bound(figure="call_p50_ms", row="a call of an empty child, idle engine: ≤ 8 ms", at_most=8),
            Bound(figure="children_1000_s", row="1,000 children of one instance: ≤ 1 s", at_most=1),
        ),
        {"children": CHILDREN},
    ),
]
