"""What only the hypercorn seam has: HTTP/2, TLS, and the cures for what hypercorn does on its own."""

from __future__ import annotations

import ssl
from contextlib import suppress
from itertools import count
from pathlib import Path

import httpx
import pytest
import trio
import trio.testing
import trustme
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, StreamEnded
from hypercorn.config import Config
from hypercorn.trio import serve as stock_serve
from quart import request
from quart_trio import QuartTrio

from penstock.http import HttpLimits, listen
from penstock.http.asgi import App, Receive, Scope, Send
from penstock.http.guard import Guard, GuardTotals
from penstock.http.hypercorn_seam import HypercornServer
from penstock.net.tls import CertificateError, Tls
from tests.http.apps import Parked, answer, echo
from tests.http.conftest import Serve, running
from tests.http.raw import RawClient, get, post


def quart_app() -> QuartTrio:
    app = QuartTrio("under_test")

    @app.get("/hello")
    async def hello() -> str:
        return "hello"

    @app.post("/echo")
    async def echo_body() -> bytes:
        return await request.get_data()  # pyright: ignore[reportReturnType] - as quart has it

    return app


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Tls:
    directory = tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(directory / "key.pem"))
    return Tls(str(directory / "cert.pem"), str(directory / "key.pem"), protocols=["h2", "http/1.1"])


