"""What a client may not do on an HTTP/2 connection, and the error that each of it is (RFC 9113, 5 to 8), as h2spec
asks, which `tests.wire.h2spec` runs."""

from __future__ import annotations

import struct

import pytest

from penstock.wire.frame_reader import CONTINUATIONS_MAX
from penstock.wire.header_blocks import block_of
from penstock.wire.http2 import ConnectionSide, Http2, Http2Limits
from penstock.wire.http2_frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_MAX_BYTES,
    PADDED,
    PREFACE,
    PRIORITY_FLAG,
    DataReceived,
    ErrorCodes,
    FrameEvent,
    Kind,
    PingReceived,
    ProtocolError,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    UnknownFrameReceived,
    frame,
)

REQUEST = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B"), (b":authority", b"here"))
BLOCK = block_of(REQUEST)
HELLO = PREFACE + frame(Kind.SETTINGS, 0, 0)
WINDOW_BYTES = 100_000


def server() -> Http2:
    limits = Http2Limits(
        stream_window_bytes=WINDOW_BYTES, connection_window_bytes=2 * WINDOW_BYTES, header_list_bytes=2_000, streams=3
    )
    http2 = Http2(ConnectionSide.SERVER, limits)
    http2.data_to_send()
    return http2


def opened(stream_id: int = 1, flags: int = END_HEADERS, block: bytes = BLOCK) -> bytes:
    return frame(Kind.HEADERS, flags, stream_id, block)


def with_length(length: bytes) -> bytes:
    return opened(block=block_of([*REQUEST, (b"content-length", length)]))


def said(data: bytes) -> list[tuple[int, int, bytes]]:
    """Type, stream and payload of each frame."""
    found = []
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        found.append((data[3], int.from_bytes(data[5:9], "big"), data[9:end]))
        data = data[end:]
    return found


def setting(number: int, value: int) -> bytes:
    return frame(Kind.SETTINGS, 0, 0, struct.pack(">HI", number, value))


def update(stream_id: int, more: int) -> bytes:
    return frame(Kind.WINDOW_UPDATE, 0, stream_id, more.to_bytes(4, "big"))


P, S, C, FS, FC, H, CALM = (
    ErrorCodes.PROTOCOL_ERROR, ErrorCodes.STREAM_CLOSED, ErrorCodes.CANCEL, ErrorCodes.FRAME_SIZE_ERROR,
    ErrorCodes.FLOW_CONTROL_ERROR, ErrorCodes.COMPRESSION_ERROR, ErrorCodes.ENHANCE_YOUR_CALM,
)  # fmt: skip
RESET = frame(Kind.RST_STREAM, 0, 1, C.to_bytes(4, "big"))
WHOLE = opened(flags=END_HEADERS | END_STREAM)
BODY = frame(Kind.DATA, 0, 1, b"x")
LONG = b"\0" * (FRAME_MAX_BYTES + 1)

