"""Runs of a durable workflow that a queue keeps back, in a process of their own: what of them began when.

`python -m benchmarks.load.durable_queue DSN POLICY --runs 2000`: starts them while the queue is paused, writes "ready",
waits for a line on its standard input, resumes, and writes one JSON object when all have run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import msgspec
import trio
from msgspec import structs

from benchmarks.load.durable import ready
from benchmarks.load.queue_moments import figures
from benchmarks.processes import own_cpu_s
from penstock.durable import App, step, workflow
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import queues
from penstock.wire.queue import QueuePolicy

QUEUE = "bench"
STARTERS = 64
WORK_S = 0.01
POLL_INTERVAL_S = 0.01
REPORTED_AFTER_S = 1.5
"""Of a policy that somebody else set an engine hears within a second."""
began: list[float] = []
ended: list[float] = []


@step
async def work(n: int) -> int:
    began.append(time.perf_counter())
    await trio.sleep(WORK_S)
    ended.append(time.perf_counter())
    return n


@workflow(queue=QUEUE)
async def queued(n: int) -> int:
    return await work(n)


async def measure(options: argparse.Namespace) -> dict[str, float]:
    policy = msgspec.json.decode(options.policy, type=QueuePolicy)
    async with App(queued, at=options.at, migrate=True) as app, await TrioConnection.connect(options.at) as connection:
        await connection.fetch(b"SET search_path = penstock, public")
        await queues.put(connection, QUEUE, structs.replace(policy, paused=True), actor=None, audit=False)
        await trio.sleep(REPORTED_AFTER_S)
        numbers = iter(range(options.runs))

        async def start() -> None:
            for number in numbers:
                await app.start(queued, number)

        async with trio.open_nursery() as nursery:
            for _ in range(STARTERS):
                nursery.start_soon(start)
        await ready()
        used_s = own_cpu_s()
        await queues.pause(connection, QUEUE, False, actor=None, audit=False)
        while len(ended) < options.runs:
            await trio.sleep(POLL_INTERVAL_S)
        return {**figures(began, ended), "cpu_s": own_cpu_s() - used_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("at")
    parser.add_argument("policy")
    parser.add_argument("--runs", type=int, default=2_000)
    print(json.dumps(trio.run(measure, parser.parse_args())), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
