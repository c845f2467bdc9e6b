"""The words between a program and who measures it; of the standard library alone."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

WARM_UP_S = 1.0


class Count:
    """Of steps that were done."""

    def __init__(self) -> None:
        self.done = 0
        self.asked = 0


async def measured(count: Count, seconds: float) -> None:
    """While the work goes on beside it: warm up, tell, wait for the word, look, and tell what was done."""
    await asyncio.sleep(WARM_UP_S)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    before, began = count.done, time.perf_counter()
    await asyncio.sleep(seconds)
    print(json.dumps({"steps": count.done - before, "seconds": time.perf_counter() - began}), flush=True)


async def feed(count: Count, ask: Callable[[int], Awaitable[object]], size: int, ahead: int) -> None:
    """Asks for so many jobs at a time, and stays so many ahead of what is done."""
    while True:
        if count.asked - count.done + size > ahead:
            await asyncio.sleep(0.001)
            continue
        count.asked += size
        await ask(size)
