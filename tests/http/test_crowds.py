"""Many connections that come and go at once: what they leave behind, and who waits for them."""

from __future__ import annotations

import gc
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import trio
import trustme

from penstock.http import HttpLimits, HttpServer
from penstock.http.connection import HttpConnection
from penstock.loop.poller import EVENTS_PER_POLL, HAVE_EPOLL
from penstock.net.tls import Tls
from tests.http.conftest import Running, running
from tests.http.raw import RawClient, get, post
from tests.http.test_inline_connections import Batches, until
from tests.shares import mostly_slow

LEAVING = 640
"""Clients that leave at once: as many as are read in ten turns of the loop."""


CROWD_OVER_TLS = 500


class Turns(trio.abc.Instrument):
    """Counts the turns of the loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def leaves(client: RawClient, app: Batches) -> None:
    assert (await client.ask(post("/now"))).status == 200


async def leaves_framework(client: RawClient, app: Batches) -> None:
    assert (await client.ask(post("/other"))).status == 200


async def leaves_batch(client: RawClient, app: Batches) -> None:
    await client.send(post("/wait"))
    await until(lambda: "wait" in app.waiting)
    app.answer("wait")
    assert (await client.read()).status == 204


async def leaves_before_answer(client: RawClient, app: Batches) -> None:
    await client.send(post("/wait"))
    await until(lambda: "wait" in app.waiting)
    await client.stream.aclose()
    app.answer("wait")


async def leaves_in_a_head(client: RawClient, app: Batches) -> None:
    await client.send(b"POST /now HTTP/1.1\r\nHo")


async def is_closed(client: RawClient, app: Batches) -> None:
    assert (await client.ask(get("/now", "Connection: close"))).status == 200
    assert await client.reads_end()


async def is_refused(client: RawClient, app: Batches) -> None:
    assert (await client.ask(b"NONSENSE\r\n\r\n")).status == 400


async def is_out_of_time(client: RawClient, app: Batches) -> None:
    await client.send(b"POST /now HTTP/1.1\r\nHo")
    assert (await client.read()).status == 408


@pytest.mark.parametrize(
    "end",
    mostly_slow(
        [leaves, leaves_framework, leaves_batch, leaves_before_answer, leaves_in_a_head, is_closed, is_refused,
         is_out_of_time],
        quick=[leaves, is_out_of_time],
        reason="collects all garbage of the process",
    ),
)  # fmt: skip
async def test_an_ended_connection_is_no_garbage(
    end: Callable[[RawClient, Batches], Awaitable[None]],
) -> None:
    """Thousands that end together would else be freed by one collection, in one turn of the loop."""
    gc.collect()
    app = Batches()
    limits = HttpLimits(header_timeout_seconds=0.2, deadline_tick_seconds=0.02, linger_timeout_seconds=0.1)
    gc.disable()
    try:
        async with running(HttpServer(limits), app) as http:
            async with http.client() as client:
                await end(client, app)
            await http.until(lambda now: now.connections == 0)
            await until(lambda: not left())
    finally:
        gc.enable()


async def test_an_ended_connection_over_tls_is_no_garbage(
    certificates: tuple[Tls, ssl.SSLContext],
) -> None:
    tls, trust = certificates
    gc.collect()
    gc.disable()
    try:
        async with running(HttpServer(tls=tls), Batches()) as http:
            stream = await shake_hands(http, trust)
            await stream.send_all(post("/other"))
            assert bytes(await stream.receive_some()).startswith(b"HTTP/1.1 200")
            await stream.aclose()
            await http.until(lambda now: now.connections == 0)
            await until(lambda: not left())
    finally:
        gc.enable()


@pytest.mark.skipif(not HAVE_EPOLL, reason="needs epoll")
async def test_a_crowd_over_tls_is_let_go_in_turns(certificates: tuple[Tls, ssl.SSLContext]) -> None:
    tls, trust = certificates
    async with running(HttpServer(tls=tls), Batches()) as http, AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(await shake_hands(http, trust)) for _ in range(CROWD_OVER_TLS)]
        await http.until(lambda now: now.connections == CROWD_OVER_TLS)
        woken = Woken()
        trio.lowlevel.add_instrument(woken)
        for each in crowd:
            each.transport_stream.socket.close()
        await http.until(lambda now: now.connections == 0)
        trio.lowlevel.remove_instrument(woken)
        assert woken.most <= 4 * EVENTS_PER_POLL  # each runs in some turns until it has ended


class Woken(trio.abc.Instrument):
    """How many tasks of connections ran in one turn of the loop, at most."""

    def __init__(self) -> None:
        self._count = self.most = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._count += "_handle_socket" in task.name

    def before_io_wait(self, timeout: float) -> None:
        self.most, self._count = max(self.most, self._count), 0


@pytest.mark.skipif(not HAVE_EPOLL, reason="needs epoll")
@pytest.mark.parametrize("new", [False, True], ids=["known", "new"])
async def test_who_asks_does_not_wait_for_all_who_left(new: bool) -> None:
    async with running(HttpServer(), Batches()) as http, AsyncExitStack() as stack:
        crowd = await enter(http, stack)
        known = await stack.enter_async_context(http.client())
        assert (await known.ask(post("/now"))).status == 200
        assert isinstance(known.stream, trio.SocketStream)
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        for each in crowd:
            each.close()
        with socket.create_connection(("127.0.0.1", http.port)) as newcomer:
            asking = newcomer if new else known.stream.socket
            with socket.socket(fileno=os.dup(asking.fileno())) as sock:
                sock.send(post("/now"))
                client = RawClient(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))
                assert (await client.read()).status == 200
        trio.lowlevel.remove_instrument(turns)
        assert turns.count < 8


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tls, ssl.SSLContext]:
    """The server's, and what trusts it."""
    authority, directory = trustme.CA(), tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(directory / "key.pem"))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    return Tls(str(directory / "cert.pem"), str(directory / "key.pem"), protocols=["http/1.1"]), trust


async def shake_hands(http: Running, trust: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    plain = await trio.open_tcp_stream("127.0.0.1", http.port)
    stream = trio.SSLStream(plain, trust, server_hostname="127.0.0.1", https_compatible=True)
    await stream.do_handshake()
    return stream


def left() -> list[object]:
    """Connections that are in memory still. Also compiled ones, which nobody can watch by weak references."""
    return [each for each in gc.get_objects() if type(each) is HttpConnection]


async def enter(http: Running, stack: AsyncExitStack) -> list[socket.socket]:
    """Clients that were answered once, and stay."""
    crowd: list[socket.socket] = []
    for _ in range(LEAVING):
        client = await stack.enter_async_context(http.client())
        assert (await client.ask(post("/now"))).status == 200
        assert isinstance(client.stream, trio.SocketStream)
        crowd.append(socket.socket(fileno=client.stream.socket.detach()))
    return crowd
