"""One RPC: what a handler reads its requests from and writes its answers to.

Has the methods of grpclib's ``server.Stream`` that handlers and the generated bases use, so that both run
unchanged; underneath it is ours, because grpclib's waits on asyncio objects, asserts where a client's bytes are
wrong, and re-checks in four places what one connection object knows (CPU per RPC: tests/rpc/README.md).

Relies on ``transport.Connection`` for h2 and the socket. Must not raise for anything a client sends except
``GRPCError`` out of ``recv_message`` and ``send_message``.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.metadata import decode_metadata, encode_grpc_message
from h2.exceptions import H2Error

from penstock.rpc.wire import DecodeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from grpclib.const import Handler

    from penstock.rpc.transport import Connection

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

PREFIX_BYTES = 5  # one byte "compressed", four bytes length
# Answers go out in pieces of at most this, whatever frame size the client allows, so that the buffer's bound holds.
_SEND_CHUNK_BYTES = 64 * 1024
_CONTENT = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_NOBODY = GRPCError(Status.CANCELLED, "the client has gone")


class Codec(Protocol):
    """Bytes of one message to an object and back. ``decode`` raises ``DecodeError`` for anything it can't read."""

    def encode(self, message: Any, message_type: Any) -> bytes: ...

    def decode(self, data: bytes, message_type: Any) -> Any: ...


