"""Starts that go from the bytes to their group-commit queue (`rest/inline_handler`) are answered as by the handler,
whatever becomes of them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from penstock.access.roles import read_grant
from penstock.access.tokens import KnownToken, make_token
from penstock.loop.poller import HAVE_EPOLL
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import IdTaken
from penstock.store.db.outcome import InDoubt
from penstock.store.db.pool_errors import PoolClosed
from penstock.store.rows import instances as store
from penstock.telemetry.spans import Span
from penstock.testing.definitions import fork, linear
from tests.access.people import bearer, make_gate
from tests.engine.test_held_rows import held
from tests.engine.test_long_advances import long_once
from tests.http.raw import Answer, RawClient
from tests.runtime.conftest import StartLocal
from tests.runtime.local_engine import LocalEngine
from tests.runtime.test_inline_calls import DEEP, EACH_AN_ENGINE, POLL, Both, served, shown
from tests.shares import mostly_slow
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not HAVE_EPOLL, reason="needs epoll")
START = "/v1/instances"
PLAIN = b'{"definitionId":"linear","variables":{"a":1}}'
WINDOWED = linear(1, definition_id="windowed") | {"start": {"dedupe": {"key": "${order}", "window": "PT1H"}}}


@pytest.fixture
async def engine(start_local: StartLocal) -> LocalEngine:
    engine = await start_local()
    await engine.upload(linear(2))
    return engine


class Unkept(Span):
    """Spans that begin and end for nobody; it makes them, too."""

    def __init__(self) -> None:
        super().__init__(None)

    @property
    def traceparent(self) -> str:
        return "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"

    def begin(self, *_: Any, **named: Any) -> Unkept:
        return self

    def note(self, attributes: Any) -> None: ...
    def rename(self, name: str) -> None: ...
    def end(self) -> None: ...


def seconds_counted(engine: LocalEngine, status: int) -> int:
    return sum(engine.engine.metrics.http_request_seconds["POST", START, str(status)].counts())


def asked(body: bytes = PLAIN) -> bytes:
    return b"POST /v1/instances HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def stream_of(client: RawClient) -> trio.SocketStream:
    assert isinstance(client.stream, trio.SocketStream)
    return client.stream


async def test_a_start_is_answered_alike(engine: LocalEngine, monkeypatch: Any) -> None:
    async with served(engine, monkeypatch) as both:
        answer = await both.compare(START, PLAIN, inline=True)
    assert (answer.status, answer.json()["variables"], answer.json()["currentStepIds"]) == (201, {"a": 1}, ["task-1"])
    assert seconds_counted(engine, 201) == 2
    rows = engine.rows("SELECT business_key, started_by FROM instance")
    assert rows == [(None, None)] * 2
    assert engine.engine.metrics.registry.get_sample_value("workflow_instances_started_total") == 2
    assert engine.engine.answer_memory.used_bytes == 0


TAKEN = [
    (b'{"definitionId":"linear"}', 201),
    (b'{"definitionId":"linear","definitionVersion":1,"businessKey":"b","variables":{"a":"\xc3\xa4"}}', 201),
    (b'{"definitionId":"linear","definitionVersion":0,"businessKey":null,"variables":null}', 201),
    (b' {"definitionId" : "linear", "variables" : { } , "more" : [] } ', 201),
    (b'{"definitionId":"linear","variables":{"text":"%b"}}' % (b"x" * 16_000), 201),
    (b'{"definitionId":"linear","priority":3,"flowKey":"k"}', 201),
    (b'{"definitionId":"linear","delay":"PT1H"}', 201),
    (b'{"definitionId":"linear","instanceKey":"there"}', 201),
    (b'{"definitionId":"linear","dedupe":{"key":"there","window":"PT1H"}}', 201),
    (b'{"definitionId":"linear","throttle":{"key":"over","limit":1,"period":"PT1H"}}', 429),
    (b'{"definitionId":"windowed","variables":{"order":1}}', 201),
    (b'{"definitionId":"windowed"}', 400),
    (b'{"definitionId":"forked"}', 201),
    (b'{"definitionId":"long","variables":{"n":1}}', 201),
    (b'{"definitionId":"unknown"}', 404),
    (b'{"definitionId":"linear","definitionVersion":9}', 404),
]


@pytest.mark.parametrize(("body", "status"), mostly_slow(TAKEN, quick=TAKEN[::3], reason=EACH_AN_ENGINE))
async def test_starts_taken_as_bytes(engine: LocalEngine, monkeypatch: Any, body: bytes, status: int) -> None:
    """What shares a key with another start finds it there, whose variables are more."""
    for other in (WINDOWED, fork(2, 1, definition_id="forked"), long_once()):
        await engine.upload(other)
    async with served(engine, monkeypatch) as both:
        for first in (
            b'{"definitionId":"linear","instanceKey":"there","variables":{"text":"%b"}}' % (b"x" * 400_000),
            b'{"definitionId":"linear","dedupe":{"key":"there","window":"PT1H"}}',
            b'{"definitionId":"linear","throttle":{"key":"over","limit":1,"period":"PT1H"}}',
            b'{"definitionId":"windowed","variables":{"order":1}}',
        ):
            assert (await both.ask(both.plain, START, first)).status == 201
        answer = await both.compare(START, body, inline=True)
    assert answer.status == status
    assert engine.engine.answer_memory.used_bytes == 0


ODD = [
    (b"", 400),
    (b"null", 400),
    (b"[]", 400),
    (b"{", 400),
    (b"{}", 400),
    (PLAIN + b" x", 400),
    (b'{"definitionId":""}', 400),
    (b'{"definitionId":7}', 400),
    (b'{"definitionId":"%b"}' % (b"d" * 5_000), 400),
    (b'{"definitionId":"linear","definitionVersion":"1"}', 400),
    (b'{"definitionId":"linear","businessKey":"\x00"}', 400),
    (b'{"definitionId":"linear","businessKey":"%b"}' % (b"b" * 5_000), 400),
    (b'{"definitionId":"linear","variables":[]}', 400),
    (b'{"definitionId":"linear","variables":{"a":"\\u0000"}}', 400),
    (b'{"definitionId":"linear","variables":{"a":1e999}}', 400),
    (b'{"definitionId":"linear","variables":{"a":%b}}' % DEEP, 400),
    (b'{"definitionId":"linear","variables":{"a":"\xff"}}', 400),
    (b'{"definitionId":"linear","other":"\xff"}', 400),
    (b'{"definitionId":"linear","priority":"high"}', 400),
    (b'{"definitionId":"linear","delay":"soon"}', 400),
    (b'{"definitionId":"linear","keepInstanceKey":true}', 400),
    (b'{"definitionId":"linear","waitSeconds":0.01}', 201),
    (b'{"definitionId":"linear","wait\\u0053econds":0.01}', 201),
    (b'{"definitionId":"linear","variables":{"text":"%b"}}' % (b"x" * 17_000), 201),
]


@pytest.mark.parametrize(("body", "status"), mostly_slow(ODD, quick=ODD[::3], reason=EACH_AN_ENGINE))
async def test_odd_starts_are_left_to_the_handler(
    engine: LocalEngine, monkeypatch: Any, body: bytes, status: int
) -> None:
    async with served(engine, monkeypatch) as both:
        assert (await both.compare(START, body, inline=False)).status == status
    assert engine.engine.answer_memory.used_bytes == 0


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("Idempotency-Key: k", 201),
        ("Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", 201),
        ("Origin: http://elsewhere", 403),
        ("Sec-Fetch-Site: cross-site", 403),
    ],
)
async def test_headers_that_mean_something_are_left(
    engine: LocalEngine, monkeypatch: Any, line: str, status: int
) -> None:
    async with served(engine, monkeypatch) as both:
        both.taken.clear()
        answers = [await both.ask(client, START, PLAIN, line) for client in (both.plain, both.inline) for _ in range(3)]
    assert {answer.status for answer in answers} == {status}
    assert [shown(answer) for answer in answers[:3]] == [shown(answer) for answer in answers[3:]]
    assert both.taken == []
    if line.startswith("Idem"):
        assert len({answer.json()["id"] for answer in answers}) == 1


@pytest.mark.parametrize("path", ["/v1/instances?a=b", "/v1/instances/", "/v1//instances", "/v1/instances/batch"])
async def test_other_paths_are_left(engine: LocalEngine, monkeypatch: Any, path: str) -> None:
    async with served(engine, monkeypatch) as both:
        await both.compare(path, PLAIN, inline=False)


async def test_starts_that_have_spans_are_left(engine: LocalEngine, monkeypatch: Any) -> None:
    class Traces:
        spans = Unkept()

    monkeypatch.setattr(engine.engine, "traces", Traces())
    async with served(engine, monkeypatch) as both:
        await both.compare(START, PLAIN, inline=False)
        answer = await both.compare("/v1/jobs/poll", POLL, inline=True)
    assert len(answer.json()["jobs"]) == 1


# -- refusals


async def test_a_full_queue_refuses_alike(engine: LocalEngine, monkeypatch: Any) -> None:
    async with served(engine, monkeypatch) as both:
        with monkeypatch.context() as patch:
            patch.setattr(engine.engine.starts.commit_queue, "_max_queue_items", 0)
            answer = await both.compare(START, PLAIN, inline=False)
            assert engine.engine.answer_memory.used_bytes == 0
        assert (answer.status, answer.header("retry-after")) == (429, "1")
        assert (await both.compare(START, PLAIN, inline=True)).status == 201


async def test_a_full_memory_of_answers_refuses_alike(engine: LocalEngine, monkeypatch: Any) -> None:
    memory = engine.engine.answer_memory
    async with served(engine, monkeypatch) as both:
        with monkeypatch.context() as patch:
            patch.setattr(memory, "used_bytes", memory.max_bytes)
            answer = await both.compare(START, PLAIN, inline=False)
        assert answer.status == 503
        assert memory.used_bytes == 0


async def test_a_stopping_engine_refuses_alike(engine: LocalEngine, monkeypatch: Any) -> None:
    async def closed(*_: Any, **named: Any) -> None:
        raise PoolClosed

    async with served(engine, monkeypatch) as both:
        with monkeypatch.context() as patch:
            patch.setattr(engine.engine.starts.commit_queue, "_once", closed)
            answer = await both.compare(START, PLAIN, inline=True)
        assert (answer.status, answer.header("retry-after")) == (503, "1")
    assert engine.engine.answer_memory.used_bytes == 0


async def test_a_fault_of_the_engine_is_answered_alike(engine: LocalEngine, monkeypatch: Any) -> None:
    def fail(item: Any, **named: Any) -> None:
        raise ZeroDivisionError

    async with served(engine, monkeypatch) as both:
        with monkeypatch.context() as patch:
            patch.setattr(engine.engine.starts.commit_queue, "submit_nowait", fail)
            answer = await both.compare(START, PLAIN, inline=True)
        assert (answer.status, answer.json()["error"]) == (500, "internal-error")
        assert seconds_counted(engine, 500) == 2
        assert (await both.compare(START, PLAIN, inline=True)).status == 201  # by the same connection
    assert engine.engine.answer_memory.used_bytes == 0


# -- ways through the group-commit queues


async def test_a_start_may_be_another_version_meanwhile(
    engine: LocalEngine, start_local: StartLocal, monkeypatch: Any
) -> None:
    """The remembered one is not the latest any more: by a plain one, by one of the full path."""
    other = await start_local()
    async with served(engine, monkeypatch) as both:
        for later in (linear(3, definition_id="linear"), fork(2, 1, definition_id="linear")):
            version = (await both.compare(START, PLAIN, inline=True)).json()["definitionVersion"]
            await other.upload(later)
            both.taken.clear()
            answer = await both.ask(both.inline, START, PLAIN)
            assert (answer.status, answer.json()["definitionVersion"], both.taken) == (201, version + 1, [True])


@pytest.mark.parametrize("error", [InDoubt("it goes on without us"), IdTaken("taken")])
async def test_a_start_that_is_tried_again_is_answered(engine: LocalEngine, monkeypatch: Any, error: Exception) -> None:
    start_fast, tries = store.start_fast, list[int]()

    async def failing(connection: TrioConnection, items: Sequence[Any], **named: Any) -> list[store.Begun]:
        tries.append(items[0].id)
        if len(tries) == 1:
            raise error
        return await start_fast(connection, items, **named)

    async with served(engine, monkeypatch) as both:
        await both.ask(both.inline, START, PLAIN)
        both.taken.clear()
        monkeypatch.setattr(store, "start_fast", failing)
        assert (await both.ask(both.inline, START, PLAIN)).status == 201
        assert (both.taken, len(tries)) == ([True], 2)
    assert engine.rows("SELECT count(*) FROM instance") == [(2,)]


async def test_a_start_that_stands_aside_is_answered_later(engine: LocalEngine, monkeypatch: Any) -> None:
    body = b'{"definitionId":"linear","debounce":{"key":"k","wait":"PT1M"}}'
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await both.ask(both.inline, START, body))

    async def is_quarantined() -> bool:
        return engine.engine.starts.keyed.statistics().lock_waiting == 1

    async with served(engine, monkeypatch) as both, trio.open_nursery() as nursery:
        first = await both.ask(both.plain, START, body)
        both.taken.clear()
        with held(engine.dsn, "SELECT FROM start_window FOR UPDATE"):
            nursery.start_soon(ask)
            await wait_until(is_quarantined)
            assert (both.taken, answers) == ([True], [])
    assert answers[0].json()["id"] == first.json()["id"]


async def test_a_start_that_another_queue_takes_is_answered(engine: LocalEngine, monkeypatch: Any) -> None:
    """Its definition's rule is found while it is loaded, and its evaluation takes long: it is moved twice."""
    await engine.upload(long_once() | {"start": WINDOWED["start"]})
    moved: list[object] = []
    take_over = engine.engine.starts.long.take_over

    def noted(item: Any) -> None:
        moved.append(item)
        take_over(item)

    monkeypatch.setattr(engine.engine.starts._full, "_take_over", noted)
    async with served(engine, monkeypatch) as both:
        both.taken.clear()
        answer = await both.ask(both.inline, START, b'{"definitionId":"long","variables":{"n":1,"order":7}}')
    assert (answer.status, both.taken, len(moved)) == (201, [True], 1)
    assert answer.json()["status"] == "COMPLETED"


