"""Penstock: instances of one job that does nothing, started and worked off by one process through an engine.

By default as the client does it: each start with an idempotency key of its own, over REST, and a worker that polls. At
its best many starts in a request, without keys as the others' are, and a worker on the Work stream.
"""

from __future__ import annotations

import asyncio
import sys

import httpx
from measured import Count, feed, measured

from penstock.client import Client
from penstock.client.builder import WorkflowBuilder
from penstock.client.grpc import GrpcTransport
from penstock.worker import Worker


async def main(url: str, settings: str, seconds: float) -> None:
    """The URL is the REST of an engine, then after a comma its gRPC, over which the best worker works."""
    rest, grpc = url.split(",")
    best, count = settings == "best", Count()
    flow = WorkflowBuilder("one", "One")
    flow.service_task("step", "nothing")
    flow.end()
    client, plain = Client(rest), httpx.AsyncClient(base_url=rest, timeout=60, trust_env=False)
    worker = Worker(Client(GrpcTransport(grpc)), concurrency=500) if best else Worker(rest)

    @worker.handler("nothing")
    async def nothing() -> None:
        count.done += 1

    async def ask(size: int) -> None:
        if size == 1:
            await client.start_instance("one")
        else:
            items = [{"definitionId": "one"}] * size
            (await plain.post("/v1/instances/batch", json={"items": items})).raise_for_status()

    async with client, plain:
        await client.upload_definition(flow)
        async with worker:
            size, feeders, ahead = (200, 4, 5_000) if best else (1, 8, 500)
            tasks = [asyncio.create_task(feed(count, ask, size, ahead)) for _ in range(feeders)]
            await measured(count, seconds, tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=5)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
