"""The ASGI application: inline route without a framework, all others through one; CORS, metrics, traces for both.

A plain ASGI 3 application for any server (``http`` and ``lifespan`` scopes). Holds no state but counters. Must not
decide what a request means.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from time import perf_counter
from typing import Any, Final

import trio

from penstock.access import table
from penstock.access.gate import REVOKED, AccessEnd, Gate, reason_of
from penstock.access.identity import Identity, set_identity
from penstock.access.limits import CallLimits
from penstock.api import ROUTED
from penstock.engine.engine import Engine
from penstock.engine.operations.table import bound_operations
from penstock.engine.requests.answers import MemoryReservation
from penstock.errors import Forbidden, PayloadTooLarge, PenstockError, TooManyRequests, Unauthenticated
from penstock.log.log import set_trace
from penstock.loop.offload import INLINE_MAX_BYTES
from penstock.loop.taskless import need_task
from penstock.rest.console import PATH as CONSOLE
from penstock.rest.console import ConsoleFiles, prefers_page
from penstock.rest.cors import Cors
from penstock.rest.docs import DocsRoutes
from penstock.rest.exchange import (
    CLIENT_GONE_STATUS,
    AsgiExchange,
    ClientGone,
    Handler,
    Headers,
    Message,
    Receive,
    Reply,
    RestExchange,
    RestRequest,
    Scope,
    Send,
    answer,
    body_of,
    read_body,
    send_reply,
)
from penstock.rest.health import ALIVE, LIVE_PATH, HealthRoutes
from penstock.rest.hiding import Hider
from penstock.rest.inline_handler import InlineCall, InlineRoutes, Wire
from penstock.rest.instances import InstanceRoutes
from penstock.rest.jobs import JobRoutes
from penstock.rest.openapi import openapi_json
from penstock.rest.operation import RestOperation, Route
from penstock.rest.operations import KINDS_BY_NAME, LIVE, OPERATIONS
from penstock.rest.pages import Pages
from penstock.rest.parameters import UnknownParameters
from penstock.rest.problems import bug, nothing_at, problem, problem_of
from penstock.rest.reading import ROUTE
from penstock.rest.routed import CALLER, RoutedApp
from penstock.rest.rows import view_of
from penstock.rest.sessions import SessionRoutes, cookie_of
from penstock.rest.starts import StartRoutes
from penstock.rest.tracing import RestCalls, end_call
from penstock.rest.watch import WatchRoutes
from penstock.wire.paths import UNREADABLE, read_part

UNKNOWN_PATTERN: Final = "(unknown)"
"""The label of paths that are no route: what clients make up must not become labels."""
_COMPRESSIONS: Final = frozenset(
    {b"gzip", b"x-gzip", b"deflate", b"br", b"zstd", b"compress", b"x-compress", b"dcb", b"dcz", b"exi", b"lzma", b"xz",
     b"bzip2", b"x-bzip2", b"lz4", b"snappy", b"pack200-gzip", b"aes128gcm", b"aws-chunked"}
)  # fmt: skip
"""Values of Content-Encoding that change the body. Some clients send others, such as `utf-8`, with a plain body."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"})
_BODY_HEADERS: Final = frozenset({b"content-type", b"content-length"})
_JOBS: Final = "/v1/jobs/"
_JOB: Final = "/v1/jobs/{id}/"
_HEALTH: Final = frozenset({"/healthz", "/readyz"})
"""Probes are not counted with their address, and come by an address."""
_ANSWER_LITTLE: Final = frozenset(
    {
        "/v1/jobs/lost",
        *(f"/v1/jobs/{action}" for action in ("complete", "fail", "heartbeat", "release")),
        *(f"/v1/jobs/{{id}}/{action}" for action in ("complete", "fail", "heartbeat")),
    }
)
"""Inline routes whose answers hold no variables: what workers say of their jobs. It spares them 1 µs."""
_TASKLESS: Final = frozenset(
    {"/v1/jobs/poll", "/v1/instances", *(f"/v1/jobs/{{id}}/{action}" for action in ("complete", "fail", "heartbeat"))}
)
"""Inline routes whose handlers wait for items of group-commit queues only, or say `need_task` before they wait for
anything else."""
NO_SNIFF: Final = (b"x-content-type-options", b"nosniff")
"""Of every answer: no browser takes JSON with somebody's text in it for a page."""
_NO_STORE: Final = (b"cache-control", b"no-store")
"""With authentication: what one caller may read is kept for no other."""


