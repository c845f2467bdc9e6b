"""HTTP without a network: httpx requests go straight into the REST application of an engine in another thread.

So a `penstock.client.Client` in a test is the real one, with the real encoding and the real errors, under any event
loop. One request is one call of the application; nothing is kept between them.
"""

from __future__ import annotations

import httpx
import trio

from penstock.client import Client
from penstock.client.rest import RestTransport
from penstock.http.asgi import Message, Scope
from penstock.testing.engine_thread import EngineThread

BASE_URL = "http://localhost"


def in_process_client(thread: EngineThread) -> Client:
    """Return a client of the engine in ``thread``. Holds nothing that would have to be closed."""
    return Client(in_process_transport(thread))


def in_process_transport(thread: EngineThread) -> RestTransport:
    """What a client of the engine in ``thread`` is made of."""
    http = httpx.AsyncClient(base_url=BASE_URL, transport=_InProcess(thread))  # a time limit is `_InProcess`'s business
    return RestTransport(http=http)


class _InProcess(httpx.AsyncBaseTransport):
    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("127.0.0.1", 0),
            "server": ("penstock.test", 80),
        }
        status, headers, content = await self._thread.call(_exchange, self._thread, scope, body)
        return httpx.Response(status, headers=headers, content=content)


async def _exchange(thread: EngineThread, scope: Scope, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return one request and its answer, in the engine's loop."""
    sent: list[Message] = []
    received = False

    async def receive() -> Message:
        nonlocal received
        if received:  # the client of a test does not go away: a cancelled call is cancelled here, too
            await trio.sleep_forever()
        received = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await thread.app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return start["status"], list(start.get("headers", ())), content
