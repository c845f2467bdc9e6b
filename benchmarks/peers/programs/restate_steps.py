# pyright: basic, reportMissingImports=false
"""Restate: workflows of ten steps that do nothing; the URL is a server's ingress, its admin follows after a comma."""

from __future__ import annotations

import asyncio
import socket
import sys

import httpx
import hypercorn.asyncio
import hypercorn.config
import restate
from measured import Count, measured

STEPS = 10
service = restate.Service("ten")
count = Count()


async def nothing() -> int:
    count.done += 1
    return 1


@service.handler()
async def run(context: restate.Context, n: int) -> int:
    for number in range(STEPS):
        await context.run_typed(f"step-{number}", nothing)
    return n


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


async def main(url: str, settings: str, seconds: float) -> None:
    ingress, admin = url.split(",")
    port, at_once = free_port(), 256 if settings == "best" else 64
    config = hypercorn.config.Config()
    config.bind, config.loglevel = [f"127.0.0.1:{port}"], "ERROR"
    tasks = [asyncio.create_task(hypercorn.asyncio.serve(restate.app([service]), config))]  # type: ignore[arg-type]  # theirs
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=at_once)) as client:
        for _ in range(100):
            await asyncio.sleep(0.1)
            try:
                made = await client.post(f"{admin}/deployments", json={"uri": f"http://127.0.0.1:{port}"})
                if made.is_success:
                    break
            except httpx.TransportError:
                pass
        else:
            raise SystemExit("the service is not registered")

        async def caller() -> None:
            while True:
                (await client.post(f"{ingress}/ten/run", json=1)).raise_for_status()

        tasks += [asyncio.create_task(caller()) for _ in range(at_once)]
        await measured(count, seconds, tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
