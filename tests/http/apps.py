"""Applications under test: each does one thing."""

from __future__ import annotations

import json

import trio

from penstock.http.asgi import Headers, Message, Receive, Scope, Send


async def answer(send: Send, status: int, body: bytes = b"", headers: Headers | None = None) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers or []})
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive) -> bytes:
    body = b""
    more = True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body += message["body"]
        more = message["more_body"]
    return body


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Tells what arrived, as JSON."""
    body = await read_body(receive)
    seen = {
        "method": scope["method"],
        "path": scope["path"],
        "query": scope["query_string"].decode("ascii"),
        "version": scope["http_version"],
        "client": scope["client"],
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
        "body": body.decode("latin-1"),
    }
    await answer(send, 200, json.dumps(seen).encode(), [(b"content-type", b"application/json")])


class Parked:
    """An application that parks like a long poll: until it is released or its client goes away."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.released = trio.Event()
        self.left = trio.Event()
        self.reported: Message | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        self.entered.set()
        try:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    self.reported = await receive()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                await self.released.wait()
                nursery.cancel_scope.cancel()
            await answer(send, 200, b"released")
        finally:
            self.left.set()
