"""REST while the engine waits for its database at the start: alive, not ready, and 503 for all else.

Takes the place of the application for so long; the server and its connections stay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any

from penstock.http.asgi import Receive, Scope, Send
from penstock.rest.app import RestApp
from penstock.rest.exchange import Handler, Reply, RestExchange, send_reply
from penstock.rest.inline_handler import InlineCall, Wire
from penstock.rest.problems import RETRY_LATER, problem


class Entrance:
    """An ASGI application that another one takes over once it is there."""

    def __init__(self) -> None:
        self.app: RestApp | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return (self._wait if self.app is None else self.app)(scope, receive, send)

    def taskless_call(self, exchange: RestExchange) -> Coroutine[Any, Any, None] | None:
        """Of the application, once it is there."""
        return None if self.app is None else self.app.taskless_call(exchange)

    def inline_call(self, wire: Wire) -> InlineCall | None:
        """Of the application, once it is there."""
        return None if self.app is None else self.app.inline_call(wire)

    def serve_by(self, exchange: RestExchange, handler: Handler) -> Coroutine[Any, Any, None]:
        """Of the application, which has made the hot call."""
        assert self.app is not None
        return self.app.serve_by(exchange, handler)

    async def _wait(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"there is no {scope['type']} here")  # servers take that for "not supported"
        if scope["path"] == "/healthz":
            await send_reply(send, Reply(200, b"", content_type=b"text/plain"), ())
        else:
            await send_reply(
                send, problem("unavailable", "the engine starts: it waits for the database", RETRY_LATER), ()
            )
