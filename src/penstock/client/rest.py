"""The REST transport: operations as HTTP exchanges (httpx, which runs under asyncio and Trio alike).

Relies on `exchange.py` for what each operation looks like on this wire. Must not retry, sleep or log: that is
`client.py`'s part.
"""

from __future__ import annotations

import functools
import math
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

import anyio
import httpx
import msgspec

from penstock.client.encoding import to_json
from penstock.client.errors import (
    BadRequest,
    ClientError,
    ConnectionFailed,
    InternalError,
    Problem,
    TimedOut,
    Unavailable,
    error_for,
)
from penstock.client.exchange import exchange_for
from penstock.client.forked import MadeHere, leave_to_parent
from penstock.client.http_exchange import Exchange
from penstock.client.operation import Operation
from penstock.client.token import Token, bearer_of, check_token
from penstock.client.tracing import current_traceparent

R = TypeVar("R")

MAX_CONNECTIONS = 100
CONNECT_TIMEOUT_S = 5.0
MAX_SHOWN_REASON_CHARS = 500
_HEADER_VALUE = re.compile(rb"[^\x00-\x20\x7f]+([ \t]+[^\x00-\x20\x7f]+)*")
"""What an engine reads as one. h11 lets more control characters pass, and calls what it does not let pass a broken
connection, which would be repeated."""


