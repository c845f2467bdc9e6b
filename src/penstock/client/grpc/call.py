"""One RPC on a connection: messages out, messages in, and the status at the end.

One task may send and one may receive at a time. What a cancelled ``send`` has left half done is for ``aclose`` to
reset, which every owner of a call owes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.client.errors import ClientError, InternalError, PayloadTooLarge
from penstock.client.grpc.status import error_of
from penstock.wire.http2 import Http2
from penstock.wire.http2_frames import ErrorCodes, ProtocolError

FLUSH_BYTES = 64 * 1024
_HEAD_BYTES = 5


class Carrier(Protocol):
    """The connection of a call (``connection.HttpConnection``)."""

    h2: Http2

    async def flush(self) -> None:
        """Send what h2 has to say."""
        ...

    async def wait_until(self, ready: Callable[[], bool], call: GrpcCall | None = None) -> None:
        """Wait for news of ``call`` that make ``ready`` true; it has to be when the connection is dead."""
        ...

    def forget(self, call: GrpcCall) -> None:
        """The call's owner has done with it."""
        ...

    def acknowledge(self, flow_bytes: int, stream_id: int) -> None:
        """So many bytes of an answer were taken: the engine may send as many again."""
        ...


class GrpcCall:
    """See the module. Made by ``Connection.open_call``. ``max_message_bytes``: a larger answer fails it."""

    def __init__(self, connection: Carrier, stream_id: int, max_message_bytes: int) -> None:
        self.stream_id = stream_id
        self._connection = connection
        self._max_message_bytes = max_message_bytes
        self._inbox = bytearray()
        self._held_flow_bytes = 0
        self._headers: dict[bytes, bytes] = {}
        self._ended = False
        self._failure: ClientError | None = None

    # -- for the owner

    async def send(self, body: bytes, *, end: bool = False) -> None:
        """Send one message, the last one with ``end``. Waits while the engine's window is full.

        When the call has ended meanwhile, the rest is dropped: ``receive`` tells how it ended.
        """
        connection = self._connection
        data = b"\0" + len(body).to_bytes(4, "big") + body
        sent = unflushed = 0
        while sent < len(data) and not self._is_over:
            size = min(self._window, connection.h2.max_send_frame_bytes, len(data) - sent)
            if size > 0:
                self._put(data[sent : sent + size], end=end and sent + size == len(data))
                sent += size
                unflushed += size
            if size <= 0 or unflushed >= FLUSH_BYTES:
                unflushed = 0
                await connection.flush()
                await connection.wait_until(lambda: self._is_over or self._window > 0, self)
        await connection.flush()

    async def end(self) -> None:
        """Say that no more messages come."""
        if not self._is_over:
            self._put(b"", end=True)
            await self._connection.flush()

    async def wait_taken(self) -> None:
        """Wait until the engine has answered with headers.

        Raises:
            ClientError: it has refused the call, or the connection has ended.
        """
        await self._connection.wait_until(lambda: bool(self._headers) or self._is_over, self)
        if self._failure is not None:
            raise self._failure
        error = error_of(self._headers) if self._ended else None
        if error is not None and not self._inbox:
            raise error

    async def receive(self) -> bytes | None:
        """Return the next message; None when the call has ended well.

        Raises:
            ClientError: it has ended otherwise, or its connection has.
        """
        while True:
            await self._connection.wait_until(self._has_more, self)
            size = self._message_bytes()
            if size is not None:
                body = bytes(self._inbox[_HEAD_BYTES : _HEAD_BYTES + size])
                del self._inbox[: _HEAD_BYTES + size]
                self._release_held()
                return body
            if self._failure is not None:
                raise self._failure
            if self._ended:
                if self._inbox:
                    raise InternalError("the answer ended in the middle of a message")
                error = error_of(self._headers)
                if error is not None:
                    raise error
                return None

    async def aclose(self) -> None:
        """Let go of the call: reset if it has not ended, so that the engine stops working on it."""
        if not self._is_over:
            self._failure = InternalError("the call was closed")
            try:
                self._connection.h2.reset_stream(self.stream_id, ErrorCodes.CANCEL)
            except ProtocolError:  # ended in the bytes that are under way
                self._ended = True
        self._release_held()
        self._connection.forget(self)
        await self._connection.flush()

    # -- from the connection

    def on_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The answer's headers, or its trailers."""
        self._headers.update(headers)

    def on_data(self, data: bytes, flow_bytes: int) -> None:
        """Part of a message. The window is opened again at once while the message in front is not complete."""
        self._inbox += data
        self._held_flow_bytes += flow_bytes
        try:
            if self._message_bytes() is None:
                self._release_held()
        except ClientError as error:
            self._failure = error
            self._inbox.clear()
            self._reset_after_failure()

    def on_end(self) -> None:
        """The engine has said all."""
        self._ended = True

    def on_failure(self, error: ClientError) -> None:
        """The call, or the whole connection, broke. After the end of the answer it does not matter any more."""
        if not self._ended and self._failure is None:
            self._failure = error

    # -- inside

    @property
    def _is_over(self) -> bool:
        return self._ended or self._failure is not None

    @property
    def _window(self) -> int:
        try:
            return self._connection.h2.send_window_bytes(self.stream_id)
        except ProtocolError:
            return 0

    def _put(self, data: bytes, *, end: bool) -> None:
        try:
            self._connection.h2.send_data(self.stream_id, data, end_stream=end)
        except ProtocolError as error:
            self._failure = self._failure or InternalError(f"the client could not send on this call: {error}")

    def _has_more(self) -> bool:
        return self._is_over or self._message_bytes() is not None

    def _message_bytes(self) -> int | None:
        """The size of the message in front, None while it is not complete.

        Raises:
            ClientError: it is too large, or compressed.
        """
        inbox = self._inbox
        if len(inbox) < _HEAD_BYTES:
            return None
        size = int.from_bytes(inbox[1:_HEAD_BYTES], "big")
        limit = self._max_message_bytes
        if size > limit:
            raise PayloadTooLarge(f"the answer has {size} bytes, more than max_message_bytes ({limit})")
        if inbox[0]:
            raise InternalError("the answer is compressed, although the client did not ask for that")
        return size if len(inbox) >= _HEAD_BYTES + size else None

    def _release_held(self) -> None:
        flow_bytes, self._held_flow_bytes = self._held_flow_bytes, 0
        self._connection.acknowledge(flow_bytes, self.stream_id)

    def _reset_after_failure(self) -> None:
        self._release_held()
        try:
            self._connection.h2.reset_stream(self.stream_id, ErrorCodes.CANCEL)
        except ProtocolError:
            self._ended = True
