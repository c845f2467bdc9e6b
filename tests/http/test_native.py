"""What only our own server promises: its refusals, deadlines, back-pressure, and how it drains."""

from __future__ import annotations

import math
import socket
import ssl
import struct
from collections import Counter

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.http import HttpServer, listen
from penstock.http.asgi import Receive, Scope, Send
from penstock.http.connection import Phase
from penstock.http.server import CLOSED_PER_ITERATION, EXPIRED_PER_ITERATION
from tests.http.apps import Parked, answer, echo, read_body
from tests.http.conftest import Serve, in_memory
from tests.http.raw import chunked, get, post

# -- pipelining


async def test_pipelined_requests_are_answered_in_order(serve_native: Serve) -> None:
    sizes = [0, 5, 70_000, 1, 200_000]
    async with serve_native(echo) as http, http.client() as client:
        data = b"".join(post(f"/{n}", b"x" * size) for n, size in enumerate(sizes))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, data)
            for n, size in enumerate(sizes):
                reply = await client.read()
                assert (reply.json()["path"], len(reply.json()["body"])) == (f"/{n}", size)
        stats = http.server.statistics()
    assert (stats.accepted_total, stats.requests_total) == (1, len(sizes))


async def test_a_pipelined_request_waits_for_the_one_before_it() -> None:
    app = Parked()
    async with in_memory(app) as (_, client, _ended):
        await client.send(post("/first") + get("/second"))
        await app.entered.wait()
        app.entered = trio.Event()
        await trio.testing.wait_all_tasks_blocked()
        assert not app.entered.is_set()
        app.released.set()
        assert (await client.read()).body == b"released"
        await app.entered.wait()
        assert (await client.read()).body == b"released"


async def test_bytes_during_an_answer_are_kept_for_the_next_request() -> None:
    app = Parked()
    async with in_memory(app) as (_, client, _ended):
        await client.send(post("/first"))
        await app.entered.wait()
        for piece in (b"POST /second HTTP/1.1\r\nHo", b"st: a\r\nContent-Length: 4\r\n\r\nbo", b"dy" + get("/third")):
            await client.send(piece)
            await trio.testing.wait_all_tasks_blocked()
        assert app.reported is None
        app.released.set()
        replies = [await client.read() for _ in range(3)]
    assert [reply.body for reply in replies] == [b"released"] * 3


async def test_reading_ahead_stops_at_its_limit() -> None:
    app = Parked()
    async with in_memory(app, max_pipeline_bytes=1_000) as (server, client, _ended):
        await client.send(post("/first"))
        await app.entered.wait()
        (connection,) = server._connections
        for _ in range(10):
            await client.send(b"x" * 400)
            await trio.testing.wait_all_tasks_blocked()
        assert connection.parser.unread_bytes == 1_200
        app.released.set()
        assert (await client.read()).body == b"released"


async def test_an_application_may_stop_watching_and_start_again() -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((await read_body(receive)).decode())
        for _ in range(3):
            with trio.move_on_after(0.001):
                await receive()
        await answer(send, 200, b"ok")
        seen.append((await receive())["type"])

    async with in_memory(app) as (_, client, _ended):
        for body in (b"one", b"two"):
            assert (await client.ask(post("/x", body))).body == b"ok"
    assert seen == ["one", "http.disconnect", "two", "http.disconnect"]


