"""Headers of requests: those of real clients pass, malformed ones reset their own stream. And frames without end."""

from __future__ import annotations

import contextlib
import struct

import pytest
import trio
from h2.errors import ErrorCodes

from penstock.rpc.headers import flaw_of
from penstock.rpc.limits import RpcLimits
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message
from penstock.wire.model import Completion
from tests.rpc.conftest import Running, running
from tests.rpc.raw import Answer, RawClient, framed
from tests.rpc.services import COMPLETE, WORK
from tests.rpc.test_hostile import frame

Headers = list[tuple[bytes, bytes]]
PATH = b"/workflow.v1.WorkflowEngine/PollJobs"
# As each of them sent its unary call, with one header of metadata.
CLIENTS: dict[str, Headers] = {
    "grpc-go 1.85.0": [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH), (b":authority", b"127.0.0.1:44759"),
        (b"content-type", b"application/grpc"), (b"user-agent", b"grpc-go/1.85.0"), (b"te", b"trailers"),
        (b"grpc-timeout", b"4996708u"), (b"x-key", b"v"),
    ],
    "grpc-java 1.68.1": [
        (b":authority", b"127.0.0.1:35433"), (b":path", PATH), (b":method", b"POST"), (b":scheme", b"http"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"user-agent", b"grpc-java-netty/1.68.1"),
        (b"x-key", b"v"), (b"grpc-accept-encoding", b"gzip"), (b"grpc-timeout", b"4555561u"),
    ],
    "grpc-js 1.14.7": [
        (b":authority", b"127.0.0.1:35433"), (b":method", b"POST"), (b":path", PATH), (b":scheme", b"http"),
        (b"x-key", b"v"), (b"grpc-accept-encoding", b"identity,deflate,gzip"), (b"accept-encoding", b"identity"),
        (b"grpc-timeout", b"4952m"), (b"user-agent", b"grpc-node-js/1.14.7"), (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ],
    "grpcio 1.85.1": [
        (b":path", PATH), (b":authority", b"127.0.0.1:35433"), (b":method", b"POST"), (b":scheme", b"http"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"),
        (b"grpc-accept-encoding", b"identity, deflate, gzip"), (b"grpc-timeout", b"5S"),
        (b"user-agent", b"grpc-python/1.85.1 grpc-c/58.0.0 (linux; chttp2)"), (b"x-key", b"v"),
    ],
}  # fmt: skip
GOOD: Headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", COMPLETE.encode()), (b":authority", b"t"),
                 (b"content-type", b"application/grpc"), (b"te", b"trailers")]  # fmt: skip


def without(name: bytes) -> Headers:
    return [pair for pair in GOOD if pair[0] != name]


MALFORMED: dict[str, Headers] = {
    "no method": without(b":method"),
    "no scheme": without(b":scheme"),
    "no path": without(b":path"),
    "an empty path": [*without(b":path"), (b":path", b"")][::-1],
    "a path without a slash": [(b":path", b"x"), *without(b":path")],
    "nothing": [],
    "a method twice": [GOOD[0], *GOOD],
    "a scheme twice": [GOOD[1], *GOOD],
    "a path twice": [GOOD[2], *GOOD],
    "an authority twice": [GOOD[3], *GOOD],
    "an unknown pseudo-header": [(b":test", b"x"), *GOOD],
    "one of responses": [(b":status", b"200"), *GOOD],
    "one after the headers": [*without(b":path"), (b":path", COMPLETE.encode())],
    "upper case": [*GOOD, (b"X-Test", b"x")],
    "an empty name": [*GOOD, (b"", b"x")],
    "a space in a name": [*GOOD, (b"x y", b"x")],
    "a colon in a name": [*GOOD, (b"x:y", b"x")],
    "connection": [*GOOD, (b"connection", b"keep-alive")],
    "keep-alive": [*GOOD, (b"keep-alive", b"1")],
    "proxy-connection": [*GOOD, (b"proxy-connection", b"x")],
    "transfer-encoding": [*GOOD, (b"transfer-encoding", b"chunked")],
    "upgrade": [*GOOD, (b"upgrade", b"h2c")],
    "another te": [*without(b"te"), (b"te", b"trailers, deflate")],
    "te twice": [*GOOD, (b"te", b"deflate")],
    "a line break in a value": [*GOOD, (b"x", b"a\nb")],
    "a carriage return in a value": [*GOOD, (b"x", b"a\rb")],
    "a NUL in a value": [*GOOD, (b"x", b"a\0b")],
}


