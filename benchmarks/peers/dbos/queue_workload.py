# pyright: basic
"""DBOS Transact doing what `benchmarks.load.durable_queue` does: workflows of one step of 10 ms behind a queue's limit.

Runs in the virtual environment that has DBOS. Enqueues all, writes "ready", waits for a line on its standard input,
works, and writes one JSON object when all have run. DBOS has its own defaults but for the log level and, where it is
given, how often it looks into its queue.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dbos import DBOS, DBOSClient, DBOSConfig  # pyright: ignore[reportAttributeAccessIssue] - takes this folder for it

sys.path.append(str(Path(__file__).parents[2] / "load"))
from queue_moments import figures  # pyright: ignore[reportMissingImports] - of the checkout, by its folder

QUEUE = "bench"
STARTERS = 16
WORK_S = 0.01
POLL_INTERVAL_S = 0.01
SETTLE_S = 1.0
"""The last ones are written."""
began: list[float] = []
ended: list[float] = []


@DBOS.step()
def work(n: int) -> int:
    began.append(time.perf_counter())
    time.sleep(WORK_S)
    ended.append(time.perf_counter())
    return n


@DBOS.workflow()
def queued(n: int) -> int:
    return work(n)


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def main() -> None:
    url, policy, runs, polling_s = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    DBOS(config=DBOSConfig(name="bench", system_database_url=url, log_level="ERROR"))
    DBOS.launch()
    DBOS.destroy(destroy_registry=False)  # the tables are there
    client = DBOSClient(system_database_url=url)
    with ThreadPoolExecutor(STARTERS) as pool:
        list(pool.map(lambda n: client.enqueue({"queue_name": QUEUE, "workflow_name": "queued"}, n), range(runs)))
    client.destroy()
    print("ready", flush=True)
    sys.stdin.readline()
    used_s = cpu_s()
    DBOS(config=DBOSConfig(name="bench", system_database_url=url, log_level="ERROR"))
    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=polling_s, **policy)
    while len(ended) < runs:
        time.sleep(POLL_INTERVAL_S)
    used_s = cpu_s() - used_s
    time.sleep(SETTLE_S)
    print(json.dumps({**figures(began, ended), "cpu_s": used_s}), flush=True)
    sys.stdin.readline()
    DBOS.destroy()


if __name__ == "__main__":
    main()