ENDS_CONNECTION: dict[str, tuple[ErrorCodes, bytes]] = {
    "an even stream": (P, opened(2)),
    "a stream below another": (P, opened(5) + opened(3)),
    "headers behind the end": (S, opened() + RESET + opened()),
    "headers of no stream": (P, opened(0)),
    "data of no stream": (P, frame(Kind.DATA, 0, 0, b"x")),
    "data before headers": (P, BODY),
    "a reset of what never was": (P, RESET),
    "a window of what never was": (P, update(1, 1)),
    "a reset of the connection": (P, frame(Kind.RST_STREAM, 0, 0, bytes(4))),
    "a priority of the connection": (P, frame(Kind.PRIORITY, 0, 0, bytes(5))),
    "a priority on itself": (P, frame(Kind.PRIORITY, 0, 1, b"\0\0\0\1\0")),
    "headers that depend on themselves": (P, opened(flags=END_HEADERS | PRIORITY_FLAG, block=b"\0\0\0\1\0" + BLOCK)),
    "headers shorter than a priority": (FS, opened(flags=END_HEADERS | PRIORITY_FLAG, block=b"\0")),
    "a ping of a stream": (P, frame(Kind.PING, 0, 1, bytes(8))),
    "a short ping": (FS, frame(Kind.PING, 0, 0, bytes(7))),
    "a short reset": (FS, opened() + frame(Kind.RST_STREAM, 0, 1, bytes(3))),
    "a short window": (FS, frame(Kind.WINDOW_UPDATE, 0, 0, bytes(3))),
    "a long priority": (FS, frame(Kind.PRIORITY, 0, 1, bytes(6))),
    "a short goaway": (FS, frame(Kind.GOAWAY, 0, 0, bytes(7))),
    "a goaway of a stream": (P, frame(Kind.GOAWAY, 0, 1, bytes(8))),
    "settings of a stream": (P, frame(Kind.SETTINGS, 0, 1)),
    "settings of five bytes": (FS, frame(Kind.SETTINGS, 0, 0, bytes(5))),
    "an acknowledgement with settings": (FS, frame(Kind.SETTINGS, ACK, 0, bytes(6))),
    "push that is neither on nor off": (P, setting(2, 2)),
    "a first window too large": (FC, setting(4, 2**31)),
    "a frame size too small": (P, setting(5, 16_383)),
    "a frame size too large": (P, setting(5, 2**24)),
    "a first window that overflows one": (FC, opened() + update(1, 2**31 - 1 - 65_535) + setting(4, 65_536)),
    "a window opened by nothing": (P, update(0, 0)),
    "a window that overflows": (FC, update(0, 2**31 - 1)),
    "more than the connection's window": (FC, opened() + frame(Kind.DATA, 0, 1, LONG[1:]) * 13),
    "a push": (P, frame(Kind.PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + BLOCK)),
    "the rest of nothing": (P, frame(Kind.CONTINUATION, END_HEADERS, 1, BLOCK)),
    "a frame within headers": (P, opened(flags=0) + frame(Kind.PING, 0, 0, bytes(8))),
    "an unknown frame within headers": (P, opened(flags=0) + frame(0x77, 0, 1)),
    "headers of another stream within headers": (P, opened(flags=0) + frame(Kind.CONTINUATION, END_HEADERS, 3)),
    "headers in too many frames": (CALM, opened(flags=0) + frame(Kind.CONTINUATION, 0, 1) * (CONTINUATIONS_MAX + 1)),
    "headers that do not end": (CALM, opened(flags=0) + frame(Kind.CONTINUATION, 0, 1, bytes(2_000))),
    "too long a block": (CALM, opened(block=bytes(2_001))),
    "a block that says more than its bytes": (CALM, opened(block=b"\x40\x01a\x7f\x80\x01" + b"b" * 255 + b"\xbe" * 8)),
    "padding longer than data": (P, opened() + frame(Kind.DATA, PADDED, 1, b"\2\0")),
    "padding longer than headers": (P, opened(flags=END_HEADERS | PADDED, block=b"\xff" + BLOCK)),
    "padding without its length": (P, opened() + frame(Kind.DATA, PADDED, 1)),
    "a large frame": (FS, opened() + LONG[:1] + b"\x40\x01" + bytes(6)),
    "an index of nothing": (H, opened(block=b"\x80")),
    "an index beyond the table": (H, opened(block=b"\xbe")),
    "a table too large": (H, opened(block=b"\x3f\xe2\x1f" + BLOCK)),
    "a table's size behind a field": (H, opened(block=BLOCK + b"\x20")),
    "a number without end": (H, opened(block=b"\xff" + b"\xff" * 9)),
    "a text that is cut off": (H, opened(block=b"\x00\x05ab")),
    "a field that is cut off": (H, opened(block=b"\x00")),
    "a Huffman code with the end in it": (H, opened(block=b"\x00\x01a\x84\xff\xff\xff\xff")),
    "a length that is not a number": (P, with_length(b"-1")),
    "two lengths": (P, opened(block=block_of([*REQUEST, (b"content-length", b"1"), (b"content-length", b"2")]))),
    "far too many streams": (P, b"".join(opened(number) for number in range(1, 300, 2))),
}  # fmt: skip

ENDS_STREAM: dict[str, tuple[ErrorCodes, bytes]] = {
    "data behind the end": (S, WHOLE + BODY),
    "headers behind the end": (S, WHOLE + opened()),
    "data behind a reset": (S, opened() + RESET + BODY),
    "headers in the middle": (P, opened() + opened()),
    "trailers with a path": (P, opened() + WHOLE),
    "more than the stream's window": (FC, opened() + frame(Kind.DATA, 0, 1, LONG[1:]) * 7),
    "a window opened by nothing": (P, opened() + update(1, 0)),
    "a window that overflows": (FC, opened() + update(1, 2**31 - 1)),
    "less than was announced": (P, with_length(b"3") + frame(Kind.DATA, END_STREAM, 1, b"xx")),
    "more than was announced": (P, with_length(b"1") + frame(Kind.DATA, 0, 1, b"xx")),
    "nothing of what was announced": (P, opened(flags=5, block=block_of([*REQUEST, (b"content-length", b"3")]))),
    "less than announced, with trailers": (P, with_length(b"3") + opened(flags=5, block=b"\x00\x01a\x01b")),
}


@pytest.mark.parametrize("what", ENDS_CONNECTION)
def test_a_connection_is_ended_with_its_code(what: str) -> None:
    code, data = ENDS_CONNECTION[what]
    http2 = server()
    with pytest.raises(ProtocolError):
        http2.receive(HELLO + data)
    kind, stream_id, body = said(http2.data_to_send())[-1]
    assert (kind, stream_id, body[4:8]) == (Kind.GOAWAY, 0, code.to_bytes(4, "big"))
    for refused in (lambda: http2.receive(HELLO), lambda: http2.ping(bytes(8)), lambda: http2.send_data(1, b"")):
        with pytest.raises(ProtocolError):
            refused()


