"""Polls and completions that go from the bytes to the group-commit queues (`rest/inline_handler`) are answered as by
the handlers."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from penstock.access.gate import Gate
from penstock.access.limits import CallLimits
from penstock.engine.jobs.inline_jobs import PendingPoll
from penstock.engine.queues.activity import Activity
from penstock.errors import Unavailable
from penstock.http import HttpServer, listen
from penstock.http.asgi import Receive, Scope, Send
from penstock.loop.poller import HAVE_EPOLL
from penstock.rest.app import RestApp, make_app
from penstock.rest.inline_handler import InlineCall
from penstock.testing.definitions import linear
from tests.http.raw import Answer, RawClient
from tests.runtime.conftest import StartLocal
from tests.runtime.local_engine import LocalEngine
from tests.shares import mostly_slow
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not HAVE_EPOLL, reason="needs epoll")
POLL = b'{"workerId":"w","jobTypes":["work"],"maxJobs":1}'
WAITING_POLL = b'{"workerId":"w","jobTypes":["work"],"maxJobs":1,"waitSeconds":20}'
SHORT_POLL = WAITING_POLL.replace(b"20", b"0.01")


class Plain:
    """The application without its way for bytes."""

    def __init__(self, app: RestApp) -> None:
        self.app = app
        self.taskless_call = app.taskless_call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class Both:
    """The same engine by a connection whose calls are taken as bytes, and by one whose are not."""

    def __init__(self, inline: RawClient, plain: RawClient, taken: list[bool]) -> None:
        self.inline, self.plain, self.taken = inline, plain, taken

    async def ask(self, client: RawClient, path: str, body: bytes, *lines: str) -> Answer:
        head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *lines, "", ""))
        return await client.ask(head.encode() + body)

    async def job(self, client: RawClient) -> str:
        found = (await self.ask(client, "/v1/jobs/poll", POLL)).json()["jobs"]
        id: str = found[0]["id"]
        return id

    async def compare(self, path: str, body: bytes, *, inline: bool) -> Answer:
        """Ask for a job by each, and the same of it; whether it went as bytes to its end."""
        answers: list[Answer] = []
        for client in (self.plain, self.inline):
            id = await self.job(client) if "{id}" in path else ""
            self.taken.clear()
            answers.append(await self.ask(client, path.replace("{id}", id), body))
        assert self.taken[-1:] == [inline] if inline else True not in self.taken
        plain, other = map(shown, answers)
        assert plain == other
        return answers[1]


def shown(answer: Answer) -> tuple[Any, ...]:
    """All that does not differ from job to job."""
    headers = [(name, "" if name in ("date", "content-length") else value) for name, value in answer.headers]
    body = re.sub(rb"\d{4}-\d\d-\d\dT[0-9:.]+Z", b"TIME", answer.body)
    body = re.sub(rb"[0-9a-f]{6,16}(-[0-9a-f]{6,16}-[0-9a-f]+)?", b"ID", body)
    return answer.status, answer.version, headers, body


@asynccontextmanager
async def clients_of(app: RestApp) -> AsyncGenerator[tuple[RawClient, RawClient]]:
    """A connection whose calls are taken as bytes, and one whose are not."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        clients: list[RawClient] = []
        for each in (app, Plain(app)):
            sockets = listen("127.0.0.1", 0)
            port = sockets[0].getsockname()[1]
            await nursery.start(HttpServer().serve, each, sockets)
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            stack.push_async_callback(trio.aclose_forcefully, stream)
            clients.append(RawClient(stream))
        yield clients[0], clients[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, gate: Gate | None = None, limits: CallLimits | None = None
) -> AsyncGenerator[Both]:
    taken: list[bool] = []
    begin = InlineCall.begin

    def noted(call: InlineCall, line: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        taken.append(begin(call, line, headers, body))
        return taken[-1]

    monkeypatch.setattr(InlineCall, "begin", noted)
    async with clients_of(make_app(engine.engine, gate=gate, limits=limits)) as (inline, plain):
        both = Both(inline, plain, taken)
        for client in (inline, plain):  # now headers, host and poll are known
            await both.ask(client, "/v1/jobs/poll", POLL)
            await both.ask(client, "/v1/jobs/poll", SHORT_POLL)
        yield both


@pytest.fixture
async def engine(start_local: StartLocal) -> LocalEngine:
    engine = await start_local()
    await engine.upload(linear(2))
    return engine


async def test_a_poll_and_a_completion_are_answered_alike(engine: LocalEngine, monkeypatch: Any) -> None:
    async with served(engine, monkeypatch) as both:
        for _ in range(2):
            await engine.start("linear")
        answer = await both.compare("/v1/jobs/poll", POLL, inline=True)
        (job,) = answer.json()["jobs"]
        assert job["workerId"] == "w"
        for _ in range(4):
            await engine.start("linear")
        answer = await both.compare(
            "/v1/jobs/{id}/complete", b'{"workerId":"w","variables":{"a":"\xc3\xa4"}}', inline=True
        )
        assert (answer.status, answer.body) == (204, b"")
        found = engine.engine.metrics.http_request_seconds["POST", "/v1/jobs/{id}/complete", "204"]
        assert sum(found.counts()) == 2


async def test_an_empty_queue_is_reported_at_once(engine: LocalEngine, monkeypatch: Any) -> None:
    async with served(engine, monkeypatch) as both:
        answer = await both.compare("/v1/jobs/poll", POLL, inline=True)
        assert answer.body == b'{"jobs":[]}'


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"workerId":"w"}', 204),
        (b'{"workerId":"w","variables":null,"attempt":1}', 204),
        (b'{"workerId":"w","variables":{}}', 204),
        (b'{"workerId":"other"}', 409),
        (b'{"workerId":"w","attempt":7}', 409),
    ],
)
async def test_completions_taken_as_bytes(engine: LocalEngine, monkeypatch: Any, body: bytes, status: int) -> None:
    async with served(engine, monkeypatch) as both:
        for _ in range(2):
            await engine.start("linear")
        answer = await both.compare("/v1/jobs/{id}/complete", body, inline=True)
        assert answer.status == status


