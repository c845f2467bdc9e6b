"""Requests that our own server answers without a task, for an application that has a way for that (`taskless_call`)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from penstock.http import HttpLimits, HttpServer
from penstock.http.asgi import Receive, Scope, Send
from penstock.http.cycle import Cycle
from penstock.http.inline_connection import TRANSITIONS, ConnectionState
from penstock.loop.poller import HAVE_EPOLL
from penstock.loop.taskless import current_call, need_task, pause
from tests.http.apps import echo
from tests.http.conftest import Running, running
from tests.http.raw import RawClient, get, post
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not HAVE_EPOLL, reason="needs epoll")


class Batches:
    """An application whose requests wait for `answer`, as those of workers wait for their batch."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[], None]] = {}
        self.bodies: list[bytes] = []
        self.abandoned: list[str] = []
        self.gone: list[bool] = []
        self.large = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await echo(scope, receive, send)

    def taskless_call(self, cycle: Cycle) -> Coroutine[Any, Any, None] | None:
        named = cycle.path.removeprefix("/")
        if named == "unfindable":
            raise ZeroDivisionError
        found = getattr(self, f"_{named.rstrip('0123456789')}", None)
        return None if found is None else found(cycle, named)

    async def _now(self, cycle: Cycle, name: str) -> None:
        assert current_call() is not None
        self.bodies.append(cycle.take_body())
        await cycle.answer(200, ((b"content-type", b"text/plain"),), name.encode())

    async def _wait(self, cycle: Cycle, name: str) -> None:
        await self._paused(name)
        self.gone.append(cycle.peer_gone_nowait())
        await cycle.answer(204, (), None)

    async def _paused(self, name: str) -> None:
        call = current_call()
        assert call is not None
        self.waiting[name] = call.resume_soon
        try:
            await pause()
        except GeneratorExit:
            self.abandoned.append(name)
            raise

    async def _task(self, cycle: Cycle, name: str) -> None:
        await self._paused(name)
        await need_task()
        assert current_call() is None
        with trio.move_on_after(0.001):
            await trio.sleep_forever()
        await cycle.answer(200, (), b"in a task")

    async def _big(self, cycle: Cycle, name: str) -> None:
        await cycle.answer(200, (), self.large)

    async def _fail(self, cycle: Cycle, name: str) -> None:
        raise ZeroDivisionError

    async def _forget(self, cycle: Cycle, name: str) -> None:
        await trio.lowlevel.checkpoint()

    def answer(self, name: str) -> None:
        self.waiting.pop(name)()


@pytest.fixture
def app() -> Batches:
    return Batches()


@asynccontextmanager
async def answered_by(app: Batches, **limits: Any) -> AsyncGenerator[tuple[Running, RawClient]]:
    async with running(HttpServer(HttpLimits(**limits)), app) as http, http.client() as client:
        yield http, client


async def until(holds: Callable[[], bool]) -> None:
    async def probe() -> bool:
        return holds()

    await wait_until(probe)


async def test_a_request_is_answered_without_the_connections_task(app: Batches) -> None:
    async with answered_by(app) as (http, client):
        for _ in range(2):
            answer = await client.ask(post("/now", b"some"))
            assert (answer.status, answer.body, answer.header("content-length")) == (200, b"now", "3")
            assert answer.header("date")
        assert app.bodies == [b"some", b"some"]
        assert http.server.statistics().requests_total == 2
        assert http.server.statistics().request_memory_bytes == 0


async def test_requests_of_both_kinds_take_turns_on_one_connection(app: Batches) -> None:
    async with answered_by(app) as (_, client):
        await client.send(post("/now1") + post("/other", b"x") + post("/now2") + post("/other") + post("/now3"))
        found = [await client.read() for _ in range(5)]
        assert [answer.body for answer in found[::2]] == [b"now1", b"now2", b"now3"]
        assert [answer.json()["path"] for answer in found[1::2]] == ["/other", "/other"]


