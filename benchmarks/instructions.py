"""Machine instructions of the engine's process per job, counted by valgrind: old against new, on a busy machine too.

    python -m benchmarks.instructions OLD NEW [--items 1500] [--workers 8] [--batch | --grpc] [--compiled]

Each engine runs under callgrind, thirty times slower than alone, so that its batches are larger than in life; what
counts are the instructions between two looks, of one job each. PostgreSQL runs as always and is not counted: that is
for `pair`. Repeats agree within about one percent.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import deployment
from benchmarks.bench import Bench, Options
from benchmarks.calibration import print_line
from benchmarks.command import DEFAULT_OUTPUT
from benchmarks.database import Database
from benchmarks.load.counts import Count
from benchmarks.load.grpc_scripts import GrpcWorkPlan
from benchmarks.load.scripts import Plan, WorkPlan
from benchmarks.pair import side
from benchmarks.workflows import START_VARIABLES_BYTES, linear, variables_of

READY_TIMEOUT_S = 240.0
LENGTH = 3


def instructions_per_job(source: Path, work_dir: Path, items: int, plan: dict[str, Any], *, grpc: bool) -> float:
    """One engine, one window. ``grpc``: by calls of `workflow.v1`."""
    with deployment.work_directory(work_dir) as directory:
        counted = directory / "callgrind"
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counted}"]
        with deployment.engine(directory, {}, source=source, under=valgrind, ready_s=READY_TIMEOUT_S) as running:
            assert running.dsn is not None
            assert running.engine_pid is not None
            database = Database(running.dsn)
            bench = Bench(running, database, Options(), lambda share, text: None)
            workflow = linear(bench.new_tag(), LENGTH)
            bench.upload(workflow)
            bench.seed(workflow, variables_of(START_VARIABLES_BYTES), items // LENGTH)
            work: Plan = WorkPlan(job_types=workflow.job_types, outputs=workflow.outputs, **plan)
            if grpc:
                work = GrpcWorkPlan(bench.need_grpc(), plan["workers"], workflow.job_types, workflow.outputs)
            with bench.load(work) as load:
                load.begin()
                bench.wait_count(load, Count.COMPLETED, items // 10)
                _control(running.engine_pid, "-i", "on")
                before = load.counts()[Count.COMPLETED]
                bench.wait_count(load, Count.COMPLETED, items * 9 // 10)
                done = load.counts()[Count.COMPLETED] - before
                _control(running.engine_pid, "-i", "off")
                _control(running.engine_pid, "-d")
                bench.wait_count(load, Count.COMPLETED, items)
                load.stop()
            database.close()
        return _total(counted.parent) / done


def _control(pid: int, *words: str) -> None:
    subprocess.run(["callgrind_control", *words, str(pid)], check=True, capture_output=True)


def _total(directory: Path) -> int:
    total = 0
    for file in directory.glob("callgrind.*"):
        for found in re.findall(r"^(?:totals|summary): (\d+)", file.read_text(errors="replace"), re.MULTILINE):
            total = max(total, int(found))
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--items", type=int, default=1_500)
    parser.add_argument("--workers", type=int, default=8)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--batch", action="store_true")
    kind.add_argument("--grpc", action="store_true", help="one call per job over gRPC in place of REST")
    parser.add_argument("--compiled", action="store_true", help="the new one with its hot path as C")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work-dir", type=Path, default=Path("/var/tmp"))
    options = parser.parse_args()
    print_line()
    if shutil.which("callgrind_control") is None:
        sys.exit("needs valgrind")
    plan: dict[str, Any] = {"workers": options.workers}
    if options.batch:
        plan |= {"max_jobs": 32, "batch": True}
    sides = side(options.old), side(options.new, compiled_in=DEFAULT_OUTPUT if options.compiled else None)
    found: dict[str, list[float]] = {"old": [], "new": []}
    for _ in range(options.rounds):
        for name, checkout in zip(("old", "new"), sides, strict=True):
            began = time.monotonic()
            count = instructions_per_job(Path(checkout.path), options.work_dir, options.items, plan, grpc=options.grpc)
            found[name].append(count)
            print(f"{name}: {count / 1e3:,.0f} thousand a job ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"new/old: {min(found['new']) / min(found['old']):.3f}")


if __name__ == "__main__":
    main()
