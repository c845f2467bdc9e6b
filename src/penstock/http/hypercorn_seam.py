"""hypercorn behind the same interface: HTTP/2, and TLS. Ten times dearer per request than our own server.

Relies on hypercorn's connection handling (``TCPServer`` and what is below it), not on its ``serve``: that one cancels
what runs after a grace of its own, ends with the first connection that fails, and takes no bound on a write. Its
internals move between releases: the tests of this package run over both servers and are what a new release must pass.

The application is called through a ``Guard`` per connection, which gives it what our own server would.
"""

from __future__ import annotations

import dataclasses
import socket
import ssl
from collections.abc import Sequence
from typing import Any, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from penstock.http.accept import accept_connections
from penstock.http.asgi import App
from penstock.http.guard import Guard, Shared
from penstock.http.interface import Statistics
from penstock.http.limits import Limits
from penstock.log import get_logger

log = get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. ``keyfile_password`` is never logged."""

    certfile: str
    keyfile: str
    keyfile_password: str | None = dataclasses.field(default=None, repr=False)


class HypercornServer:
    """Serves one application. For one ``serve`` only. Over TLS the client chooses HTTP/2 by ALPN if ``http2``; a
    plain connection may always speak it (prior knowledge, or an h2c offer without a body)."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        tls: TlsFiles | None = None,
        http2: bool = True,
        refusal_headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.limits = limits or Limits()
        self._config = _config(self.limits, tls, http2=http2)
        self._ssl_context = _ssl_context(self._config)
        self._shared = Shared(self.limits, refusal_headers)
        self._accepted_total = 0
        self._open: set[_BoundedStream] = set()
        self._open_sockets = 0
        self._drain = trio.Event()
        self._room = trio.Event()

    # -- the Server interface

    async def serve(
        self,
        app: App,
        sockets: list[socket.socket],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See ``interface.Server``."""
        async with trio.open_nursery() as background:
            background.start_soon(self._abort_when_cancelled)
            async with trio.open_nursery() as connections, trio.open_nursery() as accepting:

                def start(sock: socket.socket) -> None:
                    self._open_sockets += 1
                    connections.start_soon(self._handle_socket, app, sock)

                for sock in sockets:
                    accepting.start_soon(accept_connections, sock, self._wait_for_room, start)
                task_status.started()
                await self._drain.wait()
                await trio.sleep(self.limits.drain_quiet_seconds)
                accepting.cancel_scope.cancel()
                self._shared.refusing = True
            background.cancel_scope.cancel()

    def drain(self) -> None:
        """See ``interface.Server``."""
        self._shared.closing = True
        self._drain.set()

    def statistics(self) -> Statistics:
        """``idle_connections`` is an estimate: HTTP/2 runs many requests on one connection."""
        shared = self._shared
        return Statistics(
            connections=self._open_sockets,
            idle_connections=max(0, self._open_sockets - shared.running),
            running_requests=shared.running,
            accepted_total=self._accepted_total,
            requests_total=shared.requests_total,
            refused_total=shared.refused_total,
            failed_total=shared.failed_total,
            timed_out_total=shared.timed_out_total,
            request_memory_bytes=shared.body_budget.used_bytes,
        )

    # -- connections

    async def _handle_socket(self, app: App, sock: socket.socket) -> None:
        self._accepted_total += 1
        stream: _BoundedStream | None = None
        try:
            sock.setblocking(False)
            stream = _BoundedStream(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), self.limits)
            self._open.add(stream)
            guard, context = Guard(app, self._shared), WorkerContext(None)
            # hypercorn's annotations ask for its own TypedDicts and for trio.SocketStream; it needs neither.
            wrapped, transport = ASGIWrapper(cast(Any, guard)), cast(Any, self._over_tls(stream))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._close_when_drained, guard, context)
                await _Connection(wrapped, self._config, context, ConnectionState({}), transport).run()
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
            self._open_sockets -= 1
            self._room.set()

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
        if self._ssl_context is None:
            return stream
        return trio.SSLStream(stream, self._ssl_context, server_side=True, https_compatible=True)

    async def _wait_for_room(self) -> None:
        while self._open_sockets >= self.limits.max_connections:
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()

    async def _abort_when_cancelled(self) -> None:
        """hypercorn shields its writes. When the caller cancels, a client that does not read must not hold it up."""
        try:
            await trio.sleep_forever()
        finally:
            for stream in list(self._open):
                stream.abort()


class _Connection(TCPServer):
    """hypercorn's, but over when the client is gone. Left alone, it then still waits for its idle timer (120 s with our
    default), and on HTTP/2 for an application that waits in ``send()`` for a window that nobody will open."""

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.context.terminated.set()
        if isinstance(self.protocol.protocol, H2Protocol):
            for buffer in list(self.protocol.protocol.stream_buffers.values()):
                await buffer.close()


class _BoundedStream(trio.abc.HalfCloseableStream):
    """A socket stream whose writes end in time."""

    def __init__(self, stream: trio.SocketStream, limits: Limits) -> None:
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
                raise trio.BrokenResourceError("the client takes nothing of its answer")

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


def _config(limits: Limits, tls: TlsFiles | None, *, http2: bool) -> Config:
    config = Config()
    config.accesslog = config.errorlog = None  # failures are logged by the guard, with their request
    config.include_server_header = False
    config.h11_max_incomplete_size = limits.max_head_bytes
    config.h2_max_header_list_size = limits.max_head_bytes
    config.keep_alive_timeout = limits.keep_alive_timeout_seconds
    config.keep_alive_max_requests = 2**62
    config.ssl_handshake_timeout = limits.header_timeout_seconds
    if tls is not None:
        config.certfile, config.keyfile, config.keyfile_password = tls.certfile, tls.keyfile, tls.keyfile_password
        config.alpn_protocols = ["h2", "http/1.1"] if http2 else ["http/1.1"]
    return config


def _ssl_context(config: Config) -> ssl.SSLContext | None:
    try:
        return config.create_ssl_context()
    except OSError as exc:  # ssl.SSLError is one
        raise ValueError(f"certificate {config.certfile} and key {config.keyfile} can't be loaded: {exc}") from exc
