"""The servers through which others reach an engine: REST, and gRPC where it has a socket; bound before.

REST may answer before the engine is there (`entrance`). Drained, they finish what is in flight within the grace.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import trio

from penstock.access.gate import Gate
from penstock.access.limits import make_limits
from penstock.engine.engine import Engine
from penstock.http import AsgiServer, HttpLimits, HttpServer
from penstock.log.log import get_logger
from penstock.rest.app import NO_SNIFF, make_app
from penstock.rest.cors import Cors
from penstock.runtime.access import ListenerTls
from penstock.runtime.descriptors import Shares
from penstock.runtime.entrance import Entrance
from penstock.runtime.rpc_server import RpcServer
from penstock.runtime.supervise import Supervisor
from penstock.settings import HttpServerKind, Settings
from penstock.telemetry.metrics import Metrics

log = get_logger(__name__)


class Listeners:
    """Of one engine."""

    def __init__(
        self,
        settings: Settings,
        sockets: dict[str, list[socket.socket]],
        gate: Gate | None,
        tls: ListenerTls,
        shares: Shares,
        metrics: Metrics,
    ) -> None:
        self._settings, self._sockets, self._gate = settings, sockets, gate
        self._tls, self._shares, self._metrics = tls, shares, metrics
        self._entrance = Entrance()
        self._http = self._http_server()
        self._rpc: RpcServer | None = None

    async def serve_entrance(self, supervisor: Supervisor) -> None:
        """REST, which says that the engine starts until there is one."""
        await supervisor.start("REST", self._http.serve, self._entrance, self._sockets["REST"])

    async def start(self, supervisor: Supervisor, engine: Engine, degraded: Callable[[], list[str]]) -> None:
        """Serve the engine; REST may be up already."""
        settings, shares = self._settings, self._shares
        if (shares.rest, shares.grpc) != (settings.http_max_connections, settings.grpc_max_connections):
            log.warning("fewer connections than set: the system allows few open files", **shares._asdict())
        limits = make_limits(settings)
        if "gRPC" in self._sockets:
            rpc = RpcServer(engine, settings, self._gate, self._tls.grpc, limits, max_connections=shares.grpc)
            await supervisor.start("gRPC", rpc.serve, self._sockets["gRPC"])
            self._metrics.watch_connections("gRPC", lambda: rpc.server.statistics().connections)
            self._rpc = rpc
        self._entrance.app = make_app(engine, degraded=degraded, gate=self._gate, limits=limits)
        if "REST" not in supervisor.names():
            await self.serve_entrance(supervisor)
        self._metrics.watch_connections("REST", lambda: self._http.statistics().connections)
        if self._rpc is not None:
            self._rpc.set_serving(True)

    async def drain(self, supervisor: Supervisor, engine: Engine) -> None:
        """Answer what is in flight within the grace; past it requests are cancelled."""
        rpc, grace_s = self._rpc, self._settings.shutdown_grace_seconds
        supervisor.expect_end("REST")
        if rpc is not None:
            supervisor.expect_end("gRPC")
            rpc.set_serving(False)
        self._http.drain()  # first: then the answers of parked polls tell their clients that the connection ends
        engine.drain()
        async with trio.open_nursery() as nursery:
            if rpc is not None:
                nursery.start_soon(rpc.drain, grace_s)
            with trio.move_on_after(grace_s) as grace:
                await supervisor.wait_ended("REST")
            if grace.cancelled_caught:
                log.warning("open requests were cut off at the stop", grace_s=grace_s)
                await supervisor.stop("REST")
        if rpc is not None:
            await supervisor.wait_ended("gRPC")

    def _http_server(self) -> AsgiServer:
        settings = self._settings
        limits = HttpLimits(
            max_head_bytes=settings.http_max_header_bytes,
            max_body_bytes=settings.max_body_bytes,
            max_request_memory_bytes=settings.http_max_request_memory_bytes,
            max_connections=self._shares.rest,
            max_connections_per_address=settings.address_max_connections or self._shares.rest,
            max_unproved_per_address=settings.address_max_unproved_connections,
            header_timeout_seconds=settings.http_header_timeout_seconds,
            body_timeout_seconds=settings.http_body_timeout_seconds,
            keep_alive_timeout_seconds=settings.http_keep_alive_seconds,
            write_timeout_seconds=settings.http_write_timeout_seconds,
        )
        unasked = (*Cors(settings.allowed_origins, settings.cors_headers).unasked, NO_SNIFF)
        open_to_all = self._gate is None
        if settings.http_server is HttpServerKind.HYPERCORN:
            from penstock.http.hypercorn_seam import HypercornServer

            return HypercornServer(limits, tls=self._tls.rest, refusal_headers=unasked, asking_proves=open_to_all)
        return HttpServer(limits, tls=self._tls.rest, refusal_headers=unasked, asking_proves=open_to_all)
