"""One client: requests in, answers out, one after the other, until one side closes.

Runs in one task on any Trio stream. Its deadlines are plain numbers which the server compares with the clock every
`deadline_tick_seconds`: moving a cancel scope's deadline four times per request would cost more than parsing it.

While it waits for the client it may be interrupted (time-out, drain, eviction) by cancelling its scope. While the
application runs it must not be: the scope is only cancelled in a waiting phase, and when the cancellation and the
client's bytes arrive in the same scheduler round, the bytes win and a new scope is opened.
"""

from __future__ import annotations

import enum
import math
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import trio

from penstock.http.asgi import App, Pairs
from penstock.http.cycle import Cycle
from penstock.http.inline_connection import Handler, InlineConnection, InlineRequests, Over
from penstock.http.parser import ParseProgress, RequestParser
from penstock.http.refusal import Refusal, too_slow
from penstock.http.request import ParsedRequest
from penstock.http.response import CONTINUE, encode_refusal
from penstock.log.log import get_logger
from penstock.loop.poller import RECEIVE_BYTES, has_input, is_hung_up
from penstock.loop.taskless import current_call, need_task
from penstock.net.accept import Guest
from penstock.net.tls import TlsStream

if TYPE_CHECKING:
    from penstock.http.server import HttpServer

log = get_logger(__name__)

_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class Phase(enum.Enum):
    """What a connection is doing, and so what its deadline means and what may interrupt it."""

    IDLE = enum.auto()
    """Between requests."""
    RECEIVING = enum.auto()
    """A part of a request is there."""
    ANSWERING = enum.auto()
    """The application runs. No deadline: that is the application's business, unless it is to be told of one
    (`InlineConnection.waits_until`)."""
    WRITING = enum.auto()
    """An answer is on its way into the socket."""
    CLOSING = enum.auto()


_INTERRUPTIBLE = (Phase.IDLE, Phase.RECEIVING)


class _ReceivedAfterAll(Exception):
    """The client's bytes came together with the cancellation of the wait for them."""