@pytest.fixture
def trust(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


# -- quart-trio under hypercorn


async def test_quart_is_served_by_both_servers(serve_either: Serve) -> None:
    async with serve_either(quart_app()) as http, http.client() as client:
        for _ in range(3):
            assert (await client.ask(get("/hello"))).body == b"hello"
            assert (await client.ask(post("/echo", b"x" * 100_000))).body == b"x" * 100_000
        assert (await client.ask(get("/nothing"))).status == 404


async def test_quart_keeps_to_the_idle_timeout_and_the_drain(serve_either: Serve) -> None:
    limits = {"keep_alive_timeout_seconds": 0.2, "deadline_tick_seconds": 0.05}
    async with serve_either(quart_app(), **limits) as http, http.client() as client:
        assert (await client.ask(get("/hello"))).body == b"hello"
        assert await client.reads_end()
    async with serve_either(quart_app()) as http, http.client() as client:
        assert (await client.ask(get("/hello"))).body == b"hello"
        http.server.drain()
        assert await client.reads_end()
        await http.ended.wait()


async def closes_idle_connections(app: App, clock: trio.testing.MockClock) -> bool:
    """Whether hypercorn as it comes ends an idle connection of this application in time (0.2 s, waited for 1.5 s).

    Time moves only while there is nothing else to do: the clock of the test, not of a busy machine.
    """
    (listener,) = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.errorlog = None
    config.keep_alive_timeout = 0.2
    async with trio.open_nursery() as nursery:
        await nursery.start(stock_serve, app, config)
        client = RawClient(await trio.open_tcp_stream("127.0.0.1", port))
        assert (await client.ask(get("/hello"))).body == b"hello"
        closed = trio.Event()

        async def read_to_the_end() -> None:
            assert await client.reads_end()
            closed.set()

        nursery.start_soon(read_to_the_end)
        for _ in range(15):
            await trio.testing.wait_all_tasks_blocked(0.02)
            clock.jump(0.1)
        await trio.testing.wait_all_tasks_blocked(0.02)
        ended = closed.is_set()
        nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(client.stream)
    return ended


async def test_the_cure_for_quarts_idle_connections_is_the_guard(
    mock_clock: trio.testing.MockClock,
) -> None:
    """When the first line fails, quart-trio or hypercorn was repaired and the shield in `guard.py` may go."""
    assert not await closes_idle_connections(quart_app(), mock_clock)  # pyright: ignore[reportArgumentType] - as quart has it
    app = quart_app()
    guard = Guard(app, GuardTotals(HttpLimits()))  # pyright: ignore[reportArgumentType] - as quart has it

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        await (guard if scope["type"] == "http" else app)(scope, receive, send)  # pyright: ignore[reportArgumentType] - as quart has it

    assert await closes_idle_connections(guarded, mock_clock)


# -- HTTP/2 and TLS


async def test_a_tls_client_gets_http_2(tls: Tls, trust: ssl.SSLContext) -> None:
    async with (
        running(HypercornServer(tls=tls), echo) as http,
        httpx.AsyncClient(http2=True, verify=trust, base_url=f"https://127.0.0.1:{http.port}") as client,
    ):
        replies = [await client.post("/x?a=b", content=b"body %d" % n) for n in range(3)]
        assert [reply.http_version for reply in replies] == ["HTTP/2"] * 3
        assert [reply.json()["body"] for reply in replies] == ["body 0", "body 1", "body 2"]
        assert replies[0].json()["version"] == "2"
        assert http.server.statistics().accepted_total == 1


async def test_http_2_may_be_left_out(tls: Tls, trust: ssl.SSLContext) -> None:
    without = Tls(*tls._files, protocols=["http/1.1"])
    async with (
        running(HypercornServer(tls=without), echo) as http,
        httpx.AsyncClient(http2=True, verify=trust, base_url=f"https://127.0.0.1:{http.port}") as client,
    ):
        assert (await client.post("/x", content=b"body")).http_version == "HTTP/1.1"


async def test_plain_http_2_with_prior_knowledge_is_served() -> None:
    async with (
        running(HypercornServer(), echo) as http,
        httpx.AsyncClient(http1=False, http2=True, base_url=f"http://127.0.0.1:{http.port}") as client,
    ):
        reply = await client.post("/x", content=b"body")
        assert (reply.http_version, reply.json()["body"]) == ("HTTP/2", "body")


async def test_an_http2_drain_answers_what_runs_and_refuses_more(tls: Tls, trust: ssl.SSLContext) -> None:
    app = Parked()
    async with (
        running(HypercornServer(tls=tls), app) as http,
        httpx.AsyncClient(http2=True, verify=trust, base_url=f"https://127.0.0.1:{http.port}") as client,
        trio.open_nursery() as nursery,
    ):
        replies = []

        async def ask() -> None:
            replies.append(await client.post("/poll"))

        nursery.start_soon(ask)
        await app.entered.wait()
        http.server.drain()
        await http.refuses_new_connections()
        reply = await client.post("/poll")
        assert (reply.status_code, reply.json()["error"]) == (503, "unavailable")
        app.released.set()
        await http.ended.wait()
        assert replies[0].text == "released"


async def test_too_large_an_http2_body_is_413_for_one_stream(tls: Tls, trust: ssl.SSLContext) -> None:
    app = Parked()

    async def either(scope: Scope, receive: Receive, send: Send) -> None:
        await (app if scope["path"] == "/poll" else echo)(scope, receive, send)

    async with (
        running(HypercornServer(HttpLimits(max_body_bytes=1_000), tls=tls), either) as http,
        httpx.AsyncClient(http2=True, verify=trust, base_url=f"https://127.0.0.1:{http.port}") as client,
        trio.open_nursery() as nursery,
    ):
        replies = []

        async def ask() -> None:
            replies.append(await client.post("/poll"))

        nursery.start_soon(ask)
        await app.entered.wait()
        reply = await client.post("/x", content=b"x" * 500_000)
        assert (reply.status_code, reply.json()["error"]) == (413, "payload-too-large")
        app.released.set()
        await http.until(lambda now: now.running_requests == 0)
    assert replies[0].text == "released"


async def test_a_leaving_http2_client_frees_its_connection(tls: Tls, trust: ssl.SSLContext) -> None:
    async with running(HypercornServer(tls=tls), write_lots) as http:
        async with (
            httpx.AsyncClient(http2=True, verify=trust, base_url=f"https://127.0.0.1:{http.port}") as client,
            client.stream("GET", "/x") as reply,
        ):
            assert reply.status_code == 200
        await http.until(lambda now: now.requests_total == 1 and now.connections == 0)


async def test_an_applications_failure_is_a_500_over_http2(tls: Tls, trust: ssl.SSLContext) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("secret")

    async with (
        running(HypercornServer(tls=tls), app) as http,
        httpx.AsyncClient(http2=True, verify=trust, base_url=f"https://127.0.0.1:{http.port}") as client,
    ):
        reply = await client.get("/x")
        assert (reply.status_code, reply.json()["error"]) == (500, "internal-error")
        assert "secret" not in reply.text


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"no\.pem"):
        Tls(str(tmp_path / "no.pem"), str(tmp_path / "no.key"), protocols=["h2"])


