"""The standard health service, ``grpc.health.v1.Health``.

Says of the whole server ("") and of each service whether it serves; the runtime tells it with ``set_serving``.
grpclib ships one, on asyncio and google.protobuf; this one needs neither. Does no checks of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from penstock.rpc.call import ServerCall
from penstock.rpc.methods import answers_stream, unary
from penstock.wire.grpc_health import HealthCheckRequest, HealthCheckResponse, ServingStatus

_Call = ServerCall[HealthCheckRequest, HealthCheckResponse]


class Health:
    """One status for all services: they live and die together. Not serving until told."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(services) | {"", "grpc.health.v1.Health"}
        self._serving = False
        self._changed = trio.Event()

    def set_serving(self, serving: bool) -> None:
        """Change the status; watchers are told. Idempotent."""
        if serving != self._serving:
            self._serving = serving
            self._changed.set()
            self._changed = trio.Event()

    def __mapping__(self) -> dict[str, Handler]:
        return {
            "/grpc.health.v1.Health/Check": unary(self._check, HealthCheckRequest, HealthCheckResponse),
            "/grpc.health.v1.Health/Watch": answers_stream(self._watch, HealthCheckRequest, HealthCheckResponse),
        }

    async def _check(self, request: HealthCheckRequest, _call: _Call) -> HealthCheckResponse:
        await trio.lowlevel.checkpoint()
        if request.service not in self._services:
            raise GRPCError(Status.NOT_FOUND, "no such service")
        return HealthCheckResponse(status=self._status())

    async def _watch(self, call: _Call) -> None:
        """Every change, until the client goes or the server drains."""
        request = await call.recv_message()
        assert request is not None
        known = request.service in self._services
        async with trio.open_nursery() as nursery:

            async def report_state() -> None:
                while True:
                    changed = self._changed
                    await call.send_message(
                        HealthCheckResponse(status=self._status() if known else ServingStatus.SERVICE_UNKNOWN)
                    )
                    await changed.wait()

            nursery.start_soon(report_state)
            await call.wait_draining()
            nursery.cancel_scope.cancel()
        last = ServingStatus.NOT_SERVING if known else ServingStatus.SERVICE_UNKNOWN
        await call.send_message(HealthCheckResponse(status=last))
        raise GRPCError(Status.UNAVAILABLE, "the server is shutting down")

    def _status(self) -> ServingStatus:
        return ServingStatus.SERVING if self._serving else ServingStatus.NOT_SERVING
