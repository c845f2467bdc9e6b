"""What a client may not do: it ends its own call or its own connection, nothing else, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import struct

import pytest
import trio
import trio.testing
from h2.exceptions import H2Error
from h2.settings import SettingCodes

from penstock.rpc.limits import RpcLimits
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message
from penstock.wire.model import Completion, StartRequest
from tests.rpc.conftest import Running, running
from tests.rpc.raw import client_on, framed
from tests.rpc.services import COMPLETE, FAIL, POLL, START, WORK

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + body


async def raw_exchange(run: Running, data: bytes) -> bytes:
    """Send bytes, read to the end of the connection."""
    stream = await trio.open_tcp_stream("127.0.0.1", run.port)
    async with stream:
        got = b""
        try:
            await stream.send_all(data)
            while part := await stream.receive_some(65_536):
                got += part
        except trio.BrokenResourceError:
            pass
        return got


@pytest.mark.parametrize(
    "body",
    [b"\xff", b"\x0a\x05abc", b"\x0a\x01\xff", b"\x03", b"\x07\x00", b"\x00\x00", b"\x0b\x0b\x0c", b"\xff" * 11],
)
@pytest.mark.parametrize("path", [POLL, COMPLETE, FAIL, START])
async def test_bytes_that_are_no_message_are_an_invalid_argument(run: Running, path: str, body: bytes) -> None:
    async with run.client() as client:
        answer = await client.call(path, body)
        assert answer.status == 3
        assert (await client.call(COMPLETE)).status == 0


async def test_random_bytes_never_make_an_internal_error(run: Running, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(7)
    statuses = set()
    async with run.client() as client:
        for _ in range(400):
            body = rng.randbytes(rng.randrange(1, 40))
            statuses.add((await client.call(rng.choice([COMPLETE, FAIL, START]), body)).status)
    assert statuses == {0, 3}
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


@pytest.mark.parametrize(
    ("data", "end", "status"),
    [
        (b"", True, 3),  # no message at all
        (b"\0\0\0", True, 3),
        (b"\0\0\0\0\x09abc", True, 3),
        (framed(b"") + framed(b""), True, 3),
        (framed(b"", compressed=1), True, 12),
        (b"\0" + (5 * 1024 * 1024).to_bytes(4, "big"), False, 3),  # too large: told before it is sent
        (b"\0\xff\xff\xff\xff", False, 3),
    ],
)
async def test_wrong_framing_is_refused_before_it_is_read_on(run: Running, data: bytes, end: bool, status: int) -> None:
    async with run.client() as client:
        stream_id = await client.open(COMPLETE)
        await client.send(stream_id, data, end=end)
        answer = await client.finished(stream_id)
        assert answer.status == status
        assert (await client.call(COMPLETE)).status == 0
    await run.until_quiet()


async def test_the_largest_message_is_taken_and_no_larger() -> None:
    with trio.fail_after(30):
        async with running(RpcLimits(message_bytes=10_000)) as run, run.client() as client:
            largest = b"\x0a" + b"\x8d\x4e" + b"x" * 9_997
            assert len(largest) == 10_000
            assert (await client.call(COMPLETE, largest)).status == 0
            assert (await client.call(COMPLETE, largest + b"\0")).status == 3


async def test_a_struct_nested_too_deeply_is_an_invalid_argument(run: Running) -> None:
    value = b"\x08\x00"
    for _ in range(2_000):
        inner = b"\x0a" + encode_length(value)
        value = b"\x32" + encode_length(inner)
    fields = b"\x0a" + encode_length(b"\x0a\x01k\x12" + encode_length(value))
    async with run.client() as client:
        answer = await client.call(COMPLETE, b"\x1a" + encode_length(fields))
        assert (answer.status, "nested" in answer.reason) == (3, True)


def encode_length(body: bytes) -> bytes:
    from penstock.wire.protobuf import write_varint

    return write_varint(len(body)) + body


async def test_a_struct_of_too_many_values_is_an_invalid_argument(run: Running) -> None:
    items = b"\x0a\x00" * 500_000
    fields = b"\x0a" + encode_length(b"\x0a\x01k\x12" + encode_length(b"\x32" + encode_length(items)))
    async with run.client() as client:
        answer = await client.call(COMPLETE, b"\x1a" + encode_length(fields))
        assert (answer.status, "values" in answer.reason) == (3, True)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
        PREFACE + SETTINGS + frame(1, 4, 2, b"\x82"),  # an even stream id
        PREFACE + SETTINGS + frame(0, 0, 1, b"data before headers"),
        PREFACE + SETTINGS + frame(1, 4, 1, b"\xff\xff\xff\xff\xff"),  # HPACK that can't be decoded
        PREFACE + SETTINGS + frame(9, 4, 1, b"\x82"),  # CONTINUATION of nothing
        PREFACE + SETTINGS + frame(8, 0, 0, struct.pack(">I", 0)),  # a window opened by 0
        PREFACE + SETTINGS + frame(8, 0, 0, struct.pack(">I", 2**31 - 1)) * 2,  # a window that overflows
        PREFACE + SETTINGS + frame(4, 0, 0, struct.pack(">HI", 4, 2**32 - 1)),  # INITIAL_WINDOW_SIZE too large
        PREFACE + SETTINGS + b"\xff\xff\xff" + bytes([0, 0]) + b"\0\0\0\1",  # a frame larger than allowed
        PREFACE + SETTINGS + frame(1, 4 | 8, 1, b"\xff" + b"\x82"),  # padding longer than the frame
        PREFACE + SETTINGS + frame(1, 0, 1, b"\x82") + frame(9, 0, 1, b"\x86") * 100,  # CONTINUATION flood
        PREFACE + SETTINGS + frame(5, 4, 1, b"\0\0\0\2\x82"),  # PUSH_PROMISE from a client
        PREFACE + SETTINGS + frame(1, 5, 1, b"\x00\x0econtent-length\x03abc"),  # a length that is no number
    ],
)
async def test_a_broken_protocol_ends_the_connection_and_no_other(
    run: Running, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with run.client() as other:
        with trio.fail_after(10):
            await raw_exchange(run, data)
        assert (await other.call(COMPLETE)).status == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    await run.until_quiet()


async def test_random_frames_end_at_most_their_own_connection(run: Running, caplog: pytest.LogCaptureFixture) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    rng = random.Random(seed)

    async def attack() -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", run.port)
        frames = [
            frame(rng.randrange(11), rng.randrange(256), rng.choice([0, 1, 2, 3, 5]), rng.randbytes(rng.randrange(30)))
            for _ in range(20)
        ]
        try:
            await stream.send_all(PREFACE + SETTINGS + b"".join(frames))
            await stream.send_eof()
            while await stream.receive_some(65_536):
                pass
        except trio.BrokenResourceError:
            pass
        await trio.aclose_forcefully(stream)

    async with run.client() as other:
        for _ in range(40):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(attack)
        assert (await other.call(COMPLETE)).status == 0, f"seed {seed}"
    await run.until_quiet()
    assert not [record for record in caplog.records if record.levelname == "ERROR"], f"seed {seed}"


async def test_headers_beyond_the_limit_end_the_connection(run: Running) -> None:
    async with run.client() as client:
        await client.open(COMPLETE, x="y" * 60_000)
        await client.closed.wait()
    assert run.server.statistics().counts.broken == 1


async def test_a_header_that_is_not_ascii_is_just_a_header(run: Running) -> None:
    async with run.client() as client:
        assert (await client.call(COMPLETE, x="grün")).status == 0


async def test_a_flood_of_pings_is_asked_to_calm_down(run: Running) -> None:
    async with run.client() as client:
        for _ in range(run.server.limits.control_frames + 50):
            client.h2.ping(b"12345678")
        await client.flush()
        await client.closed.wait()
        assert client.goaways[-1].error_code == 0xB
    assert run.server.statistics().counts.floods == 1


async def test_pings_between_answers_are_welcome(run: Running) -> None:
    """grpc-go pings for each answer it gets, to measure the bandwidth."""
    async with run.client() as client:
        for _ in range(run.server.limits.control_frames * 2):
            await client.ping()
            assert (await client.call(COMPLETE)).status == 0
    assert run.server.statistics().counts.floods == 0


async def test_rapid_resets_are_asked_to_calm_down(run: Running) -> None:
    """CVE-2023-44487: opened and reset in the same bytes, without end."""
    async with run.client() as client:
        for _ in range(run.server.limits.resets + 1_000):
            stream_id = client.h2.get_next_available_stream_id()
            client.h2.send_headers(
                stream_id,
                [(":method", "POST"), (":path", COMPLETE), (":scheme", "http"), (":authority", "t")],
            )
            client.h2.reset_stream(stream_id)
        await client.flush()
        await client.closed.wait()
    assert run.server.statistics().counts.floods == 1
    assert run.engine.started == 0
    await run.until_quiet()


async def test_a_stream_too_many_is_refused_alone() -> None:
    with trio.fail_after(30):
        async with running(RpcLimits(streams_per_connection=5)) as run, run.client() as client:
            held = []
            for _ in range(5):
                stream_id = await client.open(COMPLETE)
                await client.send(stream_id, framed(encode_message(Completion("wait"), m.PACKAGE)), end=True)
                held.append(stream_id)
            await run.until(lambda _: run.engine.running == 5)
            client.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 100  # as if it had not seen ours
            client.h2.remote_settings.acknowledge()
            extra = await client.open(COMPLETE)
            assert (await client.finished(extra)).reset == 7  # REFUSED_STREAM
            run.engine.release.set()
            assert [(await client.finished(stream_id)).status for stream_id in held] == [0] * 5
            assert run.server.statistics().counts.refused == 1


async def test_a_connection_too_many_waits_until_one_leaves() -> None:
    with trio.fail_after(30):
        async with running(RpcLimits(connections=2)) as run, run.client() as one:
            assert (await one.call(COMPLETE)).status == 0
            async with run.client() as two:
                assert (await two.call(COMPLETE)).status == 0
                waiting = await trio.open_tcp_stream("127.0.0.1", run.port)
                assert (await two.call(COMPLETE)).status == 0
                assert run.server.statistics().connections == 2
            async with client_on(waiting) as third:
                assert (await third.call(COMPLETE)).status == 0
            assert (await one.call(COMPLETE)).status == 0
        assert run.server.statistics().counts.evicted == 0


async def test_the_longest_idle_connection_without_a_call_makes_room() -> None:
    with trio.fail_after(30):
        limits = RpcLimits(connections=2, evict_after_idle_s=0.2, drain_ping_s=0.1)
        async with running(limits) as run, run.client() as busy, run.client() as idle:
            stream_id = await busy.open(COMPLETE)
            await busy.send(stream_id, framed(encode_message(Completion("wait"), m.PACKAGE)), end=True)
            assert (await idle.call(COMPLETE)).status == 0
            began = trio.current_time()
            async with run.client() as newcomer:
                assert (await newcomer.call(COMPLETE)).status == 0
                assert trio.current_time() - began >= 0.15
                await idle.closed.wait()
                assert idle.goaways
                assert not busy.closed.is_set()
                run.engine.release.set()
                assert (await busy.finished(stream_id)).status == 0
            assert run.server.statistics().counts.evicted == 1


async def test_a_body_that_never_comes_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with running(RpcLimits(request_s=5.0)) as run, run.memory_client() as client:
        stream_id = await client.open(COMPLETE)
        await client.send(stream_id, b"\0\0\0")
        began = trio.current_time()
        assert (await client.finished(stream_id)).status == 4
        assert trio.current_time() - began == 5.0


async def test_a_client_that_says_nothing_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    async with running(RpcLimits(handshake_s=7.0)) as run:
        ours, theirs = trio.testing.memory_stream_pair()
        began = trio.current_time()
        run.nursery.start_soon(run.server.serve_stream, theirs, "silent")
        while await ours.receive_some(1000):
            pass
        assert trio.current_time() - began == 7.0


@pytest.mark.slow(reason="thousands of calls that are cancelled")
async def test_thousands_of_cancels_and_drops_leak_nothing(run: Running) -> None:
    """2,500 calls over 250 connections: cancelled by reset at any moment, dropped, or left to end."""
    seed = int.from_bytes(os.urandom(4), "big")
    rng = random.Random(seed)
    outcomes: list[str] = []

    async def one_call(client, fate: str) -> None:  # type: ignore[no-untyped-def]
        path, body = rng.choice(
            [
                (COMPLETE, Completion(f"{rng.randrange(8)} ms")),
                (COMPLETE, Completion("forever")),
                (WORK, Completion()),
                (START, StartRequest(business_key="k" * rng.randrange(50_000))),
            ]
        )
        endless = path == WORK or (isinstance(body, Completion) and body.job_id == "forever")
        stream_id = await client.open(path)
        data = framed(encode_message(body, m.PACKAGE))
        try:
            await client.send(stream_id, data[: rng.randrange(len(data))])
        except H2Error:
            return
        if fate == "reset" or endless:
            await trio.sleep(rng.random() * 0.01)
            await client.reset(stream_id)
        else:
            with contextlib.suppress(H2Error):
                await client.send(stream_id, b"", end=True)
            await client.finished(stream_id)
        outcomes.append(fate)

    async def one_connection(number: int) -> None:
        dropped = number % 2 == 0  # half of them exactly: the others' calls are counted on
        with trio.move_on_after(rng.random() * 0.05 if dropped else 10):
            async with run.client() as client, trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(one_call, client, rng.choice(["reset", "end"]))

    await trio.testing.wait_all_tasks_blocked()
    before = trio.lowlevel.current_statistics().tasks_living
    for _ in range(25):
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(one_connection, number)
    await run.until_quiet()
    assert len(outcomes) > 1_000, f"seed {seed}"
    async with run.client() as client:
        assert (await client.call(COMPLETE)).status == 0
    await run.until_quiet()
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living <= before, f"seed {seed}"
