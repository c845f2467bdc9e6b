"""Runs of durable workflows in a process of their own: an App on a PostgreSQL or at an engine, and many clients in it.

`python -m benchmarks.load.durable AT WHAT --at-once 64 --seconds 10`. Writes "ready", waits for a line on its standard
input, measures, and writes one JSON object. Who started it looks at the server before and after.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import trio

from benchmarks.load.counts import percentile
from benchmarks.processes import own_cpu_s
from penstock.durable import App, move_on_after, open_nursery, sleep, step, workflow
from penstock.durable.codec import encode
from penstock.durable.step import StepCall
from penstock.durable.step_loop import Backend
from penstock.durable.verbs import RunInfo
from penstock.kernel.drive import Kernel
from penstock.kernel.operation import Start
from penstock.kernel.record import JournalKind, Record
from penstock.kernel.replay import replay

WARM_UP_S = 0.5
STEPS = 10
REPLAY_S = 3.0
KEPT_RUNS = 1_000


@step
async def nothing(n: int) -> int:
    return n


@workflow
async def ten(n: int) -> int:
    for number in range(STEPS):
        await nothing(number)
    return n


@workflow
async def one(n: int) -> int:
    return await nothing(n)


@workflow
async def many_in_turn(count: int) -> list[float]:
    """When each step began, by this process's clock: steps run here."""
    return [await moment() for _ in range(count)]


@step
async def moment() -> float:
    return time.perf_counter()


@workflow
async def wide(branches: int) -> int:
    async with open_nursery() as nursery:
        for number in range(branches):
            nursery.start_soon(nothing, number)
    return branches


@workflow
async def ten_waiting(orders: list[str]) -> int:
    """Ten branches in ten scopes, which wait."""

    async def branch(order: str) -> None:
        with move_on_after("1 day"):
            await sleep("3 days")

    async with open_nursery() as nursery:
        for order in orders:
            nursery.start_soon(branch, order, key=order)
    return len(orders)


class Clients:
    """So many at once, each doing one thing after the other."""

    def __init__(self, at_once: int, do: Callable[[], Awaitable[object]]) -> None:
        self.at_once, self.do = at_once, do
        self.durations: list[float] = []

    async def work(self, seconds: float) -> float:
        """The seconds that it took."""
        began = time.perf_counter()
        until = began + seconds
        async with trio.open_nursery() as nursery:
            for _ in range(self.at_once):
                nursery.start_soon(self._client, until)
        return time.perf_counter() - began

    async def _client(self, until: float) -> None:
        while (began := time.perf_counter()) < until:
            await self.do()
            self.durations.append(time.perf_counter() - began)


async def measure(options: argparse.Namespace) -> dict[str, float]:
    migrate = not options.at.startswith("grpc:")
    backend: Backend = "asyncio" if options.asyncio else "trio"
    async with App(ten, one, many_in_turn, wide, at=options.at, migrate=migrate, backend=backend) as app:

        async def run(workflow: Any, *args: object) -> Any:
            return await (await app.start(workflow, *args)).result()

        bodies: dict[str, Callable[[], Awaitable[object]]] = {
            "steps": lambda: run(ten, 1),
            "starts": lambda: run(one, 1),
            "wide": lambda: run(wide, options.branches),
            "latency": lambda: run(many_in_turn, options.branches),
        }
        do = bodies[options.what]
        clients = Clients(options.at_once, do)
        if options.what in ("steps", "starts"):
            await clients.work(WARM_UP_S)
        else:
            await run(ten, 1)
        clients.durations.clear()
        await ready()
        used_s = own_cpu_s()
        if options.what == "latency":
            moments: list[float] = await run(many_in_turn, options.branches)
            steps = sorted(after - before for before, after in pairwise(moments))
            return {"step_p50_ms": milliseconds(steps, 0.5), "step_p99_ms": milliseconds(steps, 0.99)}
        seconds = await clients.work(options.seconds)
        durations = sorted(clients.durations)
        return {
            "runs": len(durations),
            "seconds": seconds,
            "cpu_s": own_cpu_s() - used_s,
            "run_p50_ms": milliseconds(durations, 0.5),
            "run_p99_ms": milliseconds(durations, 0.99),
        }


def replayed() -> dict[str, float]:
    """Records per second of CPU, values decoded and digests compared."""
    payload = encode(7, "a value")
    digests = {number: call.digest for number, call in enumerate(_calls())}
    records = [Record(1.0, JournalKind.DONE, f"/{n}", "nothing", payload, digests[n], pos=n + 1) for n in range(STEPS)]
    arguments = ten.encode_arguments((1,), {})
    began, count = time.process_time(), 0
    while time.process_time() - began < REPLAY_S:
        replay(_kernel(), ten.body(arguments), records)
        count += len(records)
    return {"replayed_per_s": count / (time.process_time() - began), "run_memory_bytes": waiting_run_bytes()}


def waiting_run_bytes() -> float:
    """What a run of ten branches in ten scopes takes in memory while it waits."""
    kept: list[Kernel] = []
    waiting = ten_waiting.encode_arguments(([f"order-{n}" for n in range(10)],), {})
    gc.collect()
    tracemalloc.start()
    for _ in range(KEPT_RUNS):
        kernel = _kernel()
        kernel.start(ten_waiting.body(waiting))
        kept.append(kernel)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for kernel in kept:
        kernel.discard()
    return used / KEPT_RUNS


def _kernel() -> Kernel:
    return Kernel(1.0, RunInfo("r", "w", 1, datetime.fromtimestamp(1.0, UTC)))


def _calls() -> list[StepCall]:
    """Those of `ten`, as they are asked for."""
    kernel, calls = _kernel(), list[StepCall]()
    kernel.start(ten.body(ten.encode_arguments((1,), {})))
    while kernel.result is None:
        (start,) = kernel.take_commands()
        assert isinstance(start, Start)
        assert isinstance(start.call, StepCall)
        calls.append(start.call)
        kernel.deliver(Record(1.0, JournalKind.DONE, start.path, payload="7"))
    return calls


async def ready(*words: str) -> None:
    """Say so to the process that started this one, and wait for its word to go on."""
    print("ready", *words, flush=True)
    await trio.to_thread.run_sync(sys.stdin.readline)


def milliseconds(ordered: list[float], share: float) -> float:
    """The percentile of what is in seconds, in order."""
    return (percentile(ordered, share) or 0.0) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("at")
    parser.add_argument("what", choices=["steps", "starts", "wide", "latency", "replay"])
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--branches", type=int, default=10_000)
    parser.add_argument("--asyncio", type=int, default=0, help="1: async steps run in an asyncio loop of their own")
    options = parser.parse_args()
    reported = replayed() if options.what == "replay" else trio.run(measure, options)
    print(json.dumps(reported), flush=True)


if __name__ == "__main__":
    main()
