"""Event loops whose clock is the test's: what a busy machine takes for something is no time at all.

Time stands still until the test lets it jump, so no limit passes on its own. Where it ``jumps`` by itself, when all
wait the time of the first to be woken has come: for tests without sockets, threads and processes.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import trio.testing

TEST_TIMEOUT_S = 60


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, *, jumps: bool) -> None:
        self.now = 1000.0
        super().__init__(_Selector(self) if jumps else None)

    def time(self) -> float:
        return self.now


class _Selector(selectors.DefaultSelector):
    """Where an event loop waits for the next timer, it is that late at once."""

    def __init__(self, loop: _Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self._loop.now += max(0.0, timeout)
        return ready


class StillTime:
    """One event loop, asyncio's or Trio's, in which only ``jump`` lets time pass; with ``jumps``, waiting does, too."""

    def __init__(self, backend: str, *, jumps: bool = False) -> None:
        self._backend = backend
        self._jumps = jumps
        self._loop: _Loop | None = None
        self._clock = trio.testing.MockClock(autojump_threshold=0 if jumps else float("inf"))

    def run(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run an async function to its end."""

        async def bounded() -> Any:
            with anyio.fail_after(TEST_TIMEOUT_S if self._jumps else None):
                return await function()

        options: dict[str, Any] = {"clock": self._clock} if self._backend == "trio" else {"loop_factory": self._make}
        return anyio.run(bounded, backend=self._backend, backend_options=options)

    def jump(self, seconds: float) -> None:
        """So much later, at once. From the event loop's thread only."""
        if self._loop is None:
            self._clock.jump(seconds)
        else:
            self._loop.now += seconds

    async def turns(self) -> None:
        """Let every task that can go on do so, some steps far. (anyio's `wait_all_tasks_blocked` sleeps.)"""
        for _ in range(20):
            await anyio.lowlevel.checkpoint()

    async def sleep(self, seconds: float) -> None:
        """In place of ``anyio.sleep``: who pauses gets its time at once."""
        self.jump(seconds)
        await anyio.lowlevel.checkpoint()

    def _make(self) -> _Loop:
        self._loop = _Loop(jumps=self._jumps)
        return self._loop
