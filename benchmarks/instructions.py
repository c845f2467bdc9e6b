"""Machine instructions of the engine's process per job, counted by valgrind: old against new, on a busy machine too.

    python -m benchmarks.instructions OLD NEW [--items 1500] [--workers 8] [--batch]

Each engine runs under callgrind, thirty times slower than alone, so that its batches are larger than in life; what
counts are the instructions between two looks, of one job each. PostgreSQL runs as always and is not counted: that is
for `pair`. Repeats agree within about one percent. `--functions N` names the C functions that took most.
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
from benchmarks.database import Database
from benchmarks.load.counts import Count
from benchmarks.load.scripts import WorkPlan
from benchmarks.workflows import START_VARIABLES_BYTES, linear, variables_of

READY_TIMEOUT_S = 240.0
LENGTH = 3


def instructions_per_job(source: Path, work_dir: Path, items: int, plan: dict[str, Any]) -> float:
    """One engine, one window."""
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
            work = WorkPlan(job_types=workflow.job_types, outputs=workflow.outputs, **plan)
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
    parser.add_argument("--batch", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work-dir", type=Path, default=Path("/var/tmp"))
    options = parser.parse_args()
    if shutil.which("callgrind_control") is None:
        sys.exit("needs valgrind")
    plan: dict[str, Any] = {"workers": options.workers}
    if options.batch:
        plan |= {"max_jobs": 32, "batch": True}
    found: dict[str, list[float]] = {"old": [], "new": []}
    for _ in range(options.rounds):
        for name, source in (("old", options.old), ("new", options.new)):
            began = time.monotonic()
            count = instructions_per_job(source.resolve(), options.work_dir, options.items, plan)
            found[name].append(count)
            print(f"{name}: {count / 1e3:,.0f} thousand a job ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"new/old: {min(found['new']) / min(found['old']):.3f}")


if __name__ == "__main__":
    main()
