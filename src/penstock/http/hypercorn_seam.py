"""hypercorn behind the same interface, for HTTP/2. Ten times dearer per request than our own server.

Relies on hypercorn's connection handling (``TCPServer`` and what is below it), not on its ``serve``: that one cancels
what runs after a grace of its own, ends with the first connection that fails, and takes no bound on a write. Its
internals move between releases: the tests of this package run over both servers and are what a new release must pass.

The application is called through a ``Guard`` per connection, which gives it what our own server would.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import h11
import trio
from h2.errors import ErrorCodes
from h2.events import Event, RequestReceived, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError
from h2.frame_buffer import FrameBuffer
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, RawData
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from penstock.http.asgi import CERTIFICATE, ON_PROVED, App, Receive, Scope, Send
from penstock.http.guard import Guard, GuardTotals
from penstock.http.interface import HttpStatistics
from penstock.http.limits import HttpLimits
from penstock.http.request import is_whole_request
from penstock.log.log import get_logger
from penstock.loop.poller import has_input
from penstock.net.accept import Door, Guest, PerAddress
from penstock.net.allowance import Allowance
from penstock.net.tls import Tls, names_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

log = get_logger(__name__)

_HEAD_FRAMES = (b"\x01", b"\x09")
"""HEADERS and CONTINUATION."""
_NO_TURN = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class HypercornServer:
    """Serves one application. For one ``serve`` only. Over TLS the client chooses HTTP/2 if ALPN offers it; a plain
    connection may always speak it (prior knowledge, or an h2c offer without a body)."""

    def __init__(
        self,
        limits: HttpLimits | None = None,
        *,
        tls: Tls | None = None,
        refusal_headers: Sequence[tuple[bytes, bytes]] = (),
        asking_proves: bool = True,
    ) -> None:
        """``asking_proves``: whoever sends a whole request is known; else the application says who is."""
        self.limits = limits or HttpLimits()
        self._config = _config(self.limits)
        self._tls = tls
        self._per_address = PerAddress(self.limits.max_connections_per_address)
        self._shared = GuardTotals(self.limits, refusal_headers)
        self._accepted_total = 0
        self._open: set[_BoundedStream] = set()
        self._idle: dict[Guard, WorkerContext] = {}
        self._door = Door(
            self.limits.max_connections,
            unproved_per_host=self.limits.max_unproved_per_address,
            is_whole=is_whole_request if tls is None else bool,
            first_request_s=self.limits.header_timeout_seconds,
            asking_proves=asking_proves,
            end_idle=self._end_idle,
            idle_s=self.limits.evict_after_idle_seconds,
            refusal=None if tls is not None else lambda _begun, whole: _NO_TURN if whole else _TOO_SLOW,
        )
        self._drain = trio.Event()

    # -- the Server interface

    async def serve(
        self,
        app: App,
        sockets: list[socket.socket],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See ``interface.AsgiServer``."""
        async with trio.open_nursery() as background:
            background.start_soon(self._abort_when_cancelled)
            background.start_soon(self._door.run)
            async with trio.open_nursery() as connections, trio.open_nursery() as accepting:

                def start(sock: socket.socket, guest: Guest) -> None:
                    connections.start_soon(self._handle_socket, app, sock, guest)

                for sock in sockets:
                    accepting.start_soon(self._door.accept, sock, start)
                task_status.started()
                await self._drain.wait()
                await trio.sleep(self.limits.drain_quiet_seconds)
                accepting.cancel_scope.cancel()
                self._door.close()
                self._shared.refusing = True
            background.cancel_scope.cancel()

    def drain(self) -> None:
        """See ``interface.AsgiServer``."""
        self._shared.closing = True
        self._drain.set()

    def statistics(self) -> HttpStatistics:
        """``idle_connections`` is an estimate: HTTP/2 runs many requests on one connection."""
        shared = self._shared
        return HttpStatistics(
            connections=self._door.open,
            idle_connections=max(0, self._door.open - shared.running),
            running_requests=shared.running,
            accepted_total=self._accepted_total,
            requests_total=shared.requests_total,
            refused_total=shared.refused_total,
            failed_total=shared.failed_total,
            timed_out_total=shared.timed_out_total,
            request_memory_bytes=shared.body_budget.used_bytes,
        )

    # -- connections

    async def _handle_socket(self, app: App, sock: socket.socket, guest: Guest) -> None:
        try:
            address = str(sock.getpeername()[0])
        except OSError:  # it has left already
            address = ""
        try:
            with sock, self._per_address.counted(address) as room:
                if room:
                    await self._handle_counted(app, sock, guest)
        finally:
            guest.leave()

    async def _handle_counted(self, app: App, sock: socket.socket, met: Guest) -> None:
        self._accepted_total += 1
        stream: _BoundedStream | None = None
        guard: Guard | None = None
        try:
            sock.setblocking(False)
            stream = _BoundedStream(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), self.limits)
            self._open.add(stream)
            secured = self._over_tls(stream)
            guard, context = Guard(_naming(app, secured, met), self._shared), WorkerContext(None)
            guard.on_asked = met.ask
            met.end = partial(_end_for_another, guard, stream)
            self._idle[guard] = context
            # hypercorn's annotations ask for its own TypedDicts and for trio.SocketStream; it needs neither.
            wrapped, transport = ASGIWrapper(cast(Any, guard)), cast(Any, secured)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._close_when_drained, guard, context)
                await _Connection(guard, wrapped, self._config, context, transport).run()
                nursery.cancel_scope.cancel()
        except Exception as exc:
            # hypercorn raises from its protocol code for input that it did not expect (a non-ASCII path, data for an
            # HTTP/2 stream that was answered early): this connection is over, nothing else is.
            log.debug("a connection failed inside hypercorn", error=repr(exc))
        except BaseExceptionGroup as group:
            _, others = group.split(Exception)
            if others is not None:
                raise others from None
        finally:
            if stream is not None:
                stream.abort()
                self._open.discard(stream)
            if guard is not None:
                self._idle.pop(guard, None)

    async def _close_when_drained(self, guard: Guard, context: WorkerContext) -> None:
        """Tell hypercorn, once nothing runs on this connection. Told earlier, it says GOAWAY on HTTP/2 between the
        last bytes of an answer and its end, and then can't send the end."""
        await self._drain.wait()
        busy = True
        while busy:
            await guard.idle.wait()
            await trio.sleep(self.limits.drain_quiet_seconds)
            busy = guard.running > 0
        await context.terminated.set()

    def _over_tls(self, stream: _BoundedStream) -> trio.abc.Stream:
        if self._tls is None:
            return stream
        return trio.SSLStream(stream, self._tls.context, server_side=True, https_compatible=True)

    async def _end_idle(self) -> None:
        """The longest idle connection makes room."""
        asked = (guard for guard in self._idle if guard.asked)
        longest = min(asked, key=lambda guard: guard.idle_since, default=None)
        idle_before = trio.current_time() - self.limits.evict_after_idle_seconds
        if longest is not None and longest.idle_since <= idle_before:
            await self._idle.pop(longest).terminated.set()

    async def _abort_when_cancelled(self) -> None:
        """hypercorn shields its writes. When the caller cancels, a client that does not read must not hold it up."""
        try:
            await trio.sleep_forever()
        finally:
            for stream in list(self._open):
                stream.abort()