@pytest.mark.parametrize("what", ENDS_STREAM)
def test_a_stream_is_ended_alone_and_its_bytes_given_back(what: str) -> None:
    code, data = ENDS_STREAM[what]
    http2 = server()
    before = http2.receive_window_bytes
    events = http2.receive(HELLO + data)
    assert said(http2.data_to_send())[-1] == (Kind.RST_STREAM, 1, code.to_bytes(4, "big"))
    assert [(each.stream_id, each.error_code) for each in events if isinstance(each, StreamReset)][-1] == (1, code)
    flow_bytes = sum(each.flow_controlled_length for each in events if isinstance(each, DataReceived))
    assert http2.receive_window_bytes + flow_bytes == before
    assert kinds(http2.receive(opened(3))) == [RequestReceived]
    assert kinds(http2.receive(BODY)) == [DataReceived]  # it may not have known
    assert said(http2.data_to_send()) == []


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSN"])
def test_another_beginning_is_no_http2(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        server().receive(data)


@pytest.mark.parametrize("first", [frame(Kind.PING, 0, 0, bytes(8)), frame(Kind.SETTINGS, ACK, 0), opened(), BODY])
def test_the_first_frame_is_settings(first: bytes) -> None:
    with pytest.raises(ProtocolError, match="the first frame"):
        server().receive(PREFACE + first)


def test_bytes_one_by_one_say_what_they_say_together() -> None:
    block = block_of([*REQUEST, (b"x", b"y" * 300)])
    frames = [
        frame(Kind.PING, 0, 0, b"12345678"),
        frame(Kind.HEADERS, PADDED | PRIORITY_FLAG, 1, b"\2\0\0\0\0\0" + block[:7] + b"\0\0"),
        frame(Kind.CONTINUATION, 0, 1, block[7:100]),
        frame(Kind.CONTINUATION, END_HEADERS, 1, block[100:]),
        frame(Kind.DATA, PADDED, 1, b"\3abc\0\0\0"),
        frame(0x77, 0xFF, 1, b"?"),
        frame(Kind.PRIORITY, 0, 9, bytes(5)),
        opened(flags=END_HEADERS | END_STREAM, block=b"\x00\x01a\x01b"),
        update(1, 7),
        opened(3),
    ]
    data = HELLO + b"".join(frames)
    whole, cut = server(), server()
    events = whole.receive(data)
    assert events == [event for byte in data for event in cut.receive(bytes([byte]))]
    assert whole.data_to_send() == cut.data_to_send()
    found = {type(event): event for event in events}
    assert found[PingReceived] == PingReceived(b"12345678")
    assert found[DataReceived] == DataReceived(1, b"abc", 7)
    assert found[TrailersReceived] == TrailersReceived(1, ((b"a", b"b"),))
    assert found[StreamEnded] == StreamEnded(1)
    assert found[UnknownFrameReceived] == UnknownFrameReceived(1)
    assert events[2] == RequestReceived(1, (*REQUEST, (b"x", b"y" * 300)))


def test_what_a_client_could_not_know_is_passed_over() -> None:
    http2 = server()
    http2.receive(HELLO + opened())
    http2.reset_stream(1)
    late = BODY + opened(flags=END_HEADERS | END_STREAM, block=b"\x00\x01a\x01b") + update(1, 9) + RESET
    events = http2.receive(late)
    assert kinds(events)[:2] == [DataReceived, UnknownFrameReceived]
    http2.data_to_send()
    http2.receive(opened(3, flags=END_HEADERS | END_STREAM))
    http2.send_headers(3, ((b":status", b"200"),), end_stream=True)
    http2.data_to_send()
    http2.receive(update(3, 1) + frame(Kind.RST_STREAM, 0, 3, bytes(4)))
    assert http2.data_to_send() == b""


def test_a_smaller_table_of_a_client_is_emptied_once() -> None:
    http2 = server()
    http2.receive(HELLO + setting(1, 100) + opened() + opened(3))
    http2.data_to_send()
    for stream_id in (1, 3):
        http2.send_headers(stream_id, ((b":status", b"200"),))
    assert [body for _, _, body in said(http2.data_to_send())] == [b"\x20\x88", b"\x88"]


def test_settings_change_the_windows_of_open_streams() -> None:
    http2 = server()
    http2.receive(HELLO + opened())
    http2.send_headers(1, ((b":status", b"200"),))
    http2.send_data(1, b"x" * 1_000)
    http2.receive(setting(4, 500))
    assert http2.send_window_bytes(1) == -500
    with pytest.raises(ProtocolError):
        http2.send_data(1, b"x")
    http2.send_data(1, b"", end_stream=True)
    with pytest.raises(ProtocolError):
        http2.send_data(1, b"")


def test_long_headers_leave_in_frames_that_the_client_takes() -> None:
    http2 = server()
    http2.receive(HELLO + opened())
    http2.data_to_send()
    http2.send_headers(1, [(b"x", b"y" * 40_000)], end_stream=True)
    found = said(http2.data_to_send())
    assert [kind for kind, _, _ in found] == [Kind.HEADERS, Kind.CONTINUATION, Kind.CONTINUATION]
    assert b"".join(body for _, _, body in found) == block_of([(b"x", b"y" * 40_000)])


def kinds(events: list[FrameEvent]) -> list[type[FrameEvent]]:
    return [type(event) for event in events]
