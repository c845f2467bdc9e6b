"""REST while the engine waits for its database at the start: alive, not ready, and 503 for all else.

Takes the place of the application for so long; the server and its connections stay.
"""

from __future__ import annotations

from penstock.http.asgi import App, Receive, Scope, Send
from penstock.rest.exchange import Reply, send_reply
from penstock.rest.problems import RETRY_LATER, problem


class Entrance:
    """An ASGI application that another one takes over once it is there."""

    def __init__(self) -> None:
        self.app: App | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            raise ValueError(f"there is no {scope['type']} here")  # servers take that for "not supported"
        elif scope["path"] == "/healthz":
            await send_reply(send, Reply(200, b"", content_type=b"text/plain"), ())
        else:
            await send_reply(
                send, problem("unavailable", "the engine starts: it waits for the database", RETRY_LATER), ()
            )
