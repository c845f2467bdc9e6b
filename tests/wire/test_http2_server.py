"""The short way for unary calls says and does what the long way would, whatever the bytes."""

from __future__ import annotations

import random

import pytest
from hpack import Encoder

from penstock.wire.http2 import ConnectionSide, Http2, Http2Limits
from penstock.wire.http2_frames import (
    PREFACE,
    CallReceived,
    DataReceived,
    FrameEvent,
    Kind,
    ProtocolError,
    RequestReceived,
    StreamEnded,
    StreamReset,
    frame,
)
from penstock.wire.http2_server import HeadersFrame, Http2Server
from tests.wire.test_http2 import ANSWER, REQUEST

LIMITS = Http2Limits(stream_window_bytes=2_000, connection_window_bytes=70_000, header_list_bytes=2_000, streams=5)
WIDE = Http2Limits(stream_window_bytes=65_535, connection_window_bytes=65_535, header_list_bytes=2_000, streams=5)
GREETING = PREFACE + frame(Kind.SETTINGS, 0, 0)
KNOWN = frame(Kind.SETTINGS, 1, 0)
OK = ((b"grpc-status", b"0"),)


def block(*more: tuple[bytes, bytes]) -> bytes:
    client = Http2(ConnectionSide.CLIENT, Http2Limits(stream_window_bytes=70_000, connection_window_bytes=70_000))
    client.data_to_send()
    client.send_headers(1, [*REQUEST, *more])
    return client.data_to_send()[9:]


BLOCK, SIZED = block(), block((b"content-length", b"20"))


def call(stream_id: int, body: bytes, headers: bytes = BLOCK) -> bytes:
    return frame(Kind.HEADERS, 4, stream_id, headers) + frame(Kind.DATA, 1, stream_id, body)


def both(limits: Http2Limits = LIMITS) -> tuple[Http2Server, Http2]:
    pair = Http2Server(limits, tuple), Http2(ConnectionSide.SERVER, limits, tuple)
    for http2 in pair:
        http2.receive(GREETING)
        http2.data_to_send()
    return pair


def spelled(events: list[FrameEvent]) -> list[FrameEvent]:
    """Without the event that stands for three."""
    found: list[FrameEvent] = []
    for event in events:
        if isinstance(event, CallReceived):
            id, data = event.stream_id, event.data
            found += [RequestReceived(id, event.headers, event.request), DataReceived(id, data, len(data), True)]
            found.append(StreamEnded(id))
        else:
            found.append(event)
    return found


def received(http2: Http2, pieces: list[bytes], raw: list[FrameEvent]) -> tuple[list[FrameEvent], str, bytes, int]:
    events: list[FrameEvent] = []
    error = ""
    for piece in pieces:
        try:
            said = http2.receive(piece)
            raw += said
            events += spelled(said)
        except ProtocolError as broken:
            error = str(broken)
            break
    return events, error, http2.data_to_send(), http2.receive_window_bytes


def some_bytes(chance: random.Random) -> bytes:
    """Calls, mostly good, among other frames; sometimes with a byte that is another."""
    out, stream_id = bytearray(), 5
    sizes = chance.choice(((0, 5, 20, 20, 300, 2_500), (20, 16_000, 16_385)))
    for _ in range(chance.randint(1, 12)):
        kind = chance.random()
        if kind < 0.7:
            out += call(stream_id, bytes(chance.choice(sizes)), chance.choice((BLOCK, SIZED)))
        elif kind < 0.8:
            out += frame(Kind.RST_STREAM, 0, stream_id - 2, bytes(4))
        elif kind < 0.9:
            out += frame(Kind.PING, 0, 0, bytes(8))
        else:
            out += frame(Kind.HEADERS, 4, stream_id, BLOCK) + frame(
                Kind.DATA, chance.choice((0, 1, 9)), stream_id, b"a"
            )
        stream_id += 2 if chance.random() < 0.95 else chance.choice((4, 1, 0, -2))
    if chance.random() < 0.4:
        out[chance.randrange(len(out))] = chance.randrange(256)
    return bytes(out)


@pytest.mark.parametrize("seed", range(40))
def test_the_short_way_says_what_the_long_one_does(seed: int) -> None:
    chance = random.Random(seed)
    found: list[FrameEvent] = []
    for _ in range(50):
        ours, other = both(chance.choice((LIMITS, WIDE)))
        first = chance.choice((b"", KNOWN)) + call(1, b"") + call(3, bytes(20), SIZED)  # both blocks are known then
        for http2 in (ours, other):
            http2.receive(first)
        data = some_bytes(chance)
        cuts = sorted(chance.randrange(len(data)) for _ in range(chance.choice((0, 0, 0, 1, 3))))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        mine = received(ours, pieces, found)
        assert mine == received(other, pieces, []), data.hex()
    assert any(isinstance(event, CallReceived) for event in found)


