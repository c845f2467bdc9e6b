"""HTTP/2 (RFC 9113) without I/O, as gRPC uses it, for both sides: bytes in, events out, and what is to be sent.

``Http2`` is one connection in a role. What a peer may do wrong ends its stream (RST_STREAM) or the connection (GOAWAY),
with the code that the RFC asks for. Not here: push, priorities, and what the fields of headers mean: those are checked
where they are read (``rpc.headers``) and stay bytes, as decoding all costs more than the few that are looked at. The
peer's GOAWAY closes nothing: whoever says it still gets the answers it waits for, and gives those it
owes. How often a peer may do what costs us is the owner's to count: each frame that is not part of a call is an event.

Relies on `wire.frame_reader` and `wire.header_blocks`. Keeps twice ``streams`` streams at most. Does no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, ClassVar, Final

import msgspec

from penstock.wire import http2_frames as f
from penstock.wire.frame_reader import FrameReader
from penstock.wire.header_blocks import EMPTY_TABLE, Block, HeaderReader, block_of
from penstock.wire.http2_frames import (
    BrokenConnection,
    ConnectionTerminated,
    DataReceived,
    ErrorCodes,
    FrameEvent,
    Headers,
    Kind,
    PingAckReceived,
    PingReceived,
    PriorityUpdated,
    ProtocolError,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    Setting,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    UnknownFrameReceived,
    WindowUpdated,
    frame,
)

HEADER_LIST_BYTES: Final = 64 * 1024
"""Of headers where no limit is given."""
CLOSED_KEPT: Final = 128
"""Streams whose end a server remembers, to tell what is late from what is wrong."""
_CLOSED: Final = "the stream is closed"


class ConnectionSide(Enum):
    """Which side of a connection this is."""

    CLIENT = "client"
    SERVER = "server"


class Http2Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the peer may send ahead; and of a server, how much of what."""

    stream_window_bytes: int
    connection_window_bytes: int
    header_list_bytes: int | None = None
    streams: int | None = None


class Stream(msgspec.Struct, eq=False, gc=False):
    """A stream that is not closed."""

    receive_window: int
    remote_open: bool = True
    local_open: bool = True
    headed: bool = False
    """The headers of the answer were received."""
    sent: int = 0
    """What was sent, less what the peer opened its window by."""
    unopened: int = 0
    announced: int | None = None
    """The length of the body, where the peer said one."""
    received: int = 0


