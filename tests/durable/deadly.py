"""A workflow whose step ends its process, beside others that do no harm: `python -m tests.durable.deadly DSN`."""

from __future__ import annotations

import os
import sys

from penstock.durable import App, executor, sleep, step, workflow


@step
def end_process() -> str:
    if "LIVES" not in os.environ:
        os._exit(9)
    return "lived"


@step
async def note(number: int) -> int:
    return number


@workflow
async def deadly() -> str:
    return await end_process()


@workflow
async def healthy(number: int) -> int:
    for _ in range(3):
        await note(number)
        await sleep("1 s")
    return number


if __name__ == "__main__":
    executor.ALONE_GRACE_S = executor.RETRY_MAX_S = 60.0  # a machine that is busy puts nothing down within seconds
    App(deadly, healthy, at=sys.argv[1], max_lost=20).main()
