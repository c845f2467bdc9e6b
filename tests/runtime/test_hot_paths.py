"""All that workers call is answered alike however often a connection has asked, and also where it is compiled: then
most of it is taken as bytes from the second time on (`rest/inline_handler`)."""

from __future__ import annotations

import pytest

from penstock.rest.app import make_app
from penstock.testing.definitions import linear
from tests.runtime.conftest import StartLocal
from tests.runtime.test_inline_calls import POLL, SHORT_POLL, clients_of, shown
from tests.shares import mostly_slow

BATCH = b'{"workerId":"w","results":[{"jobId":"1-1-1"}]}'
LONG_POLL = ("poll", POLL.replace(b"}", b',"waitSeconds":1.2}'))
PATHS = [
    ("poll", POLL),
    ("poll", SHORT_POLL),
    LONG_POLL,
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


@pytest.mark.parametrize(
    ("path", "body"),
    mostly_slow(PATHS, quick=[each for each in PATHS if each != LONG_POLL], reason="six polls that wait"),
)
async def test_a_repeated_call_is_answered_alike(start_local: StartLocal, path: str, body: bytes) -> None:
    engine = await start_local()
    await engine.upload(linear(1))
    head = f"POST /v1/jobs/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    async with clients_of(make_app(engine.engine)) as clients:
        hot, plain = [[shown(await client.ask(head.encode() + body)) for _ in range(3)] for client in clients]
    assert hot == plain
    assert {status for status, *_ in hot} <= {200, 400, 404}
