"""Origins of workflows: which programs have registered them. One function per statement of ``queries/origins.sql``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL


class OriginRow(NamedTuple):
    """Where a workflow function stands: module and function, and the folder of its file where that matters, else ''."""

    name: str
    folder: str = ""

    def __str__(self) -> str:
        return f"{self.name} in {self.folder}" if self.folder else self.name


class Registered(NamedTuple):
    """An origin that a workflow was registered with. ``connected``: an App with it is at work."""

    origin: OriginRow
    connected: bool


class SharedType(NamedTuple):
    """A job type with several origins, and when the latest was registered."""

    job_type: str
    origins: list[str]
    since: datetime


async def lock(connection: TrioConnection) -> None:
    """Keep others from registering until the transaction ends."""
    await connection.fetch(SQL["lock_origins"])


async def read(connection: TrioConnection, job_type: str) -> list[Registered]:
    """Return all origins of a job type: those of connected Apps first, then the latest."""
    rows = cast(Any, await connection.fetch(SQL["read_origins"], (job_type,)))
    found: dict[OriginRow, bool] = {}
    for name, folder, connected in rows:
        found.setdefault(OriginRow(name, folder), connected)
    return [Registered(origin, connected) for origin, connected in found.items()]


async def write(connection: TrioConnection, job_type: str, origin: OriginRow, engine: int | None) -> None:
    """Keep an origin. ``engine``: the number of the engine that the App lives with; None where it lives elsewhere."""
    await connection.fetch(SQL["write_origin"], (job_type, *origin, engine))


async def delete(connection: TrioConnection, job_type: str, origins: Sequence[OriginRow]) -> None:
    """Forget origins of a job type."""
    names, folders = [each.name for each in origins], [each.folder for each in origins]
    await connection.fetch(SQL["delete_origins"], (job_type, arrays.texts(names), arrays.texts(folders)))


async def types_of(connection: TrioConnection, prefix: str) -> list[str]:
    """Registered job types that begin so."""
    return [cast(str, row[0]) for row in await connection.fetch(SQL["registered_types"], (prefix,))]


async def shared(connection: TrioConnection, limit: int) -> list[SharedType]:
    """Job types that several programs have registered."""
    return [SharedType(*cast(Any, row)) for row in await connection.fetch(SQL["shared_types"], (limit,))]
