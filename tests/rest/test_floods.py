"""Too much of everything: memory stays bounded, refusals are clear, and whoever behaves is served meanwhile.

Each flood runs against an engine process of its own over real sockets; its resident memory is read from /proc. The
well-behaved caller asks again and again and has to be answered with what it asked for, in time.
"""

from __future__ import annotations

import contextlib
import json
import resource
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio

from benchmarks.processes import read_process
from penstock.testing.definitions import linear
from tests.runtime.conftest import StartEngine, start_engine
from tests.runtime.engine_process import EngineProcess
from tests.waiting import wait_until

__all__ = ["start_engine"]

pytestmark = [pytest.mark.slow(reason="floods an engine process for seconds")]

IDLE_CONNECTIONS = 3_000
ANSWER_MAX_S = 10.0
"""For who behaves; the machine may be busy with other tests."""
MEGABYTE = 1_000_000


def resident_mb(engine: EngineProcess) -> float:
    facts = read_process(engine.process.pid)
    assert facts is not None
    return facts.resident_bytes / MEGABYTE


def head(path: str, length: int, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {length}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def send(port: int, path: str, body: bytes, *headers: str) -> tuple[int, dict[str, Any]]:
    """One request on a connection of its own: status and error object; 0 when the connection was reset."""
    answer = b""
    try:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            with contextlib.suppress(trio.BrokenResourceError):  # refused before all of it was sent
                await stream.send_all(head(path, len(body), "connection: close", *headers) + body)
            async for chunk in stream:
                answer += chunk
    except (trio.BrokenResourceError, OSError):
        pass
    if not answer:
        return 0, {}
    top, _, content = answer.partition(b"\r\n\r\n")
    with contextlib.suppress(ValueError):
        return int(top.split()[1]), json.loads(content)
    return int(top.split()[1]), {}


@contextlib.asynccontextmanager
async def others_are_served(engine: EngineProcess) -> AsyncGenerator[Counter[str]]:
    """Somebody who behaves, meanwhile: starts an instance and reads the list, again and again."""
    served: Counter[str] = Counter()

    async def behave() -> None:
        while True:
            began = trio.current_time()
            with trio.fail_after(ANSWER_MAX_S):
                status, _ = await send(engine.port, "/v1/instances", b'{"definitionId":"linear"}')
            assert status == 201
            served["answers"] += 1
            served["slowest ms"] = max(served["slowest ms"], round((trio.current_time() - began) * 1000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(behave)
        yield served
        while served["answers"] < 3:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


def begun(start_engine: StartEngine, **settings: object) -> EngineProcess:
    engine = start_engine(**settings).wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    return engine


@pytest.mark.open_files
async def test_thousands_of_idle_connections(start_engine: StartEngine) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    engine = begun(start_engine)
    before = resident_mb(engine)
    streams: list[trio.SocketStream] = []
    try:
        async with others_are_served(engine):
            while len(streams) < IDLE_CONNECTIONS:
                streams += [await trio.open_tcp_stream("127.0.0.1", engine.port)]
            await streams[-1].send_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await streams[-1].receive_some(15)) == b"HTTP/1.1 200 OK"
        grown_kb = (resident_mb(engine) - before) * 1000 / IDLE_CONNECTIONS
        assert grown_kb < 40, f"{grown_kb:.0f} kB per idle connection"
    finally:
        for stream in streams:
            stream.socket.close()


async def test_slow_senders(start_engine: StartEngine) -> None:
    """Half a request each, then nothing: gone, and most of them told so."""
    engine = begun(start_engine, http_header_timeout_seconds=1, http_body_timeout_seconds=1)
    answers: Counter[bytes] = Counter()

    async def dawdle(number: int) -> None:
        part = b"POST /v1/insta" if number % 2 else head("/v1/instances", 1_000) + b'{"a'
        async with await trio.open_tcp_stream("127.0.0.1", engine.port) as stream:
            await stream.send_all(part)
            answer = b""
            with contextlib.suppress(trio.BrokenResourceError):
                async for chunk in stream:
                    answer += chunk
            answers[answer[:12]] += 1

    async with others_are_served(engine):
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(300):
                    nursery.start_soon(dawdle, number)
    # Told so, or ended without an answer: a connection that never asked makes room for others.
    assert set(answers) <= {b"HTTP/1.1 408", b""}
    assert answers.total() == 300
    assert answers[b"HTTP/1.1 408"] >= 150


async def test_more_bodies_at_once_than_there_is_memory_for(start_engine: StartEngine) -> None:
    limit_mb = 32
    engine = begun(start_engine, http_max_request_memory_bytes=limit_mb * MEGABYTE)
    before = resident_mb(engine)
    body = b'{"definitionId":"linear","variables":{"x":"' + b"x" * 3 * MEGABYTE + b'"}}'
    answers: Counter[int] = Counter()

    highest = before

    async def push() -> None:
        nonlocal highest
        status, problem = await send(engine.port, "/v1/instances", body)
        answers[status] += 1
        highest = max(highest, resident_mb(engine))
        assert status in (201, 0) or problem["error"] in ("payload-too-large", "unavailable", "resource-exhausted")

    async with others_are_served(engine), trio.open_nursery() as nursery:
        for _ in range(60):  # 180 MB
            nursery.start_soon(push)
    assert sum(answers.values()) == 60
    assert not any(status == 500 for status in answers)
    assert len(answers) > 1, "nothing was refused: the flood was none"
    # besides the bodies: what is parsed, and the batch as it goes to the database, in several copies
    assert highest - before < 9 * limit_mb, f"{before:.0f} MB before, {highest:.0f} at most; {answers}"


HEAVY = {
    "deep arrays": b"[" * 2_000_000 + b"]" * 2_000_000,
    "deep objects": b'{"a":' * 500_000 + b"1" + b"}" * 500_000,
    "a million keys": b"{" + b",".join(b'"k%d":1' % number for number in range(350_000)) + b"}",
    "a long number": b"1" * 3_900_000,
    "many long numbers": b"[" + b",".join([b"1" * 999] * 3_900) + b"]",
    "one long text": b'"' + b"\\u00e9" * 600_000 + b'"',
    "unclosed": b"[" * 4_000_000,
}


async def test_heavy_json_everywhere(start_engine: StartEngine) -> None:
    engine = begun(start_engine)
    before = resident_mb(engine)
    templates = {
        "/v1/definitions": b'{"id":"x","name":"x","steps":[],"metadata":%s}',
        "/v1/instances": b'{"definitionId":"linear","variables":{"x":%s}}',
        "/v1/jobs/complete": b'{"workerId":"w","results":%s}',
        "/v1/jobs/1-1-1/heartbeat": b'{"workerId":"w","checkpoint":%s}',
        "/v1/jobs/poll": b'{"workerId":"w","jobTypes":%s}',
    }
    answers: dict[tuple[str, str], int] = {}
    async with others_are_served(engine):
        for path, template in templates.items():
            for name, value in HEAVY.items():
                status, problem = await send(engine.port, path, template % value)
                answers[path, name] = status
                assert status in (200, 201, 400, 404, 413), (path, name, status, problem)
                assert status < 300 or problem["reason"], (path, name)
    assert answers["/v1/definitions", "deep arrays"] == 400
    assert answers["/v1/instances", "deep objects"] == 400
    assert answers["/v1/jobs/poll", "unclosed"] == 400
    assert resident_mb(engine) - before < 150, f"{before:.0f} MB before, {resident_mb(engine):.0f} after"


async def test_more_starts_than_the_queue_holds(start_engine: StartEngine) -> None:
    engine = begun(start_engine, batch_queue_max_items=50, batch_max_items=10)
    answers: Counter[str] = Counter()

    async def flood() -> None:
        items = [{"definitionId": "linear"}] * 200
        status, answer = await send(engine.port, "/v1/instances/batch", json.dumps({"items": items}).encode())
        assert status == 200
        for result in answer["results"]:
            answers[result.get("error", "started")] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(flood)
    assert set(answers) == {"started", "resource-exhausted"}
    assert sum(answers.values()) == 2_000
    async with others_are_served(engine):
        pass


async def test_more_parked_polls_than_allowed(start_engine: StartEngine) -> None:
    """Those that are parked wait until the engine stops, so whoever is answered before was sent away."""
    engine = begun(start_engine, poll_max_parked=20)
    answers = 0

    async def poll(number: int) -> None:
        nonlocal answers
        body = {"workerId": f"w{number}", "jobTypes": ["nothing"], "waitSeconds": 60}
        status, answer = await send(engine.port, "/v1/jobs/poll", json.dumps(body).encode())
        assert (status, answer) == (200, {"jobs": []})
        answers += 1

    async def all_but_the_parked_ones() -> bool:
        parked = await trio.to_thread.run_sync(engine.metric, "penstock_parked_polls")
        return (answers, parked) == (80, 20)

    async with trio.open_nursery() as nursery:
        async with others_are_served(engine):
            for number in range(100):
                nursery.start_soon(poll, number)
            await wait_until(all_but_the_parked_ones)
        assert await trio.to_thread.run_sync(engine.stop) == 0
    assert answers == 100
