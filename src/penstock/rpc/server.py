"""The gRPC server: listens, starts connections, runs calls, drains.

Handlers are grpclib's: objects with ``__mapping__()`` from path to ``grpclib.const.Handler``, generated or by hand.
Relies on ``transport`` and ``call``. Must not know what any method does; ``status_of`` tells it which status an
exception is.
"""

from __future__ import annotations

import logging
import ssl
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import trio
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from penstock.access import table
from penstock.access.gate import EXPIRED, REVOKED, AccessEnd, Gate, reason_of
from penstock.access.identity import Identity, set_identity
from penstock.access.limits import CallLimits
from penstock.api.permission import Permission
from penstock.engine.requests.answers import AnswerMemory, MemoryReservation
from penstock.errors import PenstockError, TooManyRequests, Unauthenticated, leaf_of
from penstock.log.log import set_trace
from penstock.loop.poller import HAVE_EPOLL, PlainStream, Poller, open_stream
from penstock.net.accept import Door, Guest, PerAddress
from penstock.net.tls import Tls, ends_waiting, names_of
from penstock.rpc.call import ServerCall
from penstock.rpc.counts import CallCounts, RpcStatistics
from penstock.rpc.inbox import MessageBuffer
from penstock.rpc.limits import RpcLimits
from penstock.rpc.methods import Method
from penstock.rpc.request import RpcRequest, read_request
from penstock.rpc.taskless import Taskless
from penstock.rpc.tracing import begin_call, end_call
from penstock.rpc.transport import UNAVAILABLE_DRAINED, RpcConnection
from penstock.telemetry.spans import Spans
from penstock.wire.http2_frames import PREFACE

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from penstock.wire.http2_frames import Headers

log = logging.getLogger(__name__)

_LOST = GRPCError(Status.CANCELLED, "the connection was lost")
_NO_ANSWER = "a unary handler sent no answer"
_UNKNOWN_METHOD = "unknown"  # a client can name any path; a metric must not grow with it
PINGED_PER_ITERATION = 20
"""Connections that are pinged or ended in one turn of the loop, for their silence: 4 ms. Of 10,000 it comes at once."""


class Service(Protocol):
    """What serves some methods: a subclass of a generated base, or anything with its ``__mapping__``."""

    def __mapping__(self) -> Mapping[str, Handler]: ...


