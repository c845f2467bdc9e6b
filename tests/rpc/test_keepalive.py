"""Dead peers are found by pings; living ones are left alone, however long they are silent."""

from __future__ import annotations

import trio
import trio.testing

from penstock.rpc.limits import RpcLimits
from tests.rpc.conftest import running
from tests.rpc.services import COMPLETE

LIMITS = RpcLimits(keepalive_idle_s=60.0, keepalive_timeout_s=20.0)


async def test_an_idle_client_that_answers_pings_stays(autojump_clock: trio.testing.MockClock) -> None:
    async with running(LIMITS) as run, run.memory_client() as client:
        await trio.sleep(3_590)
        assert client.pings == run.server.statistics().counts.pings == 59  # one a minute
        assert (await client.call(COMPLETE)).status == 0


async def test_a_client_that_talks_is_not_pinged(autojump_clock: trio.testing.MockClock) -> None:
    async with running(LIMITS) as run, run.memory_client() as client:
        for _ in range(20):
            await client.call(COMPLETE)
            await trio.sleep(59)
        assert client.pings == 0


async def test_a_client_that_does_not_answer_the_ping_is_dropped(autojump_clock: trio.testing.MockClock) -> None:
    async with running(LIMITS) as run:
        ours, theirs = trio.testing.memory_stream_pair()
        began = trio.current_time()
        run.nursery.start_soon(run.server.serve_stream, theirs, "dead")
        await ours.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        while await ours.receive_some(1_000):
            pass
        assert trio.current_time() - began == 80
        await run.until_quiet()
        assert run.server.statistics().counts.silent == 1


async def test_a_client_that_takes_nothing_from_the_socket_is_dropped(autojump_clock: trio.testing.MockClock) -> None:
    """It sends on, but what it should read fills the buffer: the server stops reading, so it counts as silent."""
    async with running(RpcLimits(keepalive_idle_s=60.0, send_buffer_bytes=1_000, control_frames=100_000)) as run:
        ours, theirs = trio.testing.lockstep_stream_pair()
        run.nursery.start_soon(run.server.serve_stream, theirs, "greedy")
        ping = b"\0\0\x08\6\0\0\0\0\0" + b"12345678"
        sent = 0
        try:
            await ours.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            while True:
                await ours.send_all(ping * 20)
                sent += 20
        except trio.BrokenResourceError:
            pass
        assert sent < 300
        await run.until_quiet()
        assert run.server.statistics().counts.silent == 1
