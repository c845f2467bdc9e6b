"""One request and its answer, the same over both servers."""

from __future__ import annotations

import socket
import struct

import pytest
import trio
import trio.testing

from penstock.http.asgi import Receive, Scope, Send
from tests.http.apps import Parked, answer, echo, read_body
from tests.http.conftest import Serve
from tests.http.raw import chunked, get, h2c_offer, post


async def test_a_connection_is_kept_for_the_next_request(serve_either: Serve) -> None:
    async with serve_either(echo) as http, http.client() as client:
        first = await client.ask(post("/a?x=1", b"one"))
        second = await client.ask(post("/b", b"two"))
    assert first.json()["path"] == "/a"
    assert first.json()["query"] == "x=1"
    assert first.json()["body"] == "one"
    assert second.json()["body"] == "two"
    assert first.json()["client"] == second.json()["client"]
    assert first.header("connection") is None


async def test_a_path_arrives_decoded(serve_either: Serve) -> None:
    async with serve_either(echo) as http, http.client() as client:
        reply = await client.ask(get("/v1/definitions/LOS%3A%3Aloan"))
    assert reply.json()["path"] == "/v1/definitions/LOS::loan"


async def test_an_absolute_target_is_served_like_a_path(serve_native: Serve) -> None:
    async with serve_native(echo) as http, http.client() as client:
        reply = await client.ask(get("http://penstock:8080/a?b=c"))
    assert (reply.json()["path"], reply.json()["query"]) == ("/a", "b=c")


async def test_a_chunked_body_arrives_whole(serve_either: Serve) -> None:
    pieces = [b'{"variables": {', b'"a": 1, "b": "\r\n\r\n', b'", "c": 3', b"}}"]
    async with serve_either(echo) as http, http.client() as client:
        reply = await client.ask(chunked("/x", *pieces))
        after = await client.ask(post("/y", b"next"))
    assert reply.json()["body"] == b"".join(pieces).decode()
    assert after.json()["body"] == "next"


async def test_a_204_has_neither_body_nor_length(serve_either: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 204, b"", [(b"content-length", b"0")])

    async with serve_either(app) as http, http.client() as client:
        reply = await client.ask(post("/x", b"{}"))
        assert (reply.status, reply.header("content-length"), reply.header("transfer-encoding")) == (204, None, None)
        assert (await client.ask(post("/x", b"{}"))).status == 204


async def test_head_gets_the_length_and_no_body(serve_either: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, b"12345")

    async with serve_either(app) as http, http.client() as client:
        reply = await client.ask(get("/x", method="HEAD"), method="HEAD")
        assert reply.header("content-length") == "5"
        assert (await client.ask(get("/x"))).body == b"12345"


async def test_http_1_0_is_answered_and_closed(serve_either: Serve) -> None:
    async with serve_either(echo) as http, http.client() as client:
        reply = await client.ask(get("/x", version="1.0"))
        assert reply.json()["version"] == "1.0"
        assert await client.reads_end()


async def test_a_request_that_wants_the_connection_closed_gets_that(serve_either: Serve) -> None:
    async with serve_either(echo) as http, http.client() as client:
        reply = await client.ask(post("/x", b"", "Connection: close"))
        assert reply.header("connection") == "close"
        assert await client.reads_end()


