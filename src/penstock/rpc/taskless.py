"""Calls that begin without a task (`penstock.eager`): run by whoever reads their bytes, answered by whoever hears of
what they waited for. What a batch has answered leaves in one send per connection.

A call that needs more than a lane's answer gets a task of its connection's nursery, in its own context. One that is
cancelled meanwhile (by its client, its deadline, a drain, the end of its connection) is closed as a cancelled task is.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

import trio

from penstock.eager import EagerCall, EagerQueue
from penstock.rpc.call import NO_REQUEST

if TYPE_CHECKING:
    from penstock.rpc.call import ServerCall
    from penstock.rpc.transport import Connection

    Call = ServerCall[Any, Any]

log = logging.getLogger(__name__)

_FINISHED_KEPT: Final = 1_000
"""Calls with a deadline that have ended and are still looked through, beside as many as run."""


class Taskless:
    """Those of one server. ``look``: called before calls go on, once for all of them."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._queue = EagerQueue(self._begin_turn, self._end_turn)
        self._in_turn = False
        self._unsent: dict[Connection, None] = {}
        self._deadlines: list[tuple[float, int, Call]] = []
        self._count = itertools.count()
        self._waiting = 0  # of these had not ended when it was looked through
        self._earlier = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._queue.run)
            nursery.start_soon(self._watch_deadlines)

    def begin(
        self, call: Call, serve: Coroutine[Any, Any, None], on_end: Callable[[], None], run: Callable[[Any], Any]
    ) -> None:
        """Run ``serve`` as far as it goes. ``on_end`` hears of its end however it comes, unless it needs a task: then
        ``run(driver)`` is one, which awaits ``driver`` to its end."""
        context = copy_context()

        def end(error: Exception | None = None) -> None:
            call.on_cancel = None
            if error is not None:
                log.error("a call of %s failed", call.method.path, exc_info=error)
            on_end()

        def need_task() -> None:
            call.on_cancel = None
            context.run(call.connection.start_task, run, driver.finish)

        def cancel() -> None:
            try:
                context.run(driver.abandon)
            except Exception as error:
                end(error)
            else:
                end()

        driver = EagerCall(serve, context, self._queue, end, need_task)
        call.on_cancel = cancel
        driver.step()
        if not call.finished and call.deadline < math.inf:
            self._watch(call, call.deadline)

    def expect(self, call: Call, on_end: Callable[[], None], patience_s: float) -> None:
        """Wait for the rest of a request, before `begin`. ``on_end`` hears when it will not be waited for."""

        def cancel() -> None:
            call.on_cancel = None
            on_end()

        call.on_cancel = cancel
        self._watch(call, min(call.deadline, trio.current_time() + patience_s))

    # -- sends

    def sends_later(self, connection: Connection) -> bool:
        """Whether what a connection has written leaves at the end of this turn."""
        if self._in_turn:
            self._unsent[connection] = None
        return self._in_turn

    def _begin_turn(self) -> None:
        self._look()
        self._in_turn = True

    def _end_turn(self) -> None:
        self._in_turn = False
        unsent, self._unsent = self._unsent, {}
        for connection in unsent:
            connection.send_now()

    # -- deadlines

    def _watch(self, call: Call, look_at: float) -> None:
        heap = self._deadlines
        if len(heap) > 2 * self._waiting + _FINISHED_KEPT:
            heap[:] = [entry for entry in heap if not entry[2].finished]
            heapq.heapify(heap)
            self._waiting = len(heap)
        heapq.heappush(heap, (look_at, next(self._count), call))
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
                elif not call.inbox.has_news():
                    call.end_as(NO_REQUEST)
