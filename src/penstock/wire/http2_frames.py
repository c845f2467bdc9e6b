"""HTTP/2's frames, codes and settings by their numbers (RFC 9113), and what a connection tells its owner: its events.

Does no I/O and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct as Layout
from typing import Any, Final

import msgspec

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
FRAME_MAX_BYTES: Final = 16_384
"""The largest payload that is taken: what every peer may send. A larger one is never asked for."""
FRAME_TOP_BYTES: Final = 2**24 - 1
WINDOW_MAX_BYTES: Final = 2**31 - 1
LAST_STREAM_ID: Final = 2**31 - 1
DEFAULT_WINDOW_BYTES: Final = 65_535
"""What either side may send before it hears of a larger window."""
HPACK_TABLE_BYTES: Final = 4_096
"""A peer's table of header fields, before it says otherwise; and ours, for good."""

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

HEAD: Final = Layout(">IBI")
"""Length and type in one number, flags, stream."""
SETTING: Final = Layout(">HI")


class Kind(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """Settings that are looked at; others mean nothing."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCodes(IntEnum):
    """Why a stream or a connection ended."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


Headers = Sequence[tuple[bytes, bytes]]


class ProtocolError(Exception):
    """The peer broke the protocol, or what was asked for can't be done in this state of the connection or stream."""


class BrokenConnection(ProtocolError):
    """The peer broke the protocol in a way that ends the connection."""

    def __init__(self, code: ErrorCodes, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return HEAD.pack(len(body) << 8 | kind, flags, stream_id) + body


def check_setting(number: int, value: int) -> None:
    """Raises BrokenConnection for a value that the setting can't have."""
    if number == Setting.ENABLE_PUSH and value > 1:
        raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
    if number == Setting.INITIAL_WINDOW_SIZE and value > WINDOW_MAX_BYTES:
        raise BrokenConnection(ErrorCodes.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
    if number == Setting.MAX_FRAME_SIZE and not FRAME_MAX_BYTES <= value <= FRAME_TOP_BYTES:
        raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of its range")


class FrameEvent(msgspec.Struct):
    """Something that the peer's bytes said."""


class RequestReceived(FrameEvent):
    """A client has opened a stream."""

    stream_id: int
    headers: Headers
    request: Any = None
    """What the server's reader of requests made of the headers."""


class CallReceived(FrameEvent):
    """A request that came whole: its headers, and all its data in one frame, which has ended it."""

    stream_id: int
    headers: Headers
    request: Any
    data: bytes


class ResponseReceived(FrameEvent):
    """The headers of an answer."""

    stream_id: int
    headers: Headers


class TrailersReceived(FrameEvent):
    """The headers behind a body."""

    stream_id: int
    headers: Headers


class DataReceived(FrameEvent):
    """Part of a body; or bytes of a stream that has ended here, which only have to be acknowledged."""

    stream_id: int
    data: bytes
    flow_controlled_length: int
    """What it used of the windows, padding included."""
    stream_ended: bool = False


class StreamEnded(FrameEvent):
    """The peer will send no more on a stream."""

    stream_id: int


class StreamReset(FrameEvent):
    """A stream is over: the peer has reset it, or we, for what the peer did on it."""

    stream_id: int
    error_code: int
    remote_reset: bool = True


class WindowUpdated(FrameEvent):
    """The peer takes more on a stream, or, with 0, on the connection."""

    stream_id: int
    delta: int


class RemoteSettingsChanged(FrameEvent):
    """The peer's settings, acknowledged."""


class SettingsAcknowledged(FrameEvent):
    """The peer knows ours."""


class PingReceived(FrameEvent):
    """A ping, answered."""

    ping_data: bytes


class PingAckReceived(FrameEvent):
    """The answer to a ping."""

    ping_data: bytes


class PriorityUpdated(FrameEvent):
    """A frame of a scheme that is not in use any more."""

    stream_id: int


class UnknownFrameReceived(FrameEvent):
    """A frame that means nothing here: of an unknown type, or headers of a stream that we have reset."""

    stream_id: int


class ConnectionTerminated(FrameEvent):
    """The peer's GOAWAY. Streams up to ``last_stream_id`` go on."""

    error_code: int
    last_stream_id: int
    additional_data: bytes | None = None