# -- clients that leave


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("resets", [False, True])
async def test_who_hangs_up_has_started_nevertheless(
    engine: LocalEngine, monkeypatch: Any, resets: bool, inline: bool
) -> None:
    commit_queue, left, go_on = engine.engine.starts.commit_queue, trio.Event(), trio.Event()
    apply = commit_queue.apply

    async def held_up(*args: Any) -> None:
        await go_on.wait()
        await apply(*args)

    async with served(engine, monkeypatch) as both:
        stream = stream_of(both.inline if inline else both.plain)
        submit = commit_queue.submit_nowait

        def leave_first(item: Any, **named: Any) -> None:
            submit(item, **named)
            if resets:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.socket.close()
            left.set()

        both.taken.clear()
        monkeypatch.setattr(commit_queue, "submit_nowait", leave_first)
        monkeypatch.setattr(commit_queue, "apply", held_up)
        await stream.send_all(asked())
        await left.wait()
        assert both.taken == ([True] if inline else [])
        go_on.set()
        await engine.one("work", wait=20)
        await commit_queue.wait_flushed()
    assert engine.rows("SELECT count(*) FROM instance") == [(1,)]
    assert engine.engine.answer_memory.used_bytes == 0


@pytest.mark.parametrize("inline", [False, True])
async def test_a_server_cancelled_meanwhile_has_started_nevertheless(
    engine: LocalEngine, monkeypatch: Any, inline: bool
) -> None:
    commit_queue, begun, go_on = engine.engine.starts.commit_queue, trio.Event(), trio.Event()
    apply = commit_queue.apply

    async def held_up(*args: Any) -> None:
        begun.set()
        await go_on.wait()
        await apply(*args)

    async with served(engine, monkeypatch) as both:
        monkeypatch.setattr(commit_queue, "apply", held_up)
        await (both.inline if inline else both.plain).send(asked())
        await begun.wait()
        assert engine.engine.answer_memory.used_bytes > 0
    assert engine.engine.answer_memory.used_bytes == 0
    assert seconds_counted(engine, 499) == 1
    go_on.set()
    await commit_queue.wait_flushed()
    assert engine.rows("SELECT count(*) FROM instance") == [(1,)]


