"""One RPC: what a handler reads its requests from and writes its answers to.

Has the methods of grpclib's ``server.Stream`` that handlers and the generated bases use, so that both run
unchanged; underneath it is ours, because grpclib's waits on asyncio objects, asserts where a client's bytes are
wrong, and re-checks in four places what one connection object knows (CPU per RPC: tests/rpc/README.md).

Relies on ``transport.Connection`` for h2 and the socket. Must not raise for anything a client sends except
``GRPCError`` out of ``recv_message`` and ``send_message``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.metadata import decode_metadata, encode_grpc_message

from penstock.eager import need_task
from penstock.engine.answers import COPIES
from penstock.offload import INLINE_MAX_BYTES, run_long, run_sized
from penstock.rpc.inbox import Inbox
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.http2_frames import ProtocolError
from penstock.wire.protobuf import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.engine.answers import Hold
    from penstock.rpc.methods import Method
    from penstock.rpc.transport import Connection

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

# Answers go out in pieces of at most this, whatever frame size the client allows, so that the buffer's bound holds.
_SEND_CHUNK_BYTES = 64 * 1024
_CONTENT = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_OK = ((b"grpc-status", b"0"),)
NO_REQUEST = GRPCError(Status.DEADLINE_EXCEEDED, "the request message did not arrive")
_NOBODY = GRPCError(Status.CANCELLED, "the client has gone")


class ServerCall(Generic[RequestT, AnswerT]):
    """One RPC. One task may read and one may write at a time; both are cancelled when the client cancels.

    ``scope`` carries the client's deadline. It is cancelled when the client resets the stream, when the connection
    is lost and at the end of a drain.
    """

    __slots__ = (
        "_answers", "_connection", "_ended_as", "_opened", "_sending", "_torn", "begun", "closed", "expired",
        "finished", "handled", "headers", "hold", "inbox", "method", "on_cancel", "outcome", "scope", "started_at",
        "stream_id",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        stream_id: int,
        headers: dict[bytes, bytes],
        method: Method,
        timeout_s: float | None,
    ) -> None:
        self._connection = connection
        self.stream_id = stream_id
        self.headers = headers
        self.method = method
        self.inbox = Inbox(connection, stream_id, single=not method.client_streaming)
        self.started_at = trio.current_time()
        self.scope = trio.CancelScope(deadline=math.inf if timeout_s is None else self.started_at + timeout_s)
        self.hold: Hold
        """Of the memory for answers; while the handler runs."""
        self.closed = False
        """Nothing can be sent any more: reset, or the connection is gone."""
        self.finished = False
        """Trailers were written."""
        self.expired = trio.Event()
        """What proved the caller's identity counts no longer: nothing new for it."""
        self.begun = False
        """The handler was called."""
        self.handled = False
        """The handler came to an end, which ``outcome`` tells: an error, or None."""
        self.outcome: GRPCError | None = None
        self.on_cancel: Callable[[], None] | None = None
        """Of a call without a task: ends it as cancelled."""
        self._ended_as: GRPCError | None = None
        self._opened = False
        self._answers = 0
        self._sending = False
        self._torn = False

    # ---------------------------------------------------------------------------------- what handlers see

    @property
    def connection(self) -> Connection:
        """What it came on."""
        return self._connection

    @property
    def deadline(self) -> float:
        """When the client gives up, on ``trio.current_time()``'s clock; infinite when it did not say."""
        return self.scope.deadline

    @property
    def peer(self) -> object:
        """The client's socket address."""
        return self._connection.peer

    @property
    def address(self) -> str | None:
        """The client's IP address."""
        peer = self._connection.peer
        return str(cast("tuple[object, ...]", peer)[0]) if isinstance(peer, tuple) else None

    @property
    def certificate(self) -> tuple[str, ...]:
        """Whom the client's TLS certificate names."""
        return self._connection.certificate

    @property
    def authorization(self) -> list[bytes]:
        """What the client proves its identity with."""
        proof = self.headers.get(b"authorization")
        return [] if proof is None else [proof]

    @property
    def metadata(self) -> Any:
        """The client's metadata as a multi-dict; of a name given twice the last.

        Raises GRPCError(INVALID_ARGUMENT) for a ``-bin`` that is not base64.
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

    @property
    def is_gone(self) -> bool:
        """Nobody is there to read an answer, as far as that is known."""
        return self.closed or self._connection.hung_up

    async def wait_draining(self) -> None:
        """Wait until the server drains: a handler of a long stream then ends it in its own way."""
        await self._connection.server.wait_draining()

    def __aiter__(self) -> ServerCall[RequestT, AnswerT]:
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
        inbox = self.inbox
        if self.method.client_streaming:
            await trio.lowlevel.checkpoint()
            await inbox.wait_news()
        elif not inbox.has_news():
            await need_task()
            with trio.move_on_after(self._connection.limits.request_s):
                await inbox.wait_news()
            if not inbox.has_news():
                raise GRPCError(NO_REQUEST.status, NO_REQUEST.message)  # one that is raised again keeps its frames
        data = inbox.take()
        if data is None:
            return None
        if len(data) > INLINE_MAX_BYTES:
            await need_task()
        try:
            kind, package = self.method.request_type, self.method.package
            message: RequestT = await run_sized(len(data), lambda: decode_message(data, kind, package))
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
        cancelled, the answer may be sent, in part or not at all; after a part, later sends raise
        trio.BrokenResourceError.
        """
        streaming = self.method.server_streaming
        if self._answers and not streaming:
            raise AssertionError("a unary call has one answer")
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this call")
        if self._torn:
            raise trio.BrokenResourceError("an earlier answer was cut off")
        self._sending = True
        body = b""
        try:
            answer, package = cast(msgspec.Struct, message), self.method.package
            if self.hold.bytes <= COPIES * INLINE_MAX_BYTES:
                body = encode_message(answer, package)
            else:
                await need_task()
                body = await run_long(
                    encode_message, cast(msgspec.Struct, message), self.method.package, line="answers"
                )
            self.hold.add(len(body))
            self._open()
            await self._send(b"\0" + len(body).to_bytes(4, "big") + body)
            self._answers += 1
            self._connection.answered()
            if streaming:
                self._connection.flush_now()
                await trio.lowlevel.checkpoint()
        finally:
            self._sending = False
            self.hold.keep(self.hold.bytes - len(body))

    # ---------------------------------------------------------------------------------- from the connection

    def reset(self) -> None:
        """The client has cancelled, or the connection is gone: cancel the handler."""
        self.closed = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel the handler, and answer with `cancelled_as`."""
        self.scope.cancel()
        if self.on_cancel is not None:
            self.on_cancel()

    def end_as(self, error: GRPCError) -> None:
        """Cancel the handler and answer with ``error`` instead of it."""
        self._ended_as = error
        self.cancel()

    def expire(self, error: GRPCError, after_s: float) -> None:
        """Let the handler come to an end by itself; after a time, answer with ``error`` instead of it."""
        self._ended_as = error
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + after_s)
        self.expired.set()

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
        self.inbox.close()
        if self.closed:
            return
        if error is None:
            trailers: Iterable[tuple[bytes, bytes]] = _OK
        else:
            text = (error.message or "")[: self._connection.limits.status_message_bytes]
            trailers = [
                (b"grpc-status", str(error.status.value).encode()),
                (b"grpc-message", encode_grpc_message(text.encode("utf-8", "replace").decode()).encode()),
            ]
            code: object = error.details
            if isinstance(code, str):
                trailers = [*trailers, (b"penstock-error", code.encode())]
        if not self._opened:
            trailers = [*_CONTENT, *trailers]
        h2 = self._connection.h2
        try:
            h2.send_headers(self.stream_id, trailers, end_stream=True)
            if not self.inbox.client_done:
                h2.reset_stream(self.stream_id)  # NO_ERROR: it need not send the rest
        except ProtocolError:  # reset in the bytes that are being processed
            self.closed = True
        self._connection.flush()

    def forget(self) -> None:
        """The handler has ended: the connection need not know the call any more."""
        self._connection.forget(self)

    # ---------------------------------------------------------------------------------- inside

    @property
    def answers(self) -> int:
        """How many answers were sent."""
        return self._answers

    def _open(self) -> None:
        if self._opened or self.closed:
            return
        self._opened = True
        try:
            self._connection.h2.send_headers(self.stream_id, _CONTENT)
        except ProtocolError:
            self.closed = True

    async def _send(self, data: bytes) -> None:
        connection, h2 = self._connection, self._connection.h2
        sent, total = 0, len(data)
        while sent < total:
            if self.closed:
                await need_task()
                await trio.lowlevel.checkpoint_if_cancelled()
                return  # the handler shields itself: nobody is there to read it
            try:
                window = h2.send_window_bytes(self.stream_id)
                if window > 0 and not connection.is_congested:
                    size = min(window, h2.max_send_frame_bytes, _SEND_CHUNK_BYTES, total - sent)
                    h2.send_data(self.stream_id, data if size == total else data[sent : sent + size])
                    sent += size
                    self._torn = sent < total
                    if self._torn:
                        connection.flush()
                        connection.sent_part()
                    continue
            except ProtocolError:
                self.closed = True
                continue
            connection.flush()
            await need_task()
            with trio.move_on_after(connection.limits.stalled_send_s) as patience:
                if window <= 0:
                    await connection.wait_window(self.stream_id)
                else:
                    await connection.wait_uncongested()
            if patience.cancelled_caught:
                raise GRPCError(Status.RESOURCE_EXHAUSTED, "the client does not read its answers")
