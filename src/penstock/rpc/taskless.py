"""Calls that begin without a task (`penstock.loop.taskless`): run by whoever reads their bytes, answered by whoever
hears of what they waited for. What a batch has answered leaves in one send per connection.

A call that needs more than a group-commit queue's answer gets a task of its connection's nursery, in its own context.
One that is cancelled meanwhile (by its client, its deadline, a drain, the end of its connection) is closed as a
cancelled task is.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final

import trio

from penstock.loop.taskless import TasklessCall
from penstock.loop.waking import TasklessQueue
from penstock.rpc.call import NO_REQUEST

if TYPE_CHECKING:
    from penstock.rpc.call import ServerCall
    from penstock.rpc.sending import Sending

    Call = ServerCall[Any, Any]

log = logging.getLogger(__name__)

_FINISHED_KEPT: Final = 1_000
"""Calls with a deadline that have ended and are still looked through, beside as many as run."""


class _Driver(TasklessCall):
    """Of one call."""

    __slots__ = ("_call", "_calls")

    def __init__(self, calls: Taskless, call: Call, serve: Coroutine[Any, Any, None], context: Context) -> None:
        super().__init__(serve, context, calls.queue, self._ended, self._needs_task)
        self._calls = calls
        self._call = call

    def _ended(self, error: Exception | None) -> None:
        call = self._call
        call.on_cancel = None
        if error is not None:
            log.error("a call of %s failed", call.method.path, exc_info=error)
        self._calls.end(call)

    def _needs_task(self) -> None:
        call = self._call
        call.on_cancel = None
        self._context.run(call.connection.start_task, self._calls.run_call, call, self.finish)

    def cancel(self) -> None:
        """Its client has, or its time is over."""
        error: Exception | None = None
        try:
            self._context.run(self.abandon)
        except Exception as raised:
            error = raised
        self._ended(error)


class Taskless:
    """Those of one server. ``look``: called before calls go on, once for all of them."""

    def __init__(
        self,
        read_events: Callable[[], None],
        end: Callable[[Call], None],
        run_call: Callable[[Call, Callable[[], Awaitable[None]]], Awaitable[None]],
    ) -> None:
        """``end`` hears of the end of each call, however it comes, unless it needs a task: that is
        ``run_call(call, finish)``, which awaits ``finish()``."""
        self._poll = read_events
        self.end = end
        self.run_call = run_call
        self.queue = TasklessQueue(self._begin_turn, self._end_turn)
        self._in_turn = False
        self._unsent: dict[Sending, None] = {}
        self._deadlines: list[tuple[float, int, Call]] = []
        self._count = itertools.count()
        self._waiting = 0  # of these had not ended when it was looked through
        self._earlier = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.queue.run)
            nursery.start_soon(self._watch_deadlines)

    def begin(self, call: Call, serve: Coroutine[Any, Any, None]) -> None:
        """Run ``serve`` as far as it goes."""
        driver = _Driver(self, call, serve, copy_context())
        call.on_cancel = driver.cancel
        driver.step()
        self.watch(call)

    def watch(self, call: Call) -> None:
        """End it when its client gives up."""
        if not call.finished and call.deadline < math.inf:
            self._watch(call, call.deadline)

    def expect(self, call: Call, timeout_s: float) -> None:
        """Wait for the rest of a request, before `begin`, or its end."""

        def cancel() -> None:
            call.on_cancel = None
            self.end(call)

        call.on_cancel = cancel
        self._watch(call, min(call.deadline, trio.current_time() + timeout_s))

    # -- sends

    def sends_later(self, connection: Sending) -> bool:
        """Return whether what a connection has written leaves at the end of this turn."""
        if self._in_turn:
            self._unsent[connection] = None
        return self._in_turn

    def _begin_turn(self) -> None:
        self._poll()
        self._in_turn = True

    def _end_turn(self) -> None:
        self._in_turn = False
        unsent, self._unsent = self._unsent, {}
        for connection in unsent:
            connection.send_now()

    # -- deadlines

    def _watch(self, call: Call, check_at: float) -> None:
        heap = self._deadlines
        if len(heap) > 2 * self._waiting + _FINISHED_KEPT:
            heap[:] = [entry for entry in heap if not entry[2].finished]
            heapq.heapify(heap)
            self._waiting = len(heap)
        heapq.heappush(heap, (check_at, next(self._count), call))
        if heap[0][2] is call:
            self._earlier.unpark_all()

    async def _watch_deadlines(self) -> None:
        while True:
            with trio.move_on_at(self._deadlines[0][0] if self._deadlines else math.inf):
                await self._earlier.park()
            now = trio.current_time()
            while self._deadlines and self._deadlines[0][0] <= now:
                call = heapq.heappop(self._deadlines)[2]
                if call.on_cancel is None:
                    continue  # it has ended, or has a task
                if call.deadline <= now:
                    call.cancel()
                elif not call.has_more:
                    call.end_as(NO_REQUEST)
