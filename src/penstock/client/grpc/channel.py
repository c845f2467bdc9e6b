"""The way to one engine, or several behind one address: connects, shares the connection, connects again.

One connection at a time serves all calls. When it dies, or the engine says that it leaves, the next call opens another;
calls that run on the old one end there. Pauses between attempts are the business of who repeats calls.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute

from penstock.client.errors import ConnectionFailed, InternalError, TimedOut
from penstock.client.forked import MadeHere, leave_to_parent
from penstock.client.grpc.call import GrpcCall
from penstock.client.grpc.connection import Connection, GrpcLimits
from penstock.client.token import Token, bearer_of, check_token
from penstock.client.tracing import current_traceparent
from penstock.wire.codec import decode_message, encode_message, package_at
from penstock.wire.protobuf import DecodeError

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)

DEFAULT_PORT = 9090
_MAX_TIMEOUT_DIGITS = 8
_RESERVED = ("grpc-", ":", "content-type", "te")


class Channel:
    """See the module.

    Args:
        url: ``grpc://host:port``, or ``grpcs://host:port`` for TLS; without a port 9090.
        metadata: sent with every call.
        token: proves who calls.
        ssl_context: for ``grpcs``; by default the system's authorities. Its ALPN is set to HTTP/2.
        limits: the bounds of a connection.

    Raises:
        ValueError: the URL or the metadata can't be used.
    """

    def __init__(
        self,
        url: str,
        *,
        metadata: Mapping[str, str],
        token: Token | None = None,
        ssl_context: ssl.SSLContext | None,
        limits: GrpcLimits,
    ) -> None:
        check_token(token)
        self._token = token
        parts = urlsplit(url)
        rest = (parts.username, parts.password, parts.query, parts.fragment, parts.path.removeprefix("/"))
        if parts.scheme not in ("grpc", "grpcs") or not parts.hostname or any(rest):
            raise ValueError(f"not a grpc://host:port or grpcs://host:port URL: {url!r}")
        if ssl_context is not None and parts.scheme == "grpc":
            raise ValueError(f"an ssl_context is for grpcs:// URLs, not for {url!r}")
        self._host = parts.hostname
        self._port = parts.port or DEFAULT_PORT
        self._ssl = (ssl_context or ssl.create_default_context()) if parts.scheme == "grpcs" else None
        if self._ssl is not None:
            self._ssl.set_alpn_protocols(["h2"])
        self._headers = [
            (b":method", b"POST"),
            (b":scheme", b"http" if self._ssl is None else b"https"),
            (b":authority", parts.netloc.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"penstock-python"),
        ]
        self._metadata = [_metadata_item(name, value) for name, value in metadata.items()]
        self._limits = limits
        self._connection: Connection | None = None
        self._old: set[Connection] = set()
        self._connecting = anyio.Lock()
        self._here = MadeHere()

    async def unary(
        self,
        path: str,
        request: msgspec.Struct,
        answer_type: type[AnswerT],
        *,
        timeout_s: float,
        metadata: Sequence[tuple[bytes, bytes]] = (),
    ) -> AnswerT:
        """Return one request, one answer.

        Cancel-safe: the engine is told to stop; the call may have taken effect.

        Raises:
            ClientError: by condition; TimedOut after ``timeout_s`` seconds.
        """
        body = encode_message(request, package_at(path))
        opened = False
        with anyio.move_on_after(timeout_s):
            async with self.open(path, timeout_s=timeout_s, metadata=metadata) as call:
                opened = True
                await call.send(body, end=True)
                answer = await call.receive()
                if answer is None:
                    raise InternalError(f"{path} ended without an answer")
                if await call.receive() is not None:
                    raise InternalError(f"{path} gave more than one answer")
                return _decoded(path, answer, answer_type)
        where = f"{self._host}:{self._port}"
        raise TimedOut(f"no answer from {where} to {path} within {timeout_s:g} s", maybe_applied=opened)

    @asynccontextmanager
    async def open(
        self, path: str, *, timeout_s: float = math.inf, metadata: Sequence[tuple[bytes, bytes]] = ()
    ) -> AsyncGenerator[GrpcCall]:
        """A call of any kind, reset at the end of the block when it has not ended by then.

        Raises:
            ConnectionFailed: no connection could be made.
        """
        headers = [*self._headers, (b":path", path.encode()), *self._metadata, *metadata]
        headers.sort(key=lambda header: not header[0].startswith(b":"))
        if timeout_s != math.inf:
            headers.append((b"grpc-timeout", _timeout_text(timeout_s)))
        if self._token is not None:
            headers.append((b"authorization", (await bearer_of(self._token)).encode()))
        traceparent = current_traceparent()
        if traceparent is not None:
            headers.append((b"traceparent", traceparent.encode()))
        call = await self._open_call(headers)
        try:
            yield call
        finally:
            await call.aclose()

    async def aclose(self) -> None:
        """Close all connections. Calls in flight fail. The next call would connect again."""
        if not self._here:
            return
        current, self._connection = self._connection, None
        olds, self._old = self._old, set[Connection]()
        for connection in (current, *olds):
            if connection is not None:
                await connection.aclose()

    async def _open_call(self, headers: list[tuple[bytes, bytes]]) -> GrpcCall:
        if not self._here:  # in a forked child: connections of its own
            leave_to_parent(self._connection, self._old, self._connecting)
            self._connection, self._old, self._connecting = None, set[Connection](), anyio.Lock()
            self._here = MadeHere()
        connection = await self._connected()
        try:
            return await connection.open_call(headers)
        except ConnectionFailed:
            # Closed since it was last used, or the engine leaves: once more, on another. Not again and again: an engine
            # that turns every connection away would be asked thousands of times a second.
            connection = await self._connected()
            return await connection.open_call(headers)

    async def _connected(self) -> Connection:
        async with self._connecting:
            current = self._connection
            if current is None or not current.usable:
                if current is not None:
                    self._old = {old for old in (*self._old, current) if old.is_busy}
                    if current not in self._old:
                        await current.aclose()
                self._connection = current = await self._connect()
            return current

    async def _connect(self) -> Connection:
        seconds = self._limits.connect_timeout_s
        try:
            with anyio.fail_after(seconds):
                connection = Connection(await self._dial(), self._limits, f"{self._host}:{self._port}")
                await connection.greet()
                return connection
        except TimeoutError:
            reason = f"no connection to {self._host}:{self._port} within {seconds:g} s"
            raise ConnectionFailed(reason, maybe_applied=False) from None

    async def _dial(self) -> ByteStream:
        where = f"{self._host}:{self._port}"
        try:
            if self._ssl is None:
                return await anyio.connect_tcp(self._host, self._port)
            stream = await anyio.connect_tcp(
                self._host,
                self._port,
                ssl_context=self._ssl,
                tls_hostname=self._host,
                tls_standard_compatible=False,
            )
        except TimeoutError:
            raise
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            reason = f"no connection to {where}: {str(error) or type(error).__name__}"
            raise ConnectionFailed(reason, maybe_applied=False) from None
        if stream.extra(TLSAttribute.alpn_protocol) != "h2":  # noqa: S610 - no Django
            await anyio.aclose_forcefully(stream)
            raise ConnectionFailed(f"{where} does not speak HTTP/2 over TLS (ALPN)", maybe_applied=False)
        return stream


def _decoded(path: str, body: bytes, answer_type: type[AnswerT]) -> AnswerT:
    try:
        return decode_message(body, answer_type, package_at(path), as_values=True)
    except DecodeError as error:
        raise InternalError(f"unreadable answer to {path}: {error}") from error


def _timeout_text(timeout_s: float) -> bytes:
    """Return the header's form: at most eight digits and a unit."""
    milliseconds = max(1, math.ceil(timeout_s * 1000))
    if len(str(milliseconds)) <= _MAX_TIMEOUT_DIGITS:
        return b"%dm" % milliseconds
    return b"%dS" % min(math.ceil(timeout_s), 10**_MAX_TIMEOUT_DIGITS - 1)


def _metadata_item(name: str, value: str) -> tuple[bytes, bytes]:
    lower = name.lower()
    if lower.startswith(_RESERVED) or not lower.isascii():
        raise ValueError(f"not a name for metadata: {name!r}")
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"metadata {name!r}: the value must be printable ASCII")
    return lower.encode(), value.encode()