DEEP = b"[" * 200 + b"]" * 200


BAD_COMPLETIONS = [
    b"",
    b"null",
    b"{",
    b'{"workerId":""}',
    b'{"workerId":7}',
    b'{"workerId":"w","attempt":"1"}',
    b'{"workerId":"w","variables":[]}',
    b'{"workerId":"w","variables":"x"}',
    b'{"workerId":"w","variables":{"a":"\\u0000"}}',
    b'{"workerId":"w","variables":{"a":"\\ud800"}}',
    b'{"workerId":"w","variables":{"a":1e999}}',
    b'{"workerId":"w","variables":{"a":%b}}' % DEEP,
    b'{"workerId":"w","variables":{"a":"\xff"}}',
    b'{"workerId":"\xff"}',
    b'{"workerId":"w","other":"\xff"}',
    b'{"workerId":"w\\u0000"}',
    b'{"workerId":"%b"}' % (b"w" * 5_000),
    b'{"workerId":"w","variables":{"a":1}} x',
]
EACH_AN_ENGINE = "each body has an engine of its own"


@pytest.mark.parametrize("body", mostly_slow(BAD_COMPLETIONS, quick=BAD_COMPLETIONS[::3], reason=EACH_AN_ENGINE))
async def test_bad_completions_are_left_to_the_handler(engine: LocalEngine, monkeypatch: Any, body: bytes) -> None:
    async with served(engine, monkeypatch) as both:
        for _ in range(2):
            await engine.start("linear")
        answer = await both.compare("/v1/jobs/{id}/complete", body, inline=False)
        assert answer.status in (400, 409, 413)


@pytest.mark.parametrize("id", ["1-1-1", "x", "1-1-1/", "ffffffffffffffff-1-1", "1-1", "%31-1-1"])
async def test_unknown_jobs_are_left_to_the_handler(engine: LocalEngine, monkeypatch: Any, id: str) -> None:
    async with served(engine, monkeypatch) as both:
        assert (await both.compare(f"/v1/jobs/{id}/complete", b'{"workerId":"w"}', inline=False)).status == 404


async def test_a_long_poll_parks_and_gets_the_next_job(engine: LocalEngine, monkeypatch: Any) -> None:
    async def is_parked() -> bool:
        return len(engine.engine.polls.waiters) == 1

    async with served(engine, monkeypatch) as both:
        for client in (both.plain, both.inline):
            got: list[Answer] = []

            async def poll(client: RawClient = client, got: list[Answer] = got) -> None:
                got.append(await both.ask(client, "/v1/jobs/poll", WAITING_POLL))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll)
                await wait_until(is_parked)
                await engine.start("linear")
            (answer,) = got
            assert len(answer.json()["jobs"]) == 1


