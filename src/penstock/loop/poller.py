"""One epoll and one task for all plain connections of a server: says when a socket has something to read or was closed.

Trio registers a socket anew for each wait, and wakes all that have something in one turn. Here a socket is registered
once, edge-triggered: what is told once and not read stays the listener's to remember; and a turn tells some, of however
many. Linux only; elsewhere connections wait for themselves.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from operator import index
from typing import Final

import trio

HAVE_EPOLL: Final = hasattr(select, "epoll")
EVENTS_PER_POLL: Final = 64
"""Sockets that are read in one turn of the loop."""
RECEIVE_BYTES: Final = 64 * 1024

# Linux tells of a closed sending side; elsewhere only of a broken connection.
_HANG_UP: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR

Listener = Callable[[bool], None]
"""Something came, or (True) the client has closed its side at least."""


def is_hung_up(fd: int) -> bool:
    """Return whether the other side of a socket is closed, as far as the kernel knows: one look, 1 µs. Takes no
    byte."""
    descriptors = select.poll()
    descriptors.register(fd, _HANG_UP)
    return bool(descriptors.poll(0))


def has_input(sock: socket.socket | trio.socket.SocketType) -> bool:
    """Return whether there is something to read, or the end: one look. Takes no byte."""
    descriptors = select.poll()
    try:
        descriptors.register(sock.fileno(), select.POLLIN)
    except (OSError, ValueError):  # it was closed
        return False
    return bool(descriptors.poll(0))


class Poller:
    """For one `run` only."""

    def __init__(self, polls_per_iteration: int = 1) -> None:
        """As many looks one after the other, as long as most of what is found are clients that left: who asks may stand
        behind thousands of them. For listeners that only note it."""
        self._polls_per_iteration = polls_per_iteration
        self._epoll = select.epoll()
        self._listeners: dict[int, Listener] = {}
        self.now = 0.0
        """Trio time of the last look."""

    @property
    def closed(self) -> bool:
        """Return whether `run` has ended: nobody is told any more."""
        return self._epoll.closed

    def add(self, fd: int, listener: Listener) -> None:
        """Tell ``listener`` from now on, and of what is there already."""
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        self._listeners[fd] = listener

    def remove(self, fd: int, listener: Listener) -> None:
        """Before the socket is closed: its number may be another's soon. Idempotent."""
        if self._listeners.get(fd) == listener:
            del self._listeners[fd]
            if not self._epoll.closed:
                self._epoll.unregister(fd)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self.read_events()
        finally:
            self._epoll.close()

    def read_events(self) -> None:
        """Tell what is known now. Does not wait."""
        if self._epoll.closed:
            return
        self.now = trio.current_time()
        left = EVENTS_PER_POLL
        for _ in range(self._polls_per_iteration):
            found = self._epoll.poll(0, EVENTS_PER_POLL)
            for fd, events in found:
                hung_up = events & ~select.EPOLLIN != 0
                left -= not hung_up
                listener = self._listeners.get(fd)
                if listener is not None:
                    listener(hung_up)
            if len(found) < EVENTS_PER_POLL or left <= EVENTS_PER_POLL // 2:
                return


class PolledStream(trio.abc.HalfCloseableStream):
    """A connection that is read when the poller says so; for all else ``stream``, which is of the same socket."""

    def __init__(self, stream: trio.SocketStream, sock: socket.socket, poller: Poller) -> None:
        self._stream = stream
        self.socket = stream.socket
        self._sock = sock
        self._fd = sock.fileno()
        self._poller = poller
        self._task: trio.lowlevel.Task | None = None  # while it waits
        self._unread = True  # there may be something that will not be told again
        self._hung_up = False
        self._closed = False
        self._taker: Callable[[bytes], bool] | None = None  # of what comes while the task waits
        self._most = RECEIVE_BYTES
        self._going: bool | None = None  # how handing out has ended
        self._failure: Exception | None = None
        poller.add(self._fd, self._on_readable)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """As `trio.SocketStream`."""
        most = RECEIVE_BYTES if max_bytes is None else index(max_bytes)
        if most < 1:
            raise ValueError("max_bytes must be at least 1")
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._task is not None:
            raise trio.BusyResourceError("another task is receiving")
        if self._unread:
            await trio.lowlevel.cancel_shielded_checkpoint()
        while True:
            if not self._unread and not self._closed:
                self._task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)
            if self._closed:
                raise trio.ClosedResourceError
            self._unread = False
            try:
                data = self._sock.recv(most)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            self._unread = self._hung_up or len(data) == most
            return data

    async def hand_out(self, take: Callable[[bytes], bool], max_bytes: int) -> bool:
        """Hand what comes to ``take``, in the turn of the loop in which it is told, until that wants no more (True) or
        the client has closed its side (False). Raises what ``take`` raises, and as `receive_some`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._task is not None:
            raise trio.BusyResourceError("another task is receiving")
        self._begin_handing(max_bytes)
        while self._going is None:
            if self._unread:
                await trio.lowlevel.checkpoint()
            if self._closed:
                raise trio.ClosedResourceError
            if self._unread:
                self._hand(take)
            else:
                self._taker, self._task = take, trio.lowlevel.current_task()
                try:
                    await trio.lowlevel.wait_task_rescheduled(self._abort)
                finally:
                    self._taker = None
            if self._failure is not None:
                raise self._failure
        return self._going

    def _begin_handing(self, max_bytes: int) -> None:
        self._going, self._failure, self._most = None, None, max_bytes

    def _hand(self, take: Callable[[bytes], bool]) -> None:
        """One piece, if it is there. Raises nothing: others are told in the same turn."""
        self._unread = False
        try:
            data = self._sock.recv(self._most)
            self._unread = self._hung_up or len(data) == self._most
            if not data:
                self._going = False
            elif not take(data):
                self._going = True
        except BlockingIOError:
            pass
        except OSError as error:
            self._failure = trio.BrokenResourceError(str(error))
            self._failure.__cause__ = error
        except Exception as error:
            self._failure = error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As `trio.SocketStream`."""
        await self._stream.send_all(data)

    @property
    def hung_up(self) -> bool:
        """The client has closed its side, or all of it, as far as was told."""
        return self._hung_up

    def send_nowait(self, data: bytes | bytearray) -> int:
        """Return how many bytes the socket took. Not while another sends. Raises trio.BrokenResourceError."""
        try:
            return 0 if self._closed else self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def wait_send_all_might_not_block(self) -> None:
        """As `trio.SocketStream`."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """As `trio.SocketStream`."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """As `trio.SocketStream`."""
        if not self._closed:
            self._closed = True
            self._poller.remove(self._fd, self._on_readable)
            self._wake()
        await self._stream.aclose()

    def _on_readable(self, hung_up: bool) -> None:
        self._hung_up |= hung_up
        self._unread = True
        if self._taker is not None and self._task is not None and not hung_up:
            self._hand(self._taker)
            if not self._unread and self._going is None and self._failure is None:
                return
        self._wake()

    def _wake(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


PlainStream = trio.SocketStream | PolledStream


def open_stream(sock: socket.socket, poller: Poller | None) -> PlainStream:
    """Of an accepted socket; read by the poller while there is one."""
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    return stream if poller is None or poller.closed else PolledStream(stream, sock, poller)
