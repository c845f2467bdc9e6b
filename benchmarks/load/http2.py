"""HTTP/2 with gRPC on it as the load generator needs it: frames built by hand, answers read with little work.

A tenth of what the h2 library costs. Request headers never touch the server's header table, so their bytes are made
once; answers' headers are decoded by hpack where they may change its table, and looked up where they can't. Windows
are opened wide at the start; what the server allows us is counted, and running out of it is a failure of the
generator, never a wait. Must not know what messages mean; that is `grpc_scripts.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from hpack import Decoder

from benchmarks.load.loop import Connection

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
FRAME_MAX_BYTES = 16_384
FIRST_WINDOW_BYTES = 65_535
WINDOW_MAX_BYTES = 2**31 - 1
REOPEN_BYTES = 2**29
USER_AGENT = "grpc-go/1.76.0"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_OPEN = WINDOW_MAX_BYTES - FIRST_WINDOW_BYTES


class UnexpectedFrame(Exception):
    """The server did what no gRPC server does to a client that behaves."""


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + body


def setting(number: int, value: int) -> bytes:
    return number.to_bytes(2, "big") + value.to_bytes(4, "big")


def greeting() -> bytes:
    """What a client says first: no push, and windows that never close."""
    settings = setting(2, 0) + setting(4, WINDOW_MAX_BYTES)
    return PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, _OPEN.to_bytes(4, "big"))


def header_block(path: str, host: str) -> bytes:
    """A gRPC request's headers, each a literal that is not kept (RFC 7541, 6.2.2) or an entry of the static table."""

    def literal(start: bytes, value: str) -> bytes:
        return start + bytes((len(value),)) + value.encode()

    method_and_scheme = b"\x83\x86"
    return b"".join(
        (
            method_and_scheme, literal(b"\x04", path), literal(b"\x01", host),
            literal(b"\x0f\x10", "application/grpc"), literal(b"\x0f\x2b", USER_AGENT),
            literal(b"\x00\x02te", "trailers"),
        )
    )  # fmt: skip


def message(body: bytes) -> bytes:
    """gRPC's frame of one message: not compressed, its length."""
    return b"\0" + len(body).to_bytes(4, "big") + body


class Http2:
    """One connection. ``on_message`` gets each message of an answer, ``on_end`` the status when a call has ended."""

    def __init__(self, host: str, on_message: Callable[[bytes], None], on_end: Callable[[int], None]) -> None:
        self._host = host
        self._on_message = on_message
        self._on_end = on_end
        self._connection: Connection | None = None
        self._blocks: dict[str, bytes] = {}
        self._received = b""
        self._message = b""
        self._stream_id = -1
        self._window = FIRST_WINDOW_BYTES
        self._stream_window = FIRST_WINDOW_BYTES
        self._first_stream_window = FIRST_WINDOW_BYTES
        self._unopened = 0
        self._decoder = Decoder()
        self._known: dict[bytes, int] = {}

    def begin(self, connection: Connection) -> None:
        self._connection = connection
        connection.send(greeting())

    # -- out: one call at a time

    def call(self, path: str, body: bytes, *, end: bool) -> bytes:
        """The bytes of a new call with its first message; ``end``: and its last."""
        block = self._blocks.get(path)
        if block is None:
            block = self._blocks[path] = header_block(path, self._host)
        self._stream_id += 2
        self._stream_window = self._first_stream_window
        return frame(HEADERS, END_HEADERS, self._stream_id, block) + self.more(body, end=end)

    def more(self, body: bytes, *, end: bool = False) -> bytes:
        """The bytes of one more message of the call."""
        data = message(body)
        self._window -= len(data)
        self._stream_window -= len(data)
        if self._window < 0 or self._stream_window < 0:
            raise UnexpectedFrame("the server's window is used up")
        flags = END_STREAM if end else 0
        if len(data) <= FRAME_MAX_BYTES:
            return frame(DATA, flags, self._stream_id, data)
        parts = [data[begin : begin + FRAME_MAX_BYTES] for begin in range(0, len(data), FRAME_MAX_BYTES)]
        last = parts.pop()
        return b"".join(frame(DATA, 0, self._stream_id, part) for part in parts) + frame(
            DATA, flags, self._stream_id, last
        )

    # -- in

    def received(self, data: bytes) -> None:
        """Take what came; whole frames are dealt with."""
        data = self._received + data if self._received else data
        pos, size = 0, len(data)
        while size - pos >= 9:
            end = pos + 9 + int.from_bytes(data[pos : pos + 3], "big")
            if end > size:
                break
            stream_id = int.from_bytes(data[pos + 5 : pos + 9], "big")
            self._frame(data[pos + 3], data[pos + 4], stream_id, data[pos + 9 : end])
            pos = end
        self._received = data[pos:]

    def _frame(self, kind: int, flags: int, stream_id: int, body: bytes) -> None:
        if kind == DATA:
            self._data(body)
        elif kind == HEADERS:
            status = self._headers(body)
            if flags & END_STREAM:
                self._on_end(status)
        elif kind == WINDOW_UPDATE:
            if stream_id == 0:
                self._window += int.from_bytes(body, "big")
            elif stream_id == self._stream_id:
                self._stream_window += int.from_bytes(body, "big")
        elif kind == SETTINGS and not flags & ACK:
            self._settings(body)
        elif kind == PING and not flags & ACK:
            self._send(frame(PING, ACK, 0, body))
        elif (kind == RST_STREAM and stream_id == self._stream_id) or kind == GOAWAY:
            raise UnexpectedFrame(f"the server ended the stream or the connection: {body!r}")

    def _data(self, body: bytes) -> None:
        self._unopened += len(body)
        if self._unopened > REOPEN_BYTES:  # half a gibibyte before the windows would close
            more = self._unopened.to_bytes(4, "big")
            self._send(frame(WINDOW_UPDATE, 0, 0, more) + frame(WINDOW_UPDATE, 0, self._stream_id, more))
            self._unopened = 0
        data = self._message + body if self._message else body
        pos, size = 0, len(data)
        while size - pos >= 5:
            end = pos + 5 + int.from_bytes(data[pos + 1 : pos + 5], "big")
            if end > size:
                break
            self._on_message(data[pos + 5 : end])
            pos = end
        self._message = data[pos:]

    def _headers(self, block: bytes) -> int:
        """The grpc-status in a header block, -1 without one."""
        status = self._known.get(block)
        if status is None:
            headers = dict(self._decoder.decode(block))
            status = int(headers.get("grpc-status", -1))
            if min(block) >= 0x80:  # only looked up: the same bytes say the same until the table changes
                self._known[block] = status
            else:
                self._known.clear()
        return status

    def _settings(self, body: bytes) -> None:
        for at in range(0, len(body), 6):
            if body[at : at + 2] == b"\0\4":  # INITIAL_WINDOW_SIZE
                first = int.from_bytes(body[at + 2 : at + 6], "big")
                self._stream_window += first - self._first_stream_window
                self._first_stream_window = first
        self._send(frame(SETTINGS, ACK, 0))

    def _send(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.send(data)
