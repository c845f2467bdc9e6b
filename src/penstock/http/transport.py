"""Connected TCP sockets as Trio streams, on ``trio.lowlevel``.

``trio.SocketStream`` would do, and is what the hypercorn seam uses. Under the hot path it costs a scheduler round per
write and a refused ``recv`` per request (FIGURE): here a write that fits into the socket's buffer does not
wait, and a read waits first. A task that only ever writes therefore must checkpoint by itself; the connection does,
between requests.
"""

from __future__ import annotations

import errno
import socket

import trio

_GONE_BEFORE_ACCEPTED = (errno.ECONNABORTED, errno.EPERM, errno.EPROTO)


class TcpStream(trio.abc.HalfCloseableStream):
    """Owns a connected, non-blocking socket. One reader and one writer at a time, as with every Trio stream."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Cancel-safe: a cancelled read took nothing."""
        sock = self._socket
        while True:
            if self._closed:
                raise trio.ClosedResourceError("this stream was closed")
            await trio.lowlevel.wait_readable(sock)
            try:
                return sock.recv(max_bytes or 65_536)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as exc:
                raise trio.BrokenResourceError(f"the connection broke: {exc}") from exc

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Does not checkpoint when the socket takes everything at once. After a cancellation an unknown part was
        sent, and the stream is of no more use."""
        sock = self._socket
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        sent = 0
        while True:
            try:
                sent += sock.send(memoryview(data)[sent:] if sent else data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as exc:
                raise trio.BrokenResourceError(f"the connection broke: {exc}") from exc
            if sent >= len(data):
                return
            await trio.lowlevel.wait_writable(sock)
            if self._closed:
                raise trio.ClosedResourceError("this stream was closed")

    async def wait_send_all_might_not_block(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        await trio.lowlevel.wait_writable(self._socket)

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as exc:
            raise trio.BrokenResourceError(f"the connection broke: {exc}") from exc

    async def aclose(self) -> None:
        """Idempotent. Tasks that wait on the stream get ClosedResourceError."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()
