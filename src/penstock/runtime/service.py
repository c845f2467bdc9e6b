"""`penstock serve`: the process around the node. One `trio.run`, one tree of nurseries, one exit code.

Exit codes: 0 after a stop that was asked for, 1 when something failed (a child, the database, a taken port) or a
second signal cut the stop short, 2 for settings that can't be served.
"""

from __future__ import annotations

import importlib.util
import resource
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from penstock.access.gate import Gate
from penstock.build import shown_version
from penstock.engine.instances.retention_rules import RetentionRules
from penstock.errors import BadRequest, PenstockError, leaves
from penstock.http import ListenError
from penstock.log.log import configure_logging, get_logger
from penstock.net.tls import CertificateError
from penstock.runtime import log_level, parquet, tracing
from penstock.runtime.access import AccessService, ListenerTls, log_access, make_gate
from penstock.runtime.garbage import Collector
from penstock.runtime.membership import Superseded
from penstock.runtime.metrics_page import MetricsPage
from penstock.runtime.node import Node, address, bind, close_sockets
from penstock.runtime.processes import Parent, decode_config, read_config, wait_parent_gone
from penstock.runtime.stopping import Stopping
from penstock.runtime.supervise import Supervisor, forever
from penstock.settings import ArchiveFormat, Settings
from penstock.store.db.database import Database, DatabaseError, first_line
from penstock.store.db.placement import placed
from penstock.store.db.vault import make_vault
from penstock.store.embedded.embedded import run_embedded
from penstock.telemetry.metrics import Metrics

EXPECTED = (PenstockError, ListenError, CertificateError, DatabaseError, Superseded)
"""Errors that operators can repair: told in a line, without a trace."""

PURPOSES = ("gRPC", "REST", "metrics")
"""The listeners, in the order in which their ports are taken."""

log = get_logger(__name__)


def purposes(settings: Settings) -> Sequence[str]:
    """The listeners that are switched on."""
    return PURPOSES if settings.metrics_enabled else tuple(name for name in PURPOSES if name != "metrics")


def wrong_settings(settings: Settings) -> list[str]:
    """What only its reader can judge: tokens, networks, roles, keys. Told before a port or the database is touched."""
    wrong: list[str] = []
    if settings.through_kafka and importlib.util.find_spec("aiokafka") is None:
        wrong.append("dispatch_mode: kafka_outbox needs aiokafka: pip install 'penstock-workflow[engine,kafka]'")
    if settings.otel_enabled and not tracing.is_installed():
        wrong.append("otel_enabled needs OpenTelemetry: pip install 'penstock-workflow[engine,otel]'")
    if settings.archive_format is ArchiveFormat.PARQUET and not parquet.is_installed():
        wrong.append("archive_format: parquet needs pyarrow: pip install 'penstock-workflow[engine,parquet]'")
    for read in (make_gate, _read_keys, _read_rules):
        try:
            read(settings)
        except BadRequest as error:
            wrong.append(error.reason)
    return wrong


def _read_rules(settings: Settings) -> None:
    RetentionRules(settings.retention_rules, settings.retention_days)


def _read_keys(settings: Settings) -> None:
    make_vault(None if settings.encryption_keys is None else settings.encryption_keys.reveal())


def run(settings: Settings, read_again: log_level.Read) -> int:
    """Run the engine until it is told to stop; the exit code. ``read_again`` reads the settings at SIGUSR1."""
    return _run(partial(_main, settings, read_again))


def run_child() -> int:
    """Run one of several engine processes: configuration, life line and sockets come from the parent."""
    return _run(_main_child)


def _run(main: Callable[[], Awaitable[int]]) -> int:
    raise_file_limit()
    # to a process that does not, or not yet, listen to it, it would be the end: `systemctl kill` tells all of a unit
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    collector = Collector()
    collector.start()
    try:
        return trio.run(main, strict_exception_groups=True)
    except BaseExceptionGroup as group:
        expected, rest = group.split(EXPECTED)
        if rest is not None:
            log.exception("the engine crashed", exc_info=rest)
        for error in leaves(expected) if expected is not None else ():
            log.error("the engine stopped: it could not go on", error=first_line(error))  # noqa: TRY400 - for operators, no trace
    except EXPECTED as error:
        log.error("the engine could not start", error=first_line(error))  # noqa: TRY400 - for operators, no trace
    finally:
        collector.stop()
    return 1


