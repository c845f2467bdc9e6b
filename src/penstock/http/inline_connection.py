"""A connection's requests that are served without its task: begun by whoever hears of their bytes, answered by whoever
hears of what they waited for.

The poller tells that bytes have come. The request that they complete is run at once (`penstock.loop.taskless`), if the
application has a way for that; its answer leaves when the batch that it waited for has been applied. The task sleeps in
`wait` meanwhile, and is woken for everything else: requests of the framework's routes, long polls that park, refusals,
the end, answers that the socket does not take whole. Who serves the connection is its `ConnectionState`. Phases and
deadlines are the connection's, and mean the same.
"""

from __future__ import annotations

import enum
import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from penstock.http.asgi import Headers, Pairs
from penstock.http.cycle import Cycle
from penstock.http.parser import HeadShape
from penstock.http.response import CONTINUE
from penstock.loop.poller import RECEIVE_BYTES, Poller, is_hung_up
from penstock.loop.taskless import TasklessCall
from penstock.loop.waking import TasklessQueue

if TYPE_CHECKING:
    from penstock.http.connection import HttpConnection


Handler = Callable[[Any], Awaitable[Any]]
"""The application's, of one kind of request."""


class Over(Exception):
    """The connection has to end, after as much lingering."""

    def __init__(self, linger_seconds: float) -> None:
        self.linger_seconds = linger_seconds


class ConnectionState(enum.IntEnum):
    """Who serves a connection, and what was found for its task."""

    AWAY = 0
    """Its task, outside of `InlineConnection.wait`: it answers a request, writes, or ends."""
    LISTENING = 1
    """Nobody: the client is waited for."""
    CALLING = 2
    """A request goes on without the task (`TasklessCall`)."""
    INLINE = 3
    """A request that the application took as bytes."""
    PARKED = 4
    """Such a one, which waits for long: until `InlineConnection.expires_at`."""
    EXPECTED = 5
    """For the task: the client waits for ``100 Continue``."""
    REQUESTED = 6
    """For the task: a request that is not served without it."""
    STUCK = 7
    """For the task: a call has to go on in it."""
    UNSENT = 8
    """For the task: the socket did not take all of an inline call's answer."""
    FAILED = 9
    """For the task: what it has to raise."""
    CANCELLED = 10
    """The task was cancelled during a call, which is abandoned when the connection is closed."""
    CLOSED = 11


_FOR_TASK: Final = frozenset(
    {
        ConnectionState.EXPECTED,
        ConnectionState.REQUESTED,
        ConnectionState.STUCK,
        ConnectionState.UNSENT,
        ConnectionState.FAILED,
    }
)
TRANSITIONS: Final[Mapping[ConnectionState, frozenset[ConnectionState]]] = {
    ConnectionState.AWAY: frozenset({ConnectionState.LISTENING, ConnectionState.CLOSED}),
    ConnectionState.LISTENING: frozenset(
        {
            ConnectionState.CALLING,
            ConnectionState.INLINE,
            ConnectionState.PARKED,
            ConnectionState.EXPECTED,
            ConnectionState.REQUESTED,
            ConnectionState.FAILED,
            ConnectionState.AWAY,
        }
    ),
    ConnectionState.CALLING: frozenset(
        {ConnectionState.LISTENING, ConnectionState.STUCK, ConnectionState.FAILED, ConnectionState.CANCELLED}
    ),
    ConnectionState.INLINE: frozenset(
        {
            ConnectionState.LISTENING,
            ConnectionState.PARKED,
            ConnectionState.UNSENT,
            ConnectionState.FAILED,
            ConnectionState.CANCELLED,
        }
    ),
    ConnectionState.PARKED: frozenset(
        {ConnectionState.LISTENING, ConnectionState.UNSENT, ConnectionState.FAILED, ConnectionState.CANCELLED}
    ),
    **dict.fromkeys(_FOR_TASK, frozenset({ConnectionState.AWAY})),
    ConnectionState.CANCELLED: frozenset({ConnectionState.CLOSED}),
    ConnectionState.CLOSED: frozenset(),
}
"""What may follow. ARCHITECTURE.md has it drawn."""


