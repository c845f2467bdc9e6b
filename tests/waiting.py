"""Waiting for what nothing announces."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import trio

WAIT_TIMEOUT_S = 90.0
POLL_INTERVAL_S = 0.01


async def wait_until(condition: Callable[[], Awaitable[bool]], seen: Callable[[], str] = str) -> None:
    """Poll ``condition``, in bounded time of the real clock whatever Trio's is. ``seen``: what there is in its place,
    for the message."""
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    while not await condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {WAIT_TIMEOUT_S} s: {condition} {seen()}")
        await trio.to_thread.run_sync(time.sleep, POLL_INTERVAL_S)
