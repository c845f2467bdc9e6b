"""One engine with everything around it, in order: what starts before what, and what stops before what.

It starts the listeners whose sockets it is given: none in the process of a user's program (`durable.local`), which gets
the engine itself.

Start: metrics → database → schema → number → batchers → services → listeners → ready. Stop: not ready, parked polls
answered → listeners drained (grace; past it requests are cancelled) → services → batchers flushed → number given back
→ pool → metrics. Sockets are bound by the caller, so that a taken port is known before anything runs.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from penstock.access.gate import Gate
from penstock.build import shown_version
from penstock.engine.engine import Engine
from penstock.engine.queues.events import Events
from penstock.http import ListenError, listen
from penstock.log.log import get_logger
from penstock.runtime.access import AccessService, ListenerTls
from penstock.runtime.database_start import DatabaseStart, wait_out
from penstock.runtime.descriptors import share_files
from penstock.runtime.dispatch_migration import DispatchMigration
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.lease_sweeper import LeaseSweeper
from penstock.runtime.membership import Membership
from penstock.runtime.metrics_page import MetricsPage
from penstock.runtime.processes import ChildReporter
from penstock.runtime.queues_file import apply_queues
from penstock.runtime.retention import Retention
from penstock.runtime.schedules_file import apply_schedules
from penstock.runtime.stopping import Stopping
from penstock.runtime.supervise import Supervisor, forever
from penstock.runtime.tracing import Tracing
from penstock.settings import Settings
from penstock.store.db.database import Database, DatabaseError, first_line
from penstock.store.db.replica import Replica
from penstock.store.db.vault import make_vault
from penstock.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from penstock.runtime.dispatch import KafkaDispatcher
    from penstock.runtime.listeners import Listeners

FLUSH_TIMEOUT_S = 10.0
"""How long batches under way may take at the end. Then the pool is closed under them: a batch can't outlast that."""
POOL_GRACE_S = 2.0
METRICS_GRACE_S = 1.0
REPLICA_CONNECTIONS = 4
"""Lists and looks hold so many at most, of each engine."""

T = TypeVar("T")

log = get_logger(__name__)


def bind(settings: Settings, purposes: Sequence[str]) -> dict[str, list[socket.socket]]:
    """Listening sockets by purpose. Raises ListenError, and then holds none."""
    ports = {"metrics": settings.metrics_port, "gRPC": settings.grpc_port, "REST": settings.rest_port}
    bound: dict[str, list[socket.socket]] = {}
    try:
        for purpose in purposes:
            bound[purpose] = listen(settings.bind_address, ports[purpose], purpose=purpose)
    except ListenError:
        close_sockets(bound)
        raise
    return bound


def close_sockets(sockets: dict[str, list[socket.socket]]) -> None:
    """Close all of them; those taken over by a server are closed already."""
    for group in sockets.values():
        for sock in group:
            sock.close()


def address(sockets: Sequence[socket.socket]) -> str:
    """Where a listener is reached, for the log."""
    host, port = sockets[0].getsockname()[:2]
    return f"{host}:{port}"