# -- what one client may cost


async def write_lots(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 200, b"x" * 30_000_000)


async def test_a_client_that_does_not_read_is_dropped() -> None:
    async with (
        running(HypercornServer(HttpLimits(write_timeout_seconds=0.2)), write_lots) as http,
        http.client() as client,
    ):
        await client.send(get("/x"))
        await http.until(lambda now: now.requests_total == 1 and now.connections == 0)


async def test_a_client_that_does_not_read_delays_no_stop() -> None:
    async with running(HypercornServer(), write_lots) as http, http.client() as client:
        await client.send(get("/x"))
        await http.until(lambda now: now.requests_total == 1)
        await trio.testing.wait_all_tasks_blocked(0.05)
        http.scope.cancel()
        with trio.fail_after(60):
            await http.ended.wait()


@pytest.mark.parametrize(
    "data", [b"GET /\xe4 HTTP/1.1\r\nHost: a\r\n\r\n", b"nonsense\r\n\r\n", b"\x16\x03\x01\x00\xa5"]
)
async def test_what_hypercorn_fails_over_ends_only_its_connection(data: bytes) -> None:
    async with running(HypercornServer(), echo) as http, http.client() as other:
        assert (await other.ask(get("/before"))).status == 200
        async with http.client() as client:
            await client.send(data)
            await client.stream.send_eof()
            await http.until(lambda now: now.connections == 1)
        assert (await other.ask(get("/after"))).status == 200


