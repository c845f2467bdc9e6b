"""`penstock migrate`: bring the schema up to date and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
from penstock.store.rows import recorded

log = get_logger(__name__)


class Applied(NamedTuple):
    """The schema is there."""

    version: int
    before: int | None
    """None: the database was empty."""


def run(settings: Settings, may_complete: Sequence[str] = ()) -> Applied | None:
    """None when it can't be; the log says why. ``may_complete``: roles of the database that may call the function
    `complete`, and nothing else."""
    try:
        return trio.run(_migrate, settings, may_complete, strict_exception_groups=True)
    except (PenstockError, DatabaseError) as error:
        log.error("the schema could not be applied", error=first_line(error))  # noqa: TRY400 - for operators, no trace
        return None


async def _migrate(settings: Settings, may_complete: Sequence[str]) -> Applied:
    async with database_of(settings) as dsn:
        return await _apply(dsn, settings, may_complete)


async def _apply(dsn: str, settings: Settings, may_complete: Sequence[str]) -> Applied:
    connection = await TrioConnection.connect(with_defaults(await placed(dsn, settings.db_schema)))
    try:
        found = await ensure_schema(connection)
        await prepare_partitions(connection, settings.partition_days)
        for role in may_complete:
            await recorded.allow(connection, role)
            log.info("the role may complete jobs in its own transactions", role=role)
    finally:
        connection.close_nowait()
    if found < SCHEMA_VERSION:
        log.info("schema applied", version=SCHEMA_VERSION, before=found or None)
    else:
        log.info("the schema is up to date", version=found)
    return Applied(max(found, SCHEMA_VERSION), found or None)