class Call(Generic[RequestT, AnswerT]):
    """One RPC. One task may read and one may write at a time; both are cancelled when the client cancels.

    ``scope`` carries the client's deadline. It is cancelled when the client resets the stream, when the connection
    is lost and at the end of a drain.
    """

    __slots__ = (
        "_answers", "_codec", "_connection", "_ended_as", "_failure", "_held", "_inbox", "_inbox_bytes", "_opened",
        "_partial", "_readable", "_sending", "_window", "_window_debt", "client_done", "closed", "finished", "headers",
        "method", "path", "scope", "started_at", "stream_id",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        stream_id: int,
        headers: dict[bytes, bytes],
        path: str,
        method: Handler,
        timeout_s: float | None,
    ) -> None:
        self._connection = connection
        self._codec: Codec = connection.codec
        self.stream_id = stream_id
        self.headers = headers
        self.path = path
        self.method = method
        self.started_at = trio.current_time()
        self.scope = trio.CancelScope(deadline=math.inf if timeout_s is None else self.started_at + timeout_s)
        self.closed = False
        """Nothing can be sent any more: reset, or the connection is gone."""
        self.client_done = False
        """The client has half-closed."""
        self.finished = False
        """Trailers were written."""
        self._ended_as: GRPCError | None = None
        self._failure: GRPCError | None = None
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._partial = bytearray()
        self._held = 0
        self._window_debt = 0
        self._readable: trio.Event | None = None
        self._window: trio.Event | None = None
        self._opened = False
        self._answers = 0
        self._sending = False

    # ---------------------------------------------------------------------------------- what handlers see

    @property
    def deadline(self) -> float:
        """When the client gives up, on ``trio.current_time()``'s clock; infinite when it did not say."""
        return self.scope.deadline

    @property
    def peer(self) -> object:
        """The client's socket address."""
        return self._connection.peer

    @property
    def metadata(self) -> Any:
        """The client's metadata as a multi-dict; of a name given twice the last. Raises GRPCError(INVALID_ARGUMENT) for a
        ``-bin`` that is not base64.
        """
        pairs = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in self.headers.items()]
        try:
            return decode_metadata(pairs)
        except ValueError:
            raise GRPCError(Status.INVALID_ARGUMENT, "metadata: a -bin value is not base64") from None

    def header(self, name: str) -> str | None:
        """One header, such as ``traceparent``."""
        value = self.headers.get(name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    async def wait_draining(self) -> None:
        """Wait until the server drains: a handler of a long stream then ends it in its own way."""
        await self._connection.server.wait_draining()

    def __aiter__(self) -> Call[RequestT, AnswerT]:
        return self

    async def __anext__(self) -> RequestT:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def recv_message(self) -> RequestT | None:
        """The next request, or None when the client has half-closed.

        A call with a single request gets it or GRPCError, never None. Raises GRPCError(INVALID_ARGUMENT) for what
        can't be decoded, is too large or is cut off, UNIMPLEMENTED for compressed messages, RESOURCE_EXHAUSTED when
        the server holds too many bytes. A checkpoint for streams; for a single request only when it has to wait.
        """
        if self.method.cardinality.client_streaming:
            await trio.lowlevel.checkpoint()
            while not self._has_news():
                await self._wait_readable()
        elif not self._has_news():
            with trio.move_on_after(self._connection.limits.request_s):
                while not self._has_news():
                    await self._wait_readable()
            if not self._has_news():
                raise GRPCError(Status.DEADLINE_EXCEEDED, "the request message did not arrive")
        data = self._take()
        if data is None:
            return None
        try:
            message: RequestT = self._codec.decode(data, self.method.request_type)
        except DecodeError as error:
            raise GRPCError(Status.INVALID_ARGUMENT, str(error)) from None
        return message

    async def send_initial_metadata(self) -> None:
        """Send the answer's headers now, before the first answer."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._open()
        self._connection.flush()

    async def send_message(self, message: AnswerT) -> None:
        """Send one answer; waits while the client does not read (at most ``stalled_send_s``: RESOURCE_EXHAUSTED).

        A checkpoint for streams. The answer of a unary call goes out together with its trailers. When it is
        cancelled half-way the stream is of no more use, which is what the cancellation says.
        """
        streaming = self.method.cardinality.server_streaming
        if self._answers and not streaming:
            raise AssertionError("a unary call has one answer")
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this call")
        self._sending = True
        try:
            body = self._codec.encode(message, self.method.reply_type)
            self._open()
            await self._send(b"\0" + len(body).to_bytes(4, "big") + body)
            self._answers += 1
            if streaming:
                self._connection.flush()
                await trio.lowlevel.checkpoint()
        finally:
            self._sending = False

    # ---------------------------------------------------------------------------------- from the connection

    def feed(self, data: bytes, flow_bytes: int) -> None:
        """Take a DATA frame's payload; ``flow_bytes`` is what it used of the client's windows."""
        connection = self._connection
        if self._failure is not None or self.finished:
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
        # While a message is incomplete, its bytes are let in (else it could never complete: it may be larger than
        # the window). Complete messages that nobody took hold the client back.
        self._held += flow_bytes
        if len(self._inbox) <= 1:
            self._release()
        if connection.server.holds_too_much() and self._failure is None:
            self.fail(GRPCError(Status.RESOURCE_EXHAUSTED, "the server holds too many request bytes"))
        self._wake_reader()

    def feed_eof(self) -> None:
        """The client has half-closed."""
        self.client_done = True
        if self._partial and self._failure is None:
            self.fail(GRPCError(Status.INVALID_ARGUMENT, "the request ends within a message"))
        self._wake_reader()

    def fail(self, error: GRPCError) -> None:
        """What the client sent can't be read: its bytes are dropped and the reader gets ``error``."""
        self._failure = error
        self._drop()
        self._wake_reader()

    def window_opened(self) -> None:
        """The client has let more be sent."""
        if self._window is not None:
            self._window.set()
            self._window = None

    def reset(self) -> None:
        """The client has cancelled, or the connection is gone: cancel the handler."""
        self.closed = True
        self.scope.cancel()

    def end_as(self, error: GRPCError) -> None:
        """Cancel the handler and answer with ``error`` instead of it."""
        self._ended_as = error
        self.scope.cancel()

    @property
    def cancelled_as(self) -> GRPCError:
        """The status of a call whose scope was cancelled."""
        if self.closed:
            return _NOBODY
        return self._ended_as or GRPCError(Status.DEADLINE_EXCEEDED, "deadline exceeded")

    def finish(self, error: GRPCError | None) -> None:
        """Write the trailers, if anybody is there to read them. Not a checkpoint."""
        if self.finished:
            return
        self.finished = True
        self._drop()
        if self.closed:
            return
        if error is None:
            trailers = [(b"grpc-status", b"0")]
        else:
            text = (error.message or "")[: self._connection.limits.status_message_bytes]
            trailers = [
                (b"grpc-status", str(error.status.value).encode()),
                (b"grpc-message", encode_grpc_message(text.encode("utf-8", "replace").decode()).encode()),
            ]
        if not self._opened:
            trailers = [*_CONTENT, *trailers]
        h2 = self._connection.h2
        try:
            h2.send_headers(self.stream_id, trailers, end_stream=True)
            if not self.client_done:
                h2.reset_stream(self.stream_id)  # NO_ERROR: it need not send the rest
        except H2Error:  # reset in the bytes that are being processed
            self.closed = True
        self._connection.flush()

    # ---------------------------------------------------------------------------------- inside

    @property
    def answers(self) -> int:
        """How many answers were sent."""
        return self._answers

    def _has_news(self) -> bool:
        if self.method.cardinality.client_streaming:
            return bool(self._inbox) or self._failure is not None or self.client_done
        # A single request is complete with the half-close; a second message is a failure by then.
        return self._failure is not None or self.client_done

    async def _wait_readable(self) -> None:
        self._readable = trio.Event()
        await self._readable.wait()

    def _wake_reader(self) -> None:
        if self._readable is not None:
            self._readable.set()
            self._readable = None

    def _put(self, message: bytes) -> None:
        if self._inbox and not self.method.cardinality.client_streaming:
            self.fail(GRPCError(Status.INVALID_ARGUMENT, "more than one request message"))
            return
        self._inbox.append(message)
        self._inbox_bytes += len(message)
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

    def _take(self) -> bytes | None:
        if not self._inbox:
            if self._failure is not None:
                raise self._failure
            if not self.method.cardinality.client_streaming:
                raise GRPCError(Status.INVALID_ARGUMENT, "the request message is missing")
            return None
        if self._failure is not None and not self.method.cardinality.client_streaming:
            raise self._failure
        message = self._inbox.popleft()
        self._inbox_bytes -= len(message)
        self._connection.server.hold(-len(message))
        if not self._inbox:
            self._release()
        return message

    def _release(self) -> None:
        """Let the client send as much again as was held back."""
        held, self._held = self._held, 0
        if not held:
            return
        connection = self._connection
        connection.consumed(held)
        self._window_debt += held
        if self._window_debt * 4 >= connection.limits.stream_window_bytes and not (self.client_done or self.closed):
            connection.open_window(self.stream_id, self._window_debt)
            self._window_debt = 0

    def _drop(self) -> None:
        server = self._connection.server
        server.hold(-self._inbox_bytes - len(self._partial))
        self._inbox.clear()
        self._inbox_bytes = 0
        self._partial = bytearray()
        if self._held:
            self._connection.consumed(self._held)
            self._held = 0

    def _open(self) -> None:
        if self._opened or self.closed:
            return
        self._opened = True
        try:
            self._connection.h2.send_headers(self.stream_id, _CONTENT)
        except H2Error:
            self.closed = True

    async def _send(self, data: bytes) -> None:
        connection, h2 = self._connection, self._connection.h2
        sent, total = 0, len(data)
        while sent < total:
            if self.closed:
                await trio.lowlevel.checkpoint_if_cancelled()
                return  # the handler shields itself: nobody is there to read it
            try:
                window = h2.local_flow_control_window(self.stream_id)
                if window > 0 and not connection.is_congested:
                    size = min(window, h2.max_outbound_frame_size, _SEND_CHUNK_BYTES, total - sent)
                    h2.send_data(self.stream_id, data if size == total else data[sent : sent + size])
                    sent += size
                    if sent < total:
                        connection.flush()
                    continue
            except H2Error:
                self.closed = True
                continue
            connection.flush()
            await self._stalled(self._wait_window if window <= 0 else connection.wait_uncongested)

    async def _wait_window(self) -> None:
        self._window = trio.Event()
        await self._window.wait()

    async def _stalled(self, wait: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(self._connection.limits.stalled_send_s):
            await wait()
            return
        raise GRPCError(Status.RESOURCE_EXHAUSTED, "the client does not read its answers")
