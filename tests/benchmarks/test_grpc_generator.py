"""The load generator's gRPC on a real engine, and its HTTP/2 against frames that a server may send."""

from __future__ import annotations

import time
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived

from benchmarks.load.counts import Count, Samples
from benchmarks.load.grpc_probe import StreamProbePlan
from benchmarks.load.grpc_scripts import GrpcWorkPlan, read_length
from benchmarks.load.http2 import FRAME_MAX_BYTES, Http2, UnexpectedFrame, frame, message
from benchmarks.load.loop import Loop
from benchmarks.load.scripts import Context
from benchmarks.workflows import linear
from penstock.testing import definitions as testing
from penstock.wire.protobuf import write_varint
from tests.runtime.conftest import StartEngine, start_engine

__all__ = ["start_engine"]  # pytest finds the fixture here
BOUND_S = 30.0
JOBS = 3 * 100


@pytest.mark.slow(reason="a benchmark against an engine process")
@pytest.mark.parametrize(("in_flight", "polled"), [(0, 1), (0, 10), (30, 1)], ids=["unary", "polls of ten", "stream"])
def test_every_job_is_completed_once_with_its_output(start_engine: StartEngine, in_flight: int, polled: int) -> None:
    engine = start_engine().wait_ready()
    assert engine.call("POST", "/v1/definitions", testing.linear(3))[0] == 201
    items = [{"definitionId": "linear"}] * (JOBS // 3)
    assert engine.call("POST", "/v1/instances/batch", {"items": items})[0] == 200
    loop = Loop("127.0.0.1", engine.port)
    counts, samples, until = [0] * len(Count), Samples(), time.monotonic() + BOUND_S
    context = Context(loop, "127.0.0.1", counts, samples)
    plan = GrpcWorkPlan(("127.0.0.1", engine.grpc_port), 3, ("work",), {"work": b'{"r":1}'}, in_flight, max_jobs=polled)
    try:
        plan.share(0, 1).open(context)
        loop.run(lambda: counts[Count.COMPLETED] >= JOBS or time.monotonic() > until)
    finally:
        loop.close()
    assert (counts[Count.JOBS], counts[Count.COMPLETED], counts[Count.ERRORS]) == (JOBS, JOBS, 0)
    assert counts[Count.ENDED] == JOBS  # the one type is the last one
    assert context.problems == []
    assert len(samples.between("complete", 0.0, time.monotonic())) >= 3
    found = engine.call("GET", "/v1/instances?status=COMPLETED&pageSize=1")[1]
    assert (found["total"], found["items"][0]["variables"]) == (JOBS // 3, {"r": 1})
    assert engine.stop() == 0


@pytest.mark.slow(reason="a benchmark against an engine process")
def test_the_probe_on_streams_times_every_round(start_engine: StartEngine) -> None:
    engine = start_engine().wait_ready()
    workflow = linear("probe", 3)
    assert engine.call("POST", "/v1/definitions", workflow.definition)[0] == 201
    loop = Loop("127.0.0.1", engine.port)
    counts, samples, until = [0] * len(Count), Samples(), time.monotonic() + BOUND_S
    context = Context(loop, "127.0.0.1", counts, samples)
    plan = StreamProbePlan(
        rounds=5, workers=2, body=workflow.start_body(b"{}"), job_types=workflow.job_types, outputs=workflow.outputs,
        pause_s=0.0, settle_s=0.0, address=("127.0.0.1", engine.grpc_port),
    )  # fmt: skip
    try:
        plan.open(context)
        loop.run(lambda: counts[Count.ENDED] == 5 or time.monotonic() > until)
    finally:
        loop.close()
    assert (counts[Count.ENDED], counts[Count.COMPLETED], counts[Count.ERRORS]) == (5, 15, 0)
    taken = {kind: len(samples.between(kind, 0.0, time.monotonic())) for kind in samples.kinds()}
    assert taken == {"start": 5, "pickup": 15, "complete": 15, "round": 5}
    assert engine.stop() == 0


class Wire:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.sent = b""

    def send(self, data: bytes) -> None:
        self.sent += data


def client() -> tuple[Http2, Wire, list[bytes], list[int]]:
    messages: list[bytes] = []
    ends: list[int] = []
    wire = Wire()
    http2 = Http2("host", messages.append, ends.append)
    begin: Any = http2.begin
    begin(wire)
    return http2, wire, messages, ends


def serve(wire: Wire, server: H2Connection) -> list[Any]:
    """What the server makes of what was sent so far."""
    data, wire.sent = wire.sent, b""
    return server.receive_data(data)


def server() -> H2Connection:
    made = H2Connection(config=H2Configuration(client_side=False, header_encoding="utf-8"))
    made.initiate_connection()
    return made


def test_requests_and_answers_are_those_of_another_implementation() -> None:
    http2, wire, messages, ends = client()
    theirs = server()
    http2.received(theirs.data_to_send())
    for number, status in enumerate(["0", "0", "9", "0"]):
        body = b"x" * (40_000 if number == 3 else number)
        wire.send(http2.call("/some.Service/Method", body, end=True))
        events = serve(wire, theirs)
        (request,) = [event for event in events if isinstance(event, RequestReceived)]
        assert dict(request.headers) == {
            ":method": "POST", ":scheme": "http", ":path": "/some.Service/Method", ":authority": "host",
            "content-type": "application/grpc", "user-agent": "grpc-go/1.76.0", "te": "trailers",
        }  # fmt: skip
        data = [event.data for event in events if isinstance(event, DataReceived)]
        assert b"".join(data) == message(body)
        assert max(map(len, data)) <= FRAME_MAX_BYTES
        theirs.send_headers(request.stream_id, [(":status", "200"), ("content-type", "application/grpc")])
        theirs.send_data(request.stream_id, message(b"answer") + message(b"")[:3])
        theirs.send_data(request.stream_id, message(b"")[3:])
        theirs.send_headers(
            request.stream_id, [("grpc-status", status), ("grpc-message", f"n{number}")], end_stream=True
        )
        theirs.ping(b"12345678")
        for byte in theirs.data_to_send():  # cut anywhere
            http2.received(bytes((byte,)))
        for event in events:
            if isinstance(event, DataReceived):
                theirs.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        http2.received(theirs.data_to_send())
    assert messages == [b"answer", b""] * 4
    assert ends == [0, 0, 9, 0]


def test_the_servers_window_is_never_overrun() -> None:
    http2, _, _, _ = client()
    http2.received(frame(4, 0, 0, b""))
    http2.call("/s/m", b"x" * 65_000, end=False)
    with pytest.raises(UnexpectedFrame, match="window"):
        http2.more(b"x" * 1_000)


@pytest.mark.parametrize("kind", [3, 7])
def test_a_reset_and_a_goaway_are_failures(kind: int) -> None:
    http2, _, _, _ = client()
    http2.call("/s/m", b"", end=False)
    with pytest.raises(UnexpectedFrame, match="ended"):
        http2.received(frame(kind, 0, 1, b"\0\0\0\x08"))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 2**14, 2**21 - 1, 2**28])
def test_lengths_are_read(size: int) -> None:
    data = b"ab" + write_varint(size) + b"c"
    assert read_length(data, 2) == (size, len(data) - 1)
