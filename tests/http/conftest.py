"""Servers under test: both kinds behind one fixture, on real sockets, and our own on memory streams."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from penstock.http import AsgiServer, HttpLimits, HttpServer, HttpStatistics, listen
from penstock.http.asgi import App
from penstock.http.hypercorn_seam import HypercornServer
from tests.http.raw import RawClient

DEADLINE_SECONDS = 90
REFUSAL_HEADERS = [(b"access-control-allow-origin", b"*")]


@dataclass
class Running:
    """A server that serves. Leaving the context drains it, and fails when that takes too long."""

    server: AsgiServer
    port: int
    ended: trio.Event
    scope: trio.CancelScope

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[RawClient]:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        try:
            yield RawClient(stream)
        finally:
            await trio.aclose_forcefully(stream)

    async def until(self, holds: Callable[[HttpStatistics], bool]) -> None:
        """Wait for a state of the server."""
        while not holds(self.server.statistics()):
            await trio.sleep(0.002)

    async def refuses_new_connections(self) -> None:
        """Wait until nobody listens any more."""
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", self.port)
            except OSError:
                return
            await stream.aclose()
            await trio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(
    server: AsgiServer, app: App, sockets: list[socket.socket] | None = None, *, deadline_s: float = DEADLINE_SECONDS
) -> AsyncIterator[Running]:
    sockets = sockets or listen("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    ended, scope = trio.Event(), trio.CancelScope()

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        with scope:
            await server.serve(app, sockets, task_status=task_status)
        ended.set()

    with trio.fail_after(deadline_s):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve)
            yield Running(server, port, ended, scope)
            server.drain()


Serve = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture(params=["native", "hypercorn"])
def serve_either(request: pytest.FixtureRequest) -> Serve:
    kind = HttpServer if request.param == "native" else HypercornServer

    def serve(
        app: App, sockets: list[socket.socket] | None = None, **limits: float
    ) -> AbstractAsyncContextManager[Running]:
        return running(kind(HttpLimits(**limits), refusal_headers=REFUSAL_HEADERS), app, sockets)

    return serve


@pytest.fixture
def serve_native() -> Serve:
    def serve(app: App, **limits: float) -> AbstractAsyncContextManager[Running]:
        return running(HttpServer(HttpLimits(**limits)), app)

    return serve


@contextlib.asynccontextmanager
async def in_memory(app: App, **limits: float) -> AsyncIterator[tuple[HttpServer, RawClient, trio.Event]]:
    """Our own server with one client on memory streams, for tests in virtual time; the event: the connection ended."""
    server = HttpServer(HttpLimits(**limits))
    ours, theirs = trio.testing.memory_stream_pair()
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, app, [])

        async def handle() -> None:
            await server.handle(app, theirs)
            ended.set()

        nursery.start_soon(handle)
        yield server, RawClient(ours), ended
        nursery.cancel_scope.cancel()
