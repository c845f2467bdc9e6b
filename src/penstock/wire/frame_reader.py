"""From the bytes of an HTTP/2 connection to whole frames: preface, lengths, padding, and blocks of headers that several
frames carry (RFC 9113, 3.4, 4 and 6). What a frame means in which state is `wire.http2`'s.

Keeps at most a frame and a block of headers. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.wire import http2_frames as f
from penstock.wire.http2_frames import BrokenConnection, ErrorCodes, Kind

CONTINUATIONS_MAX: Final = 64
"""Frames behind the first of one block of headers."""
_LENGTHS: Final[dict[int, int]] = {Kind.PRIORITY: 5, Kind.RST_STREAM: 4, Kind.PING: 8, Kind.WINDOW_UPDATE: 4}
_OF_THE_CONNECTION: Final = frozenset({Kind.SETTINGS, Kind.PING, Kind.GOAWAY})
_OF_A_STREAM: Final = frozenset({Kind.DATA, Kind.HEADERS, Kind.PRIORITY, Kind.RST_STREAM})

Frame = tuple[int, int, int, bytes, int]
"""Type, flags, stream, payload without padding and priority, and what of the windows it used."""


class FrameReader:
    """Of one connection."""

    __slots__ = ("_block", "_block_bytes", "_block_frames", "_block_max_bytes", "_greeted", "_preface", "_unread")

    def __init__(self, block_max_bytes: int, *, preface: bool) -> None:
        """``preface``: the peer is a client, whose first bytes are no frame."""
        self._block_max_bytes = block_max_bytes
        self._preface = f.PREFACE if preface else b""
        self._unread = b""
        self._greeted = False  # its first frame was there
        self._block: tuple[int, int, list[bytes]] | None = None  # flags, stream and parts, while it is not whole
        self._block_bytes = self._block_frames = 0

    @property
    def is_between_frames(self) -> bool:
        """The peer has greeted, and nothing of a frame or of a block is there yet."""
        return self._greeted and not self._unread and self._block is None

    def read(self, data: bytes | bytearray) -> Iterator[Frame]:
        """The frames that are whole with these bytes. Raises BrokenConnection."""
        found = self._unread + data if self._unread else bytes(data)
        self._unread = b""
        pos, size, unpack = self._read_preface(found), len(found), f.HEAD.unpack_from
        while size - pos >= f.HEAD_BYTES:
            word, flags, stream_id = unpack(found, pos)
            length, kind = word >> 8, word & 0xFF
            if length > f.FRAME_MAX_BYTES:
                raise BrokenConnection(ErrorCodes.FRAME_SIZE_ERROR, f"a frame of more than {f.FRAME_MAX_BYTES} bytes")
            end = pos + f.HEAD_BYTES + length
            if end > size:
                break
            body = found[pos + f.HEAD_BYTES : end]
            pos = end
            stream_id &= f.LAST_STREAM_ID
            if self._block is not None:
                whole = self._continue(kind, flags, stream_id, body)
                if whole is not None:
                    yield whole
            elif kind == 0 and self._greeted:
                yield 0, flags, stream_id, (_unpadded(body) if flags & f.PADDED else body), length
            elif kind == 1 and self._greeted:
                body = _without_priority(flags, stream_id, body)
                if len(body) > self._block_max_bytes:
                    raise self._too_long()
                if flags & f.END_HEADERS:
                    yield 1, flags, stream_id, body, length
                else:
                    self._block, self._block_bytes, self._block_frames = (flags, stream_id, [body]), len(body), 0
            else:
                self._check(kind, flags, stream_id, body)
                yield kind, flags, stream_id, body, length
        self._unread = found[pos:]

    def _read_preface(self, found: bytes) -> int:
        """Where the frames begin."""
        if not self._preface:
            return 0
        part = min(len(self._preface), len(found))
        if found[:part] != self._preface[:part]:
            raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "this is not HTTP/2")
        self._preface = self._preface[part:]
        return part

    def _too_long(self) -> BrokenConnection:
        return BrokenConnection(ErrorCodes.ENHANCE_YOUR_CALM, f"headers of more than {self._block_max_bytes} bytes")

    def _continue(self, kind: int, flags: int, stream_id: int, body: bytes) -> Frame | None:
        """The HEADERS that are whole with this frame."""
        assert self._block is not None
        begun_flags, begun_id, parts = self._block
        if kind != Kind.CONTINUATION or stream_id != begun_id:
            raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "a frame within a block of headers")
        parts.append(body)
        self._block_bytes += len(body)
        self._block_frames += 1
        if self._block_bytes > self._block_max_bytes or self._block_frames > CONTINUATIONS_MAX:
            raise self._too_long()
        if not flags & f.END_HEADERS:
            return None
        self._block = None
        return 1, begun_flags, begun_id, b"".join(parts), 0

    def _check(self, kind: int, flags: int, stream_id: int, body: bytes) -> None:
        """What can be said of a frame of any type without knowing its stream."""
        if not self._greeted:
            if kind != Kind.SETTINGS or flags & f.ACK:
                raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._greeted = True
        if kind in (Kind.CONTINUATION, Kind.PUSH_PROMISE):
            raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, f"{Kind(kind).name} was not to come")
        if (kind in _OF_THE_CONNECTION and stream_id) or (kind in _OF_A_STREAM and not stream_id):
            raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, f"{Kind(kind).name} of stream {stream_id}")
        wrong = len(body) != _LENGTHS.get(kind, len(body))
        if kind == Kind.SETTINGS:
            wrong = len(body) % f.SETTING.size != 0 or (flags & f.ACK != 0 and len(body) > 0)
        if wrong or (kind == Kind.GOAWAY and len(body) < 8):
            raise BrokenConnection(ErrorCodes.FRAME_SIZE_ERROR, f"{Kind(kind).name} has another length")
        if kind == Kind.PRIORITY:
            _without_priority(f.PRIORITY_FLAG, stream_id, body)


def _unpadded(body: bytes) -> bytes:
    if not body or body[0] >= len(body):
        raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "padding longer than the frame")
    return body[1 : len(body) - body[0]]


def _without_priority(flags: int, stream_id: int, body: bytes) -> bytes:
    """The part of HEADERS that is a block."""
    if not stream_id:
        raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "HEADERS of no stream")
    if flags & f.PADDED:
        body = _unpadded(body)
    if flags & f.PRIORITY_FLAG:
        if len(body) < 5:
            raise BrokenConnection(ErrorCodes.FRAME_SIZE_ERROR, "HEADERS are shorter than their priority")
        if int.from_bytes(body[:4], "big") & f.LAST_STREAM_ID == stream_id:
            raise BrokenConnection(ErrorCodes.PROTOCOL_ERROR, "a stream that depends on itself")
        body = body[5:]
    return body