async def test_a_job_of_many_bytes_arrives(engine: LocalEngine, monkeypatch: Any) -> None:
    text = "x" * 600_000
    async with served(engine, monkeypatch) as both:
        for _ in range(2):
            await engine.start("linear", {"text": text})
        answer = await both.compare("/v1/jobs/poll", POLL, inline=True)
        assert json.loads(answer.body)["jobs"][0]["variables"]["text"] == text
        assert engine.engine.answer_memory.used_bytes == 0


async def test_who_leaves_during_a_poll_keeps_no_job(engine: LocalEngine, monkeypatch: Any) -> None:
    async with served(engine, monkeypatch) as both:
        both.taken.clear()
        head = f"POST /v1/jobs/poll HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(SHORT_POLL)}\r\n\r\n"
        claims = engine.engine.polls.claims
        submit = claims.submit_nowait
        await engine.start("linear")

        def leave_first(item: Any, **named: Any) -> None:
            submit(item, **named)
            stream = both.inline.stream
            assert isinstance(stream, trio.SocketStream)
            with socket.socket(fileno=os.dup(stream.socket.fileno())) as sock:
                sock.shutdown(socket.SHUT_WR)

        with monkeypatch.context() as patch:
            patch.setattr(claims, "submit_nowait", leave_first)
            await both.inline.send(head.encode() + SHORT_POLL)
            answer = await both.inline.read()
        assert both.taken == [True]
        assert answer.json() == {"jobs": []}
        again = await both.ask(both.plain, "/v1/jobs/poll", WAITING_POLL)  # as soon as it is back
        assert len(again.json()["jobs"]) == 1


async def test_with_a_repeated_completion_nothing_is_applied_twice(engine: LocalEngine, monkeypatch: Any) -> None:
    async with served(engine, monkeypatch) as both:
        await engine.start("linear")
        id = await both.job(both.inline)
        for _ in range(2):
            answer = await both.ask(both.inline, f"/v1/jobs/{id}/complete", b'{"workerId":"w","attempt":1}')
            assert answer.status == 204
        assert await both.job(both.inline) != id


@pytest.mark.parametrize("path", ["/v1/jobs/poll", "/v1/jobs/{id}/complete"])
async def test_a_fault_of_the_engine_is_answered_alike(engine: LocalEngine, monkeypatch: Any, path: str) -> None:
    of_polls = path.endswith("poll")
    commit_queue = engine.engine.polls.claims if of_polls else engine.engine.fast_path

    def fail(item: Any, **named: Any) -> None:
        raise ZeroDivisionError

    async with served(engine, monkeypatch) as both:
        for _ in range(3):
            await engine.start("linear")
        with monkeypatch.context() as patch:
            patch.setattr(commit_queue, "submit_nowait", fail)
            answer = await both.compare(path, POLL if of_polls else b'{"workerId":"w"}', inline=True)
        assert (answer.status, answer.header("content-type")) == (500, "application/json")
        assert answer.json()["error"] == "internal-error"
        found = engine.engine.metrics.http_request_seconds["POST", path, "500"]
        assert sum(found.counts()) == 2
        assert await both.job(both.inline)  # by the same connection