class RestTransport:
    """Calls an engine over HTTP/1.1 with kept-alive connections.

    Args:
        base_url: where the engine listens, e.g. ``http://127.0.0.1:8080``.
        headers: sent with every request, e.g. ``{"X-Tenant": "…"}``.
        token: proves who calls; see ``Client``.
        verify: how to check a TLS certificate: True (the system's authorities) or an SSL context.
        http: an own httpx client (proxies, custom transports); its base_url must be set. It is closed with this.

    Proxy settings in the environment are not read: an engine is an inner service. Give ``http`` to use a proxy.
    """

    def __init__(
        self,
        base_url: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        token: Token | None = None,
        verify: bool | ssl.SSLContext = True,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        check_token(token)
        self._token = token
        if http is None and not base_url.startswith(("http://", "https://")):
            raise ValueError(f"not an http://, https://, grpc:// or grpcs:// URL: {base_url!r}")
        make = functools.partial(_http_client, base_url, dict(headers or {}), verify)
        self._make = make if http is None else None
        try:
            self._http = http or make()
        except httpx.InvalidURL as error:
            raise ValueError(f"{error}: {base_url!r}") from None
        self._here = MadeHere()

    async def call(self, operation: Operation[R], *, timeout_s: float) -> R:
        """Make one exchange. See ``Transport.call``."""
        if not self._here:
            self._renew()
        exchange = exchange_for(operation)
        request = self._request(exchange)
        response: httpx.Response | None = None
        try:
            with anyio.move_on_after(timeout_s):
                if self._token is not None:
                    request.headers["Authorization"] = await bearer_of(self._token)
                response = await self._http.send(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise ConnectionFailed(_text(error, f"no connection to {self._where}"), maybe_applied=False) from None
        except httpx.RemoteProtocolError as error:
            reason = _text(error, f"the connection to {self._where} broke")
            if "Server disconnected" not in reason and "peer closed" not in reason:
                reason += "; does this port speak REST?"
            raise ConnectionFailed(reason) from None
        except httpx.TransportError as error:
            raise ConnectionFailed(_text(error, f"the connection to {self._where} broke")) from None
        except httpx.RequestError as error:
            raise InternalError(_text(error, "unreadable answer")) from error
        if response is None:
            raise TimedOut(f"no answer from {self._where} to {exchange.method} {exchange.path} within {timeout_s:g} s")
        if response.is_success:
            return cast(R, _read(exchange, response))
        raise _error(response)

    @property
    def _where(self) -> str:
        """The engine's address, without what may stand before it in a URL."""
        url = self._http.base_url
        return f"{url.scheme}://{url.netloc.decode()}"

    async def aclose(self) -> None:
        """Close all connections. Requests in flight fail."""
        if self._here:
            await self._http.aclose()

    def _renew(self) -> None:
        """In a forked child: connections of its own."""
        if self._make is None:
            raise RuntimeError("this client's own httpx client was made before a fork: make both in the child")
        leave_to_parent(self._http)
        self._http, self._here = self._make(), MadeHere()

    def _request(self, exchange: Exchange) -> httpx.Request:
        headers: dict[str, str] = {}
        content: bytes | None = None
        if exchange.body is not None:
            content = exchange.body if isinstance(exchange.body, bytes) else to_json(exchange.body)
            headers["Content-Type"] = "application/json"
        if exchange.idempotency_key:  # an empty one is none, to an engine, too
            if not _fits_a_header(exchange.idempotency_key):
                raise BadRequest(f"the Idempotency-Key {exchange.idempotency_key!r} can't be the value of a header")
            headers["Idempotency-Key"] = exchange.idempotency_key
        traceparent = current_traceparent()
        if traceparent is not None:
            headers["traceparent"] = traceparent
        query = {name: value for name, value in (exchange.query or {}).items() if value is not None}
        request = self._http.build_request(
            exchange.method,
            exchange.path,
            content=content,
            headers=httpx.Headers(headers, encoding="utf-8"),
            params=query or None,
        )
        if content is not None:
            request.stream = OnePieceBody(content)
        return request


def _http_client(base_url: str, headers: dict[str, str], verify: bool | ssl.SSLContext) -> httpx.AsyncClient:
    if base_url.startswith("http://"):  # reading the system's authorities takes 30 ms: this one trusts nobody
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(
        base_url=base_url,
        headers=headers,
        verify=verify,
        limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
        trust_env=False,
        # The whole exchange has one limit of time, set per call; httpx's own count each read anew.
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
    )


class OnePieceBody(httpx.AsyncByteStream):
    """A request's body in one piece.

    httpx's own is an async generator; a call that is cancelled while it is sent leaves that suspended, and the event
    loop warns when it is collected.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Pieces([self._content])


class _Pieces:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> bytes:
        if not self._pieces:
            raise StopAsyncIteration
        return self._pieces.pop()


def _fits_a_header(text: str) -> bool:
    try:
        return _HEADER_VALUE.fullmatch(text.encode()) is not None
    except UnicodeEncodeError:
        return False


def _text(error: Exception, otherwise: str) -> str:
    return f"{otherwise}: {error}" if str(error) else otherwise


def _read(exchange: Exchange, response: httpx.Response) -> Any:
    try:
        return exchange.answer(response.content)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InternalError(
            f"unreadable answer to {exchange.method} {exchange.path}: {error}", status=response.status_code
        ) from error


class _ErrorObject(msgspec.Struct):
    """The contract's error object; a 410 has ``hint`` in place of a reason."""

    error: str | None = None
    reason: str | None = None
    message: str | None = None
    hint: str | None = None
    problems: list[Problem] | None = None


def _error(response: httpx.Response) -> ClientError:
    status = response.status_code
    try:
        answer = msgspec.json.decode(response.content, type=_ErrorObject)
    except (msgspec.MsgspecError, ValueError):  # a proxy's page, or an empty body
        answer = _ErrorObject(reason=response.text[:MAX_SHOWN_REASON_CHARS].strip())
    reason = answer.reason or answer.message or answer.hint or response.reason_phrase or f"HTTP {status}"
    error = error_for(answer.error, reason, status, answer.problems or ())
    if isinstance(error, Unavailable):
        error.retry_after_s = _retry_after_s(response.headers.get("Retry-After"))
    return error


def _retry_after_s(text: str | None) -> float | None:
    """Return the pause in a ``Retry-After`` header: seconds, or an HTTP date."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):  # no date, or one without a zone
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
