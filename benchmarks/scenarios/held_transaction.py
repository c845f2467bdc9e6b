"""Half load for 20 minutes, with a transaction held open for five of them: what pruning and vacuum can't take away.

Half load is half of what the same engine did right before, at full speed. Judged at the end: dead rows and latency must
be back where they were before the transaction.
"""

from __future__ import annotations

import time

import psycopg

from benchmarks.bench import Bench, batch_workers
from benchmarks.load.counts import Count, percentile
from benchmarks.load.scripts import StartPlan
from benchmarks.result import Bound, Run, Series
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, linear, variables_of

LENGTH = 3
ROW = "20 minutes at half load with a transaction held open for 5 of them"
FULL_S = (300.0, 300.0, 600.0)
QUICK_S = (10.0, 10.0, 20.0)
HALF = 0.5


def run(bench: Bench) -> Run:
    began = time.monotonic()
    database = bench.need_database()
    workflow = linear(bench.new_tag(), LENGTH)
    bench.upload(workflow)
    body = workflow.start_body(variables_of(START_VARIABLES_BYTES))
    rate = HALF * _capacity(bench)
    before_s, held_s, after_s = QUICK_S if bench.options.quick else FULL_S
    total_s = before_s + held_s + after_s
    starts = StartPlan(connections=2, instances=int(rate * total_s * 1.2), body=body, batch=10, rate=rate)
    jobs, dead = Series(name="jobs", unit="/s", points=[]), Series(name="dead rows", unit="", points=[])
    held: psycopg.Connection | None = None
    with bench.load(starts, batch_workers(workflow), processes=1) as load:
        load.begin()
        origin = time.monotonic()
        last = (origin, 0)
        try:
            while (passed := time.monotonic() - origin) < total_s:
                time.sleep(1)
                if held is None and before_s <= passed < before_s + held_s:
                    held = _hold(database.dsn)
                elif held is not None and passed >= before_s + held_s:
                    held.close()
                    held = None
                load.check()
                now, done = time.monotonic(), load.counts()[Count.COMPLETED]
                jobs.points.append((now - origin, (done - last[1]) / (now - last[0])))
                dead.points.append((now - origin, float(sum(rows for rows, _ in database.table_health().values()))))
                last = (now, done)
                bench.progress(passed / total_s, f"half load{', a transaction is held' if held else ''}")
        finally:
            if held is not None:
                held.close()
        counts = load.counts()
        samples = load.stop()
    marks = (origin, origin + before_s, origin + before_s + held_s, origin + total_s)
    latency = Series(name="complete p50", unit="ms", points=[])
    for second, durations in sorted(samples.by_second("complete", origin).items()):
        latency.points.append((float(second), sorted(durations)[len(durations) // 2] * 1e3))
    bench.series += [jobs, dead, latency]
    parts = {
        "before": (marks[0] + before_s / 3, marks[1]),
        "held": (marks[1] + held_s / 2, marks[2]),
        "after": (marks[3] - after_s / 4, marks[3]),
    }
    figures: dict[str, float] = {}
    for name, (since, until) in parts.items():
        p50 = percentile(samples.between("complete", since, until), 0.5)
        if p50 is not None:
            figures[f"{name}_p50_ms"] = p50 * 1e3
    if "before_p50_ms" in figures and "after_p50_ms" in figures:
        figures["after_to_before"] = figures["after_p50_ms"] / figures["before_p50_ms"]
    figures["dead_rows_held"] = max(value for _, value in dead.points)
    figures["dead_rows_after"] = dead.points[-1][1]
    figures["jobs_per_s"] = counts[Count.COMPLETED] / total_s
    figures["start_rate_kept"] = counts[Count.STARTED] / total_s / rate
    figures["errors"] = float(counts[Count.ERRORS])
    return bench.run_of(figures, began)


def _capacity(bench: Bench) -> float:
    """Instances per second at full speed."""
    workflow = linear(bench.new_tag(), LENGTH)
    bench.upload(workflow)
    instances = bench.size(10_000, 1_000)
    starts = StartPlan(
        connections=4,
        instances=instances,
        body=workflow.start_body(variables_of(START_VARIABLES_BYTES)),
        batch=16,
        in_flight=128,
    )
    figures = bench.window(
        starts,
        batch_workers(workflow),
        count=Count.COMPLETED,
        items=instances * LENGTH,
        lane="narrow",
        text="full speed",
        since=0.1,
        until=0.95,
        processes=1,
    )
    return figures["jobs_per_s"] / LENGTH


def _hold(dsn: str) -> psycopg.Connection:
    """A transaction with a snapshot: nothing that was visible to it may be removed."""
    connection = psycopg.connect(dsn)
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SELECT count(*) FROM setting")
    return connection


SCENARIOS = [
    Scenario(
        "held-transaction",
        "Half load with a transaction held open",
        run,
        (
            Bound(figure="after_to_before", row=ROW, at_most=1.25),
            Bound(figure="start_rate_kept", row=ROW, at_least=0.98),
        ),
        long=True,
    ),
]
