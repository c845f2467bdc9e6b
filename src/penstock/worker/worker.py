"""The worker as its users see it: register handlers, run it, stop it.

Runs under asyncio and Trio. What happens while it runs is `session.py`.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Literal, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from penstock.client.caller import check_url
from penstock.client.client import Client
from penstock.client.errors import ClientError
from penstock.client.operation import Transport
from penstock.client.token import Token, check_token
from penstock.log.plain_log import PlainFormatter
from penstock.worker.handler import Handler, HandlerFunction
from penstock.worker.held import LOGGER
from penstock.worker.observer import WorkerObserver
from penstock.worker.session import Statistics, WorkerSession, WorkerSettings
from penstock.worker.transport import LongPoll, WorkerIdentity, WorkTransport

FunctionT = TypeVar("FunctionT", bound=HandlerFunction)
Connect = Callable[[WorkerIdentity], WorkTransport]

CONCURRENCY = 16
MAX_UNREPORTED = 1000
LEASE_S = 30
WAIT_S = 20
# Below the 30 s after which container platforms kill.
DRAIN_GRACE_S = 20.0


class Worker:
    """Takes jobs from an engine, runs their handlers, reports the results.

    Args:
        engine: the engine's URL, a ``Client`` (not closed by the worker), a ``WorkTransport``, or a function that
            makes one for a ``WorkerIdentity``.
        token, ssl_context: as ``Client`` takes them, with an engine's URL.
        worker_id: the holder of the leases; unique per running worker. Made from host, process and chance by default.
        concurrency: how many jobs are worked on at once.
        max_threads: how many synchronous handlers run at once; by default as many as ``concurrency``.
        max_processes: how many handlers run in processes at once; by default as many as there are processors.
        max_unreported: with that many results that could not be delivered yet, no new jobs are taken on.
        lease_s: length of a lease, 5 to 3600 seconds; the time after which others get the jobs of a dead worker.
        wait_s: how long the engine holds a poll without jobs, 0 to 60 seconds.
        drain_grace_s: how long running handlers may go on after ``stop`` or SIGTERM.
        observer: told of what happens, e.g. ``penstock.worker.metrics.WorkerMetrics()``.

    Raises:
        ValueError: it could not work with these: a URL without a scheme, a limit or a time below its least.

    A job may be handed out more than once (a lease that ended, a worker that died): make handlers idempotent, with
    ``context.idempotency_key`` as the key.
    """

    def __init__(
        self,
        engine: str | Client | WorkTransport | Connect,
        *,
        token: Token | None = None,
        ssl_context: ssl.SSLContext | None = None,
        worker_id: str | None = None,
        concurrency: int = CONCURRENCY,
        max_threads: int | None = None,
        max_processes: int | None = None,
        max_unreported: int = MAX_UNREPORTED,
        lease_s: int = LEASE_S,
        wait_s: int = WAIT_S,
        drain_grace_s: float = DRAIN_GRACE_S,
        observer: WorkerObserver | None = None,
    ) -> None:
        if isinstance(engine, str):
            check_url(engine)
        for name, least, value in (
            ("concurrency", 1, concurrency),
            ("max_threads", 1, max_threads),
            ("max_processes", 1, max_processes),
            ("max_unreported", 1, max_unreported),
            ("lease_s", 1, lease_s),
            ("wait_s", 0, wait_s),
            ("drain_grace_s", 0, drain_grace_s),
        ):
            if value is not None and not value >= least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
            if name != "drain_grace_s" and value is not None and not isinstance(value, int):
                raise ValueError(f"{name} must be a whole number, not {value}")
        if not isinstance(engine, str) and (token is not None or ssl_context is not None):
            raise ValueError("token and ssl_context go with an engine's URL: give them to the client or transport")
        check_token(token)
        self._proof: tuple[Token | None, ssl.SSLContext | None] = token, ssl_context
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._engine = engine
        self._wait_s = wait_s
        self._settings = WorkerSettings(
            concurrency=concurrency,
            max_threads=max_threads or concurrency,
            max_processes=max_processes or os.cpu_count() or 1,
            max_unreported=max_unreported,
            lease_s=lease_s,
            drain_grace_s=drain_grace_s,
        )
        self._handlers: dict[str, Handler] = {}
        self._statistics = Statistics()
        self._observer = observer or WorkerObserver()
        self._session: WorkerSession | None = None
        self._background: TaskGroup | None = None
        self._refusal: ClientError | None = None

    def handler(
        self,
        job_type: str,
        *,
        concurrency: int | None = None,
        timeout_s: float | None = None,
        in_process: bool = False,
        checkpoint_format: int | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """Register a function for a job type, as a decorator; the function itself stays as it is.

        It may be async or sync (then it runs in a thread) and takes the job's ``JobContext`` and/or its variables,
        told apart by their annotations. Variables annotated as a dataclass, msgspec struct, TypedDict or pydantic
        model are validated: a mismatch fails the job without retries, and says why. It returns None, a dict or such
        a model: the variables to merge. An exception is a failure that may be retried; see ``NonRetryable``, ``Retry``.

        Args:
            concurrency: how many jobs of this type run at once, at most; the worker's own limit holds besides.
            timeout_s: time limit of one attempt in seconds: the handler is cancelled, the job fails, may be retried.
            in_process: for work that keeps a processor busy: run the (plain, importable) function in another process,
                where it can be stopped, too. It takes variables and ``Job``, no ``JobContext``; what it prints or
                logs is lost.
            checkpoint_format: the version of the format of its checkpoints, a whole number from 1 on. They are stored
                as ``{"format": 2, "value": …}``. A checkpoint of another format, or without one, is logged, and the
                handler gets None; ``JobContext.checkpoint_of`` reads it.

        Raises:
            TypeError: the function's signature is not one that a handler can have; ``checkpoint_format`` is no whole
                number.
            ValueError: the job type has a handler already, a limit is below its least, or ``checkpoint_format`` is out
                of its range.
        """
        # Annotations may be text (PEP 563) and name classes that are local to where the decorator stands.
        frame = inspect.currentframe()
        names = frame.f_back.f_locals if frame is not None and frame.f_back is not None else {}

        def register(function: FunctionT) -> FunctionT:
            if job_type in self._handlers:
                raise ValueError(f"job type {job_type!r} has a handler already")
            self._handlers[job_type] = Handler(
                job_type,
                function,
                concurrency=concurrency,
                timeout_s=timeout_s,
                in_process=in_process,
                checkpoint_format=checkpoint_format,
                names=names,
            )
            return function

        return register

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Return the registered handlers, by job type."""
        return dict(self._handlers)

    def statistics(self) -> Statistics:
        """Return what was done since the worker was made, and what it has now: a copy."""
        if self._session is not None:
            self._session.refresh_statistics()
        return msgspec.structs.replace(self._statistics)

    def stop(self) -> None:
        """Ask the running worker to drain; again, to end the grace at once. From the event loop's thread only."""
        if self._session is not None:
            self._session.drain()

    async def run(
        self,
        *,
        handle_signals: bool | None = None,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Work until ``stop`` is called or SIGTERM or SIGINT arrives, then drain. A second signal ends the grace.

        An engine that is away is waited for. Cancelling this call gives the held jobs back without waiting for their
        handlers to finish. ``handle_signals`` is on by default in the main thread.

        Raises:
            ClientError: the engine refuses to give jobs to this worker at all (``DispatchModeConflict``: it
                dispatches through Kafka).
        """
        self._check_startable()
        if handle_signals is None:
            handle_signals = threading.current_thread() is threading.main_thread()
        async with contextlib.AsyncExitStack() as stack:
            transport = await self._open(stack)
            session = self._session = WorkerSession(
                transport, self._handlers, self._settings, self._statistics, self._observer
            )
            stack.callback(self._forget_session)
            LOGGER.info("worker %s takes %s", self.worker_id, ", ".join(sorted(self._handlers)))
            async with anyio.create_task_group() as signals:
                if handle_signals:
                    await signals.start(_stop_on_signals, session)
                task_status.started()
                await session.run()
                signals.cancel_scope.cancel()
        LOGGER.info("worker %s has stopped", self.worker_id)
        if session.refusal is not None:
            raise session.refusal

    def main(self, *, backend: Literal["asyncio", "trio"] = "asyncio") -> None:
        """Run in an event loop of its own until SIGTERM or SIGINT: for a program that is only this worker.

        Sets up logging to standard error when nobody has.
        """
        handler = logging.StreamHandler()
        handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request
        try:
            anyio.run(self.run, backend=backend)
        except KeyboardInterrupt:  # a second one, when nothing listens to signals any more
            LOGGER.info("interrupted")
            raise SystemExit(INTERRUPTED) from None

    async def __aenter__(self) -> Worker:
        """Start in the background. The worker drains at the end of the block; if that fails, it gives its jobs back.

        When the engine refuses to give it jobs at all, the block is cancelled and raises what ``run`` would.
        """
        self._check_startable()
        async with contextlib.AsyncExitStack() as stack:  # closes the group if the start is cancelled
            background = await stack.enter_async_context(anyio.create_task_group())

            async def run(*, task_status: TaskStatus[None]) -> None:
                try:
                    await self.run(handle_signals=False, task_status=task_status)
                except ClientError as error:  # raised at the end of the block, not inside a group
                    self._refusal = error
                    background.cancel_scope.cancel()

            await background.start(run)
            stack.pop_all()
        self._background = background
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._background is not None
        background, self._background = self._background, None
        if isinstance(error, Exception):
            # The block failed: jobs are given back at once, and the error goes out as it is, not inside a group.
            background.cancel_scope.cancel()
            await background.__aexit__(None, None, None)
            return False
        self.stop()
        suppressed = await background.__aexit__(kind, error, trace)
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
        return suppressed

    def _check_startable(self) -> None:
        if self._session is not None:
            raise RuntimeError("this worker is running already")
        if not self._handlers:
            raise RuntimeError("this worker has no handlers: register one with @worker.handler(job_type)")

    async def _open(self, stack: contextlib.AsyncExitStack) -> WorkTransport:
        """Return the connection to the engine; closed with the stack if it is made here."""
        engine = self._engine
        identity = WorkerIdentity(self.worker_id, self._settings.lease_s)
        if isinstance(engine, str):
            token, ssl_context = self._proof
            engine = await stack.enter_async_context(Client(engine, token=token, ssl_context=ssl_context))
        if isinstance(engine, Client):
            return _transport_over(engine.transport, identity, self._wait_s)
        if not callable(engine):
            return engine
        transport = engine(identity)
        if isinstance(transport, contextlib.AbstractAsyncContextManager):
            await stack.enter_async_context(transport)
        return transport

    def _forget_session(self) -> None:
        if self._session is not None:
            self._session.refresh_statistics()
        self._session = None


def _transport_over(transport: Transport, identity: WorkerIdentity, wait_s: int) -> WorkTransport:
    """The Work stream for a client over gRPC, else long polls."""
    if "penstock.client.grpc" in sys.modules:  # HTTP/2 is loaded by who uses it
        from penstock.client.grpc import GrpcTransport
        from penstock.worker.stream import WorkerStream

        if isinstance(transport, GrpcTransport):
            return WorkerStream(transport, identity)
    return LongPoll(transport, identity, wait_s=wait_s)


INTERRUPTED: Final = 130
"""The exit code of shells for what SIGINT has ended."""


async def _stop_on_signals(session: WorkerSession, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            LOGGER.info("%s: draining", number.name)
            session.drain()
