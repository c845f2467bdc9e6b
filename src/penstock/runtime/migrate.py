"""`penstock migrate`: bring the schema up to date and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import trio

from penstock.errors import PenstockError
from penstock.log.log import get_logger
from penstock.runtime.operator import database_of
from penstock.runtime.retention import prepare_partitions
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import DatabaseError, first_line, with_defaults
from penstock.store.db.placement import placed
from penstock.store.db.schema import SCHEMA_VERSION, ensure_schema
from penstock.store.rows import recorded, sql_requests

log = get_logger(__name__)


class Applied(NamedTuple):
    """The schema is there."""

    version: int
    before: int | None
    """None: the database was empty."""


class Roles(NamedTuple):
    """Roles of the database that may call SQL functions, and nothing else with Penstock's tables."""

    complete: Sequence[str] = ()
    """Who may complete jobs in its own transactions."""
    start: Sequence[str] = ()
    """Who may start, send, signal, publish and cancel in its own transactions."""
    definitions: Sequence[str] = ()
    """Limits `start` to instances of these; none: no limit."""


NOBODY: Final = Roles()


def run(settings: Settings, roles: Roles = NOBODY) -> Applied | None:
    """Bring the schema up to date, and let ``roles`` call the functions. None when it can't be; the log says why."""
    try:
        return trio.run(_migrate, settings, roles, strict_exception_groups=True)
    except (PenstockError, DatabaseError) as error:
        log.error("the schema could not be applied", error=first_line(error))  # noqa: TRY400 - for operators, no trace
        return None


async def _migrate(settings: Settings, roles: Roles) -> Applied:
    async with database_of(settings) as dsn:
        return await _apply(dsn, settings, roles)


async def _apply(dsn: str, settings: Settings, roles: Roles) -> Applied:
    connection = await TrioConnection.connect(with_defaults(await placed(dsn, settings.db_schema)))
    try:
        found = await ensure_schema(connection)
        await prepare_partitions(connection, settings.partition_days)
        for role in roles.complete:
            await recorded.allow(connection, role)
            log.info("the role may complete jobs in its own transactions", role=role)
        for role in roles.start:
            await sql_requests.allow(connection, role, roles.definitions)
            limit = list(roles.definitions) or None
            log.info("the role may start in its own transactions", role=role, only_definitions=limit)
    finally:
        connection.close_nowait()
    if found < SCHEMA_VERSION:
        log.info("schema applied", version=SCHEMA_VERSION, before=found or None)
    else:
        log.info("the schema is up to date", version=found)
    return Applied(max(found, SCHEMA_VERSION), found or None)
