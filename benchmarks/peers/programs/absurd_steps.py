# pyright: basic, reportMissingImports=false
"""absurd: tasks of ten steps that do nothing, spawned and worked off by one process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from absurd_sdk import AsyncAbsurd, AsyncTaskContext
from measured import Count, feed, measured

STEPS = 10


async def main(url: str, settings: str, seconds: float) -> None:
    best = settings == "best"
    subprocess.run([Path(sys.executable).with_name("absurdctl"), "init", "-d", url], check=True, stdout=2)
    count = Count()
    workers = [AsyncAbsurd(url) for _ in range(8 if best else 1)]
    spawner = AsyncAbsurd(url)
    await spawner.create_queue("default")

    async def nothing() -> int:
        count.done += 1
        return 1

    async def ten(_: object, context: AsyncTaskContext) -> int:
        for number in range(STEPS):
            await context.step(f"step-{number}", nothing)
        return 1

    for worker in workers:
        worker.register_task("ten")(ten)

    async def ask(size: int) -> None:
        for _ in range(size // STEPS):
            await spawner.spawn("ten", {}, queue="default")

    tasks = [asyncio.create_task(feed(count, ask, 10 * STEPS, 256 * STEPS))]
    options = {"concurrency": 32} if best else {}
    tasks += [asyncio.create_task(worker.start_worker(**options)) for worker in workers]
    await measured(count, seconds, tasks)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=5)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
