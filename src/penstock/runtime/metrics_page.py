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

from penstock.access import table
from penstock.access.gate import Gate
from penstock.errors import PenstockError
from penstock.http import HttpLimits
from penstock.net.tls import Tls
from penstock.rest.exchange import CERTIFICATE, ON_PROVED, App, Receive, Scope, Send, send_reply
from penstock.rest.problems import problem_of
from penstock.runtime.descriptors import METRICS_MAX_CONNECTIONS


class MetricsPage:
    """Serves one registry, once; with a gate, to those who may view."""

    def __init__(
        self,
        registry: CollectorRegistry,
        gate: Gate | None = None,
        *,
        tls: Tls | None = None,
        max_connections: int = METRICS_MAX_CONNECTIONS,
        max_unproved_per_address: int = METRICS_MAX_CONNECTIONS,
    ) -> None:
        from penstock.http.hypercorn_seam import HypercornServer

        self._server = HypercornServer(
            HttpLimits(max_connections=max_connections, max_unproved_per_address=max_unproved_per_address),
            tls=tls,
            asking_proves=gate is None,
        )
        app: App = cast(Any, prometheus_client).make_asgi_app(registry)  # its own types are partly unknown
        self._app = app if gate is None else _gated(app, gate)

    async def serve(
        self, sockets: list[socket.socket], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See `http.interface.AsgiServer`."""
        await self._server.serve(self._app, sockets, task_status=task_status)

    def drain(self) -> None:
        """Answer what runs, then let `serve` return."""
        self._server.drain()


def _nothing() -> None:
    pass


def _gated(app: App, gate: Gate) -> App:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            proofs = [value for name, value in scope["headers"] if name == b"authorization"]
            client = scope.get("client")
            try:
                certificate = scope.get("extensions", {}).get(CERTIFICATE, ())
                identity = await gate.identify(proofs, None if client is None else client[0], certificate)
                identity.require(table.METRICS)
                scope.get("extensions", {}).get(ON_PROVED, _nothing)()
            except PenstockError as error:
                await send_reply(send, problem_of(error), ())
                return
        await app(scope, receive, send)

    return serve
