"""The writing half of a connection: what is to be said is collected, and leaves in as few sends as can be.

What is written while bytes are received leaves at their end, what calls without a task are answered at the end of their
turn (`rpc.taskless`), the rest when the writing task runs: it sends all that has come together, and waits where the
socket takes no more. Knows neither calls nor frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from penstock.loop.poller import PolledStream
from penstock.wire.http2 import Http2Limits
from penstock.wire.http2_server import Http2Server

if TYPE_CHECKING:
    from penstock.rpc.limits import RpcLimits
    from penstock.wire.http2_frames import Headers

BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)
"""The client is gone."""


class Sending:
    """Of one connection; `Connection` has the rest."""

    def __init__(
        self, h2: Http2Server, stream: trio.abc.Stream, limits: RpcLimits, leaves_later: Callable[[Sending], bool]
    ) -> None:
        """``leaves_later``: whether `send_now` will be called at the end of this turn."""
        self.limits = limits
        self.h2 = h2
        self._leaves_later = leaves_later
        self._stream = stream
        self._polled = stream if isinstance(stream, PolledStream) else None
        self._out = bytearray()
        self._receiving = False  # what is written then leaves at the end of it
        self._closing = False
        self._wake_writer = trio.lowlevel.ParkingLot()
        self._uncongested = trio.lowlevel.ParkingLot()

    @property
    def is_congested(self) -> bool:
        """More is written than the socket takes."""
        return len(self._out) >= self.limits.send_buffer_bytes

    async def wait_uncongested(self) -> None:
        """Wait until most of what was written is sent."""
        if self.is_congested:
            await self._uncongested.park()

    def flush(self) -> None:
        """Hand what there is to say to the writer."""
        data = self.h2.data_to_send()
        if data:
            self._out += data
            if self._wake_writer and not self._receiving and not self._leaves_later(self):
                self._wake_writer.unpark_all()

    def flush_soon(self) -> None:
        """As `flush`, of little: at the end of what is being received, or of the turn."""
        if not (self._receiving or self._leaves_later(self)):
            self.flush()

    def flush_now(self) -> None:
        """As `flush`, in this turn of the loop: of a stream, with whose messages no other's answers come along."""
        self.send_now()

    def send_now(self) -> None:
        """Send what is written as far as the socket takes it at once; the writer sends the rest."""
        data = self.h2.data_to_send()
        if not (data or self._out):
            return
        if self._wake_writer and data and not self._out and self._polled is not None and not self._closing:
            data = data[self._send_some(self._polled, data) :]
            if not data:
                return
        self._out += data
        if not (self._out and self._wake_writer):
            return  # nothing is there, or the writer is at it
        if self._polled is not None and not self._closing:
            del self._out[: self._send_some(self._polled, self._out)]
            self._uncongested.unpark_all()
        if self._out:
            self._wake_writer.unpark_all()

    @staticmethod
    def _send_some(stream: PolledStream, data: bytes | bytearray) -> int:
        try:
            return stream.send_nowait(data)
        except trio.BrokenResourceError:  # the writer finds out
            return 0

    async def write_loop(self) -> None:
        """Send what nobody else sends, until the connection is closing and all is said."""
        self.flush()
        try:
            while not self._closing or self._out:
                if not self._out:
                    await self._wake_writer.park()
                    continue
                data, self._out = self._out, bytearray()
                self._uncongested.unpark_all()
                await self._stream.send_all(data)
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
            await trio.sleep(self.limits.linger_s)
        except BROKEN:
            pass


def open_http2(limits: RpcLimits, read_request: Callable[[Headers], Any]) -> Http2Server:
    """Return the server's side of a connection within the limits; its preface is ready to be sent."""
    return Http2Server(
        Http2Limits(
            stream_window_bytes=limits.stream_window_bytes,
            connection_window_bytes=limits.connection_window_bytes,
            header_list_bytes=limits.header_list_bytes,
            streams=limits.streams_per_connection,
        ),
        read_request,
    )
