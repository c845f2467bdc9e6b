"""An asyncio loop in a thread of its own, and calls from Trio into it: the only way to aiokafka, which is asyncio's.

One call crosses the threads twice (0.7 ms together with all they hand over), so callers put a batch into one call.
Closing is bounded whatever still runs in the loop: it is cancelled, and a thread that will not end is left behind.
Must not be used for more than one library: what hangs in it takes the others along.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Final, TypeVar, TypeVarTuple

import trio
from anyio.from_thread import start_blocking_portal

from penstock.loop.scope import LoopScope

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

CLOSE_TIMEOUT_S: Final = 2.0


class BridgeClosed(Exception):
    """The loop has ended, or ends while the call is under way."""


class Bridge:
    """The thread with its loop. Made by ``open``; not reusable after ``close``."""

    def __init__(self) -> None:
        self._manager = start_blocking_portal("asyncio")
        self._portal = self._manager.__enter__()
        self._scope = self._portal.call(LoopScope.install)
        self._closed = False

    @classmethod
    async def open(cls) -> Bridge:
        """Start the thread and its loop (about 1 ms)."""
        return await trio.to_thread.run_sync(cls)

    async def call(self, function: Callable[[*Arguments], Awaitable[T]], *arguments: *Arguments) -> T:
        """Run an asyncio function in the loop and wait for what it returns or raises.

        A cancelled call returns at once; the function is cancelled a moment later, and what it has begun may go on.

        Raises:
            BridgeClosed: `close` was called before or meanwhile.
        """
        token = trio.lowlevel.current_trio_token()
        ended = trio.Event()

        def wake(_: Future[T]) -> None:  # in the other thread, or here when it had ended already
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(ended.set)

        if self._closed:
            raise BridgeClosed
        try:
            future = self._portal.start_task_soon(function, *arguments)
        except RuntimeError as error:  # "This portal is not running"
            raise BridgeClosed from error
        future.add_done_callback(wake)
        try:
            await ended.wait()
        except trio.Cancelled:
            future.cancel()
            raise
        try:
            return future.result()
        except CancelledError as error:
            raise BridgeClosed from error

    async def close(self) -> None:
        """End the loop and its thread: within 2 s, also when called under cancellation. May be repeated."""
        if self._closed:
            return
        self._closed = True
        with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await trio.to_thread.run_sync(self._end, abandon_on_cancel=True)

    def _end(self) -> None:
        self._portal.call(self._scope.end)
        # The error is what makes the portal cancel the calls that are under way, instead of waiting for them.
        with suppress(BridgeClosed):
            self._manager.__exit__(BridgeClosed, BridgeClosed(), None)