@pytest.mark.parametrize("found", ["a job", "nothing", "nothing at first", "a refusal"])
@pytest.mark.parametrize("body", [POLL, SHORT_POLL])
async def test_a_poll_counts_its_worker_once(engine: LocalEngine, monkeypatch: Any, body: bytes, found: str) -> None:
    polls, token = engine.engine.polls, trio.lowlevel.current_trio_token()

    def refuse(item: Any, **named: Any) -> None:
        token.run_sync_soon(item.refuse, Unavailable("away"))

    async with served(engine, monkeypatch) as both:
        if found == "a job":
            await engine.start("linear")
        elif found == "a refusal":
            monkeypatch.setattr(polls.claims, "submit_nowait", refuse)
        polls.queue.forget("work")  # else a poll that waits is not begun as bytes
        fresh, noted = Activity(engine.engine.metrics, polls.waiters, trio.current_time), list[str]()
        note = fresh.observe_poll

        def noting(worker: str, *rest: Any) -> None:
            noted.append(worker)
            note(worker, *rest)

        monkeypatch.setattr(fresh, "observe_poll", noting)
        monkeypatch.setattr(polls, "activity", fresh)
        both.taken.clear()
        answer = await both.ask(both.inline, "/v1/jobs/poll", body)
        assert both.taken == [True]
        assert answer.status == (503 if found == "a refusal" else 200)
        assert noted == ["w"]  # twice would halve how long it is taken to stay away
        assert fresh.workers() == {"work": 1}


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("resets", [False, True])
async def test_who_drops_a_poll_costs_its_jobs_nothing(
    engine: LocalEngine, monkeypatch: Any, resets: bool, inline: bool
) -> None:
    body = SHORT_POLL.replace(b'"maxJobs":1', b'"maxJobs":3')
    claims, left = engine.engine.polls.claims, trio.Event()
    submit = claims.submit_nowait
    async with served(engine, monkeypatch) as both:
        await both.ask(both.plain, "/v1/jobs/poll", body)  # now it is known
        for _ in range(3):
            await engine.run(linear(1, definition_id="retried", retry_count=2))
        stream = (both.inline if inline else both.plain).stream
        assert isinstance(stream, trio.SocketStream)

        def leave_first(item: Any, **named: Any) -> None:
            submit(item, **named)
            if resets:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.socket.close()
            left.set()

        both.taken.clear()
        with monkeypatch.context() as patch:
            patch.setattr(claims, "submit_nowait", leave_first)
            await stream.send_all(
                b"POST /v1/jobs/poll HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            await left.wait()
        assert both.taken == ([True] if inline else [])
        with trio.fail_after(20):  # of 30 s of lease
            jobs = [await engine.one("work", worker="next") for _ in range(3)]
        assert [(job.attempt, job.retries_remaining) for job in jobs] == [(2, 2)] * 3
        assert set(engine.rows("SELECT failures, expiries FROM token")) == {(0, 0)}


class Parked:
    """One poll that waits without a task, by a connection of its own."""

    def __init__(self, engine: LocalEngine, both: Both) -> None:
        self.engine, self.both = engine, both
        self.answers: list[Answer] = []

    async def ask(self, body: bytes = WAITING_POLL) -> None:
        with suppress(trio.ClosedResourceError):  # where the test hangs up
            self.answers.append(await self.both.ask(self.both.inline, "/v1/jobs/poll", body))

    async def wait(self, nursery: trio.Nursery, body: bytes = WAITING_POLL) -> None:
        """Have it asked, until it is parked."""
        self.both.taken.clear()
        nursery.start_soon(self.ask, body)
        await wait_until(self.is_parked)
        assert self.both.taken == [True]
        (waiter,) = self.engine.engine.polls.waiters.idle_for("work")
        assert isinstance(waiter, PendingPoll)

    async def is_answered(self) -> bool:
        return bool(self.answers)

    async def is_parked(self) -> bool:
        return len(self.engine.engine.polls.waiters) == 1


@asynccontextmanager
async def parked(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, body: bytes = WAITING_POLL
) -> AsyncGenerator[Parked]:
    """A poll that waits for jobs without a task, as one with the same body was served before."""
    async with served(engine, monkeypatch) as both:
        await engine.start("linear")
        await both.ask(both.plain, "/v1/jobs/poll", body)
        async with trio.open_nursery() as nursery:
            poll = Parked(engine, both)
            await poll.wait(nursery, body)
            yield poll
    assert engine.engine.answer_memory.used_bytes == 0
    assert len(engine.engine.polls.waiters) == 0


async def test_a_parked_poll_gets_what_comes_later(engine: LocalEngine, monkeypatch: Any) -> None:
    async with parked(engine, monkeypatch) as poll:
        await engine.start("linear", {"a": 1})
    (answer,) = poll.answers
    (job,) = answer.json()["jobs"]
    assert (job["variables"], job["workerId"], answer.header("content-type")) == ({"a": 1}, "w", "application/json")


async def test_a_parked_poll_gets_jobs_of_other_engines(engine: LocalEngine, monkeypatch: Any) -> None:
    """They are found in the queue by the probe."""
    async with parked(engine, monkeypatch) as poll:
        with monkeypatch.context() as patch:
            patch.setattr(engine.engine.polls.waiters, "reserve", lambda _: None)
            await engine.start("linear")
    assert len(poll.answers[0].json()["jobs"]) == 1


async def test_a_parked_poll_ends_with_its_time(engine: LocalEngine, monkeypatch: Any) -> None:
    body = WAITING_POLL.replace(b"20", b"1.5")
    async with parked(engine, monkeypatch, body) as poll:
        began = trio.current_time()
        await wait_until(poll.is_answered)
        took_s = trio.current_time() - began
        await poll.ask(POLL)  # the connection is as good as before
    answer, again = poll.answers
    assert (answer.status, answer.body, again.status) == (200, b'{"jobs":[]}', 200)
    assert 1.3 < took_s < 15


async def test_a_parked_poll_waits_for_a_statement_under_way(engine: LocalEngine, monkeypatch: Any) -> None:
    """Its time is over while a job is being leased to it: it is answered with that job, not without."""
    polls = engine.engine.polls
    async with parked(engine, monkeypatch, WAITING_POLL.replace(b"20", b"1.2")) as poll:
        deliver, may_go_on = polls.deliveries.deliver_all, trio.Event()

        async def late(*args: Any) -> None:
            await may_go_on.wait()
            await deliver(*args)

        monkeypatch.setattr(polls.deliveries, "deliver_all", late)
        await engine.start("linear")
        (waiter,) = polls.waiters.idle_for("work")
        assert isinstance(waiter, PendingPoll)

        async def is_ending() -> bool:
            return waiter.ending

        await wait_until(is_ending)
        assert poll.answers == []
        may_go_on.set()
    assert len(poll.answers[0].json()["jobs"]) == 1


async def test_a_parked_poll_is_answered_when_the_engine_stops(engine: LocalEngine, monkeypatch: Any) -> None:
    async with parked(engine, monkeypatch) as poll:
        engine.engine.polls.draining = True
        engine.engine.polls.waiters.wake_all()
    assert poll.answers[0].body == b'{"jobs":[]}'


async def test_who_closes_its_side_is_answered_at_once(engine: LocalEngine, monkeypatch: Any) -> None:
    async with parked(engine, monkeypatch) as poll:
        stream = poll.both.inline.stream
        assert isinstance(stream, trio.SocketStream)
        await stream.send_eof()
    assert poll.answers[0].body == b'{"jobs":[]}'


async def test_a_large_job_comes_to_a_parked_poll(engine: LocalEngine, monkeypatch: Any) -> None:
    text = "x" * 600_000
    async with parked(engine, monkeypatch) as poll:
        await engine.start("linear", {"text": text})
    assert poll.answers[0].json()["jobs"][0]["variables"]["text"] == text


async def test_who_left_while_its_job_was_born_costs_it_nothing(engine: LocalEngine, monkeypatch: Any) -> None:
    """The client closes its side in the moment of the commit: nobody has told of it yet, and the job goes back."""
    polls = engine.engine.polls
    deliver = polls.deliveries.deliver

    def leave_first(*args: Any) -> None:
        stream = poll.both.inline.stream
        assert isinstance(stream, trio.SocketStream)
        with socket.socket(fileno=os.dup(stream.socket.fileno())) as sock:
            sock.shutdown(socket.SHUT_WR)
        deliver(*args)

    async with parked(engine, monkeypatch) as poll:
        monkeypatch.setattr(polls.deliveries, "deliver", leave_first)
        await engine.start("linear")
        monkeypatch.setattr(polls.deliveries, "deliver", deliver)
    assert poll.answers[0].body == b'{"jobs":[]}'
    with trio.fail_after(20):  # of 30 s of lease
        job = await engine.one("work", worker="next")
    assert (job.attempt, job.retries_remaining) == (2, 0)


async def test_a_connection_that_breaks_takes_its_poll_along(engine: LocalEngine, monkeypatch: Any) -> None:
    async with parked(engine, monkeypatch) as poll:
        stream = poll.both.inline.stream
        assert isinstance(stream, trio.SocketStream)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()

        async def is_over() -> bool:
            return len(engine.engine.polls.waiters) == 0

        await wait_until(is_over)
    assert poll.answers == []