async def test_http2_data_for_an_answered_stream_ends_one_connection() -> None:
    """hypercorn 0.18 raises KeyError for it."""
    protocol = H2Connection()
    protocol.initiate_connection()
    protocol.send_headers(1, [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/x")])
    protocol.send_data(1, b"x" * 2_000)
    limits = HttpLimits(max_body_bytes=100, linger_timeout_seconds=0.05)
    async with running(HypercornServer(limits), echo) as http, http.client() as other, http.client() as client:
        assert (await other.ask(get("/before"))).status == 200
        await client.send(protocol.data_to_send())
        answered = False
        while not answered:
            events = protocol.receive_data(await client.stream.receive_some(65_536))
            answered = any(isinstance(event, StreamEnded) for event in events)
        protocol.send_data(1, b"y" * 10)
        await client.send(protocol.data_to_send())
        await http.until(lambda now: now.connections == 1)
        assert (await other.ask(get("/after"))).status == 200


async def test_websockets_are_declined() -> None:
    offer = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: YQ==")
    async with running(HypercornServer(), echo) as http, http.client() as client:
        assert (await client.ask(get("/ws", *offer))).status == 403


async def test_a_head_that_does_not_end_is_a_408() -> None:
    server = HypercornServer(HttpLimits(header_timeout_seconds=0.2))
    async with running(server, echo) as http, http.client() as client:
        assert (await client.ask(get("/whole"))).status == 200
        await client.send(get("/half")[:20])
        assert (await client.read()).status == 408
        assert await client.reads_end()
        assert server.statistics().timed_out_total == 1


HEAD_OF_HTTP_2 = bytes([0, 0, 3, 1, 1, 0, 0, 0, 1]) + bytes([0x82, 0x86, 0x84])
"""HEADERS that CONTINUATION has to follow."""
BEGUN = {
    "continuation missing": HEAD_OF_HTTP_2,
    "half a frame of headers": HEAD_OF_HTTP_2[:10],
    "half of a continuation": HEAD_OF_HTTP_2 + bytes([0, 0, 3, 9]),
}


async def open_http_2(port: int) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    h2 = H2Connection()
    h2.initiate_connection()
    await stream.send_all(h2.data_to_send())
    assert await stream.receive_some(65_536)
    return stream


async def read_to_the_end(stream: trio.SocketStream) -> bytes:
    said = b""
    with trio.fail_after(30), suppress(trio.BrokenResourceError):
        while part := await stream.receive_some(65_536):
            said += part
    return said


@pytest.mark.parametrize("begun", BEGUN)
async def test_an_endless_http_2_head_ends_its_connection(begun: str) -> None:
    server = HypercornServer(HttpLimits(header_timeout_seconds=0.2))
    async with running(server, echo) as http, await open_http_2(http.port) as stream:
        await stream.send_all(BEGUN[begun])
        await read_to_the_end(stream)
        assert server.statistics().timed_out_total == 1


async def test_too_large_an_http_2_frame_is_refused_early() -> None:
    async with running(HypercornServer(), echo) as http, await open_http_2(http.port) as stream:
        await stream.send_all(bytes([0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 1]) + b"x" * 1_000)
        assert ErrorCodes.FRAME_SIZE_ERROR.to_bytes(4, "big") in await read_to_the_end(stream)


@pytest.mark.slow(reason="seconds of requests in a row")
async def test_http_2_requests_in_a_row_are_no_slow_head() -> None:
    """Each read ends within a head; every head is whole before its time is over."""
    limits = HttpLimits(header_timeout_seconds=2)
    h2 = H2Connection()
    h2.initiate_connection()
    head = [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "x")]
    rest = h2.data_to_send()
    async with (
        running(HypercornServer(limits), echo) as http,
        await trio.open_tcp_stream("127.0.0.1", http.port) as stream,
    ):
        over = trio.current_time() + 2 * limits.header_timeout_seconds
        answered = -1
        for number in count(1, 2):
            h2.send_headers(number, head, end_stream=True)
            data = h2.data_to_send()
            await stream.send_all(rest + data[:10])
            rest = data[10:]
            while answered < number - 2:
                answer = await stream.receive_some(65_536)
                assert answer
                for event in h2.receive_data(answer):
                    if isinstance(event, DataReceived):
                        h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    answered = event.stream_id if isinstance(event, StreamEnded) else answered
            if trio.current_time() > over:
                break
        assert http.server.statistics().timed_out_total == 0


async def test_a_request_slower_than_its_head_may_be_is_answered() -> None:
    app = Parked()
    async with running(HypercornServer(HttpLimits(header_timeout_seconds=0.4)), app) as http, http.client() as client:
        await client.send(post("/poll"))
        await app.entered.wait()
        assert not await reads_within(client, 0.6)
        app.released.set()
        assert (await client.read()).body == b"released"


async def reads_within(client: RawClient, seconds: float) -> bool:
    with trio.move_on_after(seconds):
        await client.reads_end()
        return True
    return False


async def test_rapid_resets_end_the_connection() -> None:
    """CVE-2023-44487, over hypercorn."""
    server = HypercornServer(HttpLimits(resets_burst=100, resets_per_second=0.1))
    async with running(server, echo) as http:
        stream = await trio.open_tcp_stream("127.0.0.1", http.port)
        h2 = H2Connection()
        h2.initiate_connection()
        await stream.send_all(h2.data_to_send())
        assert await stream.receive_some(65_536)
        head = [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "x")]
        for _ in range(150):
            stream_id = h2.get_next_available_stream_id()
            h2.send_headers(stream_id, head)
            h2.reset_stream(stream_id)
        await stream.send_all(h2.data_to_send())
        said = b""
        while part := await stream.receive_some(65_536):
            said += part
        assert ErrorCodes.ENHANCE_YOUR_CALM.to_bytes(4, "big") in said
        await trio.aclose_forcefully(stream)
