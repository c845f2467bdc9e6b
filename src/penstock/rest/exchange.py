"""What passes between the ASGI application and a handler: a call with its body read, and a reply.

The body is read here, under one limit and whatever the server is, before a handler runs. Must not know any route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from penstock.errors import PayloadTooLarge
from penstock.wire.paths import read_path

Scope: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

JSON: Final = b"application/json"
PEER_GONE: Final = "penstock.peer_gone"
"""The ASGI extension of our own server (http/cycle.py) that tells without waiting whether the client has gone."""

ANSWER_LOST: Final = "penstock.answer_lost"
"""The one that tells whether nothing of the answer can arrive any more."""

CLIENT_GONE_STATUS: Final = 499
"""The label of requests that nobody was there to be answered."""

CERTIFICATE: Final = "penstock.certificate"
"""The ASGI extension of our servers (http/asgi.py): whom the client's TLS certificate names."""


ON_PROVED: Final = "penstock.on_proved"
"""The one to be called when it is known who calls (http/asgi.py)."""


class Reply(NamedTuple):
    """An answer. A body of None carries neither content type nor length (204)."""

    status: int
    body: bytes | None = None
    content_type: bytes = JSON
    headers: Headers = ()
    rest: Sequence[bytes] = ()
    """What follows the body, of a large one: joined, it would be copied in one step of the loop."""


NO_CONTENT: Final = Reply(204)


class RestRequest(NamedTuple):
    """One request of a inline route."""

    body: bytes
    headers: dict[bytes, bytes]
    """By lower-case name; of a repeated one the last."""
    receive: Receive
    """Gives ``http.disconnect`` when the client goes away."""
    job_id: str = ""
    """From the path, where it has one."""
    peer_gone_nowait: Callable[[], bool] = lambda: False
    """Whether the client has gone already; servers that can't tell say no."""
    call_when_gone: Callable[[Callable[[], None] | None], bool] = lambda _: False
    """Have it called when the client goes (None: no more). False of servers that don't tell: `receive` does."""


Handler: TypeAlias = Callable[[RestRequest], Awaitable[Reply]]


class InlineRequest(Protocol):
    """What a inline route needs to know of a request."""

    @property
    def method(self) -> str: ...
    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]: ...
    @property
    def query(self) -> bytes: ...


class RestExchange(Protocol):
    """One request and the way to its answer: of our own server without ASGI, of any other through `AsgiExchange`."""

    @property
    def path(self) -> str:
        """As `penstock.wire.paths` reads it."""
        ...

    @property
    def request(self) -> InlineRequest: ...
    @property
    def address(self) -> str | None:
        """Return the client's."""
        ...

    @property
    def certificate(self) -> Sequence[str]:
        """Over TLS: whom the client's names."""
        ...

    def on_proved(self) -> None:
        """It is known who calls: the connection makes room for nobody."""
        ...

    def peer_gone_nowait(self) -> bool:
        """Return whether the client has gone already; servers that can't tell say no."""
        ...

    def call_when_gone(self, listener: Callable[[], None] | None) -> bool:
        """Have it called when the client goes (None: no more). False of servers that don't tell."""
        ...

    def take_body(self) -> bytes | None:
        """Return the body; None where it is still to be read."""
        ...

    @property
    def receive(self) -> Receive: ...
    @property
    def send(self) -> Send: ...
    def answer(self, status: int, headers: Headers, body: bytes | None) -> Awaitable[None]:
        """Return a whole answer."""
        ...


class AsgiExchange:
    """An exchange of any ASGI server."""

    __slots__ = ("_receive", "_scope", "_send", "method", "path")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        raw_path = scope.get("raw_path")  # ASGI lets a server leave it out
        self.path: str = scope["path"] if raw_path is None else read_path(raw_path)
        self.method: str = scope["method"]
        self._receive = receive
        self._send = send

    @property
    def receive(self) -> Receive:
        return self._receive

    @property
    def send(self) -> Send:
        return self._send

    @property
    def request(self) -> InlineRequest:
        return self

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        headers: Sequence[tuple[bytes, bytes]] = self._scope["headers"]
        return headers

    @property
    def query(self) -> bytes:
        return self._scope.get("query_string") or b""

    @property
    def address(self) -> str | None:
        client = self._scope.get("client")
        return None if client is None else client[0]

    @property
    def certificate(self) -> Sequence[str]:
        found: Sequence[str] = self._scope.get("extensions", {}).get(CERTIFICATE, ())
        return found

    def on_proved(self) -> None:
        note: Callable[[], None] | None = self._scope.get("extensions", {}).get(ON_PROVED)
        if note is not None:
            note()

    def peer_gone_nowait(self) -> bool:
        ask: Callable[[], bool] | None = self._scope.get("extensions", {}).get(PEER_GONE)
        return ask is not None and ask()

    def call_when_gone(self, listener: Callable[[], None] | None) -> bool:
        return False

    def take_body(self) -> bytes | None:
        return None

    async def answer(self, status: int, headers: Headers, body: bytes | None) -> None:
        if body is not None:
            headers = (*headers, (b"content-length", b"%d" % len(body)))
        await self.send({"type": "http.response.start", "status": status, "headers": list(headers)})
        await self.send({"type": "http.response.body", "body": body or b""})


class ClientGone(Exception):
    """The client went away before its request was whole: there is nobody to answer."""


async def body_of(exchange: RestExchange, max_bytes: int) -> bytes:
    """Return the whole body. Raises as `read_body`."""
    body = exchange.take_body()
    if body is None:
        return await read_body(exchange.receive, max_bytes)
    _check_size(len(body), max_bytes)
    return body


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """Return the whole body. Raises PayloadTooLarge, with the rest left unread, or ClientGone."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        _check_size(len(body), max_bytes)
        return body
    parts: list[bytes] = []
    size = 0
    while message["type"] == "http.request":
        part: bytes = message.get("body", b"")
        size += len(part)
        _check_size(size, max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await receive()
    raise ClientGone


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise PayloadTooLarge(f"the body has more than {max_bytes} bytes")


async def answer(exchange: RestExchange, reply: Reply, more_headers: Headers) -> None:
    """Send an answer whole."""
    if reply.rest:
        await send_reply(exchange.send, reply, more_headers)
    elif reply.body is None:
        await exchange.answer(reply.status, (*reply.headers, *more_headers), None)
    else:
        headers = (*reply.headers, *more_headers, (b"content-type", reply.content_type))
        await exchange.answer(reply.status, headers, reply.body)


async def send_reply(send: Send, reply: Reply, more_headers: Headers) -> None:
    """Send an answer whole."""
    headers = [*reply.headers, *more_headers]
    body, rest = reply.body, reply.rest
    if body is not None:
        size_bytes = len(body) + sum(map(len, rest)) if rest else len(body)
        headers += ((b"content-type", reply.content_type), (b"content-length", b"%d" % size_bytes))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body or b"", "more_body": bool(rest)})
    if rest:
        for left, piece in enumerate(rest, 1 - len(rest)):
            await send({"type": "http.response.body", "body": piece, "more_body": left < 0})


def text_header(headers: dict[bytes, bytes], name: bytes) -> str | None:
    """A header as text, None when it is absent or empty. Clients send UTF-8, whatever RFC 9110 says of Latin-1."""
    value = headers.get(name)
    if not value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