class _Connection(TCPServer):
    """hypercorn's, but over when the client is gone. Left alone, it then still waits for its idle timer (120 s with our
    default), and on HTTP/2 for an application that waits in ``send()`` for a window that nobody will open.

    Also bounds how long the head of a request takes, and how many HTTP/2 requests a client resets.
    """

    def __init__(self, guard: Guard, app: ASGIWrapper, config: Config, context: WorkerContext, stream: Any) -> None:
        super().__init__(cast(Any, app), config, context, ConnectionState({}), stream)
        self._guard = guard
        self._limits = guard.shared.limits
        self._resets = Allowance(self._limits.resets_burst, self._limits.resets_per_second)
        self._head_since = trio.current_time()  # of the first request, before its first byte

    async def _read_data(self) -> None:
        await self._read_until_gone()
        await self.protocol.handle(Closed())
        await self.context.terminated.set()
        if isinstance(self.protocol.protocol, H2Protocol):
            for buffer in list(self.protocol.protocol.stream_buffers.values()):
                await buffer.close()

    async def _read_until_gone(self) -> None:
        data: bytes | bytearray = b""
        while True:
            within_head = self._waits_for_rest_of_head()
            if within_head or not (self._guard.asked or self._has_asked()):
                self._head_since = min(self._head_since, trio.current_time())
            else:
                self._head_since = math.inf
            with trio.move_on_at(self._head_since + self._limits.header_timeout_seconds) as patience:
                try:
                    data = await self.stream.receive_some(MAX_RECV)
                except (trio.ClosedResourceError, trio.BrokenResourceError):
                    return
            if patience.cancelled_caught:
                self._guard.shared.timed_out_total += 1
                if isinstance(self.protocol.protocol, H11Protocol) and within_head:
                    with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
                        await self.stream.send_all(_TOO_SLOW)
                return
            self._watch_http2()
            await self.protocol.handle(RawData(bytes(data)))
            self._watch_http2()
            if not data:
                return

    def _waits_for_rest_of_head(self) -> bool:
        """Return whether a part of a head came."""
        protocol = self.protocol.protocol
        if isinstance(protocol, H2Protocol):
            return _is_within_head(protocol.connection.incoming_buffer)
        if not isinstance(protocol.connection, h11.Connection):
            return False
        return protocol.connection.their_state is h11.IDLE and bool(protocol.connection.trailing_data[0])

    def _has_asked(self) -> bool:
        """Return whether a request's head is whole, which the application may not have been told yet."""
        protocol = self.protocol.protocol
        return (
            isinstance(protocol, H11Protocol)
            and isinstance(protocol.connection, h11.Connection)
            and protocol.connection.their_state is not h11.IDLE
        )

    def _watch_http2(self) -> None:
        """Count resets and see heads end, from now on: h2 hands its events to hypercorn only, so they are looked at on
        their way."""
        protocol = self.protocol.protocol
        if not isinstance(protocol, H2Protocol) or "receive_data" in vars(protocol.connection):
            return
        receive_data = protocol.connection.receive_data

        def counted(data: Buffer) -> list[Event]:
            events = receive_data(data)
            if _is_too_large(protocol.connection.incoming_buffer):
                protocol.connection.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
                raise ProtocolError("a frame too large")
            for event in events:
                if isinstance(event, RequestReceived | TrailersReceived):
                    self._guard.asked, self._head_since = True, math.inf
                if isinstance(event, StreamReset) and not self._resets.take():
                    protocol.connection.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
                    raise ProtocolError("too many reset streams")
            return events

        protocol.connection.receive_data = counted  # type: ignore[method-assign] # of this connection only


