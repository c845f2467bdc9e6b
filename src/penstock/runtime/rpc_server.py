"""The gRPC server of a node: our services, health and reflection on one port, with the settings' limits.

Relies on `rpc`, which knows nothing of settings. Must not know the order of start and stop: that is `node.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from socket import socket

import trio

from penstock.access.gate import Gate
from penstock.access.limits import CallLimits
from penstock.engine.engine import Engine
from penstock.net.tls import Tls
from penstock.rpc.health import Health
from penstock.rpc.limits import RpcLimits
from penstock.rpc.methods import service_names
from penstock.rpc.problems import status_of
from penstock.rpc.reflection import Reflection
from penstock.rpc.rows import Rows
from penstock.rpc.server import GrpcServer, Service
from penstock.rpc.service import WorkflowEngine
from penstock.rpc.worker_service import WorkerService
from penstock.settings import Settings


class RpcServer:
    """Serves until drained."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        gate: Gate | None,
        tls: Tls | None = None,
        limits: CallLimits | None = None,
        *,
        max_connections: int | None = None,
    ) -> None:
        services: list[Service] = [WorkflowEngine(engine), WorkerService(engine), Rows(engine)]
        ours = service_names({path: made for service in services for path, made in service.__mapping__().items()})
        self._health = Health(ours)
        reflection = Reflection(ours | service_names(self._health.__mapping__()))
        seconds = engine.metrics.grpc_request_seconds
        self.server = GrpcServer(
            [*services, self._health, *([reflection] if settings.grpc_reflection_enabled else [])],
            limits=RpcLimits(
                connections=max_connections or settings.grpc_max_connections,
                connections_per_address=settings.address_max_connections,
                unproved_per_address=settings.address_max_unproved_connections,
                streams_per_connection=settings.grpc_max_streams,
                message_bytes=settings.grpc_max_message_bytes,
            ),
            tls=tls,
            status_of=status_of,
            answer_memory=engine.answer_memory,
            on_call=lambda method, code, took_s: seconds[method, code].observe(took_s),
            gate=gate,
            call_limits=limits,
            spans=None if engine.traces is None else engine.traces.spans,
        )

    async def serve(
        self, sockets: Sequence[socket], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve on listening sockets; returns after `drain`."""
        await self.server.serve(sockets, task_status=task_status)

    def set_serving(self, serving: bool) -> None:
        """What the health service says from now on."""
        self._health.set_serving(serving)

    async def drain(self, grace_s: float) -> None:
        """Let calls end; those that run after ``grace_s`` are told UNAVAILABLE."""
        await self.server.drain(grace_s)
