"""Limits of queues through an engine: what they cost beside no queue in the same run, and what they keep.

`flow-keys` and `flow-total` do the work of `batch-3` without and with a policy, in turn; `flow-rate` lets a thousand
keys begin so often. Keys that have no room: `blocked_keys`. The statements alone: `python -m benchmarks.queues`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from benchmarks.bench import BATCH_JOBS, Bench, ScenarioFailed, batch_workers
from benchmarks.load.counts import Count
from benchmarks.load.generator import Generators
from benchmarks.meter import Snapshot
from benchmarks.result import Bound, Run, median
from benchmarks.scenarios.linear import WINDOW
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, Workflow, linear, variables_of

LENGTH = 3
KEYS = 10_000
PER_KEY = 5
TOTAL = 200
WORKERS = 8
"""Of `BATCH_JOBS` each: more than `TOTAL`."""
RATE_KEYS = 1_000
RATE = 2
RATE_WINDOW = (0.5, 0.9)
"""Behind the burst of the beginning, before the first keys run dry."""
IDLE_S = 5.0
STILL_S, STILL_WITHIN_S = 1.5, 30.0


def put_queue(bench: Bench, workflow: Workflow, **limits: Any) -> None:
    path = f"/v1/queues/{workflow.id}"
    status, answer = bench.call("PUT", path, {"jobTypes": list(workflow.job_types), **limits})
    if status != 200:
        raise ScenarioFailed(f"the queue was answered {status}: {answer}")


def work(bench: Bench, instances: int, *, flow_keys: int, limits: dict[str, int]) -> dict[str, float]:
    """Figures of working the instances off; ``wal_bytes_per_item`` is with the share of a start."""
    workflow = linear(bench.new_tag(), LENGTH)
    bench.upload(workflow)
    if limits:
        put_queue(bench, workflow, **limits)
    started = bench.seed(workflow, variables_of(START_VARIABLES_BYTES), instances, flow_keys=flow_keys)
    figures = bench.window(
        batch_workers(workflow, workers=WORKERS),
        count=Count.COMPLETED,
        items=instances * LENGTH,
        commit_queue="fast_path",
        text=f"completing jobs {'under limits' if limits else 'without a queue'}",
        since=WINDOW[0],
        until=WINDOW[1],
        timed=["complete"],
    )
    if "wal_bytes_per_item" in figures and "wal_bytes_per_item" in started:
        figures["wal_bytes_per_item"] += started["wal_bytes_per_item"] / LENGTH
    return figures


def compare(bench: Bench, *, flow_keys: int, limits: dict[str, int]) -> Run:
    """Without, with, with, without: what drifts meets both alike. Images of pages are left out of the WAL, as they tell
    of the last checkpoint; on a server of ours only, as a crash then breaks it."""
    began = time.monotonic()
    instances = bench.size(40_000, 2_000) // LENGTH
    free, limited = list[dict[str, float]](), list[dict[str, float]]()
    ours = bench.database if bench.deployment.own else None
    small = ours is not None and ours.set_page_images(False)
    try:
        for with_limits in (False, True, True, False):
            if with_limits:
                limited.append(work(bench, instances, flow_keys=flow_keys, limits=limits))
            else:
                free.append(work(bench, instances, flow_keys=0, limits={}))
    finally:
        if ours is not None:
            ours.set_page_images(True)
    figures = {name: median([each[name] for each in limited if name in each]) for name in limited[0]}
    figures["jobs_to_free"] = total(limited, "jobs_per_s") / total(free, "jobs_per_s")
    if small and total(free, "wal_bytes_per_item"):
        figures["wal_to_free"] = total(limited, "wal_bytes_per_item") / total(free, "wal_bytes_per_item")
    figures["free_jobs_per_s"] = total(free, "jobs_per_s") / len(free)
    return bench.run_of(figures, began)


def total(figures: list[dict[str, float]], name: str) -> float:
    return sum(each.get(name, 0.0) for each in figures)


# -- rates

_OVER = """
WITH begun AS (
  SELECT i.flow_key, extract(epoch FROM h.claimed_at) AS at,
    row_number() OVER (PARTITION BY i.flow_key ORDER BY h.claimed_at) AS n
  FROM instance i JOIN definition d ON d.key = i.definition JOIN history h ON h.instance_id = i.id
  WHERE d.id = %s AND h.claimed_at IS NOT NULL),
