"""One request and its answer, as ASGI sees it: ``receive`` and ``send`` of one call of the application.

Relies on the connection for the stream and on ``response`` for the bytes. Starts no task: the body was read before
the application was called, so that the first ``receive()`` costs nothing; a second one reads the socket in the
application's own task, which is how a parked application learns that the client went away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from penstock.http.asgi import CERTIFICATE, ON_PROVED, Headers, Message, Pairs, Scope
from penstock.http.refusal import error_object
from penstock.http.request import ParsedRequest
from penstock.http.response import LAST_CHUNK, Head, encode_head
from penstock.wire.paths import read_path

if TYPE_CHECKING:
    from penstock.http.connection import HttpConnection

PEER_GONE = "penstock.peer_gone"
"""An ASGI extension: a function that says, without waiting, whether the client has closed its side already."""
ANSWER_LOST = "penstock.answer_lost"
"""The same for the connection as a whole: nothing that is sent arrives any more."""

_ASGI = {"version": "3.0", "spec_version": "2.3"}
# Head and body go out in one write up to here; above it, copying them together costs more than a second write.
_JOIN_BYTES = 64 * 1024


class Cycle:
    """The state of one answer. ``keep_alive`` is true when another request may follow on the connection."""

    __slots__ = (
        "_body_given",
        "_complete",
        "_connection",
        "_head",
        "_headers",
        "_sent_bytes",
        "_status",
        "_watch",
        "keep_alive",
        "path",
        "request",
    )

    def __init__(self, connection: HttpConnection, request: ParsedRequest) -> None:
        self._connection = connection
        self.request = request
        self.path = read_path(request.raw_path)
        self._body_given = False
        self._status = 0  # 0: the application has not begun to answer
        self._headers: Headers = []
        self._head: Head | None = None  # once it is on the wire
        self._sent_bytes = 0
        self._complete = False
        self._watch: trio.CancelScope | None = None
        self.keep_alive = False

    # -- without ASGI

    @property
    def address(self) -> str | None:
        """Return the client's."""
        client = self._connection.client
        return None if client is None else client[0]

    @property
    def certificate(self) -> tuple[str, ...]:
        """Over TLS: whom the client's names."""
        return self._connection.certificate or ()

    def on_proved(self) -> None:
        """The application knows who calls: the connection makes room for nobody."""
        self._connection.on_proved()

    def peer_gone_nowait(self) -> bool:
        """Return whether the client has closed its side already."""
        return self._connection.peer_gone_nowait()

    def call_when_gone(self, listener: Callable[[], None] | None) -> bool:
        """Have it called when the client closes its side (None: no more). False where nobody tells."""
        return self._connection.call_when_gone(listener)

    def take_body(self) -> bytes:
        """Return the whole of it; what `receive` gives next is the disconnect."""
        self._body_given = True
        return self.request.body

    async def answer(self, status: int, headers: Pairs, body: bytes | None) -> None:
        """The whole answer at once; ``headers`` without a length. A body of None is that of a 204."""
        request, connection = self.request, self._connection
        keep_alive = request.keep_alive and not connection.must_close
        head, close = connection.heads.encode(status, headers, body, request.http_version, keep_alive=keep_alive)
        if self._status:
            raise RuntimeError("the answer was started twice")
        self._status = status
        if body is None:
            await connection.send(head)
        elif len(body) <= _JOIN_BYTES:
            await connection.send(head + body)
        else:
            await connection.send(head)
            await connection.send(body)
        self._complete = True
        self.keep_alive = not (close or connection.peer_gone)

    # -- as ASGI sees it

    def scope(self) -> Scope:
        request, connection = self.request, self._connection
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": request.http_version,
            "method": request.method,
            "scheme": "http" if connection.certificate is None else "https",
            "path": self.path,
            "raw_path": request.raw_path,
            "query_string": request.query,
            "root_path": "",
            "headers": request.headers,
            "client": connection.client,
            "server": connection.server_address,
            "extensions": {
                PEER_GONE: connection.peer_gone_nowait,
                ANSWER_LOST: connection.is_broken,
                CERTIFICATE: connection.certificate or (),
                ON_PROVED: connection.on_proved,
            },
        }

    # -- receive

    async def receive(self) -> Message:
        """The body in one message, then ``http.disconnect`` once the client is gone or the answer is out."""
        if not self._body_given:
            self._body_given = True
            return {"type": "http.request", "body": self.request.body, "more_body": False}
        while not (self._complete or self._connection.peer_gone):
            with trio.CancelScope() as self._watch:
                await self._connection.read_ahead()
            self._watch = None
        return {"type": "http.disconnect"}

    # -- send

    async def send(self, message: Message) -> None:
        """Takes the answer. After the client is gone it takes everything and does nothing."""
        kind = message["type"]
        if kind == "http.response.start":
            if self._status:
                raise RuntimeError("the answer was started twice")
            self._status = int(message["status"])
            self._headers = message.get("headers", ())
            return
        if kind != "http.response.body":
            raise RuntimeError(f"unexpected ASGI message {kind!r}")
        if not self._status or self._complete:
            raise RuntimeError("a body before the start of the answer" if not self._status else "a body after the end")
        body: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False)
        if self._head is None:
            await self._send_first(body, more=more)
        else:
            await self._send_rest(self._head, body, more=more)

    async def _send_first(self, body: bytes, *, more: bool) -> None:
        request, connection = self.request, self._connection
        head = encode_head(
            self._status,
            self._headers,
            connection.date_line(),
            method=request.method,
            http_version=request.http_version,
            keep_alive=request.keep_alive and not connection.must_close,
            body_bytes=None if more else len(body),
        )
        self._head = head
        if head.bodiless:
            await connection.send(head.data)
            if not more:
                self._end()
        elif more or head.chunked:
            await self._send_rest(head, body, more=more, before=head.data)
        else:
            self._sent_bytes = len(body)
            if len(body) <= _JOIN_BYTES:
                await connection.send(head.data + body)
            else:
                await connection.send(head.data)
                await connection.send(body)
            self._end()

    async def _send_rest(self, head: Head, body: bytes, *, more: bool, before: bytes = b"") -> None:
        """A piece of a streamed answer; ``before`` is the head when it is the first."""
        if head.bodiless:
            if not more:
                self._end()
            return
        self._sent_bytes += len(body)
        if head.declared_bytes is not None and self._sent_bytes > head.declared_bytes:
            raise RuntimeError(f"the answer is longer than its content-length of {head.declared_bytes}")
        if head.chunked:
            data = b"%b%x\r\n%b\r\n" % (before, len(body), body) if body else before
            if not more:
                data += LAST_CHUNK
        else:
            data = before + body
        if data:
            await self._connection.send(data)
        if not more:
            self._end()

    def _end(self) -> None:
        assert self._head is not None
        declared = self._head.declared_bytes
        whole = self._head.bodiless or declared is None or self._sent_bytes == declared
        self._complete = True
        self.keep_alive = whole and not self._head.close and not self._connection.peer_gone
        if self._watch is not None:
            self._watch.cancel()

    # -- after the application

    async def finish(self) -> None:
        """The application returned or raised. Answers 500 if it did not answer; an answer that it broke off ends with
        the connection (``keep_alive`` is still false then), so that the client can tell."""
        if not self._complete and self._head is None:
            self._status = 500
            self._headers = [(b"content-type", b"application/json")]
            await self._send_first(error_object("internal-error", "the request failed inside the server"), more=False)
