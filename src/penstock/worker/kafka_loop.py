"""An asyncio loop in a thread of its own, callable from a worker that runs under asyncio or Trio.

aiokafka is asyncio's, and must not share a loop with handlers: one that blocks for ten seconds would cost the worker
its place in the consumer group.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from penstock.client.errors import Unavailable
from penstock.loop.scope import LoopScope

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

CLOSE_TIMEOUT_S: Final = 2.0
# A call waits in a thread of this process: one for each subscription of the worker, and a few for what is short.
MAX_CALLS: Final = 200


class LoopClosed(Exception):
    """The loop ends while something in it is under way."""


class AsyncioThread:
    """The thread, while the block of ``opened`` lasts."""

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limiter: anyio.CapacityLimiter | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Start the thread; at the end of the block what still runs in it is cancelled, within 2 s."""
        thread = await anyio.to_thread.run_sync(_Thread)
        self._portal, self._loop = thread.portal, thread.loop
        self._limiter = anyio.CapacityLimiter(MAX_CALLS)
        try:
            yield
        finally:
            self._portal = self._loop = None
            with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
                await anyio.to_thread.run_sync(thread.end, abandon_on_cancel=True)

    async def call(self, function: Callable[[*Arguments], Awaitable[T]], *arguments: *Arguments) -> T:
        """Run an asyncio function there and wait for what it returns or raises. A cancelled call cancels it.

        Raises:
            Unavailable: the thread has ended, or ends meanwhile.
        """
        if self._portal is None:
            raise Unavailable("not connected to Kafka")
        try:
            future = self._portal.start_task_soon(function, *arguments)
        except RuntimeError as error:  # it has just ended
            raise Unavailable("not connected to Kafka") from error
        try:
            return await anyio.to_thread.run_sync(future.result, abandon_on_cancel=True, limiter=self._limiter)
        except CancelledError as error:
            raise Unavailable("disconnected from Kafka") from error
        finally:
            future.cancel()

    def call_nowait(self, function: Callable[[*Arguments], object], *arguments: *Arguments) -> None:
        """Run a function there soon, without an answer. Nothing happens when the thread has ended."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *arguments)


class _Thread:
    """Started by making it, from another thread than the event loop's."""

    def __init__(self) -> None:
        self._manager = start_blocking_portal("asyncio")
        self.portal = self._manager.__enter__()
        self.loop, self._scope = self.portal.call(self._prepare)

    @staticmethod
    async def _prepare() -> tuple[asyncio.AbstractEventLoop, LoopScope]:
        return asyncio.get_running_loop(), LoopScope.install()

    def end(self) -> None:
        self.portal.call(self._scope.end)
        # The error is what makes the portal cancel the calls that are under way, instead of waiting for them.
        with suppress(LoopClosed):
            self._manager.__exit__(LoopClosed, LoopClosed(), None)
