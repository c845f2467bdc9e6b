"""Durable workflows: an App in a process of its own, on the database of the deployment, or at its engine over gRPC.

In library mode the deployment's engine is idle beside it. What the App's process and the server cost is measured from
the moment that the process is warm until its clients have ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, ScenarioFailed
from benchmarks.calibration import commit_p50_ms
from benchmarks.database import DatabaseCounters
from benchmarks.result import Bound, Run
from benchmarks.scenarios.scenario import Scenario

STEPS = 10
AT_ONCE = (1, 64, 256)
SETTLE_S = 1.2
"""PostgreSQL's sessions report their statistics once a second."""
BESIDE_A_COMMIT = 1.3
TOP = Path(__file__).parents[2]


LOAD = "benchmarks.load.durable"


@contextmanager
def app_process(module: str, *words: str) -> Generator[subprocess.Popen[str]]:
    """An App's process, which does not outlive the block."""
    command = [sys.executable, "-m", module, *words]
    process = subprocess.Popen(command, cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def measure(
    bench: Bench,
    what: str,
    *,
    load: str = LOAD,
    at: str | None = None,
    prepare: Callable[[str], None] | None = None,
    **options: float,
) -> tuple[dict[str, Any], DatabaseCounters, DatabaseCounters]:
    """What the process told, and the server's counters before and after. ``at`` names another way to the runs than the
    database; ``prepare`` is called with what the process said when it was ready."""
    database = bench.need_database()
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", f"{value:g}")]
    bench.progress(0.5, f"{what}, {' '.join(words)}")
    with app_process(load, at or database.dsn, what, *words) as process:
        said = wait_ready(process)
        if prepare is not None:
            prepare(said)
        time.sleep(SETTLE_S)
        before = database.counters()
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout is not None
        line = process.stdout.readline()
        time.sleep(SETTLE_S)
        after = database.counters()
    if not line:
        raise ScenarioFailed("the App's process told nothing")
    return json.loads(line), before, after


def wait_ready(process: subprocess.Popen[str]) -> str:
    """What it says beside. Raises ScenarioFailed."""
    assert process.stdout is not None
    word, _, said = process.stdout.readline().rstrip("\n").partition(" ")
    if word != "ready":
        raise ScenarioFailed(f"the App's process ended with {process.wait()}")
    return said


def run_steps(bench: Bench, asyncio: int = 0) -> Run:
    began = time.monotonic()
    figures: dict[str, float] = {}
    for at_once in AT_ONCE:
        reported, before, after = measure(bench, "steps", at_once=at_once, seconds=bench.size(10, 2), asyncio=asyncio)
        steps = reported["runs"] * STEPS
        figures[f"steps_per_s_{at_once}"] = steps / reported["seconds"]
        if at_once == 64:
            figures["commits_per_step"] = (after.write_commits - before.write_commits) / steps
            figures["wal_bytes_per_step"] = (after.wal_bytes - before.wal_bytes) / steps
            figures["app_cpu_us_per_step"] = reported["cpu_s"] / steps * 1e6
    return bench.run_of(figures, began)


def run_latency(bench: Bench, at: str | None = None, asyncio: int = 0) -> Run:
    began = time.monotonic()
    commit_ms = commit_p50_ms(bench.need_database().dsn, bench.options.calibration_s)
    reported, _, _ = measure(bench, "latency", at=at, branches=bench.size(2_000, 200), asyncio=asyncio)
    figures = {
        "commit_p50_ms": commit_ms,
        "step_p50_ms": reported["step_p50_ms"],
        "step_p99_ms": reported["step_p99_ms"],
        "step_over_commits_ms": reported["step_p50_ms"] - BESIDE_A_COMMIT * commit_ms,
    }
    return bench.run_of(figures, began)


def run_latency_over_grpc(bench: Bench) -> Run:
    host, port = bench.need_grpc()
    return run_latency(bench, f"grpc://{host}:{port}")


def run_starts(bench: Bench) -> Run:
    began = time.monotonic()
    reported, _, _ = measure(bench, "starts", at_once=256, seconds=bench.size(10, 2))
    figures = {
        "runs_per_s": reported["runs"] / reported["seconds"],
        "app_cpu_us_per_run": reported["cpu_s"] / reported["runs"] * 1e6,
    }
    return bench.run_of(figures, began)


def run_wide(bench: Bench) -> Run:
    began = time.monotonic()
    branches = bench.size(10_000, 1_000)
    reported, before, after = measure(bench, "wide", at_once=1, seconds=0.001, branches=branches)
    figures = {
        "wide_s": reported["run_p50_ms"] / 1e3,
        "wide_commits": float(after.write_commits - before.write_commits),
    }
    return bench.run_of(figures, began)


def run_replay(bench: Bench) -> Run:
    began = time.monotonic()
    with app_process(LOAD, "-", "replay") as process:
        assert process.stdout is not None
        reported: dict[str, float] = json.loads(process.stdout.readline())
    return bench.run_of(reported, began)


SCENARIOS = [
    Scenario(
        "durable-steps",
        "Durable workflows: runs of ten steps, 1, 64 and 256 at once",
        run_steps,
        (
            Bound(figure="steps_per_s_64", row="≥ 6,000 no-op steps/s with 64 runs at once", at_least=6_000),
            Bound(figure="commits_per_step", row="≤ 0.1 commits a step with 64 runs at once", at_most=0.1),
            Bound(figure="wal_bytes_per_step", row="≤ 450 B of WAL a step with 64 runs at once", at_most=450),
        ),
        {"steps": STEPS},
    ),
    Scenario(
        "durable-latency",
        "Durable workflows: one run, step after step",
        run_latency,
        (Bound(figure="step_over_commits_ms", row="a step: ≤ 1.3 × a bare commit + 0.5 ms", at_most=0.5),),
    ),
    Scenario(
        "durable-steps-asyncio",
        "Durable workflows: as durable-steps, with async steps in an asyncio loop",
        partial(run_steps, asyncio=1),
        parameters={"steps": STEPS},
    ),
    Scenario(
        "durable-latency-asyncio",
        "Durable workflows: as durable-latency, with async steps in an asyncio loop",
        partial(run_latency, asyncio=1),
    ),
    Scenario(
        "durable-latency-grpc",
        "Durable workflows against an engine: one run, step after step",
        run_latency_over_grpc,
        (Bound(figure="step_over_commits_ms", row="a step over gRPC: ≤ 1.3 × a bare commit + 2 ms", at_most=2.0),),
    ),
    Scenario(
        "durable-starts",
        "Durable workflows: start, one step, end",
        run_starts,
        (Bound(figure="runs_per_s", row="≥ 2,000 runs/s of start, one step and end", at_least=2_000),),
    ),
    Scenario(
        "durable-wide",
        "Durable workflows: 10,000 branches in one run",
        run_wide,
        (
            Bound(figure="wide_s", row="10,000 branches in one run: ≤ 3 s", at_most=3.0),
            Bound(figure="wide_commits", row="10,000 branches in one run: ≤ 200 commits", at_most=200),
        ),
    ),
    Scenario(
        "durable-replay",
        "Durable workflows: replay of journals, and what a run takes in memory",
        run_replay,
        (
            Bound(figure="replayed_per_s", row="replay with codec: ≥ 100,000 records/s of CPU", at_least=100_000),
            Bound(figure="run_memory_bytes", row="a run with 10 branches in 10 scopes: ≤ 20 kB", at_most=20_480),
        ),
    ),
]
