"""Both event loops: the type of the `run` fixture, and waiting under either."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio

Run = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


async def until(condition: Callable[[], object]) -> None:
    """Wait for what no event tells; bounded by the test's own limit of time."""
    while not condition():
        await anyio.sleep(0.002)
