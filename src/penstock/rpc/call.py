"""One RPC: what a handler reads its requests from and writes its answers to.

Has the methods of grpclib's ``server.Stream`` that handlers and the generated bases use, so that both run
unchanged; underneath it is ours, because grpclib's waits on asyncio objects, asserts where a client's bytes are
wrong, and re-checks in four places what one connection object knows (CPU per RPC: tests/rpc/README.md).

Relies on ``transport.RpcConnection`` for h2 and the socket. Must not raise for anything a client sends except
``GRPCError`` out of ``recv_message`` and ``send_message``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.metadata import decode_metadata, encode_grpc_message
from msgspec import Struct

from penstock.engine.requests.answers import COPIES
from penstock.loop.offload import INLINE_MAX_BYTES, run_long
from penstock.loop.taskless import current_call, need_task
from penstock.rpc.inbox import PREFIX_BYTES, MessageBuffer
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.http2_frames import ProtocolError
from penstock.wire.http2_server import HeadersFrame
from penstock.wire.protobuf import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.access.identity import Identity
    from penstock.engine.requests.answers import MemoryReservation
    from penstock.rpc.methods import Method
    from penstock.rpc.transport import RpcConnection

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

# Answers go out in pieces of at most this, whatever frame size the client allows, so that the buffer's bound holds.
_SEND_CHUNK_BYTES = 64 * 1024
_CONTENT = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_OK = ((b"grpc-status", b"0"),)
_CONTENT_FRAME = HeadersFrame(_CONTENT, end_stream=False)
_OK_FRAME = HeadersFrame(_OK, end_stream=True)
NO_REQUEST = GRPCError(Status.DEADLINE_EXCEEDED, "the request message did not arrive")
_NOBODY = GRPCError(Status.CANCELLED, "the client has gone")


class ServerCall(Struct, Generic[RequestT, AnswerT], eq=False):
    """One RPC. One task may read and one may write at a time; both are cancelled when the client cancels.

    ``scope`` carries the client's deadline, where the call has a task. It is cancelled when the client resets the
    stream, when the connection is lost and at the end of a drain.
    """

    connection: RpcConnection
    """What it came on."""
    stream_id: int
    headers: dict[bytes, bytes]
    method: Method
    reservation: MemoryReservation
    """Of the memory for answers."""
    started_at: float
    until: float
    """When the client gives up, as it said in the request: see `deadline`."""
    whole: bytes | None = None
    """The one message that the client has sent, and ended with, until it is read."""
    received: MessageBuffer | None = None
    """What came of a request that did not come whole: see `inbox`."""
    caller: Identity | None = None
    """Who calls, with authentication, once that is known."""
    cancelled: bool = False
    """Its client has cancelled it, or its time is over."""
    closed: bool = False
    """Nothing can be sent any more: reset, or the connection is gone."""
    finished: bool = False
    """Trailers were written."""
    begun: bool = False
    """The handler was called."""
    handled: bool = False
    """The handler came to an end, which ``outcome`` tells: an error, or None."""
    outcome: GRPCError | None = None
    on_cancel: Callable[[], None] | None = None
    """Of a call without a task: ends it as cancelled."""
    _scope: trio.CancelScope | None = None
    _expired: trio.Event | None = None
    _ended_as: GRPCError | None = None
    _opened: bool = False
    _answers: int = 0
    _sending: bool = False
    _torn: bool = False

    # ---------------------------------------------------------------------------------- what handlers see

    @property
    def deadline(self) -> float:
        """When the client gives up, on ``trio.current_time()``'s clock; infinite when it did not say."""
        return self.until if self._scope is None else self._scope.deadline

    @property
    def scope(self) -> trio.CancelScope:
        """Of its task, where it has one."""
        if self._scope is None:
            self._scope = trio.CancelScope(deadline=self.until)
            if self.cancelled:
                self._scope.cancel()
        return self._scope

    @property
    def inbox(self) -> MessageBuffer:
        """What the client has sent, where it did not come whole."""
        if self.received is None:
            raise AssertionError("the request is complete")
        return self.received

    @property
    def came_whole(self) -> bool:
        """Its request did: there is no inbox, and nothing more belongs to it."""
        return self.received is None

    @property
    def has_more(self) -> bool:
        """There is something of the request to be taken."""
        return self.received is None or self.received.has_more()

    @property
    def expired(self) -> trio.Event:
        """What proved the caller's identity counts no longer: nothing new for it."""
        if self._expired is None:
            self._expired = trio.Event()
        return self._expired

    @property
    def is_cancelled(self) -> bool:
        """It was cancelled, or its time is over."""
        return self.cancelled or (self._scope is not None and self._scope.cancel_called)

    @property
    def peer(self) -> object:
        """Return the client's socket address."""
        return self.connection.peer

    @property
    def address(self) -> str | None:
        """Return the client's IP address."""
        peer = self.connection.peer
        return str(cast("tuple[object, ...]", peer)[0]) if isinstance(peer, tuple) else None

    @property
    def certificate(self) -> tuple[str, ...]:
        """Whom the client's TLS certificate names."""
        return self.connection.certificate

    @property
    def authorization(self) -> list[bytes]:
        """What the client proves its identity with."""
        proof = self.headers.get(b"authorization")
        return [] if proof is None else [proof]

    @property
    def metadata(self) -> Any:
        """Return the client's metadata as a multi-dict; of a name given twice the last.

        Raises GRPCError(INVALID_ARGUMENT) for a ``-bin`` that is not base64.
        """
        pairs = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in self.headers.items()]
        try:
            return decode_metadata(pairs)
        except ValueError:
            raise GRPCError(Status.INVALID_ARGUMENT, "metadata: a -bin value is not base64") from None

    def header(self, name: str) -> str | None:
        """Return one header, such as ``traceparent``."""
        value = self.headers.get(name.encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    @property
    def is_gone(self) -> bool:
        """Nobody is there to read an answer, as far as that is known."""
        return self.closed or self.connection.hung_up

    def check_caller(self) -> None:
        """Before it is given what others would get else. Raises GRPCError and Unauthenticated: the client has gone, or
        what proved who calls counts no longer."""
        if self.is_gone:
            raise GRPCError(_NOBODY.status, _NOBODY.message)
        if self.caller is not None:
            self.connection.server.check_caller(self.caller)

    async def wait_draining(self) -> None:
        """Wait until the server drains: a handler of a long stream then ends it in its own way."""
        await self.connection.server.wait_draining()

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
        data = await self._receive() if self.whole is None else self.whole
        if data is None:
            return None
        self.whole = None
        kind, package = self.method.request_type, self.method.package
        try:
            if len(data) <= INLINE_MAX_BYTES:
                message: RequestT = decode_message(data, kind, package)
            else:
                await need_task()
                message = await run_long(lambda: decode_message(data, kind, package), line="requests")
        except DecodeError as error:
            raise GRPCError(Status.INVALID_ARGUMENT, str(error)) from None
        return message

    async def _receive(self) -> bytes | None:
        inbox = self.inbox
        if self.method.client_streaming:
            if inbox.has_more():
                await trio.lowlevel.checkpoint()
            await inbox.wait_more()
        elif not inbox.has_more():
            await need_task()
            with trio.move_on_after(self.connection.limits.request_s):
                await inbox.wait_more()
            if not inbox.has_more():
                raise GRPCError(NO_REQUEST.status, NO_REQUEST.message)  # one that is raised again keeps its frames
        return inbox.take()

    async def send_initial_metadata(self) -> None:
        """Send the answer's headers now, before the first answer."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._open()
        self.connection.flush()

    async def send_message(self, message: AnswerT) -> None:
        """Send one answer; waits while the client does not read (at most ``stalled_send_s``: RESOURCE_EXHAUSTED).

        A checkpoint for streams. The answer of a unary call goes out together with its trailers. When it is
        cancelled, the answer may be sent, in part or not at all; after a part, later sends raise
        trio.BrokenResourceError.
        """
        streaming = self.method.server_streaming
        if self._answers and not streaming:
            raise AssertionError("a unary call sends one answer")
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this call")
        if self._torn:
            raise trio.BrokenResourceError("an earlier answer was sent in part only")
        self._sending = True
        body = b""
        try:
            answer, package = cast(Struct, message), self.method.package
            if self.reservation.bytes <= COPIES * INLINE_MAX_BYTES:
                body = encode_message(answer, package)
            else:
                await need_task()
                body = await run_long(encode_message, cast(Struct, message), self.method.package, line="answers")
            self.reservation.add(len(body))
            if not self.answer(body):
                self._open()
                await self._send(len(body).to_bytes(PREFIX_BYTES, "big") + body)
                self._answers += 1
                self.connection.unpaid_answers += 1
            if streaming:
                self.connection.flush_now()
                await trio.lowlevel.checkpoint()
        finally:
            self._sending = False
            self.reservation.keep(self.reservation.bytes - len(body))

    def answer(self, body: bytes) -> bool:
        """Write the one answer, if it can be written at once and whole: it leaves with the trailers."""
        framed = len(body).to_bytes(PREFIX_BYTES, "big") + body
        connection = self.connection
        if self._opened or len(framed) > INLINE_MAX_BYTES or connection.is_congested:
            return False
        if not connection.h2.begin_answer(self.stream_id, _CONTENT_FRAME, framed):
            return False
        self._opened = True
        self._answers += 1
        connection.unpaid_answers += 1
        return True

    def answer_and_end(self, body: bytes) -> bool:
        """Write the one answer of a request that came whole, and the trailers; if all of it can be written at once."""
        framed = len(body).to_bytes(PREFIX_BYTES, "big") + body
        connection = self.connection
        if self._opened or len(framed) > INLINE_MAX_BYTES or connection.is_congested:
            return False
        if not connection.h2.answer(self.stream_id, _CONTENT_FRAME, framed, _OK_FRAME):
            return False
        self._opened = self.finished = True
        self._answers += 1
        connection.unpaid_answers += 1
        connection.flush_soon()
        return True

    # ---------------------------------------------------------------------------------- from the connection

    def reset(self) -> None:
        """The client has cancelled, or the connection is gone: cancel the handler."""
        self.closed = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel the handler, and answer with `cancelled_as`."""
        self.cancelled = True
        if self._scope is not None:
            self._scope.cancel()
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
        inbox, connection = self.received, self.connection
        if inbox is not None:
            inbox.close()
        if self.closed:
            return
        if error is None and self._opened and connection.h2.end_answer(self.stream_id, _OK_FRAME):
            connection.flush_soon()
            return
        if error is None:
            trailers: Iterable[tuple[bytes, bytes]] = _OK
        else:
            text = (error.message or "")[: self.connection.limits.status_message_bytes]
            trailers = [
                (b"grpc-status", str(error.status.value).encode()),
                (b"grpc-message", encode_grpc_message(text.encode("utf-8", "replace").decode()).encode()),
            ]
            code: object = error.details
            if isinstance(code, str):
                trailers = [*trailers, (b"penstock-error", code.encode())]
        if not self._opened:
            trailers = [*_CONTENT, *trailers]
        h2 = self.connection.h2
        try:
            h2.send_headers(self.stream_id, trailers, end_stream=True)
            if inbox is not None and not inbox.client_done:
                h2.reset_stream(self.stream_id)  # NO_ERROR: it need not send the rest
        except ProtocolError:  # reset in the bytes that are being processed
            self.closed = True
        self.connection.flush()

    # ---------------------------------------------------------------------------------- inside

    @property
    def answers(self) -> int:
        """Return how many answers were sent."""
        return self._answers

    def _open(self) -> None:
        if self._opened or self.closed:
            return
        self._opened = True
        try:
            self.connection.h2.send_headers(self.stream_id, _CONTENT)
        except ProtocolError:
            self.closed = True

    async def _send(self, data: bytes) -> None:
        connection, h2 = self.connection, self.connection.h2
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
            if current_call() is not None:
                await need_task()
                continue  # what it would wait for may have come before its task began: nobody tells of it again
            with trio.move_on_after(connection.limits.stalled_send_s) as patience:
                if window <= 0:
                    await connection.wait_window(self.stream_id)
                else:
                    await connection.wait_uncongested()
            if patience.cancelled_caught:
                raise GRPCError(Status.RESOURCE_EXHAUSTED, "the client does not read its answers")
