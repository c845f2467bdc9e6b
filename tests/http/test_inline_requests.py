"""Requests that the application takes as bytes (`InlineConnection`, `Shape`): whole ones like the one before, and no
others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from penstock.http import HttpLimits, HttpServer
from penstock.http.asgi import Receive, Scope, Send
from penstock.http.inline_connection import Handler, InlineConnection
from penstock.loop.poller import HAVE_EPOLL
from penstock.loop.taskless import need_task
from tests.http.apps import echo
from tests.http.conftest import Running, running
from tests.http.raw import Answer, RawClient, get, post
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not HAVE_EPOLL, reason="needs epoll")
TEXT = ((b"content-type", b"text/plain"),)


class Taking:
    """An application that takes requests as bytes but those of ``/other``, and answers them when it is told to."""

    def __init__(self) -> None:
        self.begun: list[tuple[bytes, bytes]] = []
        self.calls: list[Call] = []
        self.answer = b"taken"
        self.hold = False
        self.refuse = False
        self.leave = False
        self.there = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await echo(scope, receive, send)

    def inline_call(self, wire: InlineConnection) -> Call | None:
        if not self.there:
            return None
        self.calls.append(Call(self, wire))
        return self.calls[-1]

    def serve_by(self, exchange: Any, handler: Handler) -> Any:
        async def serve() -> None:
            await exchange.answer(200, TEXT, await handler(None))

        return serve()


class Call:
    def __init__(self, app: Taking, wire: InlineConnection) -> None:
        self.app, self.wire = app, wire
        self.open = False
        self.sent_late = self.abandoned = 0

    def takes(self, headers: Mapping[bytes, bytes]) -> bool:
        return b"origin" not in headers

    def begin(self, line: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        if self.app.refuse or b"/other" in line:
            return False
        self.app.begun.append((line, body))
        self.open = True
        if not self.app.hold:
            self.wire.go_on_soon()
        return True

    def go_on(self) -> None:
        if self.open:
            self.open = False
            if self.app.leave:
                self.wire.leave(self._left)
            else:
                self.wire.answer(200, TEXT, self.app.answer)

    async def _left(self, _: object) -> bytes:
        await need_task()
        await trio.lowlevel.checkpoint()
        return b"left"

    def sent(self) -> None:
        self.sent_late += 1

    def abandon(self) -> None:
        self.open = False
        self.abandoned += 1


@pytest.fixture
def app() -> Taking:
    return Taking()


@asynccontextmanager
async def warm(app: Taking, **limits: Any) -> AsyncGenerator[tuple[Running, RawClient]]:
    """A connection whose headers were read once."""
    async with running(HttpServer(HttpLimits(**limits)), app) as http, http.client() as client:
        assert (await client.ask(post("/warm", b"xx"))).json()["path"] == "/warm"
        assert app.begun == []
        yield http, client


async def until(holds: Callable[[], bool]) -> None:
    async def probe() -> bool:
        return holds()

    await wait_until(probe)


async def test_whole_requests_are_taken_whatever_their_length(app: Taking) -> None:
    async with warm(app) as (http, client):
        for body in (b"a", b"zz" * 3_000, b"abc"):
            answer = await client.ask(post("/jobs", body))
            assert (answer.status, answer.body, answer.header("content-length")) == (200, b"taken", "5")
            assert answer.header("date")
            assert app.begun[-1] == (b"POST /jobs HTTP/1.1", body)
        assert http.server.statistics().requests_total == 4
        assert http.server.statistics().request_memory_bytes == 0
        assert len(app.calls) == 1


async def test_an_application_that_starts_is_asked_again(app: Taking) -> None:
    app.there = False
    async with warm(app) as (_, client):
        for app.there in (False, True):
            answer = await client.ask(post("/jobs", b"abc"))
            assert (answer.body == b"taken") is app.there


def length(value: str, body: bytes = b"abc") -> bytes:
    return f"POST /jobs HTTP/1.1\r\nHost: penstock\r\nContent-Length: {value}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "data",
    [
        get("/jobs"),
        post("/jobs"),
        post("/jobs", b"abc", "X-More: 1"),
        post("/jobs", b"abc").replace(b"Host", b"host"),
        post("/other", b"abc"),
        post("/" + "j" * 200, b"abc"),
        post("/jobs", b"z" * 100_000),
        length("03"),
        b"\r\n" + post("/jobs", b"abc"),
    ],
)
async def test_any_other_request_is_served_as_ever(app: Taking, data: bytes) -> None:
    async with warm(app) as (_, client):
        assert (await client.ask(data)).status == 200
        assert app.begun == []


@pytest.mark.parametrize("value", ["+3", "3 3", "-1", "3,3", "0x3", "", "9" * 30])
async def test_what_is_no_length_is_refused(app: Taking, value: str) -> None:
    async with warm(app) as (_, client):
        assert (await client.ask(length(value))).status in (400, 413)
        assert app.begun == []


async def test_pipelined_requests_are_answered_in_order(app: Taking) -> None:
    async with warm(app) as (_, client):
        await client.send(post("/jobs", b"1") + post("/other", b"2"))
        first, second = await client.read(), await client.read()
        assert [first.json()["path"], second.json()["path"]] == ["/jobs", "/other"]
        app.hold = True
        await client.send(post("/jobs", b"3"))
        await until(lambda: bool(app.calls) and app.calls[0].open)
        await client.send(post("/other", b"4"))
        app.calls[0].wire.go_on_soon()
        assert (await client.read()).body == b"taken"
        assert (await client.read()).json()["path"] == "/other"


async def test_a_request_in_pieces_is_served_as_ever(app: Taking) -> None:
    async with warm(app) as (http, client):
        data = post("/jobs", b"abc")
        for at in (10, len(data) - 1):
            await client.send(data[:at])
            await http.until(lambda now: now.idle_connections == 0)
            assert (await client.ask(data[at:])).json()["path"] == "/jobs"
        assert app.begun == []
        assert (await client.ask(data)).body == b"taken"


async def test_headers_that_mean_something_are_never_taken(app: Taking) -> None:
    async with running(HttpServer(), app) as http, http.client() as client:
        for _ in range(3):
            assert (await client.ask(post("/jobs", b"a", "Origin: http://a"))).json()["path"] == "/jobs"
        assert app.begun == []


async def test_what_is_left_is_served_by_another_handler(app: Taking) -> None:
    async with warm(app) as (http, client):
        app.leave = True
        assert (await client.ask(post("/jobs", b"abc"))).body == b"left"
        app.leave = False
        assert (await client.ask(post("/jobs", b"abc"))).body == b"taken"
        assert http.server.statistics().requests_total == 3
        assert http.server.statistics().request_memory_bytes == 0


async def test_no_limit_is_passed(app: Taking) -> None:
    async with warm(app, max_request_line_bytes=100) as (_, client):
        assert (await client.ask(post("/" + "x" * 120, b"abc"))).status == 414
    app = Taking()
    async with warm(app, max_body_bytes=1_000) as (_, client):
        assert (await client.ask(post("/jobs", b"x" * 1_001))).status == 413
    assert app.begun == []


async def test_bodies_for_which_there_is_no_room_are_refused(app: Taking) -> None:
    async with warm(app, max_request_memory_bytes=5_000) as (http, client), http.client() as other:
        assert (await other.ask(post("/warm", b"xx"))).status == 200
        app.hold = True
        await client.send(post("/jobs", b"x" * 4_000))
        await until(lambda: bool(app.calls) and app.calls[0].open)
        assert http.server.statistics().request_memory_bytes == 4_000
        assert (await other.ask(post("/jobs", b"x" * 2_000))).status == 503
        assert len(app.begun) == 1
        app.calls[0].wire.go_on_soon()
        assert (await client.read()).body == b"taken"


async def test_an_answer_larger_than_the_socket_arrives_whole(app: Taking) -> None:
    async with warm(app) as (http, client):
        app.answer = b"x" * 8_000_000
        assert (await client.ask(post("/jobs", b"abc"))).body == app.answer
        app.answer = b"taken"
        assert (await client.ask(post("/jobs", b"abc"))).body == b"taken"
        assert app.calls[0].sent_late == 1
        assert http.server.statistics().request_memory_bytes == 0


async def test_a_client_that_does_not_read_its_answer_is_dropped(app: Taking) -> None:
    async with warm(app, write_timeout_seconds=0.2, deadline_tick_seconds=0.05) as (http, client):
        app.answer = b"x" * 8_000_000
        await client.send(post("/jobs", b"abc"))
        await http.until(lambda now: now.timed_out_total == 1 and now.connections == 0)
        assert http.server.statistics().request_memory_bytes == 0


async def test_a_client_that_closed_its_side_gets_its_answer(app: Taking) -> None:
    async with warm(app) as (http, client):
        app.hold = True
        await client.send(post("/jobs", b"abc"))
        await until(lambda: bool(app.calls) and app.calls[0].open)
        assert not app.calls[0].wire.peer_gone
        await client.stream.send_eof()
        await until(lambda: app.calls[0].wire.peer_gone)
        assert http.server.statistics().request_memory_bytes == 3
        app.calls[0].wire.go_on_soon()
        assert (await client.read()).body == b"taken"
        assert await client.reads_end()


async def test_a_cancelled_server_abandons_its_calls(app: Taking) -> None:
    async with warm(app) as (http, client):
        app.hold = True
        await client.send(post("/jobs", b"abc"))
        await until(lambda: bool(app.calls) and app.calls[0].open)
        http.scope.cancel()
        await http.ended.wait()
        assert app.calls[0].abandoned == 1
        assert http.server.statistics().request_memory_bytes == 0


async def test_a_drain_answers_and_closes(app: Taking) -> None:
    async with warm(app, drain_quiet_seconds=0.01) as (http, client):
        app.hold = True
        await client.send(post("/jobs", b"abc"))
        await until(lambda: bool(app.calls) and app.calls[0].open)
        http.server.drain()
        await http.refuses_new_connections()
        app.calls[0].wire.go_on_soon()
        answer: Answer = await client.read()
        assert (answer.body, answer.header("connection")) == (b"taken", "close")
        assert await client.reads_end()


async def test_an_idle_connection_is_closed_after_its_time(app: Taking) -> None:
    async with warm(app, keep_alive_timeout_seconds=0.2, deadline_tick_seconds=0.02) as (_, client):
        assert (await client.ask(post("/jobs", b"abc"))).body == b"taken"
        assert await client.reads_end()
