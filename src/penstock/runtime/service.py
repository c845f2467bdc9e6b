"""The engine process: start order, stop order, signals, exit codes. The one nursery is here.

Start: sockets → metrics → pool → schema → number → batchers → services → HTTP → ready. Stop (SIGTERM, SIGINT): not
ready, parked polls answered → listeners drained (grace) → services → batchers flushed → number given back → pool →
metrics → exit 0. A second signal ends at once. A child that fails brings all down: exit 1.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import psycopg
import trio

from penstock import __version__
from penstock.engine.engine import Engine
from penstock.errors import PenstockError, Unavailable
from penstock.http import HttpServer, Limits, ListenError, Server, listen
from penstock.http.hypercorn_seam import HypercornServer
from penstock.log import get_logger
from penstock.metrics import Metrics
from penstock.rest.app import make_app
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.lease_sweeper import LeaseSweeper
from penstock.runtime.membership import Membership
from penstock.runtime.supervise import Supervisor, forever
from penstock.settings import DispatchMode, Settings
from penstock.settings import HttpServer as HttpServerKind
from penstock.store import engines as engine_store
from penstock.store.connection import TrioConnection
from penstock.store.database import Database
from penstock.store.embedded import embedded

FLUSH_TIMEOUT_S = 10.0
"""How long batches under way may take at the end; each is bounded by itself."""
POOL_GRACE_S = 2.0
CONNECT_PAUSE_S = 0.1

log = get_logger(__name__)


def run(settings: Settings) -> int:
    """Run the engine until it is told to stop; the exit code."""
    if settings.dispatch_mode is DispatchMode.KAFKA_OUTBOX:
        log.error("WE_DISPATCH_MODE=kafka_outbox is not available in this version; use polling")
        return 2
    try:
        return trio.run(_main, settings, strict_exception_groups=True)
    except BaseExceptionGroup as group:
        return _explain(group)
    except (PenstockError, ListenError, psycopg.Error) as error:
        log.error("the engine could not start", error=str(error).split("\n", 1)[0])
        return 1


def _explain(group: BaseExceptionGroup[BaseException]) -> int:
    expected, rest = group.split((PenstockError, ListenError, psycopg.Error))
    if rest is not None:
        log.error("the engine crashed", exc_info=rest)
    elif expected is not None:
        for error in _leaves(expected):
            log.error("the engine stopped", error=str(error).split("\n", 1)[0])
    return 1


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return leaves


async def _main(settings: Settings) -> int:
    stopping = Stopping()
    async with trio.open_nursery() as nursery:
        await nursery.start(stopping.watch_signals, nursery.cancel_scope)
        async with _database(settings) as dsn:
            await Service(settings, dsn).run(stopping)
        nursery.cancel_scope.cancel()
    return 1 if stopping.forced else 0


class Stopping:
    """What the signals asked for."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.serving = False
        self.forced = False

    async def watch_signals(
        self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """The first signal asks for a stop, the second one ends everything at once. During start-up the first does."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                name = signal.Signals(number).name
                if self.asked.is_set() or not self.serving:
                    self.forced = self.asked.is_set()
                    log.warning("ending at once", signal=name)
                    scope.cancel()
                    return
                log.info("stopping", signal=name)
                self.asked.set()


@asynccontextmanager
async def _database(settings: Settings) -> AsyncGenerator[str]:
    """The conninfo of the PostgreSQL to use; the embedded one lives as long as the block."""
    if settings.postgres_dsn is not None:
        yield settings.postgres_dsn.reveal()
        return
    async with embedded(settings.data_path) as dsn:
        yield dsn


class Service:
    """One engine with everything around it."""

    def __init__(self, settings: Settings, dsn: str) -> None:
        self._settings = settings
        self._dsn = dsn
        self._metrics = Metrics(__version__)

    async def run(self, stopping: Stopping) -> None:
        """Start, serve until asked to stop, stop in order. Raises what a child raised."""
        settings = self._settings
        log.info("starting", version=__version__, settings=settings.redacted())
        sockets = self._bind()
        database = Database(
            self._dsn,
            max_connections=settings.db_max_conns,
            min_connections=settings.db_min_conns,
            acquire_timeout_s=settings.db_acquire_timeout_seconds,
            max_lifetime_s=settings.db_conn_max_lifetime_seconds,
        )
        try:
            async with trio.open_nursery() as nursery:
                supervisor = Supervisor(nursery, self._metrics)
                await self._serve(supervisor, database, sockets, stopping)
                nursery.cancel_scope.cancel()
        finally:
            for group in sockets.values():
                for sock in group:
                    sock.close()
            with trio.CancelScope(shield=True):
                await database.close(POOL_GRACE_S)

    def _bind(self) -> dict[str, list[socket.socket]]:
        """All listening sockets, before anything else: a taken port is known at once and leaves nothing behind."""
        bound: dict[str, list[socket.socket]] = {}
        ports = {"metrics": self._settings.metrics_port, "REST": self._settings.rest_port}
        try:
            for purpose, port in ports.items():
                bound[purpose] = listen(self._settings.bind_address, port, purpose=purpose)
        except ListenError:
            for group in bound.values():
                for sock in group:
                    sock.close()
            raise
        return bound

    async def _serve(
        self,
        supervisor: Supervisor,
        database: Database,
        sockets: dict[str, list[socket.socket]],
        stopping: Stopping,
    ) -> None:
        metrics_server = HypercornServer(http2=False)
        await supervisor.start("metrics", metrics_server.serve, _metrics_app(self._metrics), sockets["metrics"])
        await self._wait_for_database()
        pool = database.pool
        self._metrics.watch_pool(
            lambda: pool.statistics().idle, lambda: pool.statistics().busy, lambda: pool.statistics().waiting
        )
        membership = Membership(database, self._settings.dispatch_mode.value)
        engine = Engine(database, self._settings, self._metrics, await membership.join())
        membership.attach(engine)
        batchers = engine.batchers()
        for batcher in batchers:
            await supervisor.start(f"batch {batcher.name}", batcher.run)
        services = await self._start_services(supervisor, engine, membership)
        http = self._http_server()
        await supervisor.start("REST", http.serve, make_app(engine), sockets["REST"])
        stopping.serving = True
        log.info("ready", rest=_address(sockets["REST"]), metrics=_address(sockets["metrics"]), engine=engine.ids.number)
        await stopping.asked.wait()

        engine.drain()
        await self._drain(supervisor, http)
        await supervisor.stop(*services)
        with trio.move_on_after(FLUSH_TIMEOUT_S):
            for batcher in batchers:
                await batcher.wait_flushed()
        await supervisor.stop(*(f"batch {batcher.name}" for batcher in batchers))
        with trio.move_on_after(POOL_GRACE_S):
            try:
                await membership.leave()
            except psycopg.Error as error:
                log.info("the engine number was not given back", error=str(error)[:200])
        await database.close(POOL_GRACE_S)
        supervisor.expect_end("metrics")
        metrics_server.drain()
        with trio.move_on_after(1):
            await supervisor.wait_ended("metrics")
        await supervisor.stop("metrics")
        log.info("stopped")

    async def _start_services(self, supervisor: Supervisor, engine: Engine, membership: Membership) -> list[str]:
        """The loops around the engine; their names, in the order in which they stop."""
        sweeper = LeaseSweeper(engine)
        membership.on_lost = sweeper.scan_soon
        housekeeping = Housekeeping(engine)

        async def probe() -> None:
            await engine.polls.wait_probe()
            await engine.polls.probe_once()

        async def fire() -> None:
            await engine.timers.wait_due()
            await engine.timers.fire_once()

        steps = {
            "ready probe": probe,
            "timers": fire,
            "lease sweeper": sweeper.step,
            "listener": membership.listen,
            "membership": membership.look,
            "notifier": membership.send,
            "housekeeping": housekeeping.step,
            "loop lag": housekeeping.measure_lag,
        }
        for name, step in steps.items():
            await supervisor.start(name, partial(forever, name, step))
        return list(steps)

    async def _drain(self, supervisor: Supervisor, http: Server) -> None:
        """Answer what is in flight within the grace; past it requests are cancelled."""
        supervisor.expect_end("REST")
        http.drain()
        with trio.move_on_after(self._settings.shutdown_grace_seconds) as grace:
            await supervisor.wait_ended("REST")
        if grace.cancelled_caught:
            log.warning("requests were cut off", grace_s=self._settings.shutdown_grace_seconds)
            await supervisor.stop("REST")

    async def _wait_for_database(self) -> None:
        """Connect, apply the schema; a database that is still starting is waited for."""
        deadline = trio.current_time() + self._settings.outage_wait_seconds
        while True:
            try:
                with trio.fail_after(self._settings.db_connect_timeout_seconds):
                    connection = await TrioConnection.connect(self._dsn)
                break
            except (psycopg.OperationalError, trio.TooSlowError) as error:
                if trio.current_time() >= deadline:
                    reason = str(error).split("\n", 1)[0] or "no answer"
                    raise Unavailable(f"the database can't be reached: {reason}") from error
                await trio.sleep(CONNECT_PAUSE_S)
        try:
            if await engine_store.ensure_schema(connection):
                log.info("schema applied")
        finally:
            connection.close_nowait()

    def _http_server(self) -> Server:
        settings = self._settings
        limits = Limits(
            max_head_bytes=settings.http_max_header_bytes,
            max_body_bytes=settings.max_body_bytes,
            max_request_memory_bytes=settings.http_max_request_memory_bytes,
            max_connections=settings.http_max_connections,
            header_timeout_seconds=settings.http_header_timeout_seconds,
            body_timeout_seconds=settings.http_body_timeout_seconds,
            keep_alive_timeout_seconds=settings.http_keep_alive_seconds,
            write_timeout_seconds=settings.http_write_timeout_seconds,
        )
        if settings.http_server is HttpServerKind.HYPERCORN:
            return HypercornServer(limits)
        return HttpServer(limits)


def _metrics_app(metrics: Metrics) -> object:
    from prometheus_client import make_asgi_app

    return make_asgi_app(metrics.registry)


def _address(sockets: list[socket.socket]) -> str:
    host, port = sockets[0].getsockname()[:2]
    return f"{host}:{port}"
