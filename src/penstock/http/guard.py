"""What our own server gives an application, given to one under hypercorn: limits, whole bodies, error objects.

An ASGI application around another. Also cures quart-trio 0.12 under hypercorn 0.18: hypercorn says
``http.disconnect`` while the application is still inside its last ``send()``; quart-trio then cancels that send, and
hypercorn never restarts the connection's idle timer, so that keep-alive connections never time out and a drain waits
for them for ever. A last send that can't be cancelled gets through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from urllib.parse import unquote

import trio

from penstock.http.asgi import App, Headers, Message, Receive, Scope, Send
from penstock.http.limits import HttpLimits
from penstock.http.parser import check_host
from penstock.http.refusal import Refusal, error_object, too_full
from penstock.http.request import BodyBudget, authority_of, origin_form
from penstock.log.log import get_logger

log = get_logger(__name__)

_BODILESS = (204, 304)


class GuardTotals:
    """What the guards of one server have in common: limits, totals, and how far the drain is."""

    def __init__(self, limits: HttpLimits, refusal_headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.limits = limits
        self.refusal_headers = refusal_headers
        self.body_budget = BodyBudget(limits.max_request_memory_bytes)
        self.closing = False
        """Answers carry ``connection: close``."""
        self.refusing = False
        """New HTTP/2 requests are refused: unlike on HTTP/1.1, nothing in an answer keeps them from coming."""
        self.running = 0
        self.requests_total = 0
        self.refused_total = 0
        self.failed_total = 0
        self.timed_out_total = 0


class Guard:
    """The application that hypercorn sees on one connection."""

    def __init__(self, app: App, shared: GuardTotals) -> None:
        self.shared = shared
        self.running = 0
        self.answering = 0
        """Of these, the requests that have come whole."""
        self.idle_since = trio.current_time()
        """Infinite while something runs."""
        self.idle = trio.Event()
        """Set while nothing runs; replaced when something begins to."""
        self.idle.set()
        self.asked = False
        """A request has come, at least its head."""
        self.on_asked: Callable[[], None] = _nothing
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _decline(scope, receive, send)
            return
        answer = _Answer(self.shared, scope, send)
        if self.shared.refusing and scope["http_version"] == "2":
            await answer.send_error(503, "unavailable", "the server is shutting down; try again")
            return
        body = _Body(self.shared, scope, receive)
        self._begin()
        try:
            await self._call(scope, body, answer)
        finally:
            body.release()
            self._end()

    def _begin(self) -> None:
        self.asked = True
        if self.running == 0:
            self.idle = trio.Event()
        self.idle_since = math.inf
        self.running += 1
        self.shared.running += 1

    def _end(self) -> None:
        self.running -= 1
        self.shared.running -= 1
        if self.running == 0:
            self.idle_since = trio.current_time()
            self.idle.set()

    async def _call(self, scope: Scope, body: _Body, answer: _Answer) -> None:
        try:
            if not await body.read():
                return  # the client went away
            self.shared.requests_total += 1
            self.on_asked()
            _read_absolute(scope)
            self.answering += 1
            try:
                await self._app(scope, body.receive, answer.send)
            finally:
                self.answering -= 1
        except Refusal as refusal:
            self.shared.refused_total += 1
            await answer.send_error(refusal.status, refusal.code, refusal.reason)
            return
        except Exception as exc:
            self._record_failure(scope, exc)
        except BaseExceptionGroup as group:
            errors, others = group.split(Exception)
            if errors is not None:
                self._record_failure(scope, errors)
            if others is not None:
                raise others from None
        if not answer.started:
            await answer.send_error(500, "internal-error", "the request failed inside the server")

    def _record_failure(self, scope: Scope, error: BaseException) -> None:
        self.shared.failed_total += 1
        log.error("request failed", method=scope["method"], path=scope["path"], exc_info=error)


def _read_absolute(scope: Scope) -> None:
    """A target in absolute form is that of its path, and its host counts, whatever ``Host`` says. Raises Refusal."""
    raw: bytes = scope["raw_path"]
    if raw.startswith(b"/") or raw == b"*":
        return
    authority = authority_of(raw)
    path, _, query = origin_form(raw + b"?" + scope["query_string"]).partition(b"?")
    check_host(authority)
    headers = [(b"host", authority), *(pair for pair in scope["headers"] if pair[0] != b"host")]
    scope.update(raw_path=path, path=unquote(path.decode("ascii")), query_string=query, headers=headers)


def _nothing() -> None:
    pass


async def _decline(scope: Scope, receive: Receive, send: Send) -> None:
    """No WebSockets here: hypercorn makes a 403 of it. Lifespan is the runtime's business."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close"})


