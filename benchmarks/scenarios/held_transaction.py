"""Half load for 20 minutes, with a transaction held open for five of them: what pruning and vacuum can't take away.

Half load is half of what the same engine did right before, at full speed. Judged at the end: dead rows and latency must
be back where they were before the transaction. A few bare commits every second tell what the disk did meanwhile: the
latency is judged in units of those.
"""

from __future__ import annotations

import time

import psycopg

from benchmarks.bench import Bench, batch_workers
from benchmarks.load.counts import Count, Samples, percentile
from benchmarks.load.generator import Generators
from benchmarks.load.scripts import StartPlan
from benchmarks.result import Bound, Run, Series, median
from benchmarks.scenarios.scenario import Scenario
from benchmarks.workflows import START_VARIABLES_BYTES, linear, variables_of

LENGTH = 3
ROW = "20 minutes at half load with a transaction held open for 5 of them"
FULL_S = (300.0, 300.0, 600.0)
QUICK_S = (10.0, 10.0, 20.0)
HALF = 0.5
COMMITS_PER_SAMPLE = 5


class Timeline:
    """What is recorded every second."""

    def __init__(self, bench: Bench, load: Generators) -> None:
        self._database = bench.need_database()
        self._load = load
        self._commits = psycopg.connect(self._database.dsn, autocommit=True)
        self.origin = time.monotonic()
        self._done = 0
        self._sampled_at = self.origin
        self.jobs = Series(name="jobs", unit="/s", points=[])
        self.dead = Series(name="dead rows", unit="", points=[])
        self.commit = Series(name="bare commit", unit="ms", points=[])

    def sample(self) -> None:
        """Record this second."""
        self._load.check()
        now, done = time.monotonic(), self._load.counts()[Count.COMPLETED]
        at = now - self.origin
        self.jobs.points.append((at, (done - self._done) / (now - self._sampled_at)))
        self._done, self._sampled_at = done, now
        self.dead.points.append((at, float(sum(rows for rows, _ in self._database.table_health().values()))))
        self.commit.points.append((at, self._commit_ms()))

    def close(self) -> None:
        self._commits.close()

    def _commit_ms(self) -> float:
        """A durable commit right now; pg_logical_emit_message writes WAL and nothing else."""
        durations: list[float] = []
        for _ in range(COMMITS_PER_SAMPLE):
            began = time.monotonic()
            self._commits.execute("SELECT pg_logical_emit_message(true, 'penstock', 'x')")
            durations.append(time.monotonic() - began)
        return median(durations) * 1e3


def run(bench: Bench) -> Run:
    began = time.monotonic()
    workflow = linear(bench.new_tag(), LENGTH)
    bench.upload(workflow)
    body = workflow.start_body(variables_of(START_VARIABLES_BYTES))
    rate = HALF * _capacity(bench)
    parts_s = QUICK_S if bench.options.quick else FULL_S
    total_s = sum(parts_s)
    starts = StartPlan(connections=2, instances=int(rate * total_s * 1.2), body=body, batch=10, rate=rate)
    with bench.load(starts, batch_workers(workflow), processes=1) as load:
        load.begin()
        timeline = Timeline(bench, load)
        try:
            _live_through(bench, timeline, parts_s)
        finally:
            timeline.close()
        counts = load.counts()
        samples = load.stop()
    figures = _figures(timeline, samples, parts_s)
    figures["jobs_per_s"] = counts[Count.COMPLETED] / total_s
    figures["start_rate_kept"] = counts[Count.STARTED] / total_s / rate
    figures["errors"] = float(counts[Count.ERRORS])
    latency = Series(name="complete p50", unit="ms", points=[])
    for second, durations in sorted(samples.by_second("complete", timeline.origin).items()):
        latency.points.append((float(second), median(durations) * 1e3))
    bench.series += [timeline.jobs, timeline.dead, latency, timeline.commit]
    return bench.run_of(figures, began)


def _live_through(bench: Bench, timeline: Timeline, parts_s: tuple[float, float, float]) -> None:
    """The three parts; the transaction is held during the second."""
    before_s, held_s, _ = parts_s
    held: psycopg.Connection | None = None
    try:
        while (passed := time.monotonic() - timeline.origin) < sum(parts_s):
            if held is None and before_s <= passed < before_s + held_s:
                held = _hold(bench.need_database().dsn)
            elif held is not None and passed >= before_s + held_s:
                held.close()
                held = None
            timeline.sample()
            bench.progress(passed / sum(parts_s), f"half load{', a transaction is held' if held else ''}")
            time.sleep(1)
    finally:
        if held is not None:
            held.close()


def _figures(timeline: Timeline, samples: Samples, parts_s: tuple[float, float, float]) -> dict[str, float]:
    before_s, held_s, after_s = parts_s
    ends = sum(parts_s)
    parts = {
        "before": (before_s / 3, before_s),
        "held": (before_s + held_s / 2, before_s + held_s),
        "after": (ends - after_s / 4, ends),
    }
    figures: dict[str, float] = {}
    in_commits: dict[str, float] = {}
    for name, (since, until) in parts.items():
        p50 = percentile(samples.between("complete", timeline.origin + since, timeline.origin + until), 0.5)
        commits = [value for at, value in timeline.commit.points if since <= at <= until]
        if p50 is not None and commits:
            figures[f"{name}_p50_ms"] = p50 * 1e3
            figures[f"{name}_commit_ms"] = median(commits)
            in_commits[name] = p50 * 1e3 / median(commits)
    if in_commits.keys() >= {"before", "after"}:
        figures["after_to_before"] = in_commits["after"] / in_commits["before"]
    figures["dead_rows_held"] = max(value for _, value in timeline.dead.points)
    figures["dead_rows_after"] = timeline.dead.points[-1][1]
    return figures


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
        commit_queue="fast_path",
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
