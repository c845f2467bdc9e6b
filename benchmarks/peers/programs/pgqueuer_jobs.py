# pyright: basic, reportMissingImports=false
"""pgqueuer: jobs that do nothing, enqueued and worked off by one process."""

from __future__ import annotations

import asyncio
import sys

import asyncpg
from measured import Count, feed, measured
from pgqueuer import AsyncpgPoolDriver, PgQueuer, Queries


async def main(url: str, settings: str, seconds: float) -> None:
    best = settings == "best"
    async with asyncpg.create_pool(url, min_size=4, max_size=12) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        await queries.install()
        worker, count = PgQueuer(driver), Count()

        @worker.entrypoint("nothing")
        async def nothing(_: object) -> None:
            count.done += 1

        async def ask(size: int) -> None:
            await queries.enqueue(["nothing"] * size, [None] * size, [0] * size)

        size, feeders, ahead = (500, 2, 5_000) if best else (1, 8, 500)
        tasks = [asyncio.create_task(feed(count, ask, size, ahead)) for _ in range(feeders)]
        options = {"batch_size": 500} if best else {}
        tasks.append(asyncio.create_task(worker.run(**options)))
        await measured(count, seconds, tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
