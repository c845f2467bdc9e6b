"""What the runtime knows of an HTTP server, whichever it is."""

from __future__ import annotations

import socket
from typing import Protocol

import msgspec
import trio

from penstock.http.asgi import App


class HttpStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a server. Totals count from its start."""

    connections: int
    idle_connections: int
    running_requests: int
    accepted_total: int
    requests_total: int
    refused_total: int
    """Answered by the server itself: malformed, over a limit, too slow."""
    failed_total: int
    """The application raised."""
    timed_out_total: int
    request_memory_bytes: int


class AsgiServer(Protocol):
    """Serves one ASGI application on listening sockets until it is drained."""

    async def serve(
        self,
        app: App,
        sockets: list[socket.socket],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Returns when it was drained and the last connection has ended. Takes the sockets over. There is no grace
        in here: whoever has waited long enough cancels, and what still runs ends unanswered."""
        ...

    def drain(self) -> None:
        """Stop accepting, close idle connections, answer what runs and close behind it. Idempotent, does not wait."""
        ...

    def statistics(self) -> HttpStatistics: ...
