"""The gRPC transport: operations as unary calls on one shared connection.

Relies on `exchange.py` for what each operation looks like on this wire. Must not retry or log: that is who calls'
part.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import anyio
import msgspec

from penstock.client.errors import BadRequest, InternalError
from penstock.client.grpc.channel import Channel
from penstock.client.grpc.connection import GrpcLimits
from penstock.client.grpc.exchange import exchange_for
from penstock.client.grpc.unary import UnaryExchange
from penstock.client.operation import Operation, PollJobs
from penstock.client.token import Token

R = TypeVar("R")

FIRST_POLL_PAUSE_S = 0.1
MAX_POLL_PAUSE_S = 1.0


class GrpcTransport:
    """Calls an engine over gRPC: HTTP/2 on anyio, with one connection for all calls that run at once.

    Args:
        url: ``grpc://host:port``, or ``grpcs://host:port`` for TLS; without a port 9090.
        metadata: sent with every call, e.g. ``{"x-tenant": "…"}``.
        token: proves who calls; see ``Client``.
        ssl_context: for ``grpcs``; by default the system's authorities. Its ALPN is set to HTTP/2.
        limits: message size, time to connect, keep-alive.

    For use in one event loop at a time. Variables are exact where ``penstock.v1`` carries them (starts, results,
    heartbeats, pushed jobs); in what comes through ``workflow.v1`` (instances that are read, polled jobs, definitions)
    whole numbers beyond 2^53 are rounded. ``NotOverGrpc`` is raised for an instance's audit trail, kept signals and
    failed jobs, which only REST has.
    """

    def __init__(
        self,
        url: str,
        *,
        metadata: Mapping[str, str] | None = None,
        token: Token | None = None,
        ssl_context: ssl.SSLContext | None = None,
        limits: GrpcLimits | None = None,
    ) -> None:
        self.channel = Channel(
            url, metadata=metadata or {}, token=token, ssl_context=ssl_context, limits=limits or GrpcLimits()
        )

    async def call(self, operation: Operation[R], *, timeout_s: float) -> R:
        """Make one exchange. See ``Transport.call``."""
        exchange = exchange_for(operation)
        if isinstance(operation, PollJobs):
            return cast(R, await self._poll(exchange, operation.hold_s, timeout_s))
        return cast(R, await self._exchange(exchange, timeout_s))

    async def _exchange(self, exchange: UnaryExchange, timeout_s: float) -> Any:
        key = exchange.idempotency_key
        if key and not (key.isascii() and key.isprintable()):
            raise BadRequest("idempotency_key: must be printable ASCII")
        metadata = [(b"idempotency-key", key.encode())] if key else []
        try:
            answer = await self.channel.unary(
                exchange.path, exchange.request, exchange.answer_type, timeout_s=timeout_s, metadata=metadata
            )
        except UnicodeEncodeError as error:
            raise BadRequest(f"a text is not Unicode: {error}") from error
        try:
            return exchange.read(answer)
        except msgspec.MsgspecError as error:
            raise InternalError(f"unreadable answer to {exchange.path}: {error}") from error

    async def _poll(self, exchange: UnaryExchange, wait_s: float, timeout_s: float) -> Any:
        """The engine does not hold a poll over gRPC: asked again until there are jobs or the time is over."""
        began_at = anyio.current_time()
        pause_s = FIRST_POLL_PAUSE_S
        while True:
            waited_s = anyio.current_time() - began_at
            jobs = await self._exchange(exchange, timeout_s - waited_s)
            if jobs or waited_s + pause_s > wait_s:
                return jobs
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_POLL_PAUSE_S)

    async def aclose(self) -> None:
        """Close the connection. Calls in flight fail."""
        await self.channel.aclose()
