# pyright: basic, reportMissingImports=false
"""procrastinate: jobs that do nothing, deferred and worked off by one process."""

from __future__ import annotations

import asyncio
import logging
import sys

from measured import Count, feed, measured
from procrastinate import App, PsycopgConnector


async def main(url: str, settings: str, seconds: float) -> None:
    best = settings == "best"
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    app, count = App(connector=PsycopgConnector(conninfo=url, max_size=60 if best else 10)), Count()

    @app.task(name="nothing")
    async def nothing() -> None:
        count.done += 1

    async with app.open_async():
        await app.schema_manager.apply_schema_async()

        async def ask(size: int) -> None:
            if size == 1:
                await nothing.defer_async()
            else:
                await nothing.batch_defer_async(*[{} for _ in range(size)])

        size, feeders, ahead = (500, 1, 5_000) if best else (1, 4, 500)
        tasks = [asyncio.create_task(feed(count, ask, size, ahead)) for _ in range(feeders)]
        options = {"concurrency": 50, "delete_jobs": "successful"} if best else {}
        tasks.append(asyncio.create_task(app.run_worker_async(install_signal_handlers=False, **options)))
        await measured(count, seconds, tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