@pytest.mark.parametrize("client", CLIENTS)
def test_what_real_clients_send_is_well_formed(client: str) -> None:
    assert flaw_of(CLIENTS[client]) is None
    assert flaw_of(CLIENTS[client]) is None  # its names are known now


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_malformed_is_found_each_time(what: str) -> None:
    assert flaw_of(GOOD) is None
    assert flaw_of(MALFORMED[what])
    assert flaw_of(MALFORMED[what])


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_call_with_these_headers_is_served(run: Running, client: str) -> None:
    given = [(name, COMPLETE.encode() if name == b":path" else value) for name, value in CLIENTS[client]]
    async with run.client() as raw:
        assert await status_of(raw, given) == b"0"


@pytest.mark.parametrize("what", ["no path", "a scheme twice", "upper case", "connection", "another te"])
async def test_a_malformed_request_ends_its_own_stream(run: Running, what: str) -> None:
    async with run.client() as raw:
        assert await status_of(raw, MALFORMED[what]) == ErrorCodes.PROTOCOL_ERROR
        assert await status_of(raw, GOOD) == b"0"
    assert run.server.statistics().counts.malformed == 1


async def status_of(client: RawClient, headers: Headers) -> bytes | int:
    """The gRPC status of an empty call, or the code with which it was reset. The headers go out as they stand."""
    client.h2.config.validate_outbound_headers = client.h2.config.normalize_outbound_headers = False
    number = client.h2.get_next_available_stream_id()
    client.answers[number] = Answer()
    client.h2.send_headers(number, headers)
    await client.send(number, framed(b""), end=True)
    answer = await client.finished(number)
    return answer.reset or b"%d" % answer.status


FLOODS = {
    "window updates": frame(8, 0, 0, struct.pack(">I", 1)),
    "answers to pings that nobody sent": frame(6, 1, 0, b"12345678"),
    "unknown frames": frame(0x77, 0, 0, b"x"),
}


@pytest.mark.parametrize("what", FLOODS)
async def test_a_flood_of_frames_is_asked_to_calm_down(run: Running, what: str) -> None:
    async with run.client() as client:
        assert (await client.call(COMPLETE)).status == 0
        with contextlib.suppress(trio.BrokenResourceError):
            await client.stream.send_all(FLOODS[what] * 1_500)
        await client.closed.wait()
        assert client.goaways[-1].error_code == ErrorCodes.ENHANCE_YOUR_CALM
    assert run.server.statistics().counts.floods == 1


async def test_a_message_byte_by_byte_is_asked_to_calm_down() -> None:
    with trio.fail_after(30):
        async with running(RpcLimits(small_frames=200)) as run, run.client() as client:
            stream_id = await client.open(COMPLETE)
            for byte in framed(b"\0" * 300):
                client.h2.send_data(stream_id, bytes([byte]))
            await client.flush()
            await client.closed.wait()
            assert client.goaways[-1].error_code == ErrorCodes.ENHANCE_YOUR_CALM
            assert run.server.statistics().counts.floods == 1


async def test_small_messages_and_window_updates_for_answers_are_welcome() -> None:
    """A stream of small messages; and answers through the smallest windows, opened again for each frame."""
    with trio.fail_after(30):
        limits = RpcLimits(small_frames=10, small_frames_per_s=0.1, window_updates=50, window_updates_per_s=0.1)
        async with running(limits) as run, run.client() as client:
            stream_id = await client.open(WORK)
            for _ in range(100):
                await client.send(stream_id, framed(encode_message(Completion("1 ms"), m.PACKAGE)))
            for _ in range(100):
                assert (await client.call(COMPLETE)).status == 0
                client.h2.increment_flow_control_window(1)
                client.h2.increment_flow_control_window(1)
                await client.flush()
            assert run.server.statistics().counts.floods == 0
