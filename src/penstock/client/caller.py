"""Calls with a limit of time, repeated where that is safe: what all methods of the client stand on.

Runs under asyncio and Trio (anyio). Relies on a ``Transport`` for single exchanges. What may be repeated is told by
each operation (`operation.py`); nothing else decides about it.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar, cast
from urllib.parse import urlsplit

import anyio

from penstock.api.operation import Repeat
from penstock.client.backoff import MAX_PAUSE_S, RetryPauses
from penstock.client.errors import NotFound, Unavailable
from penstock.client.operation import (
    CheckReady,
    Operation,
    StartInstance,
    StartInstances,
    Transport,
)
from penstock.client.rest import RestTransport
from penstock.client.token import Token
from penstock.client.tracing import calling
from penstock.wire.page import Page

R = TypeVar("R")
T = TypeVar("T")

CALL_TIMEOUT_S = 30.0
# An engine holds a call for up to 10 s while its database is away (`outage_wait_seconds`): one exchange gets longer.
EXCHANGE_TIMEOUT_S = 15.0
# With less time than this left nothing is repeated: it would only turn a telling error into a time-out.
MIN_EXCHANGE_S = 0.05
READY_POLL_PAUSE_S = 0.2
STARTS = (StartInstance, StartInstances)
# They begin a trace where there is none.


class Caller:
    """Holds a transport and calls operations through it."""

    def __init__(
        self,
        engine: str | Transport,
        *,
        token: Token | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        exchange_timeout_s: float = EXCHANGE_TIMEOUT_S,
    ) -> None:
        for name, value in (("timeout_s", timeout_s), ("exchange_timeout_s", exchange_timeout_s)):
            if not value > 0:
                raise ValueError(f"{name} must be more than 0, not {value}")
        self.transport = transport_for(engine, token, ssl_context)
        self._timeout_s = timeout_s
        self._exchange_timeout_s = exchange_timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self.transport.aclose()

    async def call(
        self, operation: Operation[R], *, timeout_s: float | None = None, max_pause_s: float = MAX_PAUSE_S
    ) -> R:
        """Send any operation, repeating it with growing pauses while that is safe and time is left.

        Raises:
            ClientError: by condition; the last one met when time ran out.
        """
        with calling(operation.label, begins=isinstance(operation, STARTS)):
            return await self._repeated(operation, self._timeout_s if timeout_s is None else timeout_s, max_pause_s)

    async def _repeated(self, operation: Operation[R], timeout_s: float, max_pause_s: float) -> R:
        deadline = anyio.current_time() + timeout_s + operation.hold_s
        backoff = RetryPauses(max_s=max_pause_s)
        maybe_applied = False
        while True:
            left_s = max(0.0, deadline - anyio.current_time())
            try:
                exchange_s = min(left_s, self._exchange_timeout_s + operation.hold_s)
                return await self.transport.call(operation, timeout_s=exchange_s)
            except NotFound:
                if not (maybe_applied and operation.repeat is Repeat.UNTIL_GONE):
                    raise
                return cast(R, None)
            except Unavailable as error:
                maybe_applied |= error.maybe_applied
                pause_s = backoff.next_pause_s(error)
                may_repeat = operation.repeat is not Repeat.IF_NOT_APPLIED or not error.maybe_applied
                if not may_repeat or anyio.current_time() + pause_s + MIN_EXCHANGE_S >= deadline:
                    raise
                await anyio.sleep(pause_s)
                if anyio.current_time() + MIN_EXCHANGE_S >= deadline:  # the pause took longer: the machine stood still
                    raise

    async def is_ready(self) -> bool:
        """Return whether the engine says that it is ready; False too if it can't be reached."""
        try:
            await self.transport.call(CheckReady(), timeout_s=self._exchange_timeout_s)
        except Unavailable:
            return False
        return True

    async def wait_until_ready(self, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Wait until the engine is ready.

        Raises:
            Unavailable: it was not within ``timeout_s`` seconds; says what the last look found.
        """
        await self.call(CheckReady(), timeout_s=timeout_s, max_pause_s=READY_POLL_PAUSE_S)


async def every_item(read: Callable[[str | None], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    """The items of a whole list, read as they are asked for; ``read`` gives the page after a cursor."""
    cursor: str | None = None
    while True:
        page = await read(cursor)
        for item in page.items:
            yield item
        cursor = page.next
        if cursor is None:
            return


def check_url(engine: str) -> None:
    """Raises ValueError for what is no engine's URL, before anything is tried."""
    parts = urlsplit(engine)
    if parts.scheme not in ("http", "https", "grpc", "grpcs") or not parts.hostname:
        raise ValueError(f"not an http://, https://, grpc:// or grpcs:// URL: {engine!r}")


def transport_for(engine: str | Transport, token: Token | None, ssl_context: ssl.SSLContext | None) -> Transport:
    """Return the transport for a URL; one that is given stays as it is. Raises ValueError."""
    if not isinstance(engine, str):
        if token is not None or ssl_context is not None:
            raise ValueError("token and ssl_context go with an engine's URL: give them to the transport or client")
        return engine
    check_url(engine)
    if engine.startswith(("grpc://", "grpcs://")):
        from penstock.client.grpc import GrpcTransport  # HTTP/2 is loaded by who uses it

        return GrpcTransport(engine, token=token, ssl_context=ssl_context)
    if ssl_context is not None and engine.startswith("http://"):
        raise ValueError(f"an ssl_context is for https:// URLs, not for {engine!r}")
    return RestTransport(engine, token=token, verify=True if ssl_context is None else ssl_context)