async def test_a_body_that_waits_for_100_continue_is_asked_for(serve_either: Serve) -> None:
    async with serve_either(echo) as http, http.client() as client:
        head, body = post("/x", b"late", "Expect: 100-continue").split(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        assert (await client.read()).status == 100
        reply = await client.ask(body)
    assert (reply.status, reply.json()["body"]) == (200, "late")


async def test_an_h2c_offer_with_body_is_answered_over_http1(serve_either: Serve) -> None:
    async with serve_either(echo) as http, http.client() as client:
        replies = [await client.ask(h2c_offer("/x", b'{"n": %d}' % n)) for n in range(3)]
    assert [reply.version for reply in replies] == ["HTTP/1.1"] * 3
    assert [reply.json()["body"] for reply in replies] == ['{"n": 0}', '{"n": 1}', '{"n": 2}']
    assert len({tuple(reply.json()["client"]) for reply in replies}) == 1


async def test_an_answer_of_unknown_length_is_chunked(serve_either: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": b"two", "more_body": False})

    async with serve_either(app) as http, http.client() as client:
        reply = await client.ask(get("/x"))
        assert reply.header("transfer-encoding") == "chunked"
        assert reply.body == b"one two"
        assert (await client.ask(get("/x"))).body == b"one two"


async def test_an_exception_in_the_application_is_a_500_without_details(serve_either: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/fails":
            raise ValueError("SELECT secret")
        await answer(send, 200, b"fine")

    async with serve_either(app) as http, http.client() as client:
        reply = await client.ask(post("/fails", b"{}"))
        assert reply.status == 500
        assert reply.json()["error"] == "internal-error"
        assert reply.json()["reason"] == reply.json()["message"]
        assert b"SELECT" not in reply.body
        assert b"Traceback" not in reply.body
        assert (await client.ask(get("/works"))).body == b"fine"
        assert http.server.statistics().failed_total == 1


async def test_an_application_that_does_not_answer_is_a_500(serve_either: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)

    async with serve_either(app) as http, http.client() as client:
        assert (await client.ask(post("/x", b"{}"))).status == 500


async def test_a_broken_off_answer_ends_with_the_connection(serve_either: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        raise RuntimeError("half way")

    async with serve_either(app) as http, http.client() as client:
        with pytest.raises(EOFError):
            await client.ask(get("/x"))


@pytest.mark.parametrize("framed", ["counted", "chunked"])
async def test_a_body_over_the_limit_is_a_413(serve_either: Serve, framed: str) -> None:
    body = b"x" * 5_000
    request = (
        post("/x", body) if framed == "counted" else chunked("/x", *[body[i : i + 500] for i in range(0, 5000, 500)])
    )
    async with serve_either(echo, max_body_bytes=4_999) as http:
        async with http.client() as client:
            reply = await client.ask(request)
            assert (reply.status, reply.json()["error"]) == (413, "payload-too-large")
            assert ("access-control-allow-origin", "*") in reply.headers
            assert reply.json()["reason"] == reply.json()["message"]
            assert await client.reads_end()
        async with http.client() as client:
            assert (await client.ask(post("/x", body[:4_999]))).status == 200
        assert http.server.statistics().refused_total == 1
        await http.until(lambda now: now.request_memory_bytes == 0)


async def test_bodies_of_all_clients_together_are_bounded(serve_either: Serve) -> None:
    async with serve_either(echo, max_request_memory_bytes=10_000) as http:
        async with http.client() as first, http.client() as second:
            await first.send(post("/x", b"x" * 9_000)[:-1])
            await http.until(lambda now: now.request_memory_bytes == 8_999)
            assert (await second.ask(post("/x", b"x" * 2_000))).status == 200
            reply = await first.ask(b"x")  # it has been on its way for longer
            assert (reply.status, reply.json()["error"]) == (503, "unavailable")
            assert await first.reads_end()
        async with http.client() as third:
            reply = await third.ask(post("/x", b"x" * 10_001))
            assert (reply.status, reply.json()["error"]) == (503, "unavailable")
        await http.until(lambda now: now.request_memory_bytes == 0)


async def test_whole_bodies_never_give_way(serve_either: Serve) -> None:
    app = Parked()
    limit = {"max_request_memory_bytes": 10_000}
    async with serve_either(app, **limit) as http, http.client() as first, http.client() as second:
        await first.send(post("/x", b"x" * 9_000))
        await app.entered.wait()
        reply = await second.ask(post("/x", b"x" * 2_000))
        assert (reply.status, reply.json()["error"]) == (503, "unavailable")
        app.released.set()
        assert (await first.read()).body == b"released"


async def test_a_parked_application_is_told_that_its_client_went_away(serve_either: Serve) -> None:
    app = Parked()
    async with serve_either(app) as http:
        async with http.client() as client:
            await client.send(post("/poll", b"{}"))
            await app.entered.wait()
        await app.left.wait()
    assert app.reported == {"type": "http.disconnect"}


async def test_a_parked_application_answers_when_it_is_released(serve_either: Serve) -> None:
    app = Parked()
    async with serve_either(app) as http, http.client() as client:
        await client.send(post("/poll", b"{}"))
        await app.entered.wait()
        app.released.set()
        assert (await client.read()).body == b"released"
        assert app.reported is None
        assert (await client.ask(post("/poll", b"{}"))).body == b"released"


async def test_draining_answers_what_runs_and_closes_what_idles(serve_either: Serve) -> None:
    app = Parked()
    async with serve_either(app) as http, http.client() as idle, http.client() as busy:
        app.released.set()
        await idle.ask(get("/x"))
        app.released = trio.Event()
        app.entered = trio.Event()
        await busy.send(post("/poll", b"{}"))
        await app.entered.wait()
        http.server.drain()
        http.server.drain()
        assert await idle.reads_end()
        await http.refuses_new_connections()
        assert not http.ended.is_set()
        app.released.set()
        reply = await busy.read()
        assert (reply.body, reply.header("connection")) == (b"released", "close")
        assert await busy.reads_end()
        await http.ended.wait()


async def test_cancelling_the_server_ends_what_still_runs(serve_either: Serve) -> None:
    app = Parked()
    async with serve_either(app) as http, http.client() as client:
        await client.send(post("/poll", b"{}"))
        await app.entered.wait()
        http.server.drain()
        http.scope.cancel()
        await http.ended.wait()
        assert app.left.is_set()
        assert await client.reads_end()


async def test_a_slow_body_times_out(serve_either: Serve) -> None:
    async with (
        serve_either(echo, body_timeout_seconds=0.2, deadline_tick_seconds=0.05) as http,
        http.client() as client,
    ):
        reply = await client.ask(post("/x", b"never all of it")[:-3])
        assert (reply.status, reply.json()["error"]) == (408, "request-timeout")
        assert await client.reads_end()
        assert http.server.statistics().timed_out_total == 1


async def test_an_idle_connection_is_closed_after_a_while(
    serve_either: Serve, mock_clock: trio.testing.MockClock
) -> None:
    """Time stands still until there is nothing else left to do."""
    limits = {"keep_alive_timeout_seconds": 0.2, "header_timeout_seconds": 0.2, "deadline_tick_seconds": 0.05}
    async with serve_either(echo, **limits) as http:
        async with http.client() as client:
            assert (await client.ask(get("/x"))).status == 200
            mock_clock.rate = 1.0
            assert await client.reads_end()
        async with http.client() as silent:
            assert await silent.reads_end()


async def test_connections_beyond_the_limit_wait_their_turn(serve_either: Serve) -> None:
    app = Parked()
    async with serve_either(app, max_connections=1) as http, http.client() as first, http.client() as second:
        await first.send(post("/poll", b"{}"))
        await app.entered.wait()
        await second.send(get("/poll"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert http.server.statistics().accepted_total == 1
        app.released.set()
        assert (await first.read()).body == b"released"
        await first.stream.aclose()
        assert (await second.read()).body == b"released"


async def test_a_large_answer_arrives_whole(serve_either: Serve) -> None:
    body = bytes(range(256)) * 8_192

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, body)

    async with serve_either(app) as http, http.client() as client:
        assert (await client.ask(get("/x"))).body == body
        assert (await client.ask(get("/x"))).body == body


async def test_a_client_that_resets_harms_nobody(serve_either: Serve) -> None:
    async with serve_either(echo) as http:
        for _ in range(5):
            sock = socket.create_connection(("127.0.0.1", http.port))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(post("/x", b"y" * 100)[:60])
            sock.close()
        async with http.client() as client:
            assert (await client.ask(get("/x"))).status == 200