class HttpConnection:
    """State of one connection. ``run`` is its whole life; all other methods may be called from other tasks."""

    def __init__(
        self,
        server: HttpServer,
        app: App,
        stream: trio.abc.HalfCloseableStream,
        client: tuple[str, int] | None,
        server_address: tuple[str, int] | None,
        certificate: tuple[str, ...] | None = None,
        sock: socket.socket | None = None,
        guest: Guest | None = None,
    ) -> None:
        """``sock``: of a plain stream, to be read without this task; ``guest``: of a connection that came through the
        door."""
        self.certificate = certificate
        """Over TLS: whom the client's certificate names."""
        self.client = client
        self.server_address = server_address
        self.stream = stream
        self.phase = Phase.IDLE
        self.expires_at = math.inf
        self.input_ended = False  # the client closed, or half-closed: it may still read its answer
        self.broken = False  # nothing can be written any more
        self.date_line = server.date.line
        self._server = server
        self.heads = server.heads
        self._app = app
        self._find_taskless_call = getattr(app, "taskless_call", None)
        self._serve_by = getattr(app, "serve_by", None)
        self._inline_call = getattr(app, "inline_call", None)
        self._limits = server.limits
        self._keep_alive_s = server.limits.keep_alive_timeout_seconds
        self.budget = server.body_budget
        self.parser = RequestParser(server.limits, server.body_budget)
        self._scope = trio.CancelScope()
        self._body_started_at: float | None = None
        self._inline_connection = None if sock is None else server.make_inline_connection(self, sock)
        self._guest = guest
        self._asked = guest is None  # a whole request has come
        self._unwanted = False
        if guest is not None:
            guest.end = self._end_for_another

    async def run(self) -> None:
        """Serve the client until the connection ends, and close it. Raises nothing but cancellation."""
        try:
            try:
                linger_seconds = await self._serve()
            except Refusal as refusal:
                self._server.refused_total += 1
                self.parser.close()  # its memory is free for others while this client reads why
                await self._refuse(refusal)
                linger_seconds = self._limits.linger_timeout_seconds
            if linger_seconds > 0 and not (self.broken or self.input_ended):
                await self._linger(linger_seconds)
        except _GONE:
            pass
        finally:
            self.broken = True
            if self._inline_connection is not None:
                self._inline_connection.close()
                self._inline_connection = (
                    None  # each knows the other: thousands that end would wait for one long collection
                )
            self.parser.close()
            try:
                await self._server.wait_to_close()
            finally:
                await trio.aclose_forcefully(self.stream)

    # -- called by the server

    async def expire(self) -> None:
        """The deadline has passed. A stuck write is ended by closing the stream under it, which the application sees
        as a client that went away."""
        self.expires_at = math.inf
        if self.phase is Phase.WRITING:
            self._server.timed_out_total += 1
            if self._inline_connection is not None:
                self._inline_connection.close()
            await trio.aclose_forcefully(self.stream)
        elif self.phase in _INTERRUPTIBLE:
            self._scope.cancel()
        elif self._inline_connection is not None and self._inline_connection.expires_at < math.inf:
            self._server.expire_soon(self._inline_connection)

    def _end_for_another(self) -> bool:
        """End it for another's sake, unless it is being served or has sent what was not read."""
        if self.phase not in _INTERRUPTIBLE or self._unwanted or self._has_input():
            return False
        self._unwanted = True
        self._scope.cancel()
        return True

    def _has_input(self) -> bool:
        if self._inline_connection is not None:
            return self._inline_connection.has_input()
        return isinstance(self.stream, trio.SocketStream | TlsStream) and has_input(self.stream.socket)

    def close_if_idle(self) -> None:
        if self.phase is Phase.IDLE:
            self._scope.cancel()

    @property
    def idle_since(self) -> float:
        """Trio time; infinite while it is not idle, or has asked for nothing."""
        if self.phase is not Phase.IDLE or not self._asked:
            return math.inf
        return self.expires_at - self._limits.keep_alive_timeout_seconds

    @property
    def must_close(self) -> bool:
        return self.input_ended or self.broken or self._server.draining

    @property
    def peer_gone(self) -> bool:
        return self.input_ended or self.broken

    # -- requests

    async def _serve(self) -> float:
        """Until the connection has to end. Gives how long to linger: 0 unless the client may still be sending."""
        while True:
            try:
                with self._scope:
                    await self._serve_until_interrupted()
            except Over as over:
                return over.linger_seconds
            except _ReceivedAfterAll:
                if self.parser.progress is ParseProgress.NOTHING:
                    return 0  # it was no more than an empty line
            else:
                if self._unwanted:
                    return 0  # what has come meanwhile is of one who has proved nothing
                if self.phase is not Phase.IDLE:
                    self._server.timed_out_total += 1
                    raise self._timed_out()
                if self._inline_connection is None or not self._inline_connection.has_input():
                    return 0
            self._scope = trio.CancelScope()
            self.phase, self.expires_at = Phase.IDLE, math.inf  # the next wait sets a new deadline

    async def _serve_until_interrupted(self) -> None:
        """Raises Over."""
        while True:
            cycle = await (
                self._wait_for_request() if self._inline_connection is None else self._inline_connection.wait()
            )
            await self._answer(cycle, self._run(cycle) or self._app(cycle.scope(), cycle.receive, cycle.send))
            self.end(cycle)

    async def _wait_for_request(self) -> Cycle:
        """Return the next request. Raises Refusal, and Over when the client closed."""
        parser = self.parser
        request = parser.next_request()
        if request is not None:  # pipelined: nothing was awaited, so let others run
            cycle = self.begin(request)
            await trio.lowlevel.checkpoint()
            return cycle
        while True:
            if parser.take_expectation():
                await self.send(CONTINUE)
            self.set_deadline()
            data = await self.stream.receive_some(RECEIVE_BYTES)
            if not data:
                raise Over(0)
            parser.receive(bytes(data))  # no copy when they are bytes already
            if self._scope.cancel_called:
                raise _ReceivedAfterAll
            request = parser.next_request()
            if request is not None:
                return self.begin(request)

    # -- also for `InlineConnection`

    def begin(self, request: ParsedRequest) -> Cycle:
        """A request has come whole."""
        self.phase, self.expires_at = Phase.ANSWERING, math.inf
        self._body_started_at = None
        self._server.requests_total += 1
        if not self._asked:
            self._asked = True
            if self._guest is not None:
                self._guest.ask()
        return Cycle(self, request)

    def on_proved(self) -> None:
        """It is known who calls."""
        if self._guest is not None:
            self._guest.prove()

    def make_inline(self, inline_connection: InlineConnection) -> InlineRequests | None:
        """What takes requests as bytes; None when the application does not."""
        hot: InlineRequests | None = None if self._inline_call is None else self._inline_call(inline_connection)
        return hot

    def on_inline(self, size_bytes: int) -> None:
        """A request with so large a body was taken as bytes."""
        self.phase, self.expires_at = Phase.ANSWERING, math.inf
        self._server.requests_total += 1
        self.budget.used_bytes += size_bytes

    @property
    def tick_s(self) -> float:
        """How often it is looked whether the deadline has passed."""
        return self._limits.deadline_tick_seconds

    def leave_inline(self, size_bytes: int) -> None:
        """It begins once more, as others do."""
        self._server.requests_total -= 1
        self.budget.used_bytes -= size_bytes

    def whole_answer(self, status: int, headers: Pairs, body: bytes | None, now: float) -> tuple[bytes, bool]:
        """The bytes of an answer to such a request, and whether it is the last one."""
        if not self.must_close:
            return self.heads.whole(status, headers, body, now)
        head, close = self.heads.encode(status, headers, body, "1.1", keep_alive=False)
        return head if body is None else head + body, close

    def end_inline(self, size_bytes: int, now: float) -> None:
        """Such a request was answered, and nothing more has come."""
        self.budget.used_bytes -= size_bytes
        self.phase = Phase.IDLE
        self.expires_at = now + self._keep_alive_s

    def over(self) -> Over:
        """No request may follow such a one."""
        return Over(self._limits.drain_quiet_seconds)

    def answer_directly(self, cycle: Cycle, handler: Handler | None = None) -> Coroutine[Any, Any, None] | None:
        """What answers a request without a task; None when the application has no such way for it. ``handler``: by
        which, if not by its own."""
        running = self._run(cycle) if handler is None or self._serve_by is None else self._serve_by(cycle, handler)
        return None if running is None else self._answer(cycle, running)

    def _run(self, cycle: Cycle) -> Coroutine[Any, Any, None] | None:
        return None if self._find_taskless_call is None else self._find_taskless_call(cycle)

    def end(self, cycle: Cycle) -> None:
        """A request was answered. Raises Over when no other may follow."""
        self.parser.release()
        if not cycle.keep_alive:
            if self.parser.unread_bytes > 0:
                raise Over(self._limits.linger_timeout_seconds)
            raise Over(self._limits.drain_quiet_seconds if cycle.request.keep_alive else 0)

    def set_deadline(self) -> None:
        """Of the wait for the client, by how much of its next request is there."""
        limits, progress = self._limits, self.parser.progress
        now = trio.current_time()
        if progress is ParseProgress.NOTHING:
            if self.phase is not Phase.IDLE or self.expires_at == math.inf:
                self.phase = Phase.IDLE
                timeout_s = limits.keep_alive_timeout_seconds if self._asked else limits.header_timeout_seconds
                self.expires_at = now + timeout_s
        elif progress is ParseProgress.HEAD:
            if self.phase is not Phase.RECEIVING:
                self.phase = Phase.RECEIVING
                self.expires_at = now + limits.header_timeout_seconds
        else:
            self.phase = Phase.RECEIVING
            if self._body_started_at is None:
                self._body_started_at = now
            earned = self.parser.body_bytes / limits.min_body_bytes_per_second
            self.expires_at = limits.body_timeout_seconds + min(now, self._body_started_at + earned)

    def _timed_out(self) -> Refusal:
        return too_slow("body" if self.parser.progress is ParseProgress.BODY else "headers")

    async def _answer(self, cycle: Cycle, running: Awaitable[None]) -> None:
        try:
            await running
        except Exception as exc:
            self._record_failure(cycle, exc)
        except BaseExceptionGroup as group:
            # An application's nursery that failed while it was being cancelled. Its failures stay here; the
            # cancellation has to go on.
            errors, others = group.split(Exception)
            if errors is not None:
                self._record_failure(cycle, errors)
            if others is not None:
                raise others from None
        await cycle.finish()

    def _record_failure(self, cycle: Cycle, error: BaseException) -> None:
        self._server.failed_total += 1
        log.error("request failed", method=cycle.request.method, path=cycle.path, exc_info=error)

    # -- the stream

    async def read_ahead(self) -> None:
        """Wait for the client while the application runs: until some bytes of its next request come, or it is gone
        (``input_ended``), or, when enough was read ahead already, until cancelled. Cancel-safe: no byte is lost."""
        if self.parser.unread_bytes >= self._limits.max_pipeline_bytes:
            await trio.sleep_forever()
        try:
            data = await self.stream.receive_some(RECEIVE_BYTES)
        except _GONE:
            data = b""
        if data:
            self.parser.receive(bytes(data))
        else:
            self.input_ended = True

    def peer_gone_nowait(self) -> bool:
        """Return whether the client has closed its side, as far as the kernel knows: one look, 1 µs. Takes no byte."""
        inline_connection = self._inline_connection
        if self.input_ended or self.broken or (inline_connection is not None and inline_connection.hung_up):
            return True
        if inline_connection is not None and inline_connection.driving:
            return False  # that was looked at before the call went on, for all at once
        if not isinstance(self.stream, trio.SocketStream | TlsStream):
            return False
        return is_hung_up(self.stream.socket.fileno())

    def call_when_gone(self, listener: Callable[[], None] | None) -> bool:
        """Have it called when the client closes its side (None: no more). False: nobody tells; `read_ahead` does."""
        if self._inline_connection is None:
            return False
        self._inline_connection.on_hang_up = listener
        return True

    def is_broken(self) -> bool:
        """Return whether nothing can be written any more."""
        return self.broken

    async def send(self, data: bytes) -> None:
        """Write all of it within `write_timeout_seconds` per slice. Sets ``broken`` instead of raising."""
        if self.broken:
            return
        if self._inline_connection is not None and current_call() is not None:
            try:
                data = data[self._inline_connection.send_nowait(data) :]
            except _GONE:
                self.broken = True
                return
            if not data:
                return
            await need_task()
        limits = self._limits
        phase, expires_at = self.phase, self.expires_at
        self.phase = Phase.WRITING
        try:
            if len(data) <= limits.write_slice_bytes:
                self.expires_at = trio.current_time() + limits.write_timeout_seconds
                await self.stream.send_all(data)
            else:
                view = memoryview(data)
                for at in range(0, len(data), limits.write_slice_bytes):
                    self.expires_at = trio.current_time() + limits.write_timeout_seconds
                    await self.stream.send_all(view[at : at + limits.write_slice_bytes])
        except _GONE:
            self.broken = True
        finally:
            self.phase, self.expires_at = phase, expires_at

    async def _refuse(self, refusal: Refusal) -> None:
        log.debug("request refused", status=refusal.status, reason=refusal.reason)
        self.phase, self.expires_at = Phase.CLOSING, math.inf
        await self.send(encode_refusal(refusal, self._server.refusal_headers, self.date_line()))

    async def _linger(self, seconds: float) -> None:
        """Say that nothing more comes, then throw away what the client still sends: closing with unread input would
        reset the connection, and the client would lose the answer that tells it why."""
        self.phase, self.expires_at = Phase.CLOSING, math.inf
        left = self._limits.max_linger_bytes
        with trio.move_on_after(seconds):
            await self.stream.send_eof()
            while left > 0:
                data = await self.stream.receive_some(RECEIVE_BYTES)
                if not data:
                    return
                left -= len(data)
