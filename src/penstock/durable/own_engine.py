"""The engine in a program's own process, without listeners unless it is given a port: how an `App` opens it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import structlog
import trio

from penstock.engine.engine import Engine
from penstock.runtime.access import make_gate
from penstock.runtime.node import Node, address, bind
from penstock.runtime.stopping import Stopping
from penstock.settings import Secret, Settings, load_settings
from penstock.store.db.database import DatabaseError
from penstock.store.db.schema import role_without_rights
from penstock.store.embedded.embedded import run_embedded

MAX_CONNECTIONS = 6
CLIENT_MAX_CONNECTIONS = 2
REST_MAX_CONNECTIONS = 500
"""The program's own files come first."""
PROBE_INTERVAL_S = 1.0
"""A program is told of new runs by hints; its looks into the queue are for those that were lost."""


class OpenEngine(NamedTuple):
    """An engine that works, where its REST interface is, if it has one, and the database as programs connect to it."""

    engine: Engine
    rest_url: str | None
    dsn: str


def _settings(dsn: str | None, *, serves: bool, rest_port: int | None) -> Settings:
    """Return those of the environment (``WE_…``), for a program with an engine inside."""
    settings = load_settings()
    if rest_port is None:  # who may call is of no interest where nobody can
        settings = msgspec.structs.replace(settings, authentication=False)
    else:
        few = min(settings.http_max_connections, REST_MAX_CONNECTIONS)
        settings = msgspec.structs.replace(
            settings, rest_port=rest_port, http_max_connections=few, grpc_max_connections=1
        )
    return msgspec.structs.replace(
        settings,
        postgres_dsn=settings.postgres_dsn if dsn is None else Secret(dsn),
        db_max_conns=MAX_CONNECTIONS if serves else CLIENT_MAX_CONNECTIONS,
        ready_probe_interval_seconds=PROBE_INTERVAL_S,
        metrics_enabled=False,
        processes=1,
    )


def _quiet_logs() -> None:
    """The engine's lines go to the program's own logging, under ``penstock``; a program that has structlog set up keeps
    what it has."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        logger_factory=lambda *args: logging.getLogger("penstock.engine"),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


@asynccontextmanager
async def open_engine(
    dsn: str | None, *, serves: bool, migrate: bool, rest_port: int | None = None
) -> AsyncGenerator[OpenEngine]:
    """An engine for the block: on a database, or on the embedded PostgreSQL. Its failure is the block's.

    Tables are made and changed in the embedded one, elsewhere only with ``migrate``. Without a ``rest_port`` it has no
    listeners.
    """
    _quiet_logs()
    works = serves or rest_port is not None
    settings = _settings(dsn, serves=works, rest_port=rest_port)
    async with trio.open_nursery() as nursery:
        if settings.postgres_dsn is not None:
            dsn = settings.postgres_dsn.reveal()
            try:
                async with _node(settings, dsn, rest_port, migrate=migrate, works=works) as found:
                    yield found
            except (DatabaseError, BaseExceptionGroup) as error:
                refused = role_without_rights(error, dsn)
                if refused is None:
                    raise
                raise refused from error
        else:
            async with (
                run_embedded(settings.data_path, shared=True) as server,
                server.watched(nursery),
                _node(settings, server.dsn, rest_port, migrate=True, works=works) as found,
            ):
                yield found
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _node(
    settings: Settings, dsn: str, rest_port: int | None, *, migrate: bool, works: bool
) -> AsyncGenerator[OpenEngine]:
    stopping, gate = Stopping(), make_gate(settings)
    sockets = {} if rest_port is None else bind(settings, ["REST"])  # a taken port is known before anything runs
    scheme = "http" if settings.tls_cert_path is None else "https"
    rest_url = f"{scheme}://{address(sockets['REST'])}" if sockets else None
    async with trio.open_nursery() as nursery:

        async def run(task_status: trio.TaskStatus[Engine]) -> None:
            node = Node(settings, dsn, sockets, gate, task_status.started, migrate=migrate, works=works)
            await node.run(stopping)

        engine: Engine = await nursery.start(run)
        yield OpenEngine(engine, rest_url, dsn)
        stopping.asked.set()
