"""The proxy that breaks things does what it says, and nothing else, over real sockets."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator

import pytest
import trio

from penstock.testing.faulty_network import FaultyProxy, tcp

BIG = bytes(range(256)) * 4_000


class Echo:
    """A server that sends back what it gets, and notes what came and how it ended."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.ends: list[str] = []
        self.port = 0

    async def handle(self, stream: trio.SocketStream) -> None:
        number = len(self.got)
        self.got.append(b"")
        self.ends.append("open")
        try:
            async for chunk in stream:
                self.got[number] += chunk
                await stream.send_all(chunk)
            self.ends[number] = "closed"
            await stream.send_all(b"bye")
        except trio.BrokenResourceError:
            self.ends[number] = "reset"


@pytest.fixture
async def echo(nursery: trio.Nursery) -> Echo:
    echo = Echo()
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(functools.partial(trio.serve_listeners, echo.handle, listeners))
    echo.port = listeners[0].socket.getsockname()[1]
    return echo


OPENED: list[trio.SocketStream] = []


@pytest.fixture
async def proxy(echo: Echo, nursery: trio.Nursery) -> AsyncGenerator[FaultyProxy]:
    """Every stream to it is closed behind the test."""
    proxy = FaultyProxy(tcp("127.0.0.1", echo.port), seed=3)
    await nursery.start(proxy.serve)
    yield proxy
    while OPENED:
        OPENED.pop().socket.close()


async def read(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    with trio.fail_after(10):
        while len(data) < count and (chunk := await stream.receive_some()):
            data += chunk
    return data


async def opened(proxy: FaultyProxy) -> trio.SocketStream:
    OPENED.append(await trio.open_tcp_stream("127.0.0.1", proxy.port))
    return OPENED[-1]


async def linked(proxy: FaultyProxy) -> trio.SocketStream:
    """A connection that is through."""
    stream = await opened(proxy)
    await stream.send_all(b"hello")
    assert await read(stream, 5) == b"hello"
    return stream


async def test_all_passes_while_nothing_is_wrong(proxy: FaultyProxy, nursery: trio.Nursery) -> None:
    async with await linked(proxy) as stream:
        nursery.start_soon(stream.send_all, BIG)
        assert await read(stream, len(BIG)) == BIG
        await stream.send_eof()
        assert await read(stream, 99) == b"bye"
    with trio.fail_after(20):
        while proxy.open_links:
            await trio.lowlevel.checkpoint()
    assert proxy.counts == {"connections": 1}


async def test_a_cut_resets_both_sides(proxy: FaultyProxy, echo: Echo) -> None:
    stream = await linked(proxy)
    assert proxy.cut() == 1
    with pytest.raises(trio.BrokenResourceError):
        await read(stream, 1)
    with trio.fail_after(20):
        while echo.ends == ["open"]:
            await trio.lowlevel.checkpoint()
    assert echo.ends == ["reset"]
    await linked(proxy)


async def test_a_message_is_cut_in_its_middle(proxy: FaultyProxy, echo: Echo) -> None:
    stream = await linked(proxy)
    proxy.cut_mid_message()
    await stream.send_all(b"0123456789")
    with pytest.raises(trio.BrokenResourceError):
        await read(stream, 10)
    assert proxy.counts["messages cut"] == 1
    assert len(echo.got[0]) < len(b"hello0123456789")


async def test_a_server_may_answer_a_half_closed_connection(proxy: FaultyProxy, echo: Echo) -> None:
    stream = await linked(proxy)
    assert proxy.half_close() == 1
    assert await read(stream, 3) == b"bye"
    assert echo.ends == ["closed"]


async def test_in_a_black_hole_nothing_passes_until_it_ends(
    proxy: FaultyProxy, mock_clock: trio.testing.MockClock
) -> None:
    stream = await linked(proxy)
    proxy.black_hole()
    await stream.send_all(b"lost?")
    while not proxy.counts["pieces held"]:
        await trio.lowlevel.checkpoint()
    with trio.move_on_after(30) as waiting:
        mock_clock.jump(31)
        await stream.receive_some()
    assert waiting.cancelled_caught
    proxy.heal()
    assert await read(stream, 5) == b"lost?"


async def test_delays_and_refusals(
    proxy: FaultyProxy, nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    stream = await linked(proxy)
    proxy.delay(5, 6)
    received: list[bytes] = []

    async def receive() -> None:
        received.append(bytes(await stream.receive_some()))

    nursery.start_soon(receive)
    await stream.send_all(b"x")
    for count in (1, 2):  # there and back
        while proxy.counts["pieces delayed"] < count:
            await trio.lowlevel.checkpoint()
        mock_clock.jump(4.9)
        await trio.testing.wait_all_tasks_blocked()
        assert received == []
        mock_clock.jump(1.2)
    while not received:
        await trio.lowlevel.checkpoint()
    assert received == [b"x"]
    proxy.heal()
    proxy.refuse()
    refused = await opened(proxy)
    with pytest.raises(trio.BrokenResourceError):
        await refused.receive_some()
    proxy.heal()
    await linked(proxy)


async def test_connects_arrive_in_another_order(
    proxy: FaultyProxy, echo: Echo, mock_clock: trio.testing.MockClock
) -> None:
    proxy.reorder_connects(4)
    streams = []
    for number in range(4):
        streams.append(await opened(proxy))
        await streams[-1].send_all(str(number).encode())
    for number, stream in enumerate(streams):
        assert await read(stream, 1) == str(number).encode()
    assert proxy.counts["connects reordered"] == 4
    assert sorted(echo.got) == [b"0", b"1", b"2", b"3"]
    assert echo.got != sorted(echo.got)


async def test_a_server_that_is_away_is_a_reset(nursery: trio.Nursery) -> None:
    proxy = FaultyProxy(tcp("127.0.0.1", 1))
    await nursery.start(proxy.serve)
    async with await trio.open_tcp_stream("127.0.0.1", proxy.port) as stream:
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
