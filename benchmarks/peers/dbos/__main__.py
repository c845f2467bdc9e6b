"""The same workflows of ten no-op steps by Penstock in library mode and by DBOS Transact, in turn, on one PostgreSQL.

    python -m benchmarks.peers.dbos [--seconds 10] [--at-once 1,64,256] [--rounds 2] [--json FILE]

Installs DBOS with pip into a virtual environment of its own (`--venv`), which is kept. The server is an embedded
PostgreSQL with its defaults (fsync on) in a new directory on a real disk, or the one of `--dsn`; each system has a
database of its own there. Bare commits of that server are measured first. Per size and round: Penstock, DBOS with
asyncio, DBOS with threads; the ratio is to the better of DBOS's two. Queues: `python -m benchmarks.peers.dbos.queues`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.database import Database
from benchmarks.peers.dbos import side_by_side
from benchmarks.peers.dbos.side_by_side import HERE, VERSION, calibrated, new_database, python_with_dbos, url_of
from benchmarks.result import median

STEPS = 10
SETTLE_S = 1.2
"""PostgreSQL's sessions report their statistics once a second."""


def measured(command: Sequence[str], database: Database) -> dict[str, float]:
    """One process's figures, with the server's between its "ready" and its end."""
    with side_by_side.start(command) as process:
        time.sleep(SETTLE_S)
        before = database.counters()
        reported: dict[str, Any] = side_by_side.go(process)
        time.sleep(SETTLE_S)
        after = database.counters()
        assert process.stdin is not None
        process.stdin.close()
    steps = reported["runs"] * STEPS
    return {
        "steps_per_s": steps / reported["seconds"],
        "run_p50_ms": reported["run_p50_ms"],
        "commits_per_step": (after.commits - before.commits) / steps,
        "wal_bytes_per_step": (after.wal_bytes - before.wal_bytes) / steps,
        "cpu_us_per_step": reported["cpu_s"] / steps * 1e6,
    }


def compare(dsn: str, options: argparse.Namespace) -> dict[str, Any]:
    python = python_with_dbos(options.venv)
    commit_p50_ms = calibrated(dsn, options.calibration_seconds)
    ours, theirs = new_database(dsn, "penstock_bench"), new_database(dsn, "dbos_bench")
    environment = {**os.environ, "WE_POSTGRES_DSN": ours}
    subprocess.run([sys.executable, "-m", "penstock", "migrate", "--config", os.devnull], env=environment, check=True)
    result: dict[str, Any] = {"dbos": VERSION, "commit_p50_ms": commit_p50_ms, "rounds": []}
    for at_once in map(int, options.at_once.split(",")):
        ratios: list[float] = []
        for number in range(options.rounds):
            size, seconds = str(at_once), str(options.seconds)
            work = ["-m", "benchmarks.load.durable", ours, "steps", "--at-once", size, "--seconds", seconds]
            kinds = {"penstock": [sys.executable, *work]}
            for kind in ("async", "sync"):
                kinds[f"dbos {kind}"] = [str(python), str(HERE / "workload.py"), url_of(theirs), kind, size, seconds]
            figures: dict[str, dict[str, float]] = {}
            for kind, command in kinds.items():
                database = Database(ours if kind == "penstock" else theirs)
                figures[kind] = measured(command, database)
                database.close()
                print(f"{at_once:4} at once, round {number + 1}, {kind:10}: {_shown(figures[kind])}", flush=True)
            best = max(figures["dbos async"]["steps_per_s"], figures["dbos sync"]["steps_per_s"])
            ratios.append(figures["penstock"]["steps_per_s"] / best)
            result["rounds"].append({"at_once": at_once, "figures": figures, "ratio": ratios[-1]})
        shown = ", ".join(f"{ratio:.1f}" for ratio in ratios)
        print(f"{at_once:4} at once: {median(ratios):.1f} × DBOS ({shown})", flush=True)
    return result


def _shown(figures: dict[str, float]) -> str:
    return (
        f"{figures['steps_per_s']:9,.0f} steps/s, p50 {figures['run_p50_ms']:7.1f} ms a run,"
        f" {figures['commits_per_step']:.3f} commits, {figures['wal_bytes_per_step']:,.0f} B of WAL,"
        f" {figures['cpu_us_per_step']:,.0f} µs of CPU a step"
    )


def main() -> None:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--at-once", default="1,64,256")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=2)
    side_by_side.run(compare, parser.parse_args())


if __name__ == "__main__":
    main()
