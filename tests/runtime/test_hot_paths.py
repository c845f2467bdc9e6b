"""All that workers call is answered alike however often a connection has asked, and also where it is compiled: then
most of it is taken as bytes from the second time on (`rest/hot`)."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio

from penstock.http import HttpServer, listen
from penstock.rest.app import make_app
from penstock.testing.definitions import linear
from tests.http.raw import Answer, RawClient
from tests.runtime.conftest import StartLocal
from tests.runtime.test_hot_calls import POLL, Plain, shown

BATCH = b'{"workerId":"w","results":[{"jobId":"1-1-1"}]}'
PATHS = [
    ("poll", POLL),
    ("complete", BATCH),
    ("complete", b'{"workerId":"w"}'),
    ("fail", BATCH),
    ("heartbeat", b'{"workerId":"w","jobs":[]}'),
    ("release", b'{"workerId":"w","jobs":[]}'),
    ("/complete", b'{"workerId":"w"}'),
    ("1-1-1/complete", b'{"workerId":"w"}'),
    ("1-1-1/fail", b'{"workerId":"w"}'),
    ("poll?a=b", POLL),
]


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_repeated_call_is_answered_alike(start_local: StartLocal, path: str, body: bytes) -> None:
    engine = await start_local()
    await engine.upload(linear(1))
    app, answers = make_app(engine.engine), list[list[Answer]]()
    head = f"POST /v1/jobs/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for each in (app, Plain(app)):
            sockets = listen("127.0.0.1", 0)
            port = sockets[0].getsockname()[1]
            await nursery.start(HttpServer().serve, each, sockets)
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            stack.push_async_callback(trio.aclose_forcefully, stream)
            client = RawClient(stream)
            answers.append([await client.ask(head.encode() + body) for _ in range(3)])
        nursery.cancel_scope.cancel()
    hot, plain = ([shown(answer) for answer in each] for each in answers)
    assert hot == plain
    assert {answer.status for answer in answers[0]} <= {200, 400, 404}
