"""Clients that ask for much and read little: the memory of an engine process stays within its budget, and who behaves
is served. The peak is the one that the kernel keeps."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock.testing.definitions import linear
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message
from penstock.wire.model import PollRequest
from tests.rest.test_floods import MEGABYTE, head, others_are_served, resident_mb
from tests.rpc.raw import Answer, client_on, framed
from tests.runtime.conftest import StartEngine, start_engine
from tests.runtime.engine_process import EngineProcess

__all__ = ["start_engine"]

pytestmark = [pytest.mark.slow(reason="answers of many megabytes")]

BUDGET_MB = 64
OVERHEAD_MB = 80
"""Beside the budget: what the memory allocator keeps, requests, connections, libpq's buffers."""
VARIABLES_MB = 2
INSTANCES = 20
LIST = b"GET /v1/instances?pageSize=200 HTTP/1.1\r\nhost: localhost\r\n\r\n"


def with_large_instances(start_engine: StartEngine) -> EngineProcess:
    engine = start_engine(answer_max_memory_bytes=BUDGET_MB * 1024 * 1024).wait_ready()
    assert engine.call("POST", "/v1/definitions", linear(1))[0] == 201
    variables = {"text": "x" * VARIABLES_MB * MEGABYTE}
    for _ in range(INSTANCES):
        assert engine.call("POST", "/v1/instances", {"definitionId": "linear", "variables": variables})[0] == 201
    return engine


@contextlib.asynccontextmanager
async def attacked(engine: EngineProcess) -> AsyncGenerator[None]:
    """Others are served meanwhile, and memory stays within the budget."""
    process = Path(f"/proc/{engine.process.pid}")
    (process / "clear_refs").write_text("5")  # the kernel's own peak begins anew
    before = resident_mb(engine)
    async with others_are_served(engine):
        yield
    (peak_kb,) = [line.split()[1] for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM")]
    grown_mb = int(peak_kb) * 1024 / MEGABYTE - before
    assert grown_mb < BUDGET_MB + OVERHEAD_MB, f"{before:.0f} MB before, {grown_mb:.0f} more at most"


async def ask(port: int, request: bytes) -> tuple[int, bytes]:
    """Status and body of one answer, to the end of the connection."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
        answer = bytearray()
        async for chunk in stream:
            answer += chunk
    top, _, body = bytes(answer).partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in top.lower():
        whole = bytearray()
        while body:
            size, _, body = body.partition(b"\r\n")
            whole += body[: int(size, 16)]
            body = body[int(size, 16) + 2 :]
        body = bytes(whole)
    return int(top.split()[1]), body


async def test_eight_lists_of_large_variables_at_once(start_engine: StartEngine) -> None:
    engine = with_large_instances(start_engine)
    items: list[list[dict[str, Any]]] = []

    async def read_list() -> None:
        status, body = await ask(engine.port, LIST)
        assert status == 200
        found = json.loads(body)
        assert found["total"] >= INSTANCES
        items.append([item for item in found["items"] if item["variables"]])
        for item in items[-1]:
            assert len(item.pop("variables")["text"]) == VARIABLES_MB * MEGABYTE

    async with attacked(engine), trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(read_list)
    assert [len(found) for found in items] == [INSTANCES] * 8
    status, body = await ask(engine.port, LIST.replace(b"?", b"?view=summary&"))
    assert status == 200
    assert len(body) < 100_000


async def test_clients_that_do_not_read_their_answers(start_engine: StartEngine) -> None:
    """150 of them, each with a request for something large; half of the jobs are there for those who poll."""
    engine = with_large_instances(start_engine)
    (id, *_) = [item["id"] for item in engine.call("GET", "/v1/instances?view=summary&pageSize=200")[1]["items"]]
    poll = json.dumps({"workerId": "w", "jobTypes": ["work"], "maxJobs": 100}).encode()
    requests = [
        LIST,
        b"GET /v1/instances/%b HTTP/1.1\r\nhost: localhost\r\n\r\n" % id.encode(),
        head("/v1/jobs/poll", len(poll)) + poll,
    ]
    streams: list[trio.SocketStream] = []
    statuses = Counter[bytes]()

    async def read_status(stream: trio.SocketStream, nursery: trio.Nursery) -> None:
        statuses[await stream.receive_some(12)] += 1
        if statuses[b"HTTP/1.1 503"] > 50:
            nursery.cancel_scope.cancel()

    try:
        async with attacked(engine):
            for number in range(150):
                streams.append(await trio.open_tcp_stream("127.0.0.1", engine.port))
                await streams[-1].send_all(requests[number % 3])
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    for stream in streams:
                        nursery.start_soon(read_status, stream, nursery)
    finally:
        for stream in streams:
            stream.socket.close()


async def test_a_grpc_client_with_a_window_of_nothing(start_engine: StartEngine) -> None:
    engine = with_large_instances(start_engine)
    service = "/workflow.v1.WorkflowEngine"
    (id, *_) = [item["id"] for item in engine.call("GET", "/v1/instances?view=summary&pageSize=200")[1]["items"]]
    requests = [
        (f"{service}/ListInstances", encode_message(m.ListInstancesRequest(page_size=5))),
        (f"{service}/GetInstance", encode_message(m.GetInstanceRequest(id))),
        (f"{service}/PollJobs", encode_message(PollRequest("w", ["work"], 10))),
    ]
    stream = await trio.open_tcp_stream("127.0.0.1", engine.grpc_port)
    async with attacked(engine), client_on(stream, window=0) as client:
        for number in range(200):
            path, request = requests[number % 3]
            await client.send(await client.open(path), framed(request), end=True)
        with trio.fail_after(30):
            while sum(refused(answer) for answer in client.answers.values()) < 50:
                await client.changed.wait()


def refused(answer: Answer) -> bool:
    """RESOURCE_EXHAUSTED, which fits through the smallest window."""
    return answer.done.is_set() and answer.status == 8