class Node:
    """One engine process's service. One of several reports its metrics to its parent, which serves them."""

    def __init__(
        self,
        settings: Settings,
        dsn: str,
        sockets: dict[str, list[socket.socket]],
        gate: Gate | None = None,
        started: Callable[[Engine], None] = lambda engine: None,
        *,
        migrate: bool = True,
        works: bool = True,
    ) -> None:
        """``works``: without it nothing is done by itself (timers, leases, retention), for a program that only asks."""
        self._settings = settings
        self._gate = gate
        self._started = started
        self._migrate, self._works = migrate, works
        self._dsn = dsn
        self._sockets = sockets
        self._metrics = Metrics(shown_version(), kafka=settings.through_kafka)
        self._tls = ListenerTls(settings)
        self._shares = share_files(settings, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._page = (
            MetricsPage(
                self._metrics.registry,
                gate,
                tls=self._tls.metrics,
                max_connections=self._shares.metrics,
                max_unproved_per_address=settings.address_max_unproved_connections,
            )
            if "metrics" in sockets
            else None
        )
        self._tracing = Tracing() if settings.otel_enabled else None
        self._spans = None if self._tracing is None else self._tracing.spans
        self._replica: Replica | None = None
        self._reporter = ChildReporter(self._metrics) if settings.processes > 1 else None

    async def run(self, stopping: Stopping) -> None:
        """Start, serve until asked to stop, stop in order. Raises what a child raised."""
        settings = self._settings
        log.info("starting", version=shown_version(), settings=settings.redacted())
        database = self._database(self._dsn, settings.db_max_conns, settings.db_min_conns)
        if settings.replica_dsn is not None:
            listed = self._database(settings.replica_dsn.reveal(), min(REPLICA_CONNECTIONS, settings.db_max_conns), 0)
            self._replica = Replica(listed, settings.db_schema, max_lag_s=settings.replica_max_lag_seconds)
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await self._serve(Supervisor(nursery, self._metrics), database, stopping)
                except BaseException:  # batches finish in any case, and would wait for a database that is away
                    with trio.CancelScope(shield=True):
                        await database.close(POOL_GRACE_S)
                    raise
                nursery.cancel_scope.cancel()
        finally:
            close_sockets(self._sockets)
            with trio.CancelScope(shield=True):
                await database.close(POOL_GRACE_S)
                if self._replica is not None:
                    await self._replica.database.close(0)

    def _database(self, dsn: str, max_connections: int, min_connections: int) -> Database:
        settings = self._settings
        return Database(
            dsn,
            max_connections=max_connections,
            min_connections=min_connections,
            acquire_timeout_s=settings.db_acquire_timeout_seconds,
            max_lifetime_s=settings.db_conn_max_lifetime_seconds,
            answer_timeout_s=settings.db_answer_timeout_seconds,
            vault=make_vault(None if settings.encryption_keys is None else settings.encryption_keys.reveal()),
        )

    async def _serve(self, supervisor: Supervisor, database: Database, stopping: Stopping) -> None:
        sockets = self._sockets
        where = {purpose: address(group) for purpose, group in sockets.items()}
        if self._page is not None:
            await supervisor.start("metrics", self._page.serve, sockets["metrics"])
        listeners = self._listeners()

        async def serve_entrance() -> None:
            if listeners is not None:
                await listeners.serve_entrance(supervisor)

        events = Events()
        membership = Membership(database, self._settings.dispatch_mode.value, events)
        start = DatabaseStart(self._settings, database, serve_entrance, migrate=self._migrate)
        number = await start.run(membership.join)
        pool = database.pool
        self._metrics.watch_pool(
            lambda: pool.statistics().idle,
            lambda: pool.statistics().busy,
            lambda: pool.statistics().unanswered,
            lambda: pool.statistics().waiting,
        )
        engine = Engine(
            database,
            self._settings,
            self._metrics,
            number,
            events,
            self._spans,
            self._replica,
        )
        membership.attach(engine)
        await self._wait_out(engine.queues.run_once, database)
        await self._wait_out(partial(self._apply_files, engine), database)
        for batcher in engine.batchers():
            await supervisor.start(f"batch {batcher.name}", batcher.run)
        dispatch = await self._start_dispatch(supervisor, engine)
        if dispatch is not None:
            engine.polls.activity.away = dispatch.degraded
        services = await self._start_services(supervisor, engine, membership, dispatch)
        services += await self._start_access(supervisor, database, membership)
        if listeners is not None:
            await listeners.start(supervisor, engine, list[str] if dispatch is None else dispatch.degraded)
        stopping.serving = True
        log.info("ready", engine=engine.ids.number, **where)
        if self._reporter is not None:
            await self._reporter.report()
        self._started(engine)
        await stopping.asked.wait()

        if listeners is None:
            engine.drain()
        else:
            await listeners.drain(supervisor, engine)
        if dispatch is not None:
            await dispatch.finish()
        await supervisor.stop(*services)
        await self._flush(supervisor, engine, database)
        if dispatch is not None:
            await dispatch.stop(supervisor)
        with trio.move_on_after(POOL_GRACE_S):
            try:
                await membership.leave()
            except DatabaseError as error:
                log.info("the engine number could not be released", error=first_line(error))
        await database.close(POOL_GRACE_S)
        await self._stop_notices(supervisor)
        log.info("stopped")

    async def _wait_out(self, attempt: Callable[[], Awaitable[T]], database: Database) -> T:
        return await wait_out(attempt, database, self._settings.outage_wait_seconds)

    async def _apply_files(self, engine: Engine) -> None:
        settings = self._settings
        if settings.queues_file:
            await apply_queues(engine.queues, settings.queues_file)
        if settings.schedules_file:
            await apply_schedules(engine.schedules, settings.schedules_file)

    def _listeners(self) -> Listeners | None:
        if "REST" not in self._sockets:
            return None
        from penstock.runtime.listeners import Listeners  # what it brings is much, and of no use without sockets

        return Listeners(self._settings, self._sockets, self._gate, self._tls, self._shares, self._metrics)

    async def _start_dispatch(self, supervisor: Supervisor, engine: Engine) -> KafkaDispatcher | None:
        if not self._settings.through_kafka:
            return None
        from penstock.runtime.dispatch import (
            KafkaDispatcher,  # with all of `kafka`, which an engine that polls does without
        )

        dispatch = KafkaDispatcher(engine)
        await dispatch.start(supervisor)
        return dispatch

    async def _start_services(
        self, supervisor: Supervisor, engine: Engine, membership: Membership, dispatch: KafkaDispatcher | None
    ) -> list[str]:
        """Return the loops around the engine; their names."""
        if not self._works:  # its number has to stay its own, and others hear of what it starts
            engine.timers.leave_scans_to_others()

            async def listen() -> None:
                """Take the connection once somebody waits for a view or an answer: most such programs never do."""
                await engine.journal.subscribers.wait_first()
                await membership.listen()

            return await self._supervise(
                supervisor, {"listener": listen, "membership": membership.refresh, "notifier": membership.send}
            )
        sweeper = LeaseSweeper(engine)
        engine.events.engine_lost.listen(sweeper.scan_soon)
        # it may have written a due time, and died before it told anybody
        engine.events.engine_lost.listen(partial(engine.timers.hint, 0.0))
        engine.events.engine_lost.listen(engine.schedules.scan_early)
        engine.events.engines_dead.listen(sweeper.on_dead)
        engine.events.engines_dead.listen(engine.bulk.on_dead)
        housekeeping = Housekeeping(engine)
        migration = DispatchMigration(engine)
        if dispatch is not None:
            dispatch.wire(membership)

        async def probe() -> None:
            await engine.polls.wait_probe()
            await engine.polls.probe_once()

        async def fire() -> None:
            await engine.timers.wait_due()
            await engine.timers.fire_once()

        async def scan_schedules() -> None:
            await engine.schedules.wait_due()
            await engine.schedules.fire_once()

        steps: dict[str, Callable[[], Awaitable[object]]] = {
            "ready probe": probe,
            "timers": fire,
            "schedules": scan_schedules,
            "lease sweeper": sweeper.step,
            "listener": membership.listen,
            "membership": membership.refresh,
            "notifier": membership.send,
            "housekeeping": housekeeping.step,
            "retention": Retention(engine).step,
            "loop lag": housekeeping.measure_lag,
            "dispatch migration": migration.step,
            "bulk operations": engine.bulk.step,
            "batches": engine.batches.step,
            "SQL requests": engine.sql_requests.step,
            "watch": engine.watch.step,
            "ends": engine.instances.ends.step,
            "queues": engine.queues.step,
        }
        if dispatch is not None:
            steps |= dispatch.steps()
        if self._tls.any:
            steps["certificates"] = self._tls.refresh_step
        if self._reporter is not None:
            steps["metrics report"] = self._reporter.step
        return await self._supervise(supervisor, steps)

    async def _supervise(self, supervisor: Supervisor, steps: dict[str, Callable[[], Awaitable[object]]]) -> list[str]:
        for name, step in steps.items():
            await supervisor.start(name, partial(forever, name, step, self._metrics))
        return list(steps)

    async def _start_access(self, supervisor: Supervisor, database: Database, membership: Membership) -> list[str]:
        """The gate knows its tokens before anybody can call; the names of its services."""
        if self._gate is None:
            return []
        access = AccessService(self._gate, partial(database.connection, ahead=True))
        membership.events.tokens_changed.listen(access.hint)
        tokens = await self._wait_out(access.load, database)
        if not tokens and not self._settings.trusted_networks and self._gate.issuer is None:
            log.warning("nobody can call this engine yet: make a token with `penstock token new`")
        return await self._supervise(supervisor, access.steps())

    async def _flush(self, supervisor: Supervisor, engine: Engine, database: Database) -> None:
        batchers = engine.batchers()
        with trio.move_on_after(FLUSH_TIMEOUT_S) as flushing:
            for batcher in batchers:
                await batcher.wait_flushed()
        if flushing.cancelled_caught:
            left = [batcher.name for batcher in batchers if not batcher.statistics().idle]
            log.warning("calls that wait for the database are abandoned", queues=left, waited_s=FLUSH_TIMEOUT_S)
            await database.close(0)
        await supervisor.stop(*(f"batch {batcher.name}" for batcher in batchers))

    async def _stop_notices(self, supervisor: Supervisor) -> None:
        """The last traces and metrics."""
        if self._tracing is not None:
            await self._tracing.finish()
        if self._reporter is not None:
            await self._reporter.report()
        if self._page is None:
            return
        supervisor.expect_end("metrics")
        self._page.drain()
        with trio.move_on_after(METRICS_GRACE_S):
            await supervisor.wait_ended("metrics")
        await supervisor.stop("metrics")
