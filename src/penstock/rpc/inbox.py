"""The receiving half of a call: DATA frames in, whole messages out, and windows opened as they are taken.

What it holds is bounded three ways: a message by ``message_bytes``, messages that nobody took by the windows (they
are opened again only when the handler has taken all there is), and everything on the server by
``held_request_bytes``. Does not wait for the network and decodes nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

if TYPE_CHECKING:
    from penstock.rpc.transport import RpcConnection

PREFIX_BYTES = 5
"""One byte "compressed", four bytes length: of what is not compressed, the length in five."""


def is_whole_message(data: bytes) -> bool:
    """Return whether a frame holds one message and nothing else."""
    return len(data) >= PREFIX_BYTES and len(data) == PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big")


class MessageBuffer:
    """Messages of one call. Fed by the connection; one task may take from it."""

    __slots__ = (
        "_changed",
        "_connection",
        "_failure",
        "_held",
        "_messages",
        "_messages_bytes",
        "_partial",
        "_single",
        "_stream_id",
        "_window_debt",
        "client_done",
        "closed",
    )  # fmt: skip

    def __init__(self, connection: RpcConnection, stream_id: int, *, single: bool) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._single = single  # the method takes exactly one message
        self._failure: GRPCError | None = None
        self._messages: deque[bytes] = deque()
        self._messages_bytes = 0
        self._partial = bytearray()
        self._held = 0  # flow-controlled bytes that the client was not yet given back
        self._window_debt = 0  # of those given back: not yet told on the stream
        self._changed: trio.Event | None = None
        self.client_done = False
        """The client has half-closed."""
        self.closed = False
        """Nobody will take anything any more."""

    # ---------------------------------------------------------------------------------- from the connection

    def feed(self, data: bytes, flow_bytes: int) -> None:
        """Take a DATA frame's payload; ``flow_bytes`` is what it used of the client's windows."""
        connection = self._connection
        if self._failure is not None or self.closed:
            connection.consumed(flow_bytes)
            return
        if not self._partial and len(data) >= PREFIX_BYTES:
            end = PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big")
            if len(data) == end and not data[0] and end <= connection.limits.message_bytes + PREFIX_BYTES:
                self._put(data[PREFIX_BYTES:])  # the usual case: one frame, one message
                data = b""
        if data:
            self._partial += data
            connection.server.hold(len(data))
            self._cut()
        # While a message is incomplete its bytes are let in (else it could never complete: it may be larger than
        # the window). Complete messages that nobody took hold the client back.
        self._held += flow_bytes
        if len(self._messages) <= 1:
            self._release()
        if connection.server.holds_too_much() and self._failure is None:
            self.fail(GRPCError(Status.RESOURCE_EXHAUSTED, "the server holds too many request bytes"))
        self._wake()

    def feed_eof(self) -> None:
        """The client has half-closed."""
        self.client_done = True
        if self._partial and self._failure is None:
            self.fail(GRPCError(Status.INVALID_ARGUMENT, "the request ends within a message"))
        self._wake()

    def fail(self, error: GRPCError) -> None:
        """What the client sent can't be read: its bytes are dropped and the reader gets ``error``."""
        self._failure = error
        self._drop()
        self._wake()

    # ---------------------------------------------------------------------------------- for the call

    def has_more(self) -> bool:
        """``take`` has something to give: a message, an error or the end."""
        if self._single:
            # Complete with the half-close; a second message is a failure by then.
            return self._failure is not None or self.client_done
        return bool(self._messages) or self._failure is not None or self.client_done

    async def wait_more(self) -> None:
        """Wait until ``has_more``. A checkpoint only when it has to wait."""
        while not self.has_more():
            self._changed = trio.Event()
            await self._changed.wait()

    def take(self) -> bytes | None:
        """Return the next message, or None at the end. Raises GRPCError for what was wrong with the bytes."""
        if self._messages and (self._failure is None or not self._single):
            message = self._messages.popleft()
            self._messages_bytes -= len(message)
            self._connection.server.hold(-len(message))
            if not self._messages:
                self._release()
            return message
        if self._failure is not None:
            raise self._failure
        if self._single:
            raise GRPCError(Status.INVALID_ARGUMENT, "the request message is missing")
        return None

    def close(self) -> None:
        """Drop what is there and what still comes."""
        self.closed = True
        self._drop()

    # ---------------------------------------------------------------------------------- inside

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _put(self, message: bytes) -> None:
        if self._messages and self._single:
            self.fail(GRPCError(Status.INVALID_ARGUMENT, "more than one request message"))
            return
        self._messages.append(message)
        self._messages_bytes += len(message)
        self._connection.server.hold(len(message))

    def _cut(self) -> None:
        """Cut complete messages off the front of the partial ones."""
        partial, limits = self._partial, self._connection.limits
        while len(partial) >= PREFIX_BYTES and self._failure is None:
            if partial[0]:
                self.fail(GRPCError(Status.UNIMPLEMENTED, "compressed messages are not supported"))
                return
            size = int.from_bytes(partial[1:PREFIX_BYTES], "big")
            if size > limits.message_bytes:
                reason = f"the message has {size} bytes, at most {limits.message_bytes} are taken"
                self.fail(GRPCError(Status.INVALID_ARGUMENT, reason))
                return
            end = PREFIX_BYTES + size
            if len(partial) < end:
                return
            message = bytes(partial[PREFIX_BYTES:end])
            del partial[:end]
            self._connection.server.hold(-end)
            self._put(message)

    def _release(self) -> None:
        """Let the client send as much again as was held back."""
        held, self._held = self._held, 0
        if not held:
            return
        connection = self._connection
        connection.consumed(held)
        self._window_debt += held
        if self._window_debt * 4 >= connection.limits.stream_window_bytes and not (self.client_done or self.closed):
            connection.open_window(self._stream_id, self._window_debt)
            self._window_debt = 0

    def _drop(self) -> None:
        self._connection.server.hold(-self._messages_bytes - len(self._partial))
        self._messages.clear()
        self._messages_bytes = 0
        self._partial = bytearray()
        if self._held:
            self._connection.consumed(self._held)
            self._held = 0