async def test_who_closes_its_side_gets_its_answer(engine: LocalEngine, monkeypatch: Any) -> None:
    answers: list[Answer] = []
    async with served(engine, monkeypatch) as both:
        for client in (both.plain, both.inline):
            submit = engine.engine.starts.commit_queue.submit_nowait

            def leave_first(item: Any, client: RawClient = client, submit: Any = submit, **named: Any) -> None:
                submit(item, **named)
                stream_of(client).socket.shutdown(socket.SHUT_WR)

            with monkeypatch.context() as patch:
                patch.setattr(engine.engine.starts.commit_queue, "submit_nowait", leave_first)
                await client.send(asked())
                answers.append(await client.read())
            assert await client.reads_end()
    assert [answer.status for answer in answers] == [201, 201]


# -- with authentication


def proof(role: str) -> tuple[str, ...]:
    return (f"Authorization: {bearer(role)}",) if role else ()


async def start_twice(both: Both, *lines: str) -> Answer:
    """By each connection, which knows the headers then."""
    answers: list[tuple[Any, ...]] = []
    last: Answer | None = None
    for client in (both.plain, both.inline):
        await both.ask(client, START, PLAIN, *lines)
        both.taken.clear()
        last = await both.ask(client, START, PLAIN, *lines)
        answers.append(shown(last))
    assert answers[0] == answers[1]
    assert last is not None
    return last