async def test_a_watch_in_another_task_ends_with_the_answer() -> None:
    reported = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)

        async def watch() -> None:
            reported.append(await receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.testing.wait_all_tasks_blocked()
            await answer(send, 200, b"ok")

    async with in_memory(app) as (_, client, _ended):
        assert (await client.ask(post("/x"))).body == b"ok"
        assert (await client.ask(post("/x"))).body == b"ok"
        await trio.testing.wait_all_tasks_blocked()
    assert reported == [{"type": "http.disconnect"}] * 2


async def test_a_half_closed_client_still_gets_its_answer() -> None:
    async with in_memory(echo) as (_, client, ended):
        await client.send(post("/x", b"last words"))
        await client.stream.send_eof()
        reply = await client.read()
        assert reply.json()["body"] == "last words"
        await ended.wait()


# -- refusals


@pytest.mark.parametrize(
    ("status", "code", "data"),
    [
        (400, "bad-request", b"nonsense\r\n\r\n"),
        (400, "bad-request", b"GET / HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n"),
        (400, "bad-request", post("/x", b"abc", "Transfer-Encoding: chunked")),
        (400, "bad-request", chunked("/x", b"abc").replace(b"3\r\n", b"z\r\n")),
        (414, "uri-too-long", get("/" + "a" * 9_000)),
        (431, "headers-too-large", get("/", *[f"X-{n}: y" for n in range(200)])),
        (431, "headers-too-large", get("/", "X: " + "y" * 40_000)),
        (501, "not-implemented", b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n"),
        (505, "version-not-supported", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ],
)
async def test_a_refusal_is_the_error_object_and_the_end(
    serve_native: Serve, status: int, code: str, data: bytes
) -> None:
    async with serve_native(echo) as http:
        async with http.client() as client:
            reply = await client.ask(data)
            assert (reply.status, reply.header("connection")) == (status, "close")
            assert reply.header("content-type") == "application/json"
            assert set(reply.json()) == {"error", "reason", "message"}
            assert reply.json()["error"] == code
            assert reply.json()["reason"] == reply.json()["message"] != ""
            assert await client.reads_end()
        async with http.client() as client:
            assert (await client.ask(get("/still-there"))).status == 200
        assert http.server.statistics().refused_total == 1


async def test_a_refused_client_that_keeps_sending_still_reads_why(serve_native: Serve) -> None:
    async with serve_native(echo, max_body_bytes=1_000) as http, http.client() as client:
        await client.send(post("/x", b"y" * 3_000_000))
        assert (await client.read()).status == 413
        assert await client.reads_end()


async def test_tls_on_the_plain_port_is_refused_at_once(serve_native: Serve) -> None:
    async with serve_native(echo) as http:
        stream = trio.SSLStream(await trio.open_tcp_stream("127.0.0.1", http.port), ssl.create_default_context())
        with pytest.raises(trio.BrokenResourceError):
            await stream.do_handshake()
        assert http.server.statistics().refused_total == 1
        await trio.aclose_forcefully(stream)


async def test_websocket_offers_are_answered_as_plain_requests(serve_native: Serve) -> None:
    offer = (
        "Connection: keep-alive, Upgrade",
        "UpGrAdE: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: a",
    )
    async with serve_native(echo) as http, http.client() as client:
        assert (await client.ask(get("/ws", *offer))).json()["path"] == "/ws"
        reply = await client.ask(chunked("/ws", b"a", b"\r\nUpgrade: h2c\r\n\r\n", headers=offer))
        assert reply.json()["body"] == "a\r\nUpgrade: h2c\r\n\r\n"


@settings(max_examples=30, deadline=None)
@given(data=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4))
def test_garbage_never_ends_more_than_its_connection(data: list[bytes]) -> None:
    async def main() -> None:
        async with in_memory(echo, header_timeout_seconds=5) as (server, client, ended):
            for piece in data:
                try:
                    await client.send(piece)
                except trio.BrokenResourceError:
                    break
            await client.stream.send_eof()
            await ended.wait()
            ours, theirs = trio.testing.memory_stream_pair()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.handle, echo, theirs)
                await ours.send_all(get("/alive", "Connection: close"))
                assert b"/alive" in bytes(await ours.receive_some())

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# -- deadlines, in virtual time


async def test_trickling_headers_time_out(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(echo, header_timeout_seconds=10) as (server, client, ended):
        began = trio.current_time()
        for byte in get("/x", "X: " + "y" * 100):
            await trio.sleep(0.5)
            try:
                await client.send(bytes([byte]))
            except trio.BrokenResourceError:
                break
        reply = await client.read()
        assert (reply.status, reply.json()["error"]) == (408, "request-timeout")
        await client.stream.aclose()
        await ended.wait()
        assert 10 <= trio.current_time() - began < 15
        assert server.statistics().timed_out_total == 1


async def test_thousands_of_slow_heads_end_in_slices(autojump_clock: trio.testing.MockClock) -> None:
    """All at once, they took the loop for a second."""

    class Turns(trio.abc.Instrument):
        count = 0

        def before_io_wait(self, timeout: float) -> None:
            self.count += 1

    class Slow:
        phase = Phase.RECEIVING
        expires_at = 5.0
        ended_in = 0

        async def expire(self) -> None:
            self.ended_in = turns.count

    turns = Turns()
    connections = [Slow() for _ in range(1_000)]
    async with in_memory(echo) as (server, _client, _ended):
        server._connections.update(connections)  # type: ignore[arg-type] - all that the watchdog needs  # pyright: ignore[reportArgumentType] - a memory stream
        trio.lowlevel.add_instrument(turns)
        await trio.sleep(10)
        server._connections.difference_update(connections)  # type: ignore[arg-type] - as above
    in_one_turn = Counter(connection.ended_in for connection in connections)
    assert max(in_one_turn.values()) <= EXPIRED_PER_ITERATION


async def test_waiting_calls_of_thousands_expire_in_slices(autojump_clock: trio.testing.MockClock) -> None:
    """One in each turn of the loop, the last was as many turns late as there were others."""

    class Turns(trio.abc.Instrument):
        count = 0

        def before_io_wait(self, timeout: float) -> None:
            self.count += 1

    class Call:
        expires_at = 5.2
        ended_in = 0

        def expire(self, deadline: float) -> None:
            assert trio.current_time() >= deadline == self.expires_at
            self.ended_in = turns.count

    class Waiting:
        phase = Phase.ANSWERING
        expires_at = 4.7

        def __init__(self) -> None:
            self.call = Call()

        async def expire(self) -> None:
            self.expires_at = math.inf
            server.expire_soon(self.call)  # type: ignore[arg-type] - all that the watchdog needs  # pyright: ignore[reportArgumentType] - as said

    turns = Turns()
    connections = [Waiting() for _ in range(1_000)]
    async with in_memory(echo) as (server, _client, _ended):
        server._connections.update(connections)  # type: ignore[arg-type] - all that the watchdog needs  # pyright: ignore[reportArgumentType] - as said
        trio.lowlevel.add_instrument(turns)
        await trio.sleep(10)
        server._connections.difference_update(connections)  # type: ignore[arg-type] - as above
    in_one_turn = Counter(connection.call.ended_in for connection in connections)
    assert 0 not in in_one_turn
    assert max(in_one_turn.values()) <= EXPIRED_PER_ITERATION
    assert max(in_one_turn) - min(in_one_turn) < 100


async def test_clients_that_leave_together_are_let_go_in_slices() -> None:
    """Of 3,000 at once the closing took the loop for 0.3 s."""

    class Gone(trio.abc.Instrument):
        most = 0
        before = 0

        def before_io_wait(self, timeout: float) -> None:
            now = server.statistics().connections
            self.most, self.before = max(self.most, self.before - now), now

    server, gone = HttpServer(), Gone()
    with socket.create_server(("127.0.0.1", 0), backlog=300) as listener:
        address = listener.getsockname()
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, echo, [listener])
            trio.lowlevel.add_instrument(gone)
            clients = [socket.create_connection(address) for _ in range(300)]
            with trio.fail_after(20):
                while gone.before < len(clients):
                    await trio.lowlevel.checkpoint()
                for client in clients:
                    client.close()
                while gone.before:
                    await trio.lowlevel.checkpoint()
            trio.lowlevel.remove_instrument(gone)
            nursery.cancel_scope.cancel()
    assert 0 < gone.most <= CLOSED_PER_ITERATION


async def test_headers_at_their_time_out_get_one_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with in_memory(echo, header_timeout_seconds=10) as (server, client, _ended):
        deliver = client.stream.send_stream.send_all_hook  # pyright: ignore[reportAttributeAccessIssue] - a memory stream

        async def deliver_and_expire() -> None:
            await deliver()
            (connection,) = server._connections
            await connection.expire()

        await client.send(b"GET /x HTTP/1.1\r\n")
        await trio.testing.wait_all_tasks_blocked()
        client.stream.send_stream.send_all_hook = deliver_and_expire  # pyright: ignore[reportAttributeAccessIssue] - a memory stream
        await client.send(b"Host: a\r\n")
        began = trio.current_time()
        assert (await client.read()).status == 408
        assert trio.current_time() - began < 12


async def test_a_slow_bodys_time_grows_with_its_size(autojump_clock: trio.testing.MockClock) -> None:
    limits = {"body_timeout_seconds": 10, "min_body_bytes_per_second": 100}
    body = b"z" * 4_000
    async with in_memory(echo, **limits) as (_, client, _ended):
        began = trio.current_time()
        head, _, _ = post("/x", body).partition(b"z")
        await client.send(head)
        for at in range(0, len(body), 500):
            await client.send(body[at : at + 500])
            await trio.sleep(4)  # 125 bytes per second
        assert (await client.read()).status == 200
        assert trio.current_time() - began >= 28
    async with in_memory(echo, **limits) as (_, client, _ended):
        began = trio.current_time()
        await client.send(head)
        for at in range(0, len(body), 200):
            try:
                await client.send(body[at : at + 200])
            except trio.BrokenResourceError:
                break
            await trio.sleep(4)  # 50 bytes per second
        assert (await client.read()).status == 408
        assert trio.current_time() - began < 35


async def test_a_stopped_body_times_out_whatever_it_had_earned(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(echo, body_timeout_seconds=10, min_body_bytes_per_second=100) as (_, client, _ended):
        await client.send(post("/x", b"z" * 100_000)[:-1])
        began = trio.current_time()
        assert (await client.read()).status == 408
        assert trio.current_time() - began < 12


async def test_an_idle_connection_is_closed_silently(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(echo, keep_alive_timeout_seconds=60) as (server, client, ended):
        await trio.sleep(50)
        assert (await client.ask(get("/x"))).status == 200
        began = trio.current_time()
        await trio.sleep(55)
        assert (await client.ask(get("/x"))).status == 200
        await ended.wait()
        assert 115 <= trio.current_time() - began < 117
        assert await client.reads_end()
        assert server.statistics().timed_out_total == 0


async def test_a_parked_request_has_no_deadline(autojump_clock: trio.testing.MockClock) -> None:
    app = Parked()
    async with in_memory(app) as (_, client, _ended):
        await client.send(post("/poll"))
        await trio.sleep(3_600)
        app.released.set()
        assert (await client.read()).body == b"released"


async def test_a_client_that_does_not_read_is_dropped(serve_native: Serve) -> None:
    ended = trio.Event()
    reported = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1_000):
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
            if reported and reported[-1]["type"] == "http.disconnect":
                break
            with trio.move_on_after(0):
                reported.append(await receive())
        reported.append(await receive())
        ended.set()

    async with (
        serve_native(app, write_timeout_seconds=0.2, deadline_tick_seconds=0.05) as http,
        http.client() as client,
    ):
        await client.send(get("/x"))
        await ended.wait()
        assert reported[-1] == {"type": "http.disconnect"}
        assert http.server.statistics().timed_out_total == 1


# -- answers that an application gets wrong


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-evil", b"a\r\nSet-Cookie: b")],
        [(b"x-evil", b"a\nb")],
        [(b"x\r\nevil", b"a")],
        [(b"x-evil", b"a\0b")],
        [(b"content-length", b"7")],
        [(b"content-length", b"seven")],
    ],
)
async def test_an_answer_that_can_not_be_sent_is_a_500(headers: list[tuple[bytes, bytes]]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, b"12345", headers if scope["path"] == "/bad" else [])

    async with in_memory(app) as (_, client, _ended):
        assert (await client.ask(get("/bad"))).status == 500
        assert (await client.ask(get("/good"))).body == b"12345"