def _is_within_head(buffer: FrameBuffer) -> bool:
    """Return whether h2 waits for the rest of a block of headers. Of a frame that is not whole the fourth byte is its
    type."""
    begun = buffer._headers_buffer  # pyright: ignore[reportPrivateUsage] - h2 does not tell; held by tests
    return bool(begun) or bytes(buffer._data[3:4]) in _HEAD_FRAMES  # pyright: ignore[reportPrivateUsage] - the same


def _is_too_large(buffer: FrameBuffer) -> bool:
    """Return whether a frame has begun that may not come: h2 would first collect the 16 MiB that its head may
    announce."""
    length = buffer._data[:3]  # pyright: ignore[reportPrivateUsage] - the same
    return int.from_bytes(length, "big") > buffer.max_frame_size


class _BoundedStream(trio.abc.HalfCloseableStream):
    """A socket stream whose writes end in time."""

    def __init__(self, stream: trio.SocketStream, limits: HttpLimits) -> None:
        self._stream = stream
        self._limits = limits
        self.socket = stream.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        for at in range(0, len(view), self._limits.write_slice_bytes):
            with trio.move_on_after(self._limits.write_timeout_seconds) as scope:
                await self._stream.send_all(view[at : at + self._limits.write_slice_bytes])
            if scope.cancelled_caught:
                self.abort()
                raise trio.BrokenResourceError("the client does not read its answer")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def abort(self) -> None:
        """Close at once; whoever waits on the stream gets ClosedResourceError."""
        self.socket.close()


def _end_for_another(guard: Guard, stream: _BoundedStream) -> bool:
    """End a connection for another's sake, unless it is being served or has sent what was not read."""
    if guard.answering or has_input(stream.socket):
        return False
    stream.abort()
    return True


def _naming(app: App, stream: trio.abc.Stream, guest: Guest) -> App:
    """The application, told whom the client's certificate names, and whom to tell that it is known who calls."""
    secured = cast("trio.SSLStream[trio.abc.Stream]", stream) if isinstance(stream, trio.SSLStream) else None

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        extensions = scope.setdefault("extensions", {})
        extensions[ON_PROVED] = guest.prove
        if secured is not None:
            extensions[CERTIFICATE] = names_of(secured)
        await app(scope, receive, send)

    return named


def _config(limits: HttpLimits) -> Config:
    config = Config()
    config.accesslog = config.errorlog = None  # failures are logged by the guard, with their request
    config.include_server_header = False
    config.h11_max_incomplete_size = limits.max_head_bytes
    config.h2_max_header_list_size = limits.max_head_bytes
    config.keep_alive_timeout = limits.keep_alive_timeout_seconds
    config.keep_alive_max_requests = 2**62
    config.ssl_handshake_timeout = limits.header_timeout_seconds
    return config