class Http2:
    """One side of a connection; its preface is ready to be sent. Methods raise ProtocolError, and nothing else.

    ``read_request`` makes of the headers of a request what its event carries; for a block that comes again it is not
    called again.
    """

    __slots__ = (
        "__weakref__", "_closed", "_closed_ids", "_events", "_frames", "_headers", "_highest_inbound", "_initial_send",
        "_initial_window", "_limits", "_max_frame", "_max_peer_streams", "_max_streams", "_next_id", "_out",
        "_receive_window", "_reset_ids", "_send_window", "_settled", "_streams", "_table", "_unopened", "role",
    )  # fmt: skip

    def __init__(
        self, role: ConnectionSide, limits: Http2Limits, read_request: Callable[[Headers], Any] = lambda headers: None
    ) -> None:
        self.role = role
        self._limits = limits
        header_bytes = limits.header_list_bytes or HEADER_LIST_BYTES
        self._frames = FrameReader(header_bytes, preface=role is ConnectionSide.SERVER)
        self._headers = HeaderReader(header_bytes, read_request)
        self._events: list[FrameEvent] = []
        self._out: list[bytes] = []
        self._settled = False  # the peer has acknowledged our settings
        self._closed = False
        self._streams: dict[int, Stream] = {}
        self._closed_ids: deque[int] = deque(maxlen=CLOSED_KEPT)
        self._reset_ids: deque[int] = deque(maxlen=CLOSED_KEPT)
        self._highest_inbound = 0
        self._next_id = 1
        self._initial_window = limits.stream_window_bytes
        self._receive_window = max(limits.connection_window_bytes, f.DEFAULT_WINDOW_BYTES)
        self._unopened = 0
        self._initial_send = self._send_window = f.DEFAULT_WINDOW_BYTES
        self._max_frame = f.FRAME_MAX_BYTES
        self._max_peer_streams = f.LAST_STREAM_ID
        self._table: bytes | None = b""  # what the next block begins with; None: the peer's table is empty for good
        # A client that has not yet seen our number of streams does nothing wrong: the transport refuses the single
        # stream at the right one.
        self._max_streams = f.LAST_STREAM_ID if limits.streams is None else 2 * limits.streams + 100
        self._greet()

    def _greet(self) -> None:
        limits = self._limits
        settings = [(Setting.INITIAL_WINDOW_SIZE, limits.stream_window_bytes)]
        if self.role is ConnectionSide.CLIENT:
            self._out.append(f.PREFACE)
            settings.append((Setting.ENABLE_PUSH, 0))
        if limits.streams is not None:
            settings.append((Setting.MAX_CONCURRENT_STREAMS, limits.streams))
        if limits.header_list_bytes is not None:
            settings.append((Setting.MAX_HEADER_LIST_SIZE, limits.header_list_bytes))
        self._out.append(frame(Kind.SETTINGS, 0, 0, b"".join([f.SETTING.pack(*each) for each in settings])))
        more = self._receive_window - f.DEFAULT_WINDOW_BYTES
        if more:
            self._out.append(frame(Kind.WINDOW_UPDATE, 0, 0, more.to_bytes(4, "big")))

    # ---------------------------------------------------------------------------------- in

    def receive(self, data: bytes | bytearray) -> list[FrameEvent]:
        """What the bytes say. Raises ProtocolError when they end the connection: its GOAWAY is ready to be sent."""
        self._check_alive()
        events = self._events = []
        try:
            for kind, flags, stream_id, body, length in self._frames.read(data):
                if kind == 0:
                    self._on_data(flags, stream_id, body, length)
                elif kind == 1:
                    self._on_headers(flags, stream_id, body)
                else:
                    self._handlers.get(kind, Http2._on_unknown)(self, flags, stream_id, body)
        except BrokenConnection as error:
            self.close(error.code, str(error).encode())
            raise
        return events

    def _on_data(self, flags: int, stream_id: int, body: bytes, length: int) -> None:
        self._receive_window -= length
        if self._receive_window < 0:
            raise BrokenConnection(ErrorCodes.FLOW_CONTROL_ERROR, "more data than the connection's window")
        stream = self._streams.get(stream_id)
        ended = flags & f.END_STREAM != 0
        if stream is None or not stream.remote_open:
            self._on_closed(stream_id)
        else:
            stream.receive_window -= length
            stream.received += len(body)
            announced = stream.announced
            if stream.receive_window < 0:
                self._fail(stream_id, ErrorCodes.FLOW_CONTROL_ERROR)
            elif announced is not None and (stream.received > announced or (ended and stream.received < announced)):
                self._fail(stream_id, ErrorCodes.PROTOCOL_ERROR)
            else:
                self._events.append(DataReceived(stream_id, body, length, ended))
                if ended:
                    self._end_remote(stream_id, stream)
                return
        self._events.append(DataReceived(stream_id, body, length))  # its bytes are to be given back

    def _on_headers(self, flags: int, stream_id: int, block: bytes) -> None:
        said = self._headers.read(block)  # of a closed stream, too: the table of headers is that of all
        stream = self._streams.get(stream_id)
        ended = flags & f.END_STREAM != 0
        if stream is None:
            if self.role is ConnectionSide.CLIENT or not self._is_new(stream_id):
                self._on_late_headers(stream_id)
                return
            self._highest_inbound = stream_id
            if len(self._streams) >= self._max_streams:
                raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "far more streams than were allowed")
            stream = self._open(stream_id)
            self._events.append(RequestReceived(stream_id, said.headers, said.request))
        elif not stream.remote_open:
            self._fail(stream_id, ErrorCodes.STREAM_CLOSED)
            return
        elif self.role is ConnectionSide.CLIENT and not stream.headed:
            if not ended and any(name == b":status" and value[:1] == b"1" for name, value in said.headers):
                self._events.append(UnknownFrameReceived(stream_id))
                return
            stream.headed = True
            self._events.append(ResponseReceived(stream_id, said.headers))
        elif not ended or any(name[:1] == b":" for name, _ in said.headers):
            self._fail(stream_id, ErrorCodes.PROTOCOL_ERROR)
            return
        else:
            said = Block(said.headers, stream.announced, None)
            self._events.append(TrailersReceived(stream_id, said.headers))
        stream.announced = said.content_length
        if ended:
            if said.content_length is not None and stream.received != said.content_length:
                self._fail(stream_id, ErrorCodes.PROTOCOL_ERROR)
            else:
                self._end_remote(stream_id, stream)

    def _on_late_headers(self, stream_id: int) -> None:
        """Headers of a stream that is not there."""
        if self.role is ConnectionSide.CLIENT:
            self._on_closed(stream_id)
        elif stream_id in self._closed_ids:
            raise BrokenConnection(ErrorCodes.STREAM_CLOSED, "HEADERS of a stream that was closed")
        elif stream_id not in self._reset_ids:
            raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "the numbers of streams must grow")
        self._events.append(UnknownFrameReceived(stream_id))

    def _on_priority(self, _flags: int, stream_id: int, _body: bytes) -> None:
        self._events.append(PriorityUpdated(stream_id))

    def _on_rst_stream(self, _: int, stream_id: int, body: bytes) -> None:
        self._check_not_idle(stream_id)
        if self._streams.pop(stream_id, None) is not None:
            self._closed_ids.append(stream_id)
        self._events.append(StreamReset(stream_id, int.from_bytes(body, "big")))

    def _on_settings(self, flags: int, _stream_id: int, body: bytes) -> None:
        if flags & f.ACK:
            self._settled = True
            self._events.append(SettingsAcknowledged())
            return
        given = dict(f.SETTING.iter_unpack(body))
        for number, value in f.SETTING.iter_unpack(body):
            f.check_setting(number, value)
        window = given.get(Setting.INITIAL_WINDOW_SIZE, self._initial_send)
        if window > self._initial_send and any(
            window - each.sent > f.WINDOW_MAX_BYTES for each in self._streams.values()
        ):
            raise BrokenConnection(ErrorCodes.FLOW_CONTROL_ERROR, "a window that overflows")
        self._initial_send = window
        self._max_frame = given.get(Setting.MAX_FRAME_SIZE, self._max_frame)
        self._max_peer_streams = given.get(Setting.MAX_CONCURRENT_STREAMS, self._max_peer_streams)
        if given.get(Setting.HEADER_TABLE_SIZE, f.HPACK_TABLE_BYTES) < f.HPACK_TABLE_BYTES and self._table is not None:
            self._table = EMPTY_TABLE
        self._out.append(frame(Kind.SETTINGS, f.ACK, 0))
        self._events.append(RemoteSettingsChanged())

    def _on_ping(self, flags: int, _stream_id: int, body: bytes) -> None:
        if flags & f.ACK:
            self._events.append(PingAckReceived(body))
        else:
            self._out.append(frame(Kind.PING, f.ACK, 0, body))
            self._events.append(PingReceived(body))

    def _on_goaway(self, _flags: int, _stream_id: int, body: bytes) -> None:
        last, code = int.from_bytes(body[:4], "big") & f.LAST_STREAM_ID, int.from_bytes(body[4:8], "big")
        self._events.append(ConnectionTerminated(code, last, body[8:] or None))

    def _on_window_update(self, _: int, stream_id: int, body: bytes) -> None:
        more = int.from_bytes(body, "big") & f.WINDOW_MAX_BYTES
        if not stream_id:
            self._send_window += more
            if not more or self._send_window > f.WINDOW_MAX_BYTES:
                code = ErrorCodes.FLOW_CONTROL_ERROR if more else ErrorCodes.PROTOCOL_ERROR
                raise BrokenConnection(code, "a window that overflows, or is opened by nothing")
        else:
            self._check_not_idle(stream_id)
            stream = self._streams.get(stream_id)
            if stream is not None:
                stream.sent -= more
                if not more or self._initial_send - stream.sent > f.WINDOW_MAX_BYTES:
                    self._fail(stream_id, ErrorCodes.FLOW_CONTROL_ERROR if more else ErrorCodes.PROTOCOL_ERROR)
                    return
        self._events.append(WindowUpdated(stream_id, more))

    def _on_unknown(self, _flags: int, stream_id: int, _body: bytes) -> None:
        self._events.append(UnknownFrameReceived(stream_id))

    # ---------------------------------------------------------------------------------- streams

    def _is_new(self, stream_id: int) -> bool:
        if not stream_id & 1:
            raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "a stream of a client has an odd number")
        return stream_id > self._highest_inbound

    def _check_not_idle(self, stream_id: int) -> None:
        top = self._highest_inbound if self.role is ConnectionSide.SERVER else self._next_id - 2
        if not stream_id & 1 or stream_id > top:
            raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "a frame of a stream that is idle")

    def _on_closed(self, stream_id: int) -> None:
        """A frame of a stream that the peer has ended; or that we have, which the peer may not know."""
        self._check_not_idle(stream_id)
        if stream_id in self._streams or (self.role is ConnectionSide.SERVER and stream_id not in self._reset_ids):
            self._fail(stream_id, ErrorCodes.STREAM_CLOSED)

    def _open(self, stream_id: int) -> Stream:
        window = self._initial_window if self._settled else max(self._initial_window, f.DEFAULT_WINDOW_BYTES)
        stream = self._streams[stream_id] = Stream(window)
        return stream

    def _fail(self, stream_id: int, code: ErrorCodes) -> None:
        """End a stream for what the peer did on it."""
        self._end(stream_id, code)
        self._events.append(StreamReset(stream_id, code, remote_reset=False))

    def _end(self, stream_id: int, code: ErrorCodes) -> None:
        self._streams.pop(stream_id, None)
        self._reset_ids.append(stream_id)
        self._out.append(frame(Kind.RST_STREAM, 0, stream_id, code.to_bytes(4, "big")))

    def _end_remote(self, stream_id: int, stream: Stream) -> None:
        stream.remote_open = False
        self._events.append(StreamEnded(stream_id))
        if not stream.local_open:
            del self._streams[stream_id]
            self._closed_ids.append(stream_id)

    def _end_local(self, stream_id: int, stream: Stream) -> None:
        stream.local_open = False
        if not stream.remote_open:
            del self._streams[stream_id]
            self._closed_ids.append(stream_id)

    # ---------------------------------------------------------------------------------- windows

    def acknowledge(self, flow_bytes: int, stream_id: int) -> None:
        """Received bytes were let go of: the peer may send as many more, told when it is worth a frame."""
        self._check_alive()
        self._unopened += flow_bytes
        if self._unopened * 2 >= self._limits.connection_window_bytes:
            self.open_window(self._unopened)
            self._unopened = 0
        stream = self._streams.get(stream_id)
        if stream is not None and stream.remote_open:
            stream.unopened += flow_bytes
            if stream.unopened * 2 >= self._initial_window:
                self.open_window(stream.unopened, stream_id)
                stream.unopened = 0

    def open_window(self, flow_bytes: int, stream_id: int | None = None) -> None:
        """Let the peer send so much more on a stream, or on the connection."""
        self._check_alive()
        if stream_id is None:
            self._receive_window += flow_bytes
        else:
            stream = self._streams.get(stream_id)
            if stream is None or not stream.remote_open:
                raise ProtocolError(_CLOSED)
            stream.receive_window += flow_bytes
        self._out.append(frame(Kind.WINDOW_UPDATE, 0, stream_id or 0, flow_bytes.to_bytes(4, "big")))

    @property
    def receive_window_bytes(self) -> int:
        """What the peer may send on the connection."""
        return self._receive_window

    # ---------------------------------------------------------------------------------- out

    def data_to_send(self) -> bytes:
        """What is to be sent, each byte once."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def send_headers(self, stream_id: int, headers: Iterable[tuple[bytes, bytes]], *, end_stream: bool = False) -> None:
        """Open a stream, answer it, or end it with trailers."""
        self._check_alive()
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._begin(stream_id)
        elif not stream.local_open:
            raise ProtocolError(_CLOSED)
        block = block_of(headers)
        if self._table:
            block, self._table = self._table + block, None
        flags = f.END_STREAM if end_stream else 0
        kind: int = Kind.HEADERS
        while len(block) > self._max_frame:
            self._out.append(frame(kind, flags, stream_id, block[: self._max_frame]))
            block, kind, flags = block[self._max_frame :], Kind.CONTINUATION, 0
        self._out.append(frame(kind, flags | f.END_HEADERS, stream_id, block))
        if end_stream:
            self._end_local(stream_id, stream)

    def send_data(self, stream_id: int, data: bytes, *, end_stream: bool = False) -> None:
        """A frame of at most `send_window_bytes` and `max_send_frame_bytes`."""
        stream, size = self._stream(stream_id), len(data)
        if size > min(self._initial_send - stream.sent, self._send_window, self._max_frame) and size:
            raise ProtocolError("more than the window or a frame takes")
        stream.sent += size
        self._send_window -= size
        self._out.append(frame(Kind.DATA, f.END_STREAM if end_stream else 0, stream_id, data))
        if end_stream:
            self._end_local(stream_id, stream)

    def send_window_bytes(self, stream_id: int) -> int:
        """What may be sent on a stream now."""
        return min(self._initial_send - self._stream(stream_id).sent, self._send_window)

    @property
    def max_send_frame_bytes(self) -> int:
        """The largest frame that the peer takes."""
        return self._max_frame

    def reset_stream(self, stream_id: int, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """End a stream, both ways."""
        self._check_alive()
        if stream_id not in self._streams:
            raise ProtocolError(_CLOSED)
        self._end(stream_id, code)

    def ping(self, data: bytes) -> None:
        """Eight bytes that come back."""
        self._check_alive()
        self._out.append(frame(Kind.PING, 0, 0, data))

    def _check_alive(self) -> None:
        if self._closed:
            raise ProtocolError("the connection is closed")

    def _stream(self, stream_id: int) -> Stream:
        """One on which we may send."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.local_open:
            raise ProtocolError(_CLOSED)
        return stream

    def _begin(self, stream_id: int) -> Stream:
        """Return a stream of ours."""
        if self.role is ConnectionSide.SERVER or stream_id != self._next_id:
            raise ProtocolError(_CLOSED)
        if not self.may_open_stream:
            raise ProtocolError("the peer takes no more streams at the same time")
        self._next_id += 2
        return self._open(stream_id)

    # ---------------------------------------------------------------------------------- our streams, and the end

    @property
    def has_stream_ids(self) -> bool:
        """Return whether there are numbers left for new streams of ours."""
        return self._next_id < f.LAST_STREAM_ID

    @property
    def may_open_stream(self) -> bool:
        """Return whether the peer takes one more stream at the same time."""
        return len(self._streams) < self._max_peer_streams

    def next_stream_id(self) -> int:
        """Return the number of the next stream of ours."""
        if not self.has_stream_ids:
            raise ProtocolError("no numbers are left for streams")
        return self._next_id

    def goaway(self, *, final: bool) -> bytes:
        """The frame that says "no new streams": with ``final`` from now on, else "soon".

        Not `close`: that would forbid the answers that are still due.
        """
        return self._goaway(self._highest_inbound if final else f.LAST_STREAM_ID, ErrorCodes.NO_ERROR, b"")

    def _goaway(self, last: int, code: ErrorCodes, reason: bytes) -> bytes:
        return frame(Kind.GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big") + reason)

    def close(self, code: ErrorCodes, reason: bytes = b"") -> None:
        """Say good-bye: nothing can be sent afterwards but what `data_to_send` has."""
        self._check_alive()
        self._closed = True
        self._streams.clear()
        self._out.append(self._goaway(self._highest_inbound, code, reason))

    _handlers: ClassVar[dict[int, Callable[[Http2, int, int, bytes], None]]] = {
        Kind.PRIORITY: _on_priority,
        Kind.RST_STREAM: _on_rst_stream,
        Kind.SETTINGS: _on_settings,
        Kind.PING: _on_ping,
        Kind.GOAWAY: _on_goaway,
        Kind.WINDOW_UPDATE: _on_window_update,
    }
