"""The listener of ``GET /metrics``: hypercorn and prometheus_client.

First up and last down, so that a start and a stop can be watched. hypercorn is imported when the page is made: the
engine processes of ``--processes N`` have none.
"""

from __future__ import annotations

import socket
from typing import Any, cast

import prometheus_client
import trio
from prometheus_client import CollectorRegistry


class MetricsPage:
    """Serves one registry, once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from penstock.http.hypercorn_seam import HypercornServer

        self._server = HypercornServer(http2=False)
        self._app = cast(Any, prometheus_client).make_asgi_app(registry)  # its own types are partly unknown

    async def serve(
        self, sockets: list[socket.socket], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See `http.interface.Server`."""
        await self._server.serve(self._app, sockets, task_status=task_status)

    def drain(self) -> None:
        """Answer what runs, then let `serve` return."""
        self._server.drain()