def raise_file_limit() -> None:
    """Let the process open as many files as the system allows: a connection is one, and 1,024 are soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # some systems refuse what they themselves give as the limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _main(settings: Settings, read_again: log_level.Read) -> int:
    stopping = Stopping()
    log_access(settings)
    gate = make_gate(settings)
    ListenerTls(settings)  # files that can't be used end the start before anything else runs
    async with trio.open_nursery() as nursery:
        await nursery.start(stopping.watch_signals, nursery.cancel_scope)
        async with _database(settings, nursery) as dsn:
            if settings.processes > 1:
                await _parent(settings, dsn, stopping, gate, read_again)
            else:
                await nursery.start(log_level.watch, read_again, None)
                await Node(settings, dsn, bind(settings, purposes(settings)), gate).run(stopping)
        nursery.cancel_scope.cancel()
    return 1 if stopping.forced else 0


async def _main_child() -> int:
    stopping = Stopping()
    stdin = trio.lowlevel.FdStream(0)
    async with trio.open_nursery() as nursery:
        await nursery.start(stopping.watch_signals, nursery.cancel_scope)
        line, more = await read_config(stdin)
        settings, sockets = decode_config(line)
        configure_logging(settings.log_level, settings.log_format)
        assert settings.postgres_dsn is not None

        async def watch_parent() -> None:
            await wait_parent_gone(stdin, more)
            log.warning("the parent process is gone: stopping")
            stopping.asked.set()

        nursery.start_soon(watch_parent)
        await Node(settings, settings.postgres_dsn.reveal(), sockets, make_gate(settings)).run(stopping)
        nursery.cancel_scope.cancel()
    return 1 if stopping.forced else 0


async def _parent(
    settings: Settings, dsn: str, stopping: Stopping, gate: Gate | None, read_again: log_level.Read
) -> None:
    """Supervise the engine processes and serve their metrics as one page."""
    sockets = bind(settings, purposes(settings))
    metrics_sockets = sockets.pop("metrics", [])
    where = {purpose: address(group) for purpose, group in {**sockets, "metrics": metrics_sockets}.items() if group}
    parent = Parent(settings, dsn, sockets)
    tls = ListenerTls(settings)
    database = Database(dsn, max_connections=1)  # for the metrics page's gate only
    names = [f"engine {index}" for index in range(settings.processes)]
    try:
        async with trio.open_nursery() as nursery:
            supervisor = Supervisor(nursery, Metrics(shown_version()))
            if metrics_sockets:
                page = MetricsPage(
                    parent.registry, gate, tls=tls.metrics,
                    max_unproved_per_address=settings.address_max_unproved_connections,
                )  # fmt: skip
                await supervisor.start("metrics", page.serve, metrics_sockets)
            if tls.any:
                await supervisor.start("certificates", partial(forever, "certificates", tls.refresh_step))
            for index, name in enumerate(names):
                await supervisor.start(name, partial(parent.run_child, index))
            stopping.serving = True

            async def announce() -> None:
                for event in parent.ready:
                    await event.wait()
                database.use(await placed(dsn, settings.db_schema))  # the children have made it, if need be
                if gate is not None:  # not before: there may have been no tables, or others than these
                    for name, step in AccessService(gate, database.connection).steps().items():
                        await supervisor.start(name, partial(forever, name, step))
                log.info("ready", processes=settings.processes, **where)

            nursery.start_soon(announce)
            await nursery.start(_watch_restarts, parent)
            await nursery.start(log_level.watch, read_again, parent.set_log)
            await stopping.asked.wait()
            for name in names:
                supervisor.expect_end(name)
            if not await parent.stop():
                stopping.forced = True
            if metrics_sockets:
                supervisor.expect_end("metrics")
            nursery.cancel_scope.cancel()
    finally:
        close_sockets({**sockets, "metrics": metrics_sockets})
        with trio.CancelScope(shield=True):
            await database.close(0)
    log.info("stopped")


async def _watch_restarts(parent: Parent, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """SIGHUP: the engine processes are restarted, one after the other. Those that come meanwhile are one more."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            log.info("restarting the engine processes, one after the other")
            await parent.restart_each()


@asynccontextmanager
async def _database(settings: Settings, nursery: trio.Nursery) -> AsyncGenerator[str]:
    """The conninfo of the PostgreSQL to use; the embedded one lives as long as the block, and ends it if it dies."""
    if settings.postgres_dsn is not None:
        yield settings.postgres_dsn.reveal()
        return
    async with run_embedded(settings.data_path) as server, server.watched(nursery):
        yield server.dsn