async def test_callers_may_do_the_same_on_both_ways(engine: LocalEngine, monkeypatch: Any) -> None:
    async with served(engine, monkeypatch, make_gate()) as both:
        for role, status in (("operator", 201), ("admin", 201), ("worker", 403), ("viewer", 403), ("", 401)):
            answer = await start_twice(both, *proof(role))
            assert (answer.status, both.taken) == (status, [status == 201]), role
    rows = engine.rows("SELECT started_by, count(*) FROM instance GROUP BY 1 ORDER BY 1")
    assert rows == [("token:admin", 4), ("token:operator", 4)]
    assert engine.engine.answer_memory.used_bytes == 0


@pytest.mark.parametrize(
    "lines", [(*proof("operator"), *proof("operator")), ("Authorization: Basic dzp3",), ("Cookie: a=b",)]
)
async def test_odd_proofs_are_left_to_the_handler(
    engine: LocalEngine, monkeypatch: Any, lines: tuple[str, ...]
) -> None:
    async with served(engine, monkeypatch, make_gate()) as both:
        assert (await start_twice(both, *lines)).status == 401
        assert True not in both.taken


async def test_a_token_counts_no_longer_once_it_is_revoked(engine: LocalEngine, monkeypatch: Any) -> None:
    token, gate = make_token(), make_gate()
    gate.replace_tokens([KnownToken("x", "x", token.digest, read_grant("operator"), 2e9)])
    async with served(engine, monkeypatch, gate) as both:
        line = f"Authorization: Bearer {token.text}"
        assert (await start_twice(both, line)).status == 201
        assert both.taken == [True]
        gate.replace_tokens([])
        assert (await start_twice(both, line)).status == 401
        assert both.taken == [False]
