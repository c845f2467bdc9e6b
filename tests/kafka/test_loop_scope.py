"""What is begun in a loop ends with its scope: tasks, connections, and what would have begun later."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from penstock.kafka.bridge import Bridge, BridgeClosed
from penstock.loop.scope import LoopScope
from tests.kafka.topics import in_thread


async def serve() -> tuple[asyncio.Server, int, list[asyncio.StreamReader]]:
    accepted: list[asyncio.StreamReader] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(reader)
        try:
            await reader.read()
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1], accepted


async def test_a_scope_ends_tasks_and_connections_below_its_task():
    async def main() -> None:
        root = LoopScope.install()
        server, port, accepted = await serve()
        inner, other = LoopScope(), asyncio.Event()
        forever: list[asyncio.Task[None]] = []

        async def grandchild() -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            assert writer is not None
            await asyncio.sleep(3600)

        async def child() -> None:
            inner.enter()
            forever.append(asyncio.ensure_future(grandchild()))
            while not accepted:
                await asyncio.sleep(0.001)
            await inner.end()
            with pytest.raises(ConnectionAbortedError):
                await asyncio.open_connection("127.0.0.1", port)

        outside = asyncio.ensure_future(other.wait())
        await asyncio.ensure_future(child())
        assert forever[0].cancelled()
        with suppress(ConnectionError):
            assert await accepted[0].read() == b""
        assert not outside.done()
        server.close()
        await root.end()
        await server.wait_closed()
        assert outside.cancelled()

    await in_thread(main)


async def test_a_bridge_leaves_nothing_open_behind():
    held: list[Any] = []

    async def connect(port: int) -> None:
        held.extend(await asyncio.open_connection("127.0.0.1", port))
        held.append(asyncio.ensure_future(asyncio.sleep(3600)))

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    bridge = await Bridge.open()
    await bridge.call(connect, listener.socket.getsockname()[1])
    async with await listener.accept() as stream:
        with trio.fail_after(20):
            await bridge.close()
            with suppress(trio.BrokenResourceError):
                assert await stream.receive_some() == b""
    await listener.aclose()
    assert held[-1].cancelled()
    with pytest.raises(BridgeClosed):
        await bridge.call(asyncio.sleep, 0)


async def test_a_cancelled_call_returns_and_cancels_what_it_called():
    bridge = await Bridge.open()
    cancelled: list[bool] = []
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bridge.call, wait)
            await trio.to_thread.run_sync(begun.wait)
            nursery.cancel_scope.cancel()
        await bridge.call(asyncio.sleep, 0)
        await bridge.close()
        await bridge.close()
    assert cancelled == [True]


async def test_a_call_under_way_at_the_bridges_close_says_so():
    bridge = await Bridge.open()
    said: list[str] = []

    async def call() -> None:
        try:
            await bridge.call(asyncio.sleep, 3600)
        except BridgeClosed:
            said.append("closed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked(0.05)
        await bridge.close()
    assert said == ["closed"]
