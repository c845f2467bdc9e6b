"""Many gRPC connections that come and go at once: what they leave behind, how much of it one turn of the loop does."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from penstock.loop.poller import EVENTS_PER_POLL, HAVE_EPOLL
from penstock.rpc.limits import RpcLimits
from penstock.rpc.transport import RpcConnection
from tests.rpc.conftest import Running, running
from tests.rpc.services import COMPLETE
from tests.waiting import wait_until

CROWD = 400
LIMITS = RpcLimits(linger_s=0.1, handshake_s=0.3, keepalive_tick_s=0.1)


async def leaves(run: Running) -> None:
    async with run.client() as client:
        assert (await client.call(COMPLETE)).status == 0


async def breaks_the_protocol(run: Running) -> None:
    async with run.client() as client:
        await client.stream.send_all(b"\0\0\0\x09\0\0\0\0\0")
        await client.closed.wait()


async def says_nothing(run: Running) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", run.port)
    while await stream.receive_some():
        pass
    await stream.aclose()


@pytest.mark.parametrize("end", [leaves, breaks_the_protocol, says_nothing])
async def test_an_ended_connection_is_no_garbage(
    end: Callable[[Running], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands that end together would else be freed by one collection, in one turn of the loop."""
    made: list[weakref.ref[Any]] = []
    begin = RpcConnection.__init__

    def remember(self: RpcConnection, *args: Any) -> None:
        begin(self, *args)
        made.extend((weakref.ref(self), weakref.ref(self.h2)))

    monkeypatch.setattr(RpcConnection, "__init__", remember)
    gc.disable()
    try:
        async with running(LIMITS) as run:
            await end(run)
            await run.until_quiet()

            async def gone() -> bool:
                return all(each() is None for each in made)

            await wait_until(gone)
    finally:
        gc.enable()


@pytest.mark.skipif(not HAVE_EPOLL, reason="needs epoll")
async def test_a_leaving_crowd_is_let_go_in_turns() -> None:
    async with running() as run, AsyncExitStack() as stack:
        crowd: list[socket.socket] = []
        for _ in range(CROWD):
            stream = await trio.open_tcp_stream("127.0.0.1", run.port)
            await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            crowd.append(stack.enter_context(socket.socket(fileno=stream.socket.detach())))
        await run.until(lambda now: now.connections == CROWD)
        largest = Largest(run)
        trio.lowlevel.add_instrument(largest)
        for each in crowd:
            each.close()
        await run.until(lambda now: now.connections == 0)
        trio.lowlevel.remove_instrument(largest)
        assert largest.left <= 3 * EVENTS_PER_POLL  # some that were woken in the turn before


class Largest(trio.abc.Instrument):
    """How many connections ended in one turn of the loop, at most."""

    def __init__(self, run: Running) -> None:
        self._run = run
        self._before = run.server.statistics().connections
        self.left = 0

    def before_io_wait(self, timeout: float) -> None:
        now = self._run.server.statistics().connections
        self.left, self._before = max(self.left, self._before - now), now
