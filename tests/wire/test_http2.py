"""One HTTP/2 core in both roles: a client and a server that hand each other their bytes."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from penstock.wire.http2 import ConnectionSide, Http2, Http2Limits
from penstock.wire.http2_frames import (
    ConnectionTerminated,
    DataReceived,
    ErrorCodes,
    FrameEvent,
    ProtocolError,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)

REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B"), (b":authority", b"here")]
ANSWER = [(b":status", b"200"), (b"content-type", b"application/grpc")]
WINDOW_BYTES = 100_000

EventT = TypeVar("EventT", bound=FrameEvent)


class Pair:
    """A client and a server without a network."""

    def __init__(self, **limits: Any) -> None:
        windows = {"stream_window_bytes": WINDOW_BYTES, "connection_window_bytes": WINDOW_BYTES}
        self.client = Http2(ConnectionSide.CLIENT, Http2Limits(**windows))
        self.server = Http2(
            ConnectionSide.SERVER, Http2Limits(**{**windows, "streams": 2, "header_list_bytes": 2_000, **limits})
        )
        self.pass_on()

    def pass_on(self) -> list[FrameEvent]:
        """Hand all bytes over until neither has more; what both made of them."""
        events: list[FrameEvent] = []
        while True:
            out, back = self.client.data_to_send(), self.server.data_to_send()
            if not (out or back):
                return events
            events += self.server.receive(out)
            events += self.client.receive(back)

    def request(self, body: bytes = b"") -> int:
        """A stream that the client has opened, and ended."""
        stream_id = self.client.next_stream_id()
        self.client.send_headers(stream_id, REQUEST)
        self.client.send_data(stream_id, body, end_stream=True)
        return stream_id


def only(kind: type[EventT], events: list[FrameEvent]) -> EventT:
    [found] = [event for event in events if isinstance(event, kind)]
    return found


def test_a_request_and_its_answer_arrive_with_their_bytes() -> None:
    pair = Pair()
    stream_id = pair.request(b"ask")
    events = pair.pass_on()
    assert list(only(RequestReceived, events).headers or []) == REQUEST
    assert only(DataReceived, events).data == b"ask"
    assert only(StreamEnded, events).stream_id == stream_id
    pair.server.send_headers(stream_id, ANSWER)
    pair.server.send_data(stream_id, b"answer")
    pair.server.send_headers(stream_id, [(b"grpc-status", b"0")], end_stream=True)
    events = pair.pass_on()
    assert list(only(ResponseReceived, events).headers or []) == ANSWER
    assert only(DataReceived, events).data == b"answer"
    assert list(only(TrailersReceived, events).headers or []) == [(b"grpc-status", b"0")]


def test_nothing_is_sent_beyond_the_window_of_the_other() -> None:
    pair = Pair()
    stream_id = pair.client.next_stream_id()
    pair.client.send_headers(stream_id, REQUEST)
    assert pair.client.send_window_bytes(stream_id) == WINDOW_BYTES
    while room := min(pair.client.send_window_bytes(stream_id), pair.client.max_send_frame_bytes):
        pair.client.send_data(stream_id, b"x" * room)
    with pytest.raises(ProtocolError):
        pair.client.send_data(stream_id, b"x")
    pair.pass_on()
    assert pair.server.receive_window_bytes == 0
    pair.server.open_window(50)
    pair.server.open_window(70, stream_id)
    assert {event.stream_id for event in pair.pass_on() if isinstance(event, WindowUpdated)} == {0, stream_id}
    assert pair.client.send_window_bytes(stream_id) == 50


def test_a_client_opens_no_more_streams_than_the_server_takes() -> None:
    pair = Pair()
    streams = []
    while pair.client.may_open_stream:
        streams.append(pair.client.next_stream_id())
        pair.client.send_headers(streams[-1], REQUEST)
    assert streams == [1, 3]
    pair.client.reset_stream(1, ErrorCodes.CANCEL)
    assert only(StreamReset, pair.pass_on()).stream_id == 1
    assert pair.client.may_open_stream


@pytest.mark.parametrize("final", [False, True])
def test_calls_that_run_are_answered_after_goaway(final: bool) -> None:
    pair = Pair()
    stream_id = pair.request()
    pair.pass_on()
    event = only(ConnectionTerminated, pair.client.receive(pair.server.goaway(final=final)))
    assert event.last_stream_id == (stream_id if final else 2**31 - 1)
    pair.server.send_headers(stream_id, ANSWER, end_stream=True)
    assert only(ResponseReceived, pair.pass_on()).stream_id == stream_id


def test_a_client_that_leaves_gets_the_answers_it_waits_for() -> None:
    pair = Pair()
    stream_id = pair.request()
    pair.pass_on()
    pair.server.receive(Http2.goaway(pair.client, final=True))
    pair.server.send_headers(stream_id, ANSWER, end_stream=True)
    assert only(ResponseReceived, pair.pass_on()).stream_id == stream_id


@pytest.mark.parametrize("role", list(ConnectionSide))
def test_a_frame_too_large_is_refused_by_its_head(role: ConnectionSide) -> None:
    pair = Pair()
    side = pair.client if role is ConnectionSide.CLIENT else pair.server
    with pytest.raises(ProtocolError, match="a frame of more than"):
        side.receive((16_385).to_bytes(3, "big") + b"\0\0\0\0\0\1")


@pytest.mark.parametrize("role", list(ConnectionSide))
def test_bytes_that_are_no_http2_end_the_connection(role: ConnectionSide) -> None:
    pair = Pair()
    side = pair.client if role is ConnectionSide.CLIENT else pair.server
    with pytest.raises(ProtocolError):
        side.receive(b"\0\0\4\3\0\0\0\0\0\0\0\0\0")  # RST_STREAM of stream 0
    assert side.data_to_send()[3] == 7  # GOAWAY


def test_what_can_not_be_done_is_an_error() -> None:
    pair = Pair()
    stream_id = pair.request()
    pair.pass_on()
    pair.client.reset_stream(stream_id)
    for refused in (
        lambda: pair.client.send_data(stream_id, b"x"),
        lambda: pair.client.send_headers(stream_id, REQUEST),
        lambda: pair.client.send_window_bytes(99),
        lambda: pair.client.open_window(1, 99),
    ):
        with pytest.raises(ProtocolError):
            refused()
