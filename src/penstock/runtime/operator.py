"""What an operator's commands share: the engines' database, whether an engine runs or not, and who it was."""

from __future__ import annotations

import getpass
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import trio

from penstock.runtime.retention import prepare_partitions
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import with_defaults
from penstock.store.db.placement import placed
from penstock.store.db.schema import ensure_schema
from penstock.store.embedded.cluster import EmbeddedPostgresError, default_data_dir, has_cluster
from penstock.store.embedded.embedded import DataDirectoryInUse, embedded, running_dsn

T = TypeVar("T")
NAME_IT: Final = "name its directory by --data-dir (data_dir), or a PostgreSQL by postgres_dsn"
"""What to do where there is no database."""


def operator() -> str:
    """Whom the audit trail names."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        user = "unknown"
    return f"cli:{user}@{socket.gethostname()}"


def data_dir_of(settings: Settings) -> Path:
    """Where the embedded database is, or would be."""
    return settings.data_path or default_data_dir().absolute()


def without_database(settings: Settings) -> Path | None:
    """The directory in which the embedded database would be, where it is that and there is none."""
    data_dir = data_dir_of(settings)
    return data_dir if settings.embedded and not has_cluster(data_dir) else None


def with_database(settings: Settings, act: Callable[[TrioConnection], Awaitable[T]], *, makes: bool = False) -> T:
    """Run ``act`` on a connection to the database, brought to this version's schema; ``makes`` one where there is none.
    Raises EmbeddedPostgresError, too."""
    missing = without_database(settings)
    if missing is not None and not makes:
        raise EmbeddedPostgresError(f"there is no database in {missing}: {NAME_IT}")

    async def run() -> T:
        async with database_of(settings) as dsn:
            connection = await TrioConnection.connect(with_defaults(await placed(dsn, settings.db_schema)))
            try:
                if not await ensure_schema(connection):  # what is written to the default partitions stays there
                    await prepare_partitions(connection, settings.partition_days)
                return await act(connection)
            finally:
                connection.close_nowait()

    return trio.run(run, strict_exception_groups=True)


@asynccontextmanager
async def database_of(settings: Settings) -> AsyncGenerator[str]:
    """The database: a server of ours, the one that an engine runs on our data directory, or one that we start."""
    if settings.postgres_dsn is not None:
        yield settings.postgres_dsn.reveal()
        return
    try:
        async with embedded(settings.data_path) as dsn:
            yield dsn
    except DataDirectoryInUse:
        running = running_dsn(settings.data_path)
        if running is None:
            raise
        yield running
