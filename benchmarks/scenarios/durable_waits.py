"""Durable workflows in library mode, when they wait: cancelled, woken by a deadline, taken over after a kill."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial

from benchmarks.bench import POLL_INTERVAL_S, Bench, ScenarioFailed
from benchmarks.load.counts import percentile
from benchmarks.load.durable_waits import DEADLINE_S, STARTS_PER_S
from benchmarks.result import Bound, Run
from benchmarks.scenarios.copies import copy_parked
from benchmarks.scenarios.durable import app_process, measure, wait_ready
from benchmarks.scenarios.scenario import Scenario

LOAD = "benchmarks.load.durable_waits"
RUNS = 32
TAKEOVER_MAX_S = 60.0
NEW_STEPS = """
    SELECT extract(epoch FROM min(j.at))::float8 - %s FROM token t JOIN journal j ON j.instance_id = t.id
    WHERE t.claimed_by LIKE 'e%%/%%' AND extract(epoch FROM t.claimed_at) > %s AND j.at >= t.claimed_at GROUP BY t.id
"""


def run_takeover(bench: Bench) -> Run:
    """One App after the other has all runs and is killed; the one that is ready beside it takes them over."""
    began = time.monotonic()
    rounds = bench.size(10, 2)
    taken: list[float] = []
    with ExitStack() as stack:
        dsn = bench.need_database().dsn
        holder = stack.enter_context(app_process(LOAD, dsn, "serve", "--count", str(RUNS)))
        wait_ready(holder)
        for number in range(rounds):
            bench.progress(number / rounds, "killing Apps")
            successor = stack.enter_context(app_process(LOAD, dsn, "serve", "--count", "0"))
            wait_ready(successor)
            holder.kill()
            taken += _taken_over(bench)
            holder = successor
    taken.sort()
    p50, p99 = percentile(taken, 0.5) or 0.0, percentile(taken, 0.99) or 0.0
    figures = {"takeover_p50_ms": p50 * 1e3, "takeover_p99_ms": p99 * 1e3, "runs_taken_over": float(len(taken))}
    return bench.run_of(figures, began)


def _taken_over(bench: Bench) -> list[float]:
    """Seconds from now until each run's first record under a new lease, by the database's clock."""
    database = bench.need_database()
    ((killed_at,),) = database.fetch("SELECT extract(epoch FROM clock_timestamp())::float8")
    until = time.monotonic() + TAKEOVER_MAX_S
    while len(found := database.fetch(NEW_STEPS, [killed_at, killed_at])) < RUNS:
        if time.monotonic() > until:
            raise ScenarioFailed(f"{len(found)} of {RUNS} runs were taken over within {TAKEOVER_MAX_S} s")
        time.sleep(POLL_INTERVAL_S)
    return [row[0] for row in found]


def run_cancel(bench: Bench) -> Run:
    began = time.monotonic()
    reported, _, _ = measure(bench, "cancel", load=LOAD, count=bench.size(300, 40))
    return bench.run_of(reported, began)


def run_views(bench: Bench) -> Run:
    began = time.monotonic()
    reported, _, _ = measure(bench, "views", load=LOAD, count=bench.size(300, 40))
    return bench.run_of(reported, began)


def run_lateness(bench: Bench, *, parked: int, quick_parked: int) -> Run:
    began = time.monotonic()
    number = bench.size(parked, quick_parked)

    def park(model: str) -> None:
        if number:
            bench.progress(0.0, f"parking {number:,} runs")
            copy_parked(bench.need_database(), int(model, 16), number)
            bench.need_database().vacuum()

    reported, _, _ = measure(bench, "lateness", load=LOAD, prepare=park, count=600 if not bench.options.quick else 60)
    return bench.run_of(reported, began)


SCENARIOS = [
    Scenario(
        "durable-takeover",
        "Durable workflows: an App is killed, another one goes on",
        run_takeover,
        (Bound(figure="takeover_p99_ms", row="kill -9 of an App → first new step ≤ 2 s (p99)", at_most=2_000),),
        {"runs": RUNS},
    ),
    Scenario(
        "durable-cancel",
        "Durable workflows: a cancel reaches its branch",
        run_cancel,
        (
            Bound(figure="cancel_p99_ms", row="cancel → Cancelled in the same engine ≤ 20 ms (p99)", at_most=20),
            Bound(figure="cancel_other_p99_ms", row="cancel → Cancelled from another ≤ 100 ms (p99)", at_most=100),
        ),
    ),
    Scenario(
        "durable-views",
        "Durable functions: who waits sees a view; calls are answered",
        run_views,
        (
            Bound(figure="view_p50_ms", row="set_view → who waits in the same engine ≤ 50 ms (p50)", at_most=50),
            Bound(figure="view_other_p50_ms", row="set_view → who waits at another engine ≤ 50 ms (p50)", at_most=50),
        ),
    ),
    *(
        Scenario(
            name,
            title,
            partial(run_lateness, parked=parked, quick_parked=quick),
            (Bound(figure="lateness_p99_ms", row="deadlines with 1,000,000 parked ≤ 100 ms late (p99)", at_most=100),),
            {"deadline in seconds": DEADLINE_S, "starts per second": STARTS_PER_S},
            long=parked > 0,
        )
        for name, title, parked, quick in (
            ("durable-lateness", "Durable workflows: lateness of deadlines", 0, 0),
            ("durable-lateness-million", "Durable workflows: lateness, 1,000,000 runs parked", 1_000_000, 20_000),
        )
    ),
]