class GrpcServer:
    """``await nursery.start(server.serve, sockets)``, later ``await server.drain(grace_s)``."""

    def __init__(
        self,
        handlers: Iterable[Service],
        *,
        limits: RpcLimits | None = None,
        tls: Tls | None = None,
        status_of: Callable[[Exception], GRPCError | None] | None = None,
        on_call: Callable[[str, str, float], None] | None = None,
        gate: Gate | None = None,
        call_limits: CallLimits | None = None,
        answer_memory: AnswerMemory | None = None,
        spans: Spans | None = None,
    ) -> None:
        """``status_of`` maps an exception to what the client is told (None: INTERNAL, and it is logged).

        ``on_call`` gets the path ("unknown" when nobody serves it), the status name and the seconds of every call;
        it must not raise. ``answer_memory`` bounds what operations read for answers. With ``tls`` the
        listeners speak TLS; it must offer ALPN ``h2``. Without a ``gate`` everybody may call everything.
        """
        self.limits = limits or RpcLimits()
        self.counts = CallCounts()
        self._methods: dict[bytes, Method] = {}
        for service in handlers:
            for path, handler in service.__mapping__().items():
                self._methods[path.encode()] = Method.of(path, handler)
        self._tls = tls
        self._per_address = PerAddress(self.limits.connections_per_address)
        self._status_of = status_of
        self._on_call = on_call
        self._gate = gate
        self._call_limits = call_limits
        self._spans = spans
        self._is_plain = gate is None and call_limits is None and spans is None
        self._answer_memory = answer_memory or AnswerMemory(sys.maxsize)
        self._connections: set[RpcConnection] = set()
        self._handshakes: set[trio.CancelScope] = set()
        self._poller: Poller | None = None  # while it serves, where there is one
        self._sockets = 0
        self._running = 0
        self._held = 0
        self.now: Callable[[], float] = trio.current_time  # while it serves, without looking for the clock each time
        self._draining = trio.Event()
        self._drained = trio.Event()
        self._last_left = trio.Event()
        self._door = Door(
            self.limits.connections,
            unproved_per_host=self.limits.unproved_per_address,
            is_whole=bool if tls is not None else _is_whole_preface,
            first_request_s=self.limits.handshake_s,
            asking_proves=gate is None,
            end_idle=self._end_idle,
            idle_s=self.limits.evict_after_idle_s,
        )
        self.taskless = Taskless(self._poll, self.end, self._run_call)
        self._accepting = trio.CancelScope()
        self._scope = trio.CancelScope()

    async def serve(
        self,
        sockets: Iterable[socket.socket],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve on listening sockets (they are closed in the end). Returns after ``drain``; cancelling it cuts all."""
        self.now = trio.lowlevel.current_clock().current_time
        with self._scope:
            async with trio.open_nursery() as background:
                background.start_soon(self._keep_alive)
                background.start_soon(self.taskless.run)
                background.start_soon(self._door.run)
                if HAVE_EPOLL:
                    self._poller = Poller()
                    background.start_soon(self._poller.run)
                async with trio.open_nursery() as nursery:

                    def start(sock: socket.socket, guest: Guest) -> None:
                        self._sockets += 1
                        nursery.start_soon(self._serve_socket, sock, guest)

                    with self._accepting:
                        async with trio.open_nursery() as accepting:
                            for sock in sockets:
                                accepting.start_soon(self._door.accept, sock, start)
                            task_status.started()
                    self._door.close()
                background.cancel_scope.cancel()

    def _poll(self) -> None:
        """Who has closed its side meanwhile gets no job."""
        if self._poller is not None:
            self._poller.read_events()

    async def drain(self, grace_s: float) -> None:
        """Stop listening, let calls end, then close; what still runs after ``grace_s`` is told UNAVAILABLE.

        May be called again: it then waits for the first. When it is cancelled, cancel ``serve`` as well.
        """
        if self._draining.is_set():
            await self._drained.wait()
            return
        self._draining.set()
        self._accepting.cancel()
        await trio.lowlevel.checkpoint()  # connections just accepted get to their first line
        for handshake in self._handshakes:
            handshake.cancel()
        for connection in list(self._connections):
            connection.begin_drain()
        with trio.move_on_after(grace_s):
            await self._wait_empty()
        for connection in list(self._connections):
            connection.end_calls(UNAVAILABLE_DRAINED)
        with trio.move_on_after(self.limits.abort_s):
            await self._wait_empty()
        self._scope.cancel()
        self._drained.set()

    @property
    def is_draining(self) -> bool:
        """``drain`` has begun."""
        return self._draining.is_set()

    async def wait_draining(self) -> None:
        """Wait until ``drain`` begins."""
        await self._draining.wait()

    @property
    def paths(self) -> set[str]:
        """Of all methods that are served."""
        return {path.decode() for path in self._methods}

    def statistics(self) -> RpcStatistics:
        """Gauges and counts, for metrics and tests."""
        return RpcStatistics(self._sockets + self._door.held, self._running, self._held, self.is_draining, self.counts)

    # ---------------------------------------------------------------------------------- connections

    async def _wait_empty(self) -> None:
        if self._sockets:
            await self._last_left.wait()

    async def _end_idle(self) -> None:
        """The longest idle connection makes room."""
        idle_before = trio.current_time() - self.limits.evict_after_idle_s
        idle = [connection for connection in self._connections if connection.idle_since <= idle_before]
        if idle:
            self.counts.evicted += 1
            min(idle, key=lambda connection: connection.idle_since).begin_drain()

    async def _serve_socket(self, sock: socket.socket, guest: Guest) -> None:
        try:
            await self._serve_admitted(sock, guest)
        finally:
            guest.leave()

    async def _serve_admitted(self, sock: socket.socket, guest: Guest) -> None:
        try:
            peer = sock.getpeername()
            stream = open_stream(sock, self._poller)
        except OSError:  # it has left already
            sock.close()
            self._left()
        else:
            with self._per_address.counted(str(peer[0])) as room:
                if room:
                    await self._serve_counted(stream, peer, guest)
                    return
            self.counts.refused += 1
            await trio.aclose_forcefully(stream)
            self._left()

    async def serve_stream(self, stream: trio.abc.Stream, peer: object) -> None:
        """Serve one connection that somebody else has accepted, to its end. Raises only Trio's Cancelled."""
        self._sockets += 1
        await self._serve_counted(stream, peer, None)

    def _left(self) -> None:
        self._sockets -= 1
        if not self._sockets and self.is_draining:
            self._last_left.set()

    async def _serve_counted(self, stream: trio.abc.Stream, peer: object, guest: Guest | None) -> None:
        self.counts.accepted += 1
        try:
            secured = await self._secure(stream, guest)
            if secured is not None:
                await self._run_connection(RpcConnection(self, secured, peer, names_of(secured), guest))
        except Exception:
            log.exception("a gRPC connection failed")  # ours to repair, but never the end of the others
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)  # closes at once, waits for nothing
            self._left()

    async def _run_connection(self, connection: RpcConnection) -> None:
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    async def _keep_alive(self) -> None:
        while True:
            await trio.sleep(self.limits.keepalive_tick_s)
            await self._watch_connections(trio.current_time())

    async def _watch_connections(self, now: float) -> None:
        busy = 0
        for connection in list(self._connections):
            if connection in self._connections and connection.keep_alive(now):
                busy += 1
                if busy % PINGED_PER_ITERATION == 0:
                    await trio.lowlevel.checkpoint()

    async def _secure(self, stream: trio.abc.Stream, guest: Guest | None) -> trio.abc.Stream | None:
        if self._tls is None:
            return stream
        tls = trio.SSLStream(stream, self._tls.context, server_side=True, https_compatible=True)
        with trio.move_on_after(self.limits.handshake_s) as patience:
            self._handshakes.add(patience)  # a drain does not wait for it
            if guest is not None and isinstance(stream, PlainStream):
                plain = stream
                guest.end = lambda: ends_waiting(plain, patience)
            try:
                await tls.do_handshake()
            except (trio.BrokenResourceError, ssl.SSLError):
                log.debug("TLS handshake failed", exc_info=True)
            else:
                if tls.selected_alpn_protocol() == "h2":
                    return tls
            finally:
                self._handshakes.discard(patience)
        self.counts.handshake_failures += 1
        return None

    # ---------------------------------------------------------------------------------- calls

    def hold(self, count: int) -> None:
        """Account for received bytes that wait for a handler."""
        self._held += count

    def holds_too_much(self) -> bool:
        """More request bytes wait than the limit."""
        return self._held > self.limits.held_request_bytes

    def read_request(self, headers: Headers) -> RpcRequest:
        """What a block of headers asks for."""
        return read_request(self._methods, headers)

    def new_call(self, connection: RpcConnection, stream_id: int, request: RpcRequest) -> ServerCall[Any, Any] | None:
        """A call for a request that has no flaw, or None when it was answered at once."""
        method, error = request.method, request.error
        if method is not None and error is None:
            return self.open_call(connection, stream_id, request, method)
        if error is None:
            connection.answer_at_once(stream_id, [(b":status", request.http_status or b"400")])
            return None
        connection.answer_at_once(stream_id, [
            (b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"identity"),
            (b"grpc-status", str(error.status.value).encode()), (b"grpc-message", (error.message or "").encode()),
        ])  # fmt: skip
        self._count(_UNKNOWN_METHOD if method is None else method.path, error.status, 0.0)
        return None

    def open_call(
        self, connection: RpcConnection, stream_id: int, request: RpcRequest, method: Method, whole: bytes | None = None
    ) -> ServerCall[Any, Any]:
        """Return a call for a request without flaw or error; ``whole`` is its message, where it came whole."""
        self._running += 1
        now, hold = connection.last_received, MemoryReservation(self._answer_memory)
        inbox = None if whole is not None else MessageBuffer(connection, stream_id, single=not method.client_streaming)
        until = now + request.timeout_s
        return ServerCall(connection, stream_id, request.headers, method, hold, now, until, whole, inbox)

    def abandon(self, call: ServerCall[Any, Any]) -> None:
        """A call was reset before its handler began."""
        self._running -= 1
        call.finish(None)
        self._count(call.method.path, Status.CANCELLED, 0.0)

    def begin(self, call: ServerCall[Any, Any]) -> None:
        """Run a call's handler and answer with what comes of it: without a task as far as that goes, where the handler
        allows it. Such a one begins when its request is there: then this is called again."""
        if not call.method.taskless:
            call.connection.start_task(self._run_call, call, partial(self._handle, call))
        elif call.has_more:
            if call.method.begin is not None and self._begins(call, call.method.begin):
                self.taskless.watch(call)
            else:
                self.go_on(call)
        else:
            self.taskless.expect(call, self.limits.request_s)

    def _begins(self, call: ServerCall[Any, Any], begin: Callable[[Any], bool]) -> bool:
        """Return whether a call was begun without a coroutine; or it has failed, and was answered."""
        try:
            return (self._is_plain or self._lets_pass(call)) and begin(call)
        except Exception as error:  # not left to the method: it may have a part of its effect already
            call.outcome, call.handled = self.problem(call, error), True
            self.end(call)
            return True

    def _lets_pass(self, call: ServerCall[Any, Any]) -> bool:
        """Return whether it is known at once that the caller may make the call, and nothing is counted of it or
        traced."""
        if self._gate is None or self._call_limits is not None or self._spans is not None:
            return False
        caller = call.caller = self._gate.find(call.authorization, call.address, call.certificate)
        if caller is not None:
            call.connection.on_proved()
        return caller is not None and table.RPC.get(call.method.path) in caller.permissions

    def go_on(self, call: ServerCall[Any, Any], run: Callable[[Any], Awaitable[None]] | None = None) -> None:
        """Run its method as a coroutine, or what answers in place of it, until it would need a task."""
        plain = run is not None or self._is_plain
        self.taskless.begin(call, self._handle_plain(call, run or call.method.run) if plain else self._handle(call))

    async def _run_call(self, call: ServerCall[Any, Any], handle: Callable[[], Awaitable[None]]) -> None:
        """In a task. Raises nothing but Trio's Cancelled."""
        try:
            with call.scope:
                await handle()
        finally:
            if not (call.handled or call.scope.cancelled_caught):
                call.closed = True  # the connection was lost
            self.end(call)

    def end(self, call: ServerCall[Any, Any]) -> None:
        """Answer with what came of a call."""
        error = call.outcome if call.handled else call.cancelled_as
        call.finish(error)
        call.reservation.end()
        self._running -= 1
        call.connection.forget(call)
        self.counts.calls += 1
        if self._on_call is not None:
            name = "OK" if error is None else error.status.name
            self._on_call(call.method.path, name, self.now() - call.started_at)

    async def _handle_plain(self, call: ServerCall[Any, Any], run: Callable[[Any], Awaitable[None]]) -> None:
        """As `_handle` where there are no spans, nor anybody who may not call: most of it in one step."""
        call.begun = True
        call.reservation = self._answer_memory.open()
        set_trace(call.headers.get(b"traceparent"))
        try:
            await run(call)
            if not call.answers:
                raise AssertionError(_NO_ANSWER)
        except Exception as error:
            call.outcome = self.problem(call, error)
        call.handled = True

    async def _handle(self, call: ServerCall[Any, Any]) -> None:
        call.begun = True
        call.reservation = self._answer_memory.open()
        span = None
        if self._spans is not None and not (call.method.client_streaming or call.method.server_streaming):
            span = begin_call(self._spans, call.method.path, call.header("traceparent"))
        set_trace(call.headers.get(b"traceparent") if span is None else span.traceparent)
        try:
            call.outcome = await self._run(call)
            call.handled = True
        finally:
            if span is not None:
                cancelled = call.cancelled_as if call.scope.cancel_called else _LOST
                error = call.outcome if call.handled else cancelled
                end_call(span, Status.OK if error is None else error.status)

    async def _run(self, call: ServerCall[Any, Any]) -> GRPCError | None:
        try:
            if self._gate is None and self._call_limits is None:
                await call.method.run(call)
            else:
                await self._run_admitted(call)
            if not call.answers and not call.method.server_streaming:
                raise AssertionError(_NO_ANSWER)
        except Exception as error:
            return self.problem(call, error)
        return None

    async def _run_admitted(self, call: ServerCall[Any, Any]) -> None:
        """Run a call of somebody who may make it, for as long as that is so."""
        needed = table.RPC.get(call.method.path)
        identity: Identity | None = None
        limits = self._call_limits if needed is not Permission.NONE else None
        over = None if limits is None else limits.take(call.address)
        if over is not None:
            raise TooManyRequests(over)
        if self._gate is not None:
            caller: Identity | PenstockError
            try:
                caller = await self._gate.identify(call.authorization, call.address, call.certificate)
            except PenstockError as error:
                caller = error
            if isinstance(caller, Identity):
                call.connection.on_proved()
            table.require(needed, caller)
            identity = call.caller = caller if isinstance(caller, Identity) else None
            set_identity(identity)
        over = None if limits is None else limits.enter(identity)
        if over is not None:
            raise TooManyRequests(over)
        try:
            await self._run_watched(call, identity)
        finally:
            if limits is not None:
                limits.leave(identity)

    async def _run_watched(self, call: ServerCall[Any, Any], identity: Identity | None) -> None:
        """A stream ends with what proved its caller's identity."""
        if self._gate is None or identity is None or not call.method.client_streaming:
            await call.method.run(call)
            return

        def end(ending: AccessEnd) -> None:
            if ending is AccessEnd.REVOKED:
                call.end_as(GRPCError(Status.UNAUTHENTICATED, REVOKED))
            else:
                call.expire(GRPCError(Status.UNAUTHENTICATED, EXPIRED), self.limits.expired_call_s)

        with self._gate.watching(identity, end):
            await call.method.run(call)

    def check_caller(self, caller: Identity) -> None:
        """Raises Unauthenticated where what proved who calls counts no longer."""
        ending = None if self._gate is None else self._gate.ending(caller, time.time())
        if ending is not None:
            raise Unauthenticated(reason_of(ending))

    def problem(self, call: ServerCall[Any, Any], error: Exception) -> GRPCError:
        """What the client of a call is told of an error."""
        cause = leaf_of(error)
        if isinstance(cause, GRPCError):
            return cause
        known = self._status_of(cause) if self._status_of is not None else None
        if known is None:
            log.error("handler of %s failed", call.method.path, exc_info=error)
            return GRPCError(Status.INTERNAL, "internal error")
        return known

    def _count(self, path: str, status: Status, seconds: float) -> None:
        self.counts.calls += 1
        if self._on_call is not None:
            self._on_call(path, status.name, seconds)


def _is_whole_preface(begun: bytes) -> bool:
    """Return whether what a client says first has come, or what can't be that."""
    return len(begun) >= len(PREFACE) or not PREFACE.startswith(begun) if begun else False