class _Body:
    """A request's body, read before the application is called, within limits."""

    def __init__(self, shared: GuardTotals, scope: Scope, receive: Receive) -> None:
        self._shared = shared
        self._receive = receive
        self._data = bytearray()
        self._given = self._given_up = False
        self._scope = trio.CancelScope()
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        self._announced_bytes = int(announced) if announced.isdigit() else 0

    async def read(self) -> bool:
        """False when the client went away. Raises Refusal."""
        limits = self._shared.limits
        budget = self._shared.body_budget
        started_at = trio.current_time()
        more = True
        if self._announced_bytes > limits.max_body_bytes:  # known without a byte of it
            await self._discard(more=more)
            raise self._too_large()
        with trio.CancelScope() as scope:
            self._scope = scope
            while more:
                earned = len(self._data) / limits.min_body_bytes_per_second
                scope.deadline = limits.body_timeout_seconds + min(trio.current_time(), started_at + earned)
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    return False
                piece: bytes = message.get("body", b"")
                more = message.get("more_body", False)
                if self._given_up:
                    raise too_full()
                self._data += piece
                fits = budget.take(self, len(piece))
                refusal: Refusal | None = None
                if len(self._data) > limits.max_body_bytes:
                    refusal = self._too_large()
                elif not fits:
                    refusal = too_full()
                if refusal is not None:
                    self.release()
                    await self._discard(more=more)
                    raise refusal
        budget.has_come(self)
        if self._given_up:
            raise too_full()
        if scope.cancelled_caught:
            self._shared.timed_out_total += 1
            raise Refusal(408, "request-timeout", "the body of the request took too long to arrive")
        return True

    def _too_large(self) -> Refusal:
        return Refusal(413, "payload-too-large", f"the body is over {self._shared.limits.max_body_bytes} bytes")

    async def _discard(self, *, more: bool) -> None:
        """Let the client send the rest: hypercorn resets a connection that it closes with input unread, and the
        client would never see the answer. On HTTP/2 it even fails over data for a stream that was answered."""
        limits = self._shared.limits
        left = limits.max_linger_bytes
        with trio.move_on_after(limits.linger_timeout_seconds):
            while more and left > 0:
                message = await self._receive()
                left -= len(message.get("body", b""))
                more = message["type"] == "http.request" and message.get("more_body", False)

    def give_up(self) -> None:
        """See `Arriving`."""
        self._given_up = True
        self.release()
        self._scope.cancel()

    def release(self) -> None:
        self._shared.body_budget.has_come(self)
        self._shared.body_budget.used_bytes -= len(self._data)
        self._data = bytearray()

    async def receive(self) -> Message:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": bytes(self._data), "more_body": False}
        return await self._receive()


class _Answer:
    """An answer on its way to hypercorn."""

    def __init__(self, shared: GuardTotals, scope: Scope, send: Send) -> None:
        self._shared = shared
        self._method: str = scope["method"]
        self._http1: bool = scope["http_version"].startswith("1")
        self._send = send
        self._start: Message | None = None
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._start is not None or self.started:
                raise RuntimeError("the answer was started twice")
            self._start = message  # goes out with the first piece of the body, as on our own server
            return
        if message["type"] != "http.response.body":
            raise RuntimeError(f"unexpected ASGI message {message['type']!r}")
        more: bool = message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            start = self._prepare(start, None if more else len(message.get("body", b"")))
            self.started = True
            await self._send(start)
        if more:
            await self._send(message)
            return
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self._shared.limits.write_timeout_seconds):
            await self._send(message)

    def _prepare(self, start: Message, body_bytes: int | None) -> Message:
        """The start with what our own server would add or leave out."""
        bodiless = start["status"] in _BODILESS
        headers: Headers = []
        sized = False
        for name, value in start.get("headers", ()):
            lower = name.lower()
            if lower == b"content-length":
                if bodiless:
                    continue
                sized = True
            elif lower == b"transfer-encoding" or (lower == b"connection" and not self._http1):
                continue
            headers.append((lower, value))
        if not sized and not bodiless and body_bytes is not None:
            headers.append((b"content-length", b"%d" % body_bytes))
        if self._http1 and self._shared.closing:
            headers.append((b"connection", b"close"))
        return {**start, "headers": headers}

    async def send_error(self, status: int, code: str, reason: str) -> None:
        headers = [(b"content-type", b"application/json"), *self._shared.refusal_headers]
        if self._http1 and status != 500:
            headers.append((b"connection", b"close"))
        body = error_object(code, reason)
        self._start = None
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
