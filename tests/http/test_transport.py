"""Our socket streams keep Trio's promises."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from penstock.http.transport import TcpStream


@pytest.fixture
def pair() -> tuple[TcpStream, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    return TcpStream(ours), theirs


async def test_what_does_not_fit_into_the_socket_is_sent_when_it_does(pair: tuple[TcpStream, socket.socket]) -> None:
    stream, peer = pair
    data = bytes(range(256)) * 40_000
    received = bytearray()

    def drain_peer() -> None:
        while len(received) < len(data):
            received.extend(peer.recv(65_536))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        await trio.testing.wait_all_tasks_blocked()
        await trio.to_thread.run_sync(drain_peer)
    assert received == data
    await stream.aclose()
    peer.close()


async def test_a_cancelled_read_takes_nothing(pair: tuple[TcpStream, socket.socket]) -> None:
    stream, peer = pair
    with trio.move_on_after(0.001):
        await stream.receive_some()
    peer.sendall(b"kept")
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.receive_some()
    assert await stream.receive_some() == b"kept"
    peer.close()
    assert await stream.receive_some() == b""
    await stream.aclose()


async def test_closing_wakes_whoever_waits(pair: tuple[TcpStream, socket.socket]) -> None:
    stream, peer = pair
    ended = []

    async def wait(what: str) -> None:
        try:
            await (stream.receive_some() if what == "read" else stream.send_all(b"x" * 20_000_000))
        except trio.ClosedResourceError:
            ended.append(what)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "read")
        nursery.start_soon(wait, "write")
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
        await stream.aclose()
    assert sorted(ended) == ["read", "write"]
    for call in (stream.receive_some, lambda: stream.send_all(b"x"), stream.wait_send_all_might_not_block):
        with pytest.raises(trio.ClosedResourceError):
            await call()
    peer.close()


async def test_a_peer_that_reset_breaks_the_stream(pair: tuple[TcpStream, socket.socket]) -> None:
    stream, peer = pair
    await stream.send_all(b"unread")
    peer.close()
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"x")
    await stream.aclose()


async def test_after_the_end_was_sent_reading_goes_on(pair: tuple[TcpStream, socket.socket]) -> None:
    stream, peer = pair
    await stream.send_eof()
    assert peer.recv(1) == b""
    peer.sendall(b"still")
    assert await stream.receive_some() == b"still"
    await stream.aclose()
    peer.close()