async def test_an_answer_shorter_than_it_said_ends_with_the_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"12345", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with in_memory(app) as (_, client, _ended):
        with pytest.raises(EOFError):
            await client.ask(get("/x"))


async def test_an_answer_longer_than_it_said_ends_with_the_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
        await send({"type": "http.response.body", "body": b"123", "more_body": True})
        await send({"type": "http.response.body", "body": b"HTTP/1.1 200 smuggled", "more_body": True})

    async with in_memory(app) as (server, client, _ended):
        assert (await client.ask(get("/x"))).body == b"123"
        assert await client.reads_end()
        assert server.statistics().failed_total == 1


async def test_a_failure_after_the_answer_leaves_the_connection_alone() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, b"done")
        raise RuntimeError("too late to tell")

    async with in_memory(app) as (server, client, _ended):
        assert (await client.ask(get("/x"))).body == b"done"
        assert (await client.ask(get("/x"))).body == b"done"
        assert server.statistics().failed_total == 2


async def test_a_nursery_failure_of_the_application_is_a_500() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise KeyError("inside a nursery")

    async with in_memory(app) as (_, client, _ended):
        assert (await client.ask(get("/x"))).status == 500
        assert (await client.ask(get("/x"))).status == 500


async def test_a_failure_during_cancellation_does_not_leave_the_server() -> None:
    entered = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def fails_in_the_end() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("clean-up failed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails_in_the_end)
            nursery.start_soon(trio.sleep_forever)
            entered.set()

    async with in_memory(app) as (server, client, ended):
        await client.send(get("/x"))
        await entered.wait()
        await trio.testing.wait_all_tasks_blocked()
    assert ended.is_set() is False
    assert server.statistics().failed_total == 1


async def test_an_http10_answer_of_unknown_length_closes_the_connection() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    async with in_memory(app) as (_, client, _ended):
        reply = await client.ask(get("/x", "Connection: keep-alive", version="1.0"))
        assert (reply.header("transfer-encoding"), reply.header("content-length")) == (None, None)
        assert reply.body == b"one two"


async def test_http_1_0_may_ask_to_keep_the_connection() -> None:
    async with in_memory(echo) as (_, client, _ended):
        for _ in range(2):
            reply = await client.ask(get("/x", "Connection: keep-alive", version="1.0"))
            assert (reply.status, reply.header("connection")) == (200, "keep-alive")


async def test_every_answer_carries_one_date(serve_native: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, b"", [(b"Date", b"yesterday")])

    async with serve_native(app) as http, http.client() as client:
        reply = await client.ask(get("/x"))
    assert reply.header(
        "date",
    ).endswith(" GMT")  # pyright: ignore[reportOptionalMemberAccess] - it is there


# -- draining and room


async def test_a_request_under_way_when_draining_begins_is_answered(serve_native: Serve) -> None:
    async with serve_native(echo, drain_quiet_seconds=0.3) as http, http.client() as known, http.client() as silent:
        await known.ask(get("/x"))
        late = socket.create_connection(("127.0.0.1", http.port))  # connected, not accepted yet: nobody else ran
        late.sendall(get("/late"))
        http.server.drain()
        await known.send(get("/known"))
        reply = await known.read()
        assert (reply.json()["path"], reply.header("connection")) == ("/known", "close")
        assert await known.reads_end()
        assert b"/late" in await trio.to_thread.run_sync(late.recv, 65_536)
        late.close()
        assert await silent.reads_end()
        await http.ended.wait()


async def test_a_request_half_received_when_the_drain_begins_is_answered(serve_native: Serve) -> None:
    async with serve_native(echo, drain_quiet_seconds=0.01) as http, http.client() as client:
        data = post("/x", b"body")
        await client.send(data[:-2])
        await http.until(lambda now: now.connections == 1 and now.idle_connections == 0)
        http.server.drain()
        await http.refuses_new_connections()
        reply = await client.ask(data[-2:])
        assert (reply.status, reply.header("connection")) == (200, "close")


async def test_pipelined_requests_behind_the_last_answer_are_not_run(serve_native: Serve) -> None:
    app = Parked()
    async with serve_native(app, drain_quiet_seconds=0.01) as http, http.client() as client:
        await client.send(post("/first") + post("/second"))
        await app.entered.wait()
        http.server.drain()
        app.released.set()
        assert (await client.read()).header("connection") == "close"
        assert await client.reads_end()
        assert http.server.statistics().requests_total == 1


async def test_a_server_that_was_drained_before_it_served_returns() -> None:
    server = HttpServer()
    server.drain()
    with trio.fail_after(30):
        await server.serve(echo, listen("127.0.0.1", 0))


async def test_the_longest_idle_connection_makes_room(serve_either: Serve) -> None:
    async with (
        serve_either(echo, max_connections=2, evict_after_idle_seconds=0.05) as http,
        http.client() as oldest,
        http.client() as recent,
    ):
        assert (await oldest.ask(get("/oldest"))).status == 200
        assert (await recent.ask(get("/recent"))).status == 200
        async with http.client() as newest:
            assert (await newest.ask(get("/newest"))).status == 200
            assert await oldest.reads_end()
            assert (await recent.ask(get("/recent"))).status == 200
            assert http.server.statistics().connections == 2


async def test_busy_or_briefly_idle_connections_are_not_evicted(
    serve_either: Serve,
) -> None:
    app = Parked()
    async with (
        serve_either(app, max_connections=2, evict_after_idle_seconds=0.3) as http,
        http.client() as parked,
        http.client() as recent,
    ):
        await parked.send(post("/poll"))
        await app.entered.wait()
        app.entered = trio.Event()
        async with http.client() as newcomer, trio.open_nursery() as nursery:
            began = trio.current_time()
            await newcomer.send(post("/new"))
            await app.entered.wait()  # once `recent` was idle for long enough
            assert trio.current_time() - began > 0.25
            assert await recent.reads_end()
            app.released.set()
            nursery.start_soon(newcomer.read)
            assert (await parked.read()).body == b"released"


async def test_an_idle_close_meeting_client_bytes_loses_no_request() -> None:
    async with in_memory(echo) as (server, client, _ended):
        assert (await client.ask(get("/x"))).status == 200
        await trio.testing.wait_all_tasks_blocked()
        (connection,) = server._connections

        deliver = client.stream.send_stream.send_all_hook  # pyright: ignore[reportAttributeAccessIssue] - a memory stream

        async def deliver_and_close() -> None:
            await deliver()
            connection.close_if_idle()

        async def deliver_and_expire() -> None:
            await deliver()
            await connection.expire()

        data = post("/raced", b"body")
        client.stream.send_stream.send_all_hook = deliver_and_close  # pyright: ignore[reportAttributeAccessIssue] - a memory stream
        await client.send(data[:10])
        await trio.testing.wait_all_tasks_blocked()
        client.stream.send_stream.send_all_hook = deliver_and_expire  # pyright: ignore[reportAttributeAccessIssue] - a memory stream
        await client.send(data[10:])
        client.stream.send_stream.send_all_hook = deliver  # pyright: ignore[reportAttributeAccessIssue] - a memory stream
        assert (await client.read()).json()["path"] == "/raced"
        assert (await client.ask(get("/after"))).json()["path"] == "/after"


async def test_a_reset_during_an_answer_ends_one_connection_only(serve_native: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, b"x" * 20_000_000)

    async with serve_native(app) as http:
        sock = socket.create_connection(("127.0.0.1", http.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.sendall(get("/x"))
        await http.until(lambda now: now.running_requests == 1)
        sock.close()
        await http.until(lambda now: now.connections == 0)
        async with http.client() as client:
            assert len((await client.ask(get("/x"))).body) == 20_000_000
        assert http.server.statistics().failed_total == 0
