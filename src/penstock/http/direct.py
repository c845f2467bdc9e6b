"""A connection's requests that are served without its task: begun by whoever hears of their bytes, answered by whoever
hears of what they waited for.

The poller tells that bytes have come. The request that they complete is run at once (`penstock.eager`), if the
application has a way for that; its answer leaves when the batch that it waited for has been applied. The task sleeps in
`wait` meanwhile, and is woken for everything else: requests of the framework's routes, long polls that park, refusals,
the end, answers that the socket does not take whole. Phases and deadlines are the connection's, and mean the same.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import trio

from penstock.eager import EagerCall, EagerQueue
from penstock.http.cycle import Cycle
from penstock.http.response import CONTINUE
from penstock.poller import RECEIVE_BYTES, Poller

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.http.connection import Connection


class Over(Exception):
    """The connection has to end, after as much lingering."""

    def __init__(self, linger_seconds: float) -> None:
        self.linger_seconds = linger_seconds


class _Expectation(Exception):
    """The client waits for ``100 Continue``."""


class Direct:
    """The part of one connection. `wait` and `close` are for its task, all else is called from others."""

    def __init__(self, connection: Connection, sock: socket.socket, poller: Poller, queue: EagerQueue) -> None:
        """To be made in the connection's task."""
        self._connection = connection
        self._sock = sock
        self._fd = sock.fileno()
        self._poller = poller
        self._queue = queue
        self._context = trio.lowlevel.current_task().context
        self._task: trio.lowlevel.Task | None = None  # while it sleeps
        self._open = False  # it is in `wait`, and nothing was found for it
        self._found: Cycle | Exception | None = None
        self._call: EagerCall | None = None
        self._cycle: Cycle | None = None  # of the call
        # There may be something in the socket that will not be told again. At first there mostly is, and the word of it
        # stands behind those of others.
        self._unread = True
        self.hung_up = False
        """The client has closed its side, or all of it, as far as was told."""
        self.on_hang_up: Callable[[], None] | None = None
        """Of a request that is being served: whoever wants to hear of that."""
        poller.add(self._fd, self._heard)

    # -- for the task

    async def wait(self) -> Cycle:
        """Serve requests until there is one that needs the task. Raises Over, Refusal, BrokenResourceError."""
        while True:
            found = await self._wait_found()
            if isinstance(found, _Expectation):
                await self._connection.send(CONTINUE)
            elif isinstance(found, Exception):
                try:
                    raise found
                finally:
                    del found  # a frame that keeps what was raised in it goes only with a collection of all garbage
            elif self._call is None:
                return found
            else:
                await self._call.finish()
                self._call = self._cycle = None
                self._connection.end(found)

    async def _wait_found(self) -> Cycle | Exception:
        self._open = True
        self._settle()
        try:
            while self._found is None:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)
        finally:
            self._open = False
        found, self._found = self._found, None
        return found

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task, self._open = None, False
        return trio.lowlevel.Abort.SUCCEEDED

    def has_input(self) -> bool:
        """Whether the client has sent something that was not read."""
        try:
            self._unread |= bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False
        return self._unread

    def close(self) -> None:
        """Before the socket is closed. A call that is under way is abandoned. Idempotent."""
        self._open = False
        self._poller.remove(self._fd, self._heard)
        if self._call is not None:
            self._call.abandon()

    # -- for others

    @property
    def driving(self) -> bool:
        """Whether a request is served without the task now."""
        return self._call is not None and self._open

    def send_nowait(self, data: bytes) -> int:
        """How many bytes the socket took. Raises BrokenResourceError."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    def _heard(self, hung_up: bool) -> None:
        self.hung_up |= hung_up
        if not self._open or self._call is not None:
            self._unread = True
            if hung_up and self.on_hang_up is not None:
                self.on_hang_up()
            return
        if hung_up:
            self._unread = True
            self._queue.add_last(self._go_on)
            return
        try:
            self._receive()
        except Exception as error:  # refused, gone, or a fault of ours: it ends this connection only
            self._give(error)

    def _settle(self) -> None:
        """Nothing is served: wait for the client, or go on with what it has sent already."""
        self._connection.set_deadline()
        if self._unread or self._connection.parser.unread_bytes:
            self._queue.add(self._go_on)

    def _go_on(self) -> None:
        if not self._open or self._call is not None:
            return
        try:
            if not self._serve_next() and self._unread:
                self._receive()
        except Exception as error:
            self._give(error)

    def _receive(self) -> None:
        """Read once, and serve what is whole. Raises as `wait`."""
        self._unread = False
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
        if not data:
            raise Over(0)
        # There may be more behind a full read, and the end behind the last bytes: neither is told again.
        self._unread = self.hung_up or len(data) == RECEIVE_BYTES
        self._connection.parser.receive(data)
        if not self._serve_next():
            self._settle()

    def _serve_next(self) -> bool:
        """Begin the next request; False when it is not whole. Raises Refusal."""
        connection = self._connection
        request = connection.parser.next_request()
        if request is None:
            if not connection.parser.take_expectation():
                return False
            self._give(_Expectation())
            return True
        cycle = connection.begin(request)
        coroutine = connection.answer_directly(cycle)
        if coroutine is None:
            self._give(cycle)
            return True
        self._cycle = cycle
        self._call = EagerCall(coroutine, self._context, self._queue, self._ended, self._needs_task)
        self._call.step()
        return True

    def _ended(self, error: Exception | None) -> None:
        cycle, self._call, self._cycle = self._cycle, None, None
        assert cycle is not None
        if error is not None:
            self._give(error)
            return
        try:
            self._connection.end(cycle)
        except Exception as reason:
            self._give(reason)
        else:
            if self._open:
                self._settle()

    def _needs_task(self) -> None:
        assert self._cycle is not None
        self._give(self._cycle)

    def _give(self, found: Cycle | Exception) -> None:
        """Something for the task."""
        self._open, self._found = False, found
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)