class InlineRequests(Protocol):
    """Calls of one connection that its application takes as bytes, one after the other. Each ends with `answer` or
    `leave` of what it was made for, never before `begin` returns."""

    def takes(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether requests with these headers may be."""
        ...

    def begin(self, line: bytes, headers: Headers, body: bytes) -> bool:
        """Begin a call; False: it is to be served as others are. ``headers`` is the same object while they are the
        same."""
        ...

    def go_on(self) -> None:
        """What `InlineConnection.go_on_soon` has asked for."""
        ...

    def expire(self) -> None:
        """What `InlineConnection.waits_until` was told."""
        ...

    def sent(self) -> None:
        """The answer has left after all, or can't."""
        ...

    def abandon(self) -> None:
        """The connection ends. Idempotent."""
        ...


class InlineConnection:
    """The part of one connection. `wait` and `close` are for its task, all else is called from others."""

    def __init__(self, connection: HttpConnection, sock: socket.socket, poller: Poller, queue: TasklessQueue) -> None:
        """To be made in the connection's task."""
        self._connection = connection
        self._sock = sock
        self._fd = sock.fileno()
        self._poller = poller
        self._queue = queue
        self._context = trio.lowlevel.current_task().context
        self._state = ConnectionState.AWAY
        self._task: trio.lowlevel.Task | None = None  # while it sleeps
        self._cycle: Cycle | None = None  # the request that is served
        self._call: TasklessCall | None = None  # by this, if without the task
        self._error: Exception | None = None  # FAILED: what the task has to raise
        # There may be something in the socket that will not be told again. At first there mostly is, and the word of it
        # stands behind those of others.
        self._unread = True
        self._requests: InlineRequests | None = None
        self._inline_data = b""  # the request of the hot call
        self._inline_bytes = 0  # of its body
        self._inline_rest = b""  # UNSENT: of its answer
        self._inline_closes = False  # UNSENT: no other may follow
        self._expires_at = math.inf  # PARKED: when it has waited for long enough
        self.hung_up = False
        """The client has closed its side, or all of it, as far as was told."""
        self.on_hang_up: Callable[[], None] | None = None
        """Of a request that is being served: whoever wants to hear of that."""
        poller.add(self._fd, self._on_readable)

    # -- for the task

    async def wait(self) -> Cycle:
        """Serve requests until there is one that needs the task. Raises Over, Refusal, BrokenResourceError."""
        while True:
            found = await self._wait_found()
            if found is ConnectionState.REQUESTED:
                return self._take_cycle()
            if found is ConnectionState.EXPECTED:
                await self._connection.send(CONTINUE)
            elif found is ConnectionState.UNSENT:
                await self._send_rest()
            elif found is ConnectionState.STUCK:
                assert self._call is not None
                await self._call.finish()
                self._call = None
                self._connection.end(self._take_cycle())
            else:
                error, self._error = self._error, None
                assert error is not None
                try:
                    raise error
                finally:
                    del error  # a frame that keeps what was raised in it goes only with a collection of all garbage

    async def _wait_found(self) -> ConnectionState:
        """What there is for the task, from `_FOR_TASK`."""
        if self._state is ConnectionState.CLOSED:  # while the task wrote
            raise trio.BrokenResourceError("the connection was closed")
        self._become(ConnectionState.LISTENING)
        self._settle()
        while self._state not in _FOR_TASK:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        found = self._state
        self._become(ConnectionState.AWAY)
        return found

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        self._become(ConnectionState.AWAY if self._state is ConnectionState.LISTENING else ConnectionState.CANCELLED)
        return trio.lowlevel.Abort.SUCCEEDED

    def _take_cycle(self) -> Cycle:
        cycle, self._cycle = self._cycle, None
        assert cycle is not None
        return cycle

    def has_input(self) -> bool:
        """Return whether the client has sent something that was not read."""
        try:
            self._unread |= bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False
        return self._unread

    def close(self) -> None:
        """Before the socket is closed. A call that is under way is abandoned. Idempotent."""
        if self._state is not ConnectionState.CLOSED:
            self._become(ConnectionState.CLOSED)
        self._poller.remove(self._fd, self._on_readable)
        if self._call is not None:
            self._call.abandon()
        if self._inline_data and self._requests is not None:
            self._requests.abandon()
            self._inline_over(math.inf)
        self._requests = None  # each knows the other

    # -- for others

    def _become(self, state: ConnectionState) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state!r} to {state!r}"
        self._state = state

    @property
    def driving(self) -> bool:
        """Return whether a request is served without the task now."""
        return self._state in (ConnectionState.CALLING, ConnectionState.INLINE, ConnectionState.PARKED)

    def send_nowait(self, data: bytes) -> int:
        """Return how many bytes the socket took. Raises BrokenResourceError."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    def _on_readable(self, hung_up: bool) -> None:
        self.hung_up |= hung_up
        if self._state is not ConnectionState.LISTENING:
            self._unread = True
            if hung_up and self.on_hang_up is not None:
                self.on_hang_up()
            elif hung_up and self._state is ConnectionState.PARKED and self._requests is not None:
                self._queue.add_last(self._requests.go_on)
            return
        if hung_up:
            self._unread = True
            self._queue.add_last(self._go_on)
            return
        try:
            self._receive()
        except Exception as error:  # refused, gone, or a fault of ours: it ends this connection only
            self._fail(error)

    def _settle(self) -> None:
        """Nothing is served: wait for the client, or go on with what it has sent already."""
        self._connection.set_deadline()
        if self._unread or self._connection.parser.unread_bytes:
            self._queue.add(self._go_on)

    def _go_on(self) -> None:
        if self._state is not ConnectionState.LISTENING:
            return
        try:
            if not self._serve_next() and self._unread:
                self._receive()
        except Exception as error:
            self._fail(error)

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
        if not self._begin_inline(data):
            self._connection.parser.receive(data)
            if not self._serve_next():
                self._settle()

    def _serve_next(self) -> bool:
        """Begin the next request; False when it is not whole. Raises Refusal."""
        return self._serve_next_by(None)

    def _serve_next_by(self, handler: Handler | None) -> bool:
        connection = self._connection
        request = connection.parser.next_request()
        if request is None:
            if not connection.parser.take_expectation():
                return False
            self._hand(ConnectionState.EXPECTED)
            return True
        self._cycle = cycle = connection.begin(request)
        coroutine = connection.answer_directly(cycle, handler)
        if coroutine is None:
            self._hand(ConnectionState.REQUESTED)
            return True
        self._become(ConnectionState.CALLING)
        self._call = TasklessCall(coroutine, self._context, self._queue, self._ended, self._needs_task)
        self._call.step()
        return True

    def _ended(self, error: Exception | None) -> None:
        self._call = None
        cycle = self._take_cycle()
        if error is not None:
            self._fail(error)
            return
        try:
            self._connection.end(cycle)
        except Exception as reason:
            self._fail(reason)
        else:
            if self._state is not ConnectionState.CANCELLED:
                self._become(ConnectionState.LISTENING)
                self._settle()

    # -- requests that the application takes as bytes

    def _begin_inline(self, data: bytes) -> bool:
        """Begin the request that these bytes are, if they are one whole request which is taken so."""
        connection = self._connection
        shape = connection.parser.shape_of_next()
        if shape is None:
            return False
        line_end = data.find(b"\r\n")
        body_at = shape.body_at(data, line_end)
        if not body_at or not (shape.takes or self._may_take(shape)):
            return False
        hot, size_bytes = self._requests, len(data) - body_at
        if hot is None or not connection.budget.fits(size_bytes):
            return False
        if not hot.begin(data[:line_end], shape.headers, data[body_at:]):
            self._expires_at = math.inf
            return False
        self._inline_data, self._inline_bytes = data, size_bytes
        connection.on_inline(size_bytes)
        if self._expires_at == math.inf:
            self._become(ConnectionState.INLINE)
        else:  # it waits already
            self._become(ConnectionState.PARKED)
            connection.expires_at = self._expires_at - connection.tick_s
        return True

    def _may_take(self, shape: HeadShape) -> bool:
        if self._requests is None:  # asked again each time: an application that still starts has none yet
            self._requests = self._connection.make_inline(self)
            if self._requests is None:
                return False
        if shape.takes is None:
            shape.takes = self._requests.takes(dict(shape.headers))
        return shape.takes

    @property
    def now(self) -> float:
        """For An inline call: trio time of this turn of the loop."""
        return self._poller.now

    @property
    def address(self) -> str | None:
        """For An inline call: the client's."""
        client = self._connection.client
        return None if client is None else client[0]

    @property
    def peer_gone(self) -> bool:
        """For An inline call: whether the client has closed its side, as far as was told."""
        return self.hung_up or self._connection.peer_gone

    def is_gone(self) -> bool:
        """For An inline call that has waited: the same as the kernel knows it now."""
        return self.peer_gone or is_hung_up(self._fd)

    def waits_until(self, deadline: float) -> bool:
        """For An inline call: have its `expire` called at that trio time. False where that is too soon."""
        tick_s = self._connection.tick_s
        if deadline - trio.current_time() < 2 * tick_s:
            return False
        self._expires_at, self._connection.expires_at = deadline, deadline - tick_s
        if self._state is ConnectionState.INLINE:  # else it begins just now
            self._become(ConnectionState.PARKED)
        return True

    @property
    def expires_at(self) -> float:
        """When An inline call has waited for long enough, in trio time; infinite while there is none that waits."""
        return self._expires_at if self._state is ConnectionState.PARKED else math.inf

    def expire(self, deadline: float) -> None:
        """A call that was to wait until then has done so, if it is there still."""
        if self.expires_at == deadline and self._requests is not None:
            self._requests.expire()

    def go_on_soon(self) -> None:
        """For An inline call: have its `go_on` called in the next turn."""
        if self._requests is not None:
            self._queue.add(self._requests.go_on)

    def answer(self, status: int, headers: Pairs, body: bytes | None) -> bool:
        """For An inline call: its whole answer; whether it has left, or never will, or `sent` tells of that."""
        connection, now = self._connection, self._poller.now
        if (
            self._state is ConnectionState.PARKED
        ):  # whoever goes on with it may come long after the last word from a client
            now = trio.current_time()
        try:
            data, closes = connection.whole_answer(status, headers, body, now)
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                connection.broken = True
                sent = len(data)
        except Exception as error:
            self._fail(error)
            return True
        if sent < len(data):
            self._inline_rest, self._inline_closes = data[sent:], closes
            self._hand(ConnectionState.UNSENT)
            return False
        self._inline_over(now)
        if closes or connection.peer_gone:
            self._fail(connection.over())
        elif self._state is not ConnectionState.CANCELLED:
            self._become(ConnectionState.LISTENING)
            if self._unread:
                self._queue.add(self._go_on)
        return True

    def _inline_over(self, now: float) -> None:
        """An inline call was answered, or never will be."""
        self._connection.end_inline(self._inline_bytes, now)
        self._inline_data, self._inline_bytes, self._expires_at = b"", 0, math.inf

    async def _send_rest(self) -> None:
        """In the task. Raises Over when no other may follow."""
        connection = self._connection
        rest, self._inline_rest = self._inline_rest, b""
        await connection.send(rest)
        self._inline_over(trio.current_time())
        if self._requests is not None:
            self._requests.sent()
        if self._inline_closes or connection.peer_gone:
            raise connection.over()

    def leave(self, handler: Handler | None) -> None:
        """For An inline call: have its request served as others are, or by this handler."""
        connection, data = self._connection, self._inline_data
        connection.leave_inline(self._inline_bytes)
        self._inline_data, self._inline_bytes, self._expires_at = b"", 0, math.inf
        if self._state is ConnectionState.CANCELLED:
            return
        self._become(ConnectionState.LISTENING)
        try:
            connection.parser.receive(data)
            self._serve_next_by(handler)
        except Exception as error:
            self._fail(error)

    def _needs_task(self) -> None:
        self._hand(ConnectionState.STUCK)

    def _fail(self, error: Exception) -> None:
        """The task has to raise this."""
        if self._state is not ConnectionState.CANCELLED:
            self._error = error
            self._hand(ConnectionState.FAILED)

    def _hand(self, state: ConnectionState) -> None:
        """There is something for the task."""
        if self._state is ConnectionState.CANCELLED:
            return
        self._become(state)
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)
