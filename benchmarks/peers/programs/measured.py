"""The words between a program and who measures it; of the standard library alone."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence

WARM_UP_S = 1.0


class Count:
    """Of steps that were done."""

    def __init__(self) -> None:
        self.done = 0
        self.asked = 0


async def measured(count: Count, seconds: float, tasks: Sequence[asyncio.Task[object]]) -> None:
    """While the work goes on in the tasks: warm up, tell, wait for the word, look, and tell what was done."""
    await asyncio.sleep(WARM_UP_S)
    all_at_work(tasks)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    before, began = count.done, time.perf_counter()
    await asyncio.sleep(seconds)
    reported = {"steps": count.done - before, "seconds": time.perf_counter() - began}
    all_at_work(tasks)
    print(json.dumps(reported), flush=True)


def all_at_work(tasks: Sequence[asyncio.Task[object]]) -> None:
    """Ends the process when one of them has ended: what the others do is no figure of the system."""
    for task in tasks:
        if task.done():
            error = None if task.cancelled() else task.exception()
            print(f"{task.get_coro()} ended", *traceback.format_exception(error), file=sys.stderr, flush=True)
            os._exit(1)


async def feed(count: Count, ask: Callable[[int], Awaitable[object]], size: int, ahead: int) -> None:
    """Asks for so many jobs at a time, and stays so many ahead of what is done."""
    while True:
        if count.asked - count.done + size > ahead:
            await asyncio.sleep(0.001)
            continue
        count.asked += size
        await ask(size)