def _none() -> Sequence[str]:
    return ()


def make_app(
    engine: Engine,
    *,
    degraded: Callable[[], Sequence[str]] = _none,
    gate: Gate | None = None,
    limits: CallLimits | None = None,
) -> RestApp:
    """The REST interface of an engine. ``degraded`` names what is away although the engine serves (`/readyz`);
    without a ``gate`` everybody may do everything."""
    return RestApp(engine, degraded, gate, limits)


class RestApp:
    """See ``make_app``."""

    def __init__(
        self,
        engine: Engine,
        degraded: Callable[[], Sequence[str]],
        gate: Gate | None = None,
        limits: CallLimits | None = None,
    ) -> None:
        self._unknown_parameters = UnknownParameters(engine.metrics)
        self._jobs = JobRoutes(engine)
        routes = _routes(engine, degraded, gate, self._jobs)
        inline = {operation.path: (operation, handler) for operation, handler in routes if operation.inline}
        self._inline = {path: found for path, found in inline.items() if not path.startswith(_JOB)}
        self._job_actions = {path.removeprefix(_JOB): found for path, found in inline.items() if path.startswith(_JOB)}
        self._hider = Hider(engine.hiding, KINDS_BY_NAME)
        self._routed = RoutedApp(routes, self._unknown_parameters, self._hider)
        self._gate = gate
        self._always: Headers = (NO_SNIFF,) if gate is None else (NO_SNIFF, _NO_STORE)
        self._limits = limits
        self._calls = None if engine.traces is None else RestCalls(engine.traces.spans)
        self._guarded = gate is not None or limits is not None
        self._console = ConsoleFiles() if engine.settings.console_enabled else None
        self._cors = Cors(engine.settings.allowed_origins, engine.settings.cors_headers)
        self._pages = Pages(engine.settings)
        self._max_body_bytes = engine.settings.max_body_bytes
        self._seconds = engine.metrics.http_request_seconds
        self._answer_memory = engine.answer_memory
        self._no_reservation = MemoryReservation(engine.answer_memory)
        self._engine = engine
        self._inline_routes: InlineRoutes | None = None  # made with the first connection that asks

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        kind = scope["type"]
        if kind == "http":
            exchange = AsgiExchange(scope, receive, send)
            return self._serve(exchange, self._find_inline(exchange), scope)
        if kind == "lifespan":
            return _answer_lifespan(receive, send)
        raise ValueError(f"there is no {kind} here")

    def taskless_call(self, exchange: RestExchange) -> Coroutine[Any, Any, None] | None:
        """What serves a request without ASGI, and without a task as far as that goes (`penstock.loop.taskless`); None
        for those that the framework serves."""
        inline = self._find_inline(exchange)
        return None if inline is None else self._serve(exchange, inline, {})

    def inline_call(self, wire: Wire) -> InlineCall | None:
        """What serves a connection's polls, completions and starts; None where calls are counted."""
        if self._limits is not None:
            return None
        if self._inline_routes is None:
            engine = self._engine
            self._inline_routes = InlineRoutes(
                engine.inline_jobs, self._jobs, StartRoutes(engine) if engine.traces is None else None,
                engine.answer_memory, engine.limits, engine.metrics, self._always, self._pages.pass_at_once, self._gate,
            )  # fmt: skip
        return InlineCall(self._inline_routes, wire)

    def serve_by(self, exchange: RestExchange, handler: Handler) -> Coroutine[Any, Any, None]:
        """As `taskless_call` for a poll, by another handler."""
        operation, _ = self._inline["/v1/jobs/poll"]
        return self._serve(exchange, (operation, handler, ""), {})

    async def _serve(
        self, exchange: RestExchange, inline: tuple[RestOperation, Handler, str] | None, scope: Scope
    ) -> None:
        """``scope``: of what is not hot."""
        started = perf_counter()
        request = exchange.request
        headers = dict(request.headers)
        method = request.method
        span = None if self._calls is None else self._calls.begin(method, exchange.path, headers.get(b"traceparent"))
        set_trace(headers.get(b"traceparent") if span is None else span.traceparent)
        cors = self._always
        caller, refusal = None, None
        if self._guarded or not self._pages.pass_at_once(headers):
            cors = (*self._cors.headers(headers.get(b"origin")), *self._always)
            caller, refusal = await self._admit(exchange, headers, scope)
        pattern, status = UNKNOWN_PATTERN, CLIENT_GONE_STATUS
        reservation = (
            self._no_reservation
            if inline is not None and inline[0].path in _ANSWER_LITTLE
            else self._answer_memory.open()
        )
        try:
            reply: Reply | None
            if refusal is not None:
                reply = problem_of(refusal)
            elif (unfit := _unfit(exchange.path, request.headers)) is not None:
                reply = unfit
            elif inline is not None:
                operation, handler, job_id = inline
                pattern = operation.path
                reply = await self._answer(exchange, headers, operation, handler, job_id, caller)
            elif self._console is not None and (place := _console_place(exchange.path, headers)) is not None:
                pattern, cors = CONSOLE, ()
                reply = await self._console.answer(method, place, headers)
            elif method == "GET" and exchange.path == LIVE_PATH:  # the framework would take several turns of the loop
                pattern, reply = LIVE_PATH, ALIVE
                self._unknown_parameters.check(LIVE, request.query)
            elif method == "OPTIONS":
                reply = self._options(exchange.path, headers)
            else:
                scope["path"] = exchange.path  # hypercorn's is decoded as a whole
                status = await self._serve_routed(scope, exchange.receive, exchange.send, cors)
                pattern = scope[ROUTE].path if ROUTE in scope else UNKNOWN_PATTERN
                return
            if reply is not None:
                status = reply.status
                await answer(exchange, reply, cors)
        finally:
            reservation.end()
            if self._limits is not None and refusal is None and exchange.path not in _HEALTH:
                self._limits.leave(caller if isinstance(caller, Identity) else None)
            label = method if method in _METHODS else "OTHER"
            self._seconds[label, pattern, str(status)].observe(perf_counter() - started)
            if span is not None:
                end_call(span, label, pattern, status)

    def _find_inline(self, exchange: RestExchange) -> tuple[RestOperation, Handler, str] | None:
        """(row, handler, job id) of the inline route that is asked for."""
        path = exchange.path
        if exchange.request.method != "POST":
            return None
        found = self._inline.get(path)
        if found is not None:
            return *found, ""
        if path.startswith(_JOBS):
            job_id, _, action = path[len(_JOBS) :].rpartition("/")
            found = self._job_actions.get(action)
            if found is not None and job_id and "/" not in job_id:
                return *found, read_part(job_id)
        return None

    async def _admit(
        self, exchange: RestExchange, headers: dict[bytes, bytes], scope: Scope
    ) -> tuple[Identity | PenstockError | None, PenstockError | None]:
        """Who calls (with authentication; an error says why that is not known), and why there is no answer at all. A
        call without a refusal is counted: `CallLimits.leave` ends that."""
        probe = exchange.path in _HEALTH
        foreign = self._pages.refusal(exchange.request.method, headers, probe=probe)
        if foreign is not None:
            return None, Forbidden(foreign)
        limits = None if probe else self._limits
        over = None if limits is None else limits.take(exchange.address)
        caller: Identity | PenstockError | None = None
        if self._gate is not None and over is None:
            caller = scope[CALLER] = await self._caller(self._gate, exchange, headers)
        if limits is not None and over is None:
            over = limits.enter(caller if isinstance(caller, Identity) else None)
        return caller, None if over is None else TooManyRequests(over)

    async def _caller(
        self, gate: Gate, exchange: RestExchange, headers: dict[bytes, bytes]
    ) -> Identity | PenstockError:
        """Who calls; or why that is not known, which matters only where it is asked for."""
        set_identity(None)  # one task serves all calls of a connection
        proofs = [value for name, value in exchange.request.headers if name == b"authorization"]
        own = self._pages.is_own(headers)
        session = b""
        try:
            if b"cookie" in headers and not proofs:
                cookies = (value for name, value in exchange.request.headers if name == b"cookie")
                session = cookie_of(exchange.request.method, headers, cookies, own=own)
            identity = await gate.identify(proofs, exchange.address, exchange.certificate, ambient=own, session=session)
        except PenstockError as error:
            return error
        set_identity(identity)
        exchange.on_proved()
        return identity

    async def _answer(
        self,
        exchange: RestExchange,
        headers: dict[bytes, bytes],
        operation: RestOperation,
        handler: Handler,
        job_id: str,
        caller: Identity | PenstockError | None,
    ) -> Reply | None:
        """Return the reply of a inline route; None when the client went away in the middle of its request."""
        try:
            if caller is not None:
                table.require(operation.needs, caller)
            if query := exchange.request.query:
                self._unknown_parameters.check(operation, query)
            body = await body_of(exchange, self._max_body_bytes)
            if operation.path not in _TASKLESS or len(body) > INLINE_MAX_BYTES:
                await need_task()
            call = RestRequest(
                body, headers, exchange.receive, job_id, exchange.peer_gone_nowait, exchange.call_when_gone
            )
            if caller is not None and isinstance(caller, Identity) and operation.waits_for(body):
                reply = await self._answer_while_valid(caller, handler, call)
            else:
                reply = await handler(call)
            hides = self._hider.applies(operation, exchange.request.headers)
            return await self._hider.hide_reply(operation, reply) if hides else reply
        except PenstockError as error:
            return problem_of(error)
        except ClientGone:
            return None
        except Exception as error:
            return bug(error, exchange.request.method, exchange.path)

    async def _answer_while_valid(self, caller: Identity, handler: Handler, call: RestRequest) -> Reply:
        """Of a call that may wait for long: no job goes out to a token that was revoked meanwhile."""
        assert self._gate is not None
        await need_task()
        reason = REVOKED

        def end(ending: AccessEnd) -> None:
            nonlocal reason
            reason = reason_of(ending)
            scope.cancel()

        with trio.CancelScope() as scope, self._gate.watching(caller, end):
            return await handler(call)
        raise Unauthenticated(reason)

    def _options(self, path: str, headers: dict[bytes, bytes]) -> Reply:
        origin = headers.get(b"origin")
        if origin is not None and b"access-control-request-method" in headers:
            return self._cors.preflight(origin)
        methods = self._routed.methods(path)
        if not methods:
            return nothing_at(path)
        return Reply(204, headers=((b"allow", ", ".join(methods).encode()),))

    async def _serve_routed(self, scope: Scope, receive: Receive, send: Send, cors: Headers) -> int:
        """Serve through the framework; the status that went out."""
        status = CLIENT_GONE_STATUS

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], *cors]
                if status == 204:
                    headers = [pair for pair in headers if pair[0].lower() not in _BODY_HEADERS]
                message = {**message, "headers": headers}
            await send(message)

        try:
            body = await read_body(receive, self._max_body_bytes)
        except PayloadTooLarge as error:
            reply = problem_of(error)
            await send_reply(send, reply, cors)
            return reply.status
        except ClientGone:
            return status
        await self._routed(scope, body, send_on)
        return status