ASKED = [
    [*REQUEST, *more]
    for more in (
        [],
        [(b"x", b"1")],
        [(b"content-length", b"20")],
        *([(b"big", each * 1_400)] for each in (b"u", b"v", b"w")),
    )
]
"""Those with much in them push others out of the table."""


@pytest.mark.parametrize("seed", range(20))
def test_blocks_mean_what_the_table_says_at_the_time(seed: int) -> None:
    """A block that was read before names other headers once the table has changed."""
    chance, hpack = random.Random(seed), Encoder()
    wide = Http2Limits(stream_window_bytes=65_535, connection_window_bytes=1_000_000, streams=2_000)
    (ours, other), raw, stream_id = both(wide), list[FrameEvent](), 1
    for _ in range(80):
        data, asked = b"", chance.choices(ASKED, k=chance.randint(1, 4))
        for headers in asked:
            if chance.random() < 0.05:
                hpack.header_table_size = chance.choice((0, 100, 2_000, 4_096))
            data += call(stream_id, bytes(20), hpack.encode(headers, huffman=chance.random() < 0.5))
            stream_id += 2
        mine = received(ours, [data], raw)
        assert mine == received(other, [data], [])
        assert [list(event.headers) for event in mine[0] if isinstance(event, RequestReceived)] == asked
    assert any(isinstance(event, CallReceived) for event in raw)


@pytest.mark.parametrize(("count", "size", "why"), [(120, 0, "streams"), (6, 16_000, "window")])
def test_too_much_at_once_is_refused_either_way(count: int, size: int, why: str) -> None:
    ours, other = both(WIDE)
    data = b"".join([call(stream_id, bytes(size)) for stream_id in range(3, 3 + 2 * count, 2)])
    for http2 in (ours, other):
        http2.receive(call(1, b""))
    found = received(ours, [data], [])
    assert found == received(other, [data], [])
    assert why in found[1]


def test_a_known_call_is_one_event() -> None:
    ours, other = both()
    for http2 in (ours, other):
        assert len(http2.receive(call(1, b"first"))) == 3
    [event] = ours.receive(call(3, b"second"))
    assert isinstance(event, CallReceived)
    assert (event.stream_id, event.data) == (3, b"second")
    other.receive(call(3, b"second"))
    answer, end = HeadersFrame(tuple(ANSWER), end_stream=False), HeadersFrame(OK, end_stream=True)
    for stream_id in (3, 1):
        assert ours.begin_answer(stream_id, answer, b"data")
        assert ours.end_answer(stream_id, end)
        other.send_headers(stream_id, ANSWER)
        other.send_data(stream_id, b"data")
        other.send_headers(stream_id, OK, end_stream=True)
    for stream_id in (5, 7):
        for http2 in (ours, other):
            http2.receive(call(stream_id, b"more"))
        assert ours.answer(stream_id, answer, b"data", end)
        other.send_headers(stream_id, ANSWER)
        other.send_data(stream_id, b"data")
        other.send_headers(stream_id, OK, end_stream=True)
        assert not ours.answer(stream_id, answer, b"data", end)
    assert ours.data_to_send() == other.data_to_send()
    assert not ours.begin_answer(3, answer, b"data")
    assert not ours.end_answer(3, end)
    late = frame(Kind.WINDOW_UPDATE, 0, 3, (5).to_bytes(4, "big")) + frame(Kind.DATA, 0, 3, b"late")
    assert received(ours, [late], []) == received(other, [late], [])


def test_an_answer_beyond_the_windows_goes_the_long_way() -> None:
    ours, _ = both()
    ours.receive(call(1, b"") + call(3, b"") + frame(Kind.HEADERS, 4, 5, BLOCK))
    answer, end = HeadersFrame(tuple(ANSWER), end_stream=False), HeadersFrame(OK, end_stream=True)
    assert not ours.begin_answer(1, answer, bytes(20_000))  # than a frame
    assert not ours.answer(1, answer, bytes(20_000), end)
    assert not ours.answer(5, answer, b"", end)  # its request has not ended
    for _ in range(4):
        ours.send_data(3, bytes(16_000))
    assert not ours.begin_answer(1, answer, bytes(1_536))
    assert not ours.answer(1, answer, bytes(1_536), end)
    assert ours.begin_answer(1, answer, bytes(1_535))
    [reset] = [e for e in ours.receive(frame(Kind.RST_STREAM, 0, 1, bytes(4))) if isinstance(e, StreamReset)]
    assert reset.stream_id == 1
    assert not ours.end_answer(1, end)