balance AS (SELECT flow_key, at, n, n - %s::int * at AS over FROM begun)
SELECT max(most)::float8 FROM (
  SELECT over - min(over) OVER (PARTITION BY flow_key ORDER BY at, n) + 1 AS most FROM balance) each"""


def rate(bench: Bench) -> Run:
    """How many begin, of what may; then nothing may, and the engine is to be idle."""
    began = time.monotonic()
    database = bench.need_database()
    workflow = linear(bench.new_tag(), 1)
    bench.upload(workflow)
    put_queue(bench, workflow, ratePerKey={"limit": RATE, "period": "PT1S"})
    each = bench.size(24, 6)
    items = each * RATE_KEYS
    bench.seed(workflow, variables_of(START_VARIABLES_BYTES), items + RATE_KEYS, flow_keys=RATE_KEYS)
    with bench.load(batch_workers(workflow)) as load:
        load.begin()
        bench.wait_count(load, Count.COMPLETED, int(items * RATE_WINDOW[0]), show=("at their rate", items))
        before = bench.meter.snapshot(load)
        bench.wait_count(load, Count.COMPLETED, int(items * RATE_WINDOW[1]), show=("at their rate", items))
        after = bench.meter.snapshot(load)
        ((most,),) = database.fetch(_OVER, (workflow.id, RATE))
        put_queue(bench, workflow, ratePerKey={"limit": 1, "period": "P1D"})
        asleep = _still(bench, load)
        bench.progress(1.0, "nothing may begin")
        time.sleep(IDLE_S)
        awake = bench.meter.snapshot(load)
        samples = load.stop()
    figures = bench.figures(before, after, Count.COMPLETED, "fast_path", samples, [])
    figures["rate_share"] = figures["jobs_per_s"] / (RATE * RATE_KEYS)
    figures["over_burst"] = max(0.0, float(most) - RATE)
    figures["begun_while_idle"] = float(awake.counts[Count.JOBS] - asleep.counts[Count.JOBS])
    for who in ("engine", "postgres"):
        used = [getattr(each, f"{who}_cpu_s") for each in (asleep, awake)]
        if None not in used:
            figures[f"{who}_core_percent"] = (used[1] - used[0]) / (awake.at - asleep.at) * 100
    return bench.run_of(figures, began)


def _still(bench: Bench, load: Generators) -> Snapshot:
    """When nothing has begun for a while: by the new rate each key may have begun once more."""
    before, now = -1, load.counts()[Count.JOBS]
    until = time.monotonic() + STILL_WITHIN_S
    while now > before and time.monotonic() < until:
        time.sleep(STILL_S)
        before, now = now, load.counts()[Count.JOBS]
    return bench.meter.snapshot(load)


LIMITS_ROW = "queues: 10,000 keys with 5 jobs each at once"
RATE_ROW = f"queues: {RATE_KEYS:,} keys, {RATE} a second of each"
SCENARIOS = [
    Scenario(
        "flow-keys",
        f"3 service tasks, batch calls, {KEYS:,} flow keys with at most {PER_KEY} jobs at once",
        partial(compare, flow_keys=KEYS, limits={"concurrencyPerKey": PER_KEY}),
        (
            Bound(figure="jobs_to_free", row=LIMITS_ROW, at_least=0.6),
            Bound(figure="wal_to_free", row=LIMITS_ROW, at_most=1.25),
        ),
        {"workers": WORKERS, "jobs per poll": BATCH_JOBS, "flow keys": KEYS, "at once of each": PER_KEY},
    ),
    Scenario(
        "flow-total",
        f"3 service tasks, batch calls, at most {TOTAL} jobs at once",
        partial(compare, flow_keys=0, limits={"concurrency": TOTAL}),
        (Bound(figure="jobs_per_s", row=f"queues: {TOTAL} at once of all", at_least=4_000),),
        {"workers": WORKERS, "jobs per poll": BATCH_JOBS, "at once": TOTAL},
    ),
    Scenario(
        "flow-rate",
        f"{RATE_KEYS:,} flow keys, {RATE} jobs a second of each",
        rate,
        (
            Bound(figure="rate_share", row=RATE_ROW, at_least=0.98),
            Bound(figure="over_burst", row=RATE_ROW, at_most=0.001),
            Bound(figure="begun_while_idle", row=RATE_ROW, at_most=0),
            Bound(figure="engine_core_percent", row=RATE_ROW, at_most=10),
        ),
        {"flow keys": RATE_KEYS, "a second of each": RATE, "burst": RATE},
    ),
]
