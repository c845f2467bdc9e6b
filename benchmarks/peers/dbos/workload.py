# pyright: basic
"""DBOS Transact doing what `benchmarks.load.durable` does: workflows of ten no-op steps, so many at once.

Runs in the virtual environment that has DBOS, and imports nothing of ours. Writes "ready", waits for a line on its
standard input, measures, and writes one JSON object. DBOS has its own defaults but for the log level.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS, DBOSConfig  # pyright: ignore[reportAttributeAccessIssue] - takes this folder for it

STEPS = 10
WARM_UP_S = 0.5


@DBOS.step()
async def nothing(n: int) -> int:
    return n


@DBOS.workflow()
async def ten(n: int) -> int:
    for number in range(STEPS):
        await nothing(number)
    return n


@DBOS.step()
def nothing_sync(n: int) -> int:
    return n


@DBOS.workflow()
def ten_sync(n: int) -> int:
    for number in range(STEPS):
        nothing_sync(number)
    return n


def run_async(at_once: int, seconds: float) -> list[float]:
    durations: list[float] = []

    async def client(until: float) -> None:
        while (began := time.perf_counter()) < until:
            await ten(1)
            durations.append(time.perf_counter() - began)

    async def clients() -> None:
        await asyncio.gather(*[client(time.perf_counter() + seconds) for _ in range(at_once)])

    asyncio.run(clients())
    return durations


def run_sync(at_once: int, seconds: float) -> list[float]:
    durations: list[float] = []
    until = time.perf_counter() + seconds

    def client(_: int) -> None:
        while (began := time.perf_counter()) < until:
            ten_sync(1)
            durations.append(time.perf_counter() - began)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(client, range(at_once)))
    return durations


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def main() -> None:
    url, kind, at_once, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    run = {"async": run_async, "sync": run_sync}[kind]
    DBOS(config=DBOSConfig(name="bench", system_database_url=url, log_level="ERROR"))
    DBOS.launch()
    run(at_once, WARM_UP_S)
    print("ready", flush=True)
    sys.stdin.readline()
    used_s, began = cpu_s(), time.perf_counter()
    durations = run(at_once, seconds)
    elapsed = time.perf_counter() - began
    figures = {"runs": len(durations), "seconds": elapsed, "cpu_s": cpu_s() - used_s}
    print(json.dumps({**figures, "run_p50_ms": statistics.median(durations) * 1e3}), flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    main()
