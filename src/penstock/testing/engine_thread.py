"""An engine in a thread of its own, with its own `trio.run`, and the ways to call it from any event loop or none.

The tests of users run under asyncio, Trio or no loop at all, and the engine runs on Trio only. What is called runs in
the engine's loop; the caller waits for it. The loops that look at the clock (timers, leases) do not run here: time is
virtual, and `agenda.py` does what they do, one thing after the other. Relies on a database of its own.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import anyio
import anyio.lowlevel
import trio

from penstock.engine.engine import Engine
from penstock.http import HttpServer, listen
from penstock.http.asgi import App
from penstock.rest.app import make_app
from penstock.settings import Settings
from penstock.store.db.database import Database
from penstock.store.db.vault import make_vault
from penstock.telemetry.metrics import Metrics

R = TypeVar("R")
Served: TypeAlias = tuple[str, Callable[[], Awaitable[None]]]

CONNECTIONS_MAX = 4
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POOL_GRACE_S = 1.0
SERVE_GRACE_S = 2.0
"""How long requests that are still being answered hold up the end of `serve`."""


class EngineStopped(RuntimeError):
    """The engine in the thread has ended; the cause, if it broke, is attached."""


class _Call(Generic[R]):
    """One function on its way through the engine's loop."""

    def __init__(self, function: Callable[[], Awaitable[R]]) -> None:
        self._function = function
        self._scope: trio.CancelScope | None = None
        self._cancelled = False
        self.future: Future[R] = Future()

    async def run(self) -> None:
        """In the engine's loop."""
        with trio.CancelScope() as scope:
            self._scope = scope
            if self._cancelled:
                scope.cancel()
            try:
                result = await self._function()
            except trio.Cancelled:
                self.future.set_exception(EngineStopped("the call was cancelled"))
                raise
            except Exception as error:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)

    def cancel(self) -> None:
        """In the engine's loop; harmless at any time."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()


class EngineThread:
    """One engine on the database at ``dsn``. Start it once, stop it once."""

    def __init__(self, dsn: str, settings: Settings) -> None:
        self._dsn = dsn
        self._settings = settings
        self._thread = threading.Thread(target=self._main, name="penstock-test-engine", daemon=True)
        self._started: Future[None] = Future()
        self._open: set[_Call[Any]] = set()
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._stopping: trio.Event
        self._app: App | None = None
        self.engine: Engine

    def start(self) -> None:
        """Start the thread and wait until the engine answers. Raises what kept it from starting."""
        self._thread.start()
        self._started.result(START_TIMEOUT_S)

    def stop(self) -> None:
        """Stop the engine and wait for the end of the thread. Raises what the engine broke of, if it did."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stopping.set)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise EngineStopped(f"the engine did not stop within {STOP_TIMEOUT_S:g} s")
        if self._failure is not None:
            raise EngineStopped("the engine broke") from self._failure

    # -- calling it

    def call_blocking(self, function: Callable[..., Awaitable[R]], *args: Any) -> R:
        """Run ``function`` in the engine's loop and block until it has ended. From any other thread than its own."""
        return self._submit(_Call(partial(function, *args))).result()

    async def call(self, function: Callable[..., Awaitable[R]], *args: Any) -> R:
        """`call_blocking` for tasks of asyncio and Trio. Cancel-safe: the function is cancelled as well."""
        if clock_jumps():  # it would take our waiting for idleness; this way nothing waits
            await anyio.lowlevel.checkpoint()
            return self.call_blocking(function, *args)
        call: _Call[R] = _Call(partial(function, *args))
        done = anyio.Event()
        wake = _waker()

        def finished(_: Future[R]) -> None:
            with suppress(RuntimeError):  # the caller's loop has ended
                wake(done.set)

        self._submit(call).add_done_callback(finished)
        try:
            await done.wait()
        except BaseException:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(call.cancel)
            raise
        return call.future.result()

    def _submit(self, call: _Call[R]) -> Future[R]:
        self._open.add(call)
        call.future.add_done_callback(lambda _: self._open.discard(call))
        try:
            self._token.run_sync_soon(self._start_call, call)
        except trio.RunFinishedError:
            self._fail(call)
        return call.future

    def _start_call(self, call: _Call[Any]) -> None:
        try:
            self._nursery.start_soon(call.run)
        except RuntimeError:  # the nursery is closed: the engine is ending
            self._fail(call)

    def _fail(self, call: _Call[Any]) -> None:
        if not call.future.done():
            error = EngineStopped("the engine has stopped")
            error.__cause__ = self._failure
            call.future.set_exception(error)

    # -- what it is

    @property
    def app(self) -> App:
        """Return the engine's REST interface, an ASGI application for the engine's own loop."""
        if self._app is None:
            self._app = make_app(self.engine)
        return self._app

    async def _serve(self, *, task_status: trio.TaskStatus[Served]) -> None:
        server = HttpServer()
        [sock] = listen("127.0.0.1", 0, purpose="REST")
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(server.serve, self.app, [sock]))

            async def end() -> None:
                server.drain()
                nursery.cancel_scope.deadline = trio.current_time() + SERVE_GRACE_S
                await ended.wait()

            task_status.started((url, end))
        ended.set()

    async def start_serving(self) -> Served:
        """Serve REST on a free port of 127.0.0.1; its URL, and what ends it. In the engine's loop."""
        served: Served = await self._nursery.start(self._serve)
        return served

    # -- its thread

    def _main(self) -> None:
        try:
            trio.run(self._run)
        except BaseException as error:
            self._failure = error
        if not self._started.done():
            self._started.set_exception(self._failure or EngineStopped("it ended while it started"))
        for call in list(self._open):
            self._fail(call)

    async def _run(self) -> None:
        keys = self._settings.encryption_keys
        vault = make_vault(None if keys is None else keys.reveal())
        database = Database(self._dsn, max_connections=CONNECTIONS_MAX, vault=vault)
        try:
            async with trio.open_nursery() as nursery:
                self._token = trio.lowlevel.current_trio_token()
                self._nursery = nursery
                self._stopping = trio.Event()
                self.engine = Engine(database, self._settings, Metrics("testing"), 0)
                # No jitter: a back-off takes its full time, the same in each run.
                self.engine.transactions.advancer.jitter_source = lambda: 0.0
                for batcher in self.engine.batchers():
                    nursery.start_soon(batcher.run)
                nursery.start_soon(self._probe)
                self._started.set_result(None)
                await self._stopping.wait()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await database.close(POOL_GRACE_S)

    async def _probe(self) -> None:
        """What serves polls that wait: those of real workers."""
        while True:
            await self.engine.polls.wait_probe()
            await self.engine.polls.probe_once()


def clock_jumps() -> bool:
    """Return whether the caller's event loop is Trio on a `MockClock` that jumps when nothing runs."""
    try:
        clock = trio.lowlevel.current_clock()
    except RuntimeError:
        return False
    return not math.isinf(getattr(clock, "autojump_threshold", math.inf))


def _waker() -> Callable[[Callable[[], object]], object]:
    """What runs a function soon in the event loop of the caller, from any thread."""
    try:
        return trio.lowlevel.current_trio_token().run_sync_soon
    except RuntimeError:
        return asyncio.get_running_loop().call_soon_threadsafe
