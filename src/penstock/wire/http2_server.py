"""A server's side of HTTP/2 with a short way for unary calls: what most clients send, and what they are answered.

A request that is one frame of HEADERS, whose block was read before, and one frame of DATA that ends it, both in the
same bytes, is one event; the beginning of an answer, and its end, are put together from bytes that are always the same.
All else, and all that breaks a rule, goes the way of `wire.http2`, which decides alone what is wrong. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.wire import http2_frames as f
from penstock.wire.header_blocks import block_of
from penstock.wire.http2 import ConnectionSide, Http2, Http2Limits, Stream
from penstock.wire.http2_frames import CallReceived, FrameEvent, Headers, Kind

_HEADS_BYTES: Final = 2 * f.HEAD_BYTES
_DATA: Final = int(Kind.DATA)
_HEADERS: Final = int(Kind.HEADERS)
_HEAD_BYTES: Final = f.HEAD_BYTES
_END_HEADERS: Final = f.END_HEADERS
_END_STREAM: Final = f.END_STREAM
_FRAME_MAX_BYTES: Final = f.FRAME_MAX_BYTES
_LAST_STREAM_ID: Final = f.LAST_STREAM_ID
_unpack: Final = f.HEAD.unpack_from


class HeadersFrame:
    """HEADERS that say the same each time: what stands before the number of the stream, and behind it."""

    __slots__ = ("block", "head")

    def __init__(self, headers: tuple[tuple[bytes, bytes], ...], *, end_stream: bool) -> None:
        self.block = block_of(headers)
        flags = f.END_HEADERS | (f.END_STREAM if end_stream else 0)
        self.head = f.frame(_HEADERS, flags, 0, self.block)[:5]


class Http2Server(Http2):
    """As `Http2` in the role of the server."""

    __slots__ = ()

    def __init__(self, limits: Http2Limits, read_request: Callable[[Headers], Any]) -> None:
        super().__init__(ConnectionSide.SERVER, limits, read_request)

    def receive(self, data: bytes | bytearray) -> list[FrameEvent]:
        """As `Http2.receive`."""
        if self._closed or not self._frames.is_between_frames:
            return super().receive(data)
        data = bytes(data)
        calls: list[FrameEvent] = []
        read = self._read_calls(data, calls)
        if read == len(data):
            return calls
        return [*calls, *super().receive(data[read:] if read else data)]

    def _read_calls(self, data: bytes, calls: list[FrameEvent]) -> int:
        """Find the calls that the bytes begin with; how many bytes they are."""
        pos, size, kept = 0, len(data), self._headers.kept
        while size - pos >= _HEADS_BYTES:
            word, flags, stream_id = _unpack(data, pos)
            begin = pos + _HEAD_BYTES + (word >> 8)
            if word & 0xFF != _HEADERS or flags != _END_HEADERS or size - begin < _HEAD_BYTES:
                break
            said = kept.get(data[pos + _HEAD_BYTES : begin])
            if said is None:
                break
            word, flags, data_id = _unpack(data, begin)
            length = word >> 8
            begin += _HEAD_BYTES
            end = begin + length
            announced = said.content_length
            if (
                word & 0xFF != _DATA
                or flags != _END_STREAM
                or data_id != stream_id
                or end > size
                or length > _FRAME_MAX_BYTES
                or length > self._receive_window
                or length > self._initial_window
                or (announced is not None and announced != length)
                or not stream_id & 1
                or not self._highest_inbound < stream_id <= _LAST_STREAM_ID
                or len(self._streams) >= self._max_streams
            ):
                break
            self._receive_window -= length
            self._highest_inbound = stream_id
            self._streams[stream_id] = Stream(self._initial_window - length, False)
            calls.append(CallReceived(stream_id, said.headers, said.request, data[begin:end]))
            pos = end
        return pos

    def answer(self, stream_id: int, headers: HeadersFrame, data: bytes, trailers: HeadersFrame) -> bool:
        """Answer a request that has ended, with data that one frame holds. False: as `begin_answer`."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.remote_open or not self.begin_answer(stream_id, headers, data):
            return False
        return self.end_answer(stream_id, trailers)

    def begin_answer(self, stream_id: int, headers: HeadersFrame, data: bytes) -> bool:
        """Write headers and all data of an answer. False, and nothing is written: they have to go the long way."""
        stream, size = self._streams.get(stream_id), len(data)
        if (
            stream is None
            or not stream.local_open
            or self._closed
            or self._table
            or size > self._send_window
            or size > self._initial_send - stream.sent
            or size > self._max_frame
        ):
            return False
        stream.sent += size
        self._send_window -= size
        id = stream_id.to_bytes(4, "big")
        self._out += (headers.head, id, headers.block, (size << 16).to_bytes(5, "big"), id, data)
        return True

    def end_answer(self, stream_id: int, headers: HeadersFrame) -> bool:
        """Write the trailers of an answer whose request has ended. False: as `begin_answer`."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.local_open or stream.remote_open or self._closed or self._table:
            return False
        self._out += (headers.head, stream_id.to_bytes(4, "big"), headers.block)
        stream.local_open = False
        del self._streams[stream_id]
        self._closed_ids.append(stream_id)
        return True
