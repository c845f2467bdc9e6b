"""Sessions of the server: what tells them apart, and ends them. One function per statement of
``queries/backends.sql``."""

from __future__ import annotations

from typing import NamedTuple, cast

from psycopg import errors

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL


class ServerProcess(NamedTuple):
    """A session of the server. Processes get their numbers again, not at the same moment."""

    pid: int
    started: str


async def backend_of(connection: TrioConnection) -> ServerProcess:
    """What the server knows the session by; asked once."""
    found = connection.backend
    if found is None:
        found = connection.backend = cast("tuple[int, str]", (await connection.fetch(SQL["this_backend"]))[0])
    return ServerProcess(*found)


async def schema(connection: TrioConnection) -> str:
    """In which the session's tables are."""
    return cast(str, (await connection.fetch(SQL["this_schema"]))[0][0])


async def end_backend(connection: TrioConnection, backend: ServerProcess) -> bool:
    """Ask the server to end a session; whether it was still there. One that this account may not end ends by itself,
    as we have closed its connection."""
    try:
        return bool(await connection.fetch(SQL["end_backend"], backend))
    except errors.InsufficientPrivilege:
        return True
