"""Snapshots of everything that is counted, and the figures of what lies between two of them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks import scrape
from benchmarks.database import Database, DatabaseCounters
from benchmarks.deployment import Deployment
from benchmarks.load.counts import Count, Samples, percentile
from benchmarks.load.generator import Generators
from benchmarks.processes import all_processes, own_cpu_s, tree, tree_cpu_s, tree_resident_bytes

MIB = 2**20
STATISTICS_WINDOW_S = 3.0
"""PostgreSQL's sessions report buffers and flushes once a second: shorter windows would show chance."""


@dataclass(frozen=True)
class Snapshot:
    """Counters at one moment (`time.monotonic()`); None where something can't be seen from here."""

    at: float
    counts: list[int]
    engine_cpu_s: float | None
    postgres_cpu_s: float | None
    generator_cpu_s: float
    harness_cpu_s: float
    database: DatabaseCounters | None
    commit_queues: dict[str, tuple[float, float]]


class Meter:
    """Takes snapshots of one deployment."""

    def __init__(self, deployment: Deployment, database: Database | None) -> None:
        self._deployment = deployment
        self.database = database
        self._postgres_pid = None if database is None else database.server_pid()

    def snapshot(self, load: Generators | None = None) -> Snapshot:
        """All counters now; takes about 10 ms."""
        counts = load.counts() if load is not None else [0] * len(Count)
        at = time.monotonic()
        processes = all_processes()
        page = None if self._deployment.metrics is None else scrape.read_page(*self._deployment.metrics)
        engine_pid, postgres_pid = self._deployment.engine_pid, self._postgres_pid
        if engine_pid is not None:
            engine_cpu_s: float | None = tree_cpu_s(processes, engine_pid, without=postgres_pid)
        else:
            engine_cpu_s = None if page is None else scrape.cpu_s(page)
        return Snapshot(
            at=at,
            counts=counts,
            engine_cpu_s=engine_cpu_s,
            postgres_cpu_s=None if postgres_pid is None else tree_cpu_s(processes, postgres_pid),
            generator_cpu_s=sum(processes[pid].cpu_s for pid in (load.pids if load else ()) if pid in processes),
            harness_cpu_s=own_cpu_s(),
            database=None if self.database is None else self.database.counters(),
            commit_queues={} if page is None else scrape.batches(page),
        )

    def engine_memory_mib(self) -> float | None:
        """Resident memory of the engine's processes."""
        pid = self._deployment.engine_pid
        if pid is None:
            return None
        return tree_resident_bytes(all_processes(), pid, without=self._postgres_pid) / MIB

    def engine_processes(self) -> int:
        """How many processes the engine is made of, without PostgreSQL's."""
        pid = self._deployment.engine_pid
        return 0 if pid is None else len(tree(all_processes(), pid, without=self._postgres_pid))


def per_item(before: Snapshot, after: Snapshot, counted: Count, commit_queue: str) -> dict[str, float]:
    """The figures of a window, per item of ``counted``; ``commit_queue`` names the batches whose mean size counts."""
    items = after.counts[counted] - before.counts[counted]
    seconds = after.at - before.at
    if items <= 0 or seconds <= 0:
        return {}
    rate = "instances_per_s" if counted in (Count.STARTED, Count.ENDED) else "jobs_per_s"
    figures: dict[str, float] = {rate: items / seconds}
    cpu = {
        "engine": _difference(before.engine_cpu_s, after.engine_cpu_s),
        "postgres": _difference(before.postgres_cpu_s, after.postgres_cpu_s),
        "generator": after.generator_cpu_s - before.generator_cpu_s,
    }
    for who, used_s in cpu.items():
        if used_s is not None:
            figures[f"{who}_cpu_s_per_1000"] = used_s / items * 1000
    if before.database is not None and after.database is not None:
        figures |= _database_figures(before.database, after.database, items, seconds)
    batch = mean_batch(before, after, commit_queue)
    if batch is not None:
        figures["mean_batch"] = batch
    figures["calls_per_item"] = (after.counts[Count.CALLS] - before.counts[Count.CALLS]) / items
    return figures


def _database_figures(
    before: DatabaseCounters, after: DatabaseCounters, items: int, seconds: float
) -> dict[str, float]:
    figures = {
        "wal_bytes_per_item": (after.wal_bytes - before.wal_bytes) / items,
        "write_commits_per_item": (after.write_commits - before.write_commits) / items,
    }
    if seconds < STATISTICS_WINDOW_S:
        return figures
    figures["buffers_per_item"] = (after.buffers - before.buffers) / items
    if before.wal_flushes is not None and after.wal_flushes is not None:
        figures["wal_flushes_per_item"] = (after.wal_flushes - before.wal_flushes) / items
    return figures


def mean_batch(before: Snapshot, after: Snapshot, commit_queue: str) -> float | None:
    """Mean size of the group-commit queue's batches within the window."""
    items_before, batches_before = before.commit_queues.get(commit_queue, (0.0, 0.0))
    items_after, batches_after = after.commit_queues.get(commit_queue, (0.0, 0.0))
    batches = batches_after - batches_before
    return (items_after - items_before) / batches if batches > 0 else None


def latencies(samples: Samples, kind: str, since: float, until: float) -> dict[str, float]:
    """Median and 99th percentile in milliseconds of what ended within the window."""
    ordered = samples.between(kind, since, until)
    found = {"p50": percentile(ordered, 0.5), "p99": percentile(ordered, 0.99)}
    return {f"{kind}_{name}_ms": value * 1e3 for name, value in found.items() if value is not None}


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