async def test_a_pipelined_request_waits_for_the_one_before(app: Batches) -> None:
    async with answered_by(app) as (_, client):
        await client.send(post("/wait1") + post("/wait2"))
        await until(lambda: "wait1" in app.waiting)
        assert "wait2" not in app.waiting
        app.answer("wait1")
        assert (await client.read()).status == 204
        await until(lambda: "wait2" in app.waiting)
        app.answer("wait2")
        assert (await client.read()).status == 204


async def test_a_body_in_pieces_arrives_whole(app: Batches) -> None:
    body = b"z" * 300_000
    async with answered_by(app) as (http, client):
        head, _, _ = post("/now", body).partition(b"z")
        await client.send(head)
        for at in range(0, len(body), 70_000):
            await client.send(body[at : at + 70_000])
            if (sent := at + 70_000) < len(body):
                await http.until(lambda now, sent=sent: now.request_memory_bytes == sent)  # type: ignore[misc]  # bound now
        assert (await client.read()).status == 200
        assert app.bodies == [body]


async def test_a_client_that_waits_for_100_continue_is_reported(app: Batches) -> None:
    async with answered_by(app) as (_, client):
        await client.send(b"POST /now HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await client.send(b"ab")
        assert (await client.read()).body == b"now"


async def test_what_needs_a_task_gets_the_connections(app: Batches) -> None:
    async with answered_by(app) as (_, client):
        for _ in range(2):
            await client.send(post("/task"))
            await until(lambda: "task" in app.waiting)
            app.answer("task")
            assert (await client.read()).body == b"in a task"
            assert (await client.ask(post("/now"))).body == b"now"


async def test_an_answer_larger_than_the_socket_arrives_whole(app: Batches) -> None:
    app.large = b"x" * 8_000_000
    async with answered_by(app) as (_, client):
        await client.send(post("/big"))
        assert (await client.read()).body == app.large
        assert (await client.ask(post("/now"))).body == b"now"


async def test_a_client_that_does_not_read_its_answer_is_dropped(app: Batches) -> None:
    app.large = b"x" * 8_000_000
    async with answered_by(app, write_timeout_seconds=0.2, deadline_tick_seconds=0.05) as (http, client):
        await client.send(post("/big"))
        await http.until(lambda now: now.timed_out_total == 1 and now.connections == 0)


@pytest.mark.parametrize("path", ["/fail", "/forget"])
async def test_a_failure_is_a_500_and_ends_nothing_else(app: Batches, path: str) -> None:
    """One raises; the other waits by Trio's means without a word before."""
    async with answered_by(app) as (http, client):
        assert (await client.ask(post(path))).status == 500
        assert (await client.ask(post("/now"))).status == 200
        assert http.server.statistics().failed_total == 1


async def test_a_fault_in_reading_ends_one_connection(app: Batches) -> None:
    async with answered_by(app) as (http, client), http.client() as other:
        await client.send(post("/unfindable"))
        assert await client.reads_end()
        assert (await other.ask(post("/now"))).status == 200


async def test_a_refusal_of_the_server_is_reported(app: Batches) -> None:
    async with answered_by(app, max_body_bytes=10) as (_, client):
        assert (await client.ask(post("/now"))).status == 200
        assert (await client.ask(post("/now", b"x" * 11))).status == 413
        assert await client.reads_end()


async def test_a_client_that_leaves_is_known_before_its_answer(app: Batches) -> None:
    async with answered_by(app) as (_, client):
        await client.send(post("/wait"))
        await until(lambda: "wait" in app.waiting)
        await client.stream.send_eof()
        app.answer("wait")
        assert (await client.read()).status == 204  # it still reads
        assert await client.reads_end()
        assert app.gone == [True]


async def test_a_client_that_resets_ends_its_connection_only(app: Batches) -> None:
    async with answered_by(app) as (http, client), http.client() as other:
        await client.send(post("/wait"))
        await until(lambda: "wait" in app.waiting)
        assert isinstance(client.stream, trio.SocketStream)
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(client.stream)
        app.answer("wait")
        await http.until(lambda now: now.connections == 1)
        assert (await other.ask(post("/now"))).status == 200


async def test_a_server_that_is_cancelled_abandons_its_calls(app: Batches) -> None:
    async with answered_by(app) as (http, client):
        await client.send(post("/wait"))
        await until(lambda: "wait" in app.waiting)
        http.scope.cancel()
        await http.ended.wait()
        assert app.abandoned == ["wait"]
        app.answer("wait")  # too late: nothing goes on


async def test_a_drain_answers_and_closes(app: Batches) -> None:
    async with answered_by(app, drain_quiet_seconds=0.01) as (http, client), http.client() as idle:
        assert (await idle.ask(post("/now"))).status == 200
        await client.send(post("/wait") + post("/now"))
        await until(lambda: "wait" in app.waiting)
        http.server.drain()
        assert await idle.reads_end()
        app.answer("wait")
        assert (await client.read()).header("connection") == "close"
        assert await client.reads_end()
        assert app.bodies == [b""]


async def test_an_idle_close_that_meets_a_request_loses_nothing(app: Batches) -> None:
    async with answered_by(app) as (http, client):
        assert (await client.ask(post("/now"))).status == 200
        await http.until(lambda now: now.idle_connections == 1)
        assert isinstance(http.server, HttpServer)
        (connection,) = http.server._connections
        assert isinstance(client.stream, trio.SocketStream)
        with socket.socket(fileno=os.dup(client.stream.socket.fileno())) as sock:
            sock.send(post("/now"))  # it is in the server's socket, and nobody was told
        connection.close_if_idle()
        assert (await client.read()).status == 200


async def test_an_idle_connection_is_closed_after_its_time(app: Batches) -> None:
    async with answered_by(app, keep_alive_timeout_seconds=0.1, deadline_tick_seconds=0.02) as (_, client):
        assert (await client.ask(post("/now"))).status == 200
        assert await client.reads_end()


async def test_a_head_that_stops_is_refused_after_its_time(app: Batches) -> None:
    async with answered_by(app, header_timeout_seconds=0.1, deadline_tick_seconds=0.02) as (http, client):
        assert (await client.ask(post("/now"))).status == 200
        await client.send(b"POST /now HTTP/1.1\r\nHo")
        assert (await client.read()).status == 408
        assert http.server.statistics().timed_out_total == 1


async def test_a_state_that_may_not_follow_is_a_fault(app: Batches) -> None:
    async with answered_by(app) as (http, client):
        await client.ask(post("/now"))
        (connection,) = http.server._connections
        inline = connection._inline_connection
        assert inline is not None
        await until(lambda: inline._state is ConnectionState.LISTENING)
        for state in set(ConnectionState) - TRANSITIONS[ConnectionState.LISTENING]:
            with pytest.raises(AssertionError, match=f"LISTENING.* to .*{state.name}"):
                inline._become(state)
        assert (await client.ask(post("/now"))).status == 200


def test_each_state_is_reached_and_leads_to_the_end() -> None:
    assert set(TRANSITIONS) == set(ConnectionState)
    for state in ConnectionState:
        assert ConnectionState.CLOSED in led_to({state})
    assert led_to({ConnectionState.AWAY}) == set(ConnectionState)


def led_to(states: set[ConnectionState]) -> set[ConnectionState]:
    more = states.union(*(TRANSITIONS[state] for state in states))
    return states if more == states else led_to(more)


async def test_many_connections_are_answered_together(app: Batches) -> None:
    async with answered_by(app) as (http, _), trio.open_nursery() as nursery:

        async def ask(name: str) -> None:
            async with http.client() as client:
                for turn in range(3):
                    await client.send(post(f"/wait{name}{turn}"))
                    assert (await client.read()).status == 204
                assert (await client.ask(get("/now"))).status == 200

        for number in range(100):
            nursery.start_soon(ask, str(number + 1_000))
        for _ in range(3):
            await until(lambda: len(app.waiting) == 100)
            for name in list(app.waiting):
                app.answer(name)
