"""Streams that are read by the poller behave as Trio's (its own checks for streams)."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from penstock.loop.poller import HAVE_EPOLL, PolledStream, Poller

pytestmark = pytest.mark.skipif(not HAVE_EPOLL, reason="needs epoll")


@pytest.fixture
async def poller() -> AsyncIterator[Poller]:
    async with trio.open_nursery() as nursery:
        poller = Poller()
        nursery.start_soon(poller.run)
        yield poller
        nursery.cancel_scope.cancel()


def pair(poller: Poller) -> tuple[PolledStream, PolledStream]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    first, second = (PolledStream(trio.SocketStream(trio.socket.from_stdlib_socket(e)), e, poller) for e in ends)
    return first, second


@pytest.mark.slow(reason="checks that wait for seconds")
async def test_it_is_a_stream_by_trios_own_checks(poller: Poller) -> None:
    async def connected() -> tuple[PolledStream, PolledStream]:
        return pair(poller)

    async def clogged() -> tuple[PolledStream, PolledStream]:
        first, second = pair(poller)
        with trio.move_on_after(0.2):
            await first.send_all(bytes(16_000_000))
        with trio.move_on_after(0.2):
            await second.send_all(bytes(16_000_000))
        return first, second

    await trio.testing.check_half_closeable_stream(connected, clogged)


async def test_all_that_was_sent_comes_however_it_is_read(poller: Poller) -> None:
    first, second = pair(poller)
    sent = bytes(range(256)) * 20_000
    read = bytearray()
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            await first.send_all(sent)
            await first.send_eof()

        nursery.start_soon(send)
        while data := await second.receive_some(1_000 if len(read) % 3 else None):
            read += data
    assert read == sent
    assert await second.receive_some() == b""
    await first.aclose()
    await second.aclose()


async def test_a_cancelled_read_loses_nothing(poller: Poller) -> None:
    first, second = pair(poller)
    with trio.move_on_after(0):
        await second.receive_some()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    await first.send_all(b"all of it")
    assert await second.receive_some() == b"all of it"
    await first.aclose()
    await second.aclose()


async def test_bytes_are_handed_out_where_they_are_heard_of(poller: Poller) -> None:
    first, second = pair(poller)
    taken: list[bytes] = []
    tasks: set[trio.lowlevel.Task] = set()
    ended: list[object] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        tasks.add(trio.lowlevel.current_task())
        if data == b"fault":
            raise RuntimeError("a fault")
        return data != b"stop"

    async def hand_out() -> None:
        tasks.clear()
        try:
            ended.append(await second.hand_out(take, 1_000))
        except RuntimeError as error:
            ended.append(str(error))

    async with trio.open_nursery() as nursery:
        for text in (b"stop", b"fault"):
            nursery.start_soon(hand_out)
            await trio.testing.wait_all_tasks_blocked()
            for sent in (b"some", text):
                await first.send_all(sent)
                while not taken or taken[-1] != sent:
                    await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            assert len(tasks) == 1  # the poller's, for all of them
            assert not tasks & set(nursery.child_tasks)
        assert ended == [True, "a fault"]
        taken.clear()
        with trio.move_on_after(0):
            await second.hand_out(take, 1_000)
        await first.send_all(bytes(5_000))
        await first.send_eof()
        await hand_out()
    assert ended[2:] == [False]
    assert b"".join(taken) == bytes(5_000)
    with pytest.raises(trio.ClosedResourceError):
        await second.aclose()
        await second.hand_out(take, 1_000)
    await first.aclose()
