"""How late timers fire on an idle engine: instances that wait two seconds, with few and with a million timers armed.

The million are rows of long waits, copied by SQL from one that the engine made.
"""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial

from benchmarks.bench import Bench, ScenarioFailed
from benchmarks.load.counts import Count, percentile
from benchmarks.load.scripts import StartPlan
from benchmarks.result import Bound, Run
from benchmarks.scenarios.copies import copy_waiting
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, variables_of, waiting

WAIT_S = 2
STARTS_PER_S = 100
ROW = "timer lateness on an idle engine; with 1,000,000 timers armed the same"


def run(bench: Bench, *, armed: int, quick_armed: int) -> Run:
    began = time.monotonic()
    number = bench.size(armed, quick_armed)
    if number:
        _arm(bench, number)
    workflow = waiting(bench.new_tag(), f"PT{WAIT_S}S")
    bench.upload(workflow)
    instances = bench.size(600, 50)
    plan = StartPlan(
        connections=2,
        instances=instances,
        body=workflow.start_body(variables_of(START_VARIABLES_BYTES)),
        rate=STARTS_PER_S,
    )
    with bench.load(plan, processes=1) as load:
        load.begin()
        before = bench.meter.snapshot(load)
        bench.wait_count(load, Count.STARTED, instances, show=("starting waits", instances))
        time.sleep(WAIT_S + 1)
        after = bench.meter.snapshot(load)
        load.stop()
    ordered = sorted(_lateness(bench, workflow.id, instances))
    p50, p99 = percentile(ordered, 0.5), percentile(ordered, 0.99)
    if p50 is None or p99 is None:
        raise ScenarioFailed("no timer fired")
    figures = {"lateness_p50_ms": p50 * 1e3, "lateness_p99_ms": p99 * 1e3, "timers_fired": float(len(ordered))}
    elapsed = after.at - before.at
    for who, used in (
        ("engine", (before.engine_cpu_s, after.engine_cpu_s)),
        ("postgres", (before.postgres_cpu_s, after.postgres_cpu_s)),
    ):
        if used[0] is not None and used[1] is not None:
            figures[f"{who}_core_percent"] = (used[1] - used[0]) / elapsed * 100
    figures["errors"] = float(after.counts[Count.ERRORS])
    return bench.run_of(figures, began)


def _lateness(bench: Bench, definition_id: str, instances: int) -> list[float]:
    """Seconds between a wait's due time and its end, from the histories."""
    found: list[float] = []
    for page in range((instances + 199) // 200):
        _, answer = bench.call("GET", f"/v1/instances?definitionId={definition_id}&page={page}&pageSize=200")
        for item in answer["items"]:
            _, history = bench.call("GET", f"/v1/instances/{item['id']}/history")
            for step in history["items"]:
                if step["stepType"] == "WAIT" and step.get("endedAt"):
                    entered, ended = (datetime.fromisoformat(step[name]) for name in ("startedAt", "endedAt"))
                    found.append((ended - entered).total_seconds() - WAIT_S)
    if len(found) < instances:
        bench.problems.append(f"{instances - len(found)} of {instances} timers had not fired a second after their time")
    return found


def _arm(bench: Bench, number: int) -> None:
    """A million waits that end in a month."""
    database = bench.need_database()
    workflow = waiting(bench.new_tag(), "P30D")
    bench.upload(workflow)
    status, answer = bench.call("POST", "/v1/instances", {"definitionId": workflow.id})
    if status != 201:
        raise ScenarioFailed(f"the start was answered {status}: {answer}")
    bench.progress(0.0, f"arming {number:,} timers")
    copy_waiting(database, int(answer["id"], 16), number)
    database.vacuum()
    ((armed,),) = database.fetch("SELECT count(*) FROM timer")
    if armed < number:
        raise ScenarioFailed(f"{armed} timers are armed, not {number}")


SCENARIOS = [
    Scenario(
        "timers",
        "Lateness of timers",
        partial(run, armed=0, quick_armed=0),
        (Bound(figure="lateness_p99_ms", row=ROW, at_most=100),),
        {"wait in seconds": WAIT_S, "starts per second": STARTS_PER_S},
    ),
    Scenario(
        "timers-million",
        "Lateness of timers, 1,000,000 of them armed",
        partial(run, armed=1_000_000, quick_armed=20_000),
        (Bound(figure="lateness_p99_ms", row=ROW, at_most=100),),
        {"wait in seconds": WAIT_S, "starts per second": STARTS_PER_S},
        long=True,
    ),
]