def _routes(engine: Engine, degraded: Callable[[], Sequence[str]], gate: Gate | None, jobs: JobRoutes) -> list[Route]:
    """All that are switched on."""
    handler_classes: list[object] = [
        InstanceRoutes(engine), jobs, StartRoutes(engine),
        HealthRoutes(engine, degraded),
        *([DocsRoutes(openapi_json)] if engine.settings.docs_enabled else []),
        SessionRoutes(gate),
        WatchRoutes(engine, gate),
    ]  # fmt: skip
    there = {type(handler_class).__name__ for handler_class in handler_classes}
    bound = bound_operations(engine)
    views = {
        row.rest.id or row.name: view_of(row, bound, engine.limits, engine.hiding)
        for row in ROUTED
        if not (row.rest.when or row.rest.by_hand)
    }
    return [
        (operation, views[operation.id] if operation.handler is None else operation.bound(handler_classes))
        for operation in OPERATIONS
        if operation.handler is None or operation.handler_class in there
    ]


async def _answer_lifespan(receive: Receive, send: Send) -> None:
    """Nothing starts or stops with the server: the runtime does both."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _unfit(path: str, headers: Iterable[tuple[bytes, bytes]]) -> Reply | None:
    """Return the answer to a request that no route may see."""
    encodings = (part for name, value in headers if name == b"content-encoding" for part in value.split(b","))
    if any(coding.strip().lower() in _COMPRESSIONS for coding in encodings):
        return problem(
            "unsupported-format", "Content-Encoding: the engine reads no compressed bodies; send the body uncompressed"
        )
    if path == UNREADABLE:
        return problem("bad-request", "the path holds NUL, or bytes that are not UTF-8")
    return nothing_at(path) if path.startswith("//") else None  # the framework would take "//" for one slash


def _console_place(path: str, headers: dict[bytes, bytes]) -> str | None:
    """Where in the console a request leads; None for everything else. A browser that asks for `/` is sent there."""
    if path.startswith(CONSOLE) or path == CONSOLE[:-1]:
        return path
    return CONSOLE[:-1] if path == "/" and prefers_page(headers) else None
