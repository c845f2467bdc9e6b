"""Engine processes on one database: their numbers, who lives, wake-ups between them, which of them know what."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

from penstock.errors import Conflict, PenstockError
from penstock.store.db.connection import TrioConnection
from penstock.store.db.schema import SCHEMA_VERSION
from penstock.store.db.statements import SQL

NUMBER_LEASE_S: Final = 30.0
"""How long an engine has its number for after it told of itself last."""


class OtherEngine(NamedTuple):
    """Another engine with a valid lease on its number. ``connected``: its session lock is held. ``process``: what tells
    its process from all others, where its system has that."""

    number: int
    holder: str
    process: str | None
    dispatch_mode: str
    description: str
    connected: bool
    left_s: float


async def claim_number(
    connection: TrioConnection,
    holder: str,
    lease_s: float,
    dispatch_mode: str,
    description: str,
    process: str | None = None,
) -> int:
    """Lease a number for ids; asks again while others take the same one."""
    params = (holder, lease_s, dispatch_mode, description, SCHEMA_VERSION, process)
    if rows := await connection.fetch(SQL["extend_number"], (holder, lease_s)):
        return cast(int, rows[0][0])
    for _ in range(100):
        rows = await connection.fetch(SQL["claim_number"], params)
        if rows:
            return cast(int, rows[0][0])
    raise PenstockError("no free engine number: 1,020 engines have one on this database")


async def renew_number(
    connection: TrioConnection, number: int, holder: str, lease_s: float, facts: str | None = None
) -> bool:
    """Extend the lease; False when the number was taken over. ``facts``: what the engine says of itself, JSON."""
    return bool(await connection.fetch(SQL["renew_number"], (number, holder, lease_s, facts)))


async def leave(connection: TrioConnection, number: int, holder: str) -> None:
    """Give the number back."""
    await connection.fetch(SQL["leave"], (number, holder))


async def listen_and_hold(connection: TrioConnection, number: int) -> bool:
    """Listen to wake-ups and take the session lock of the number, for as long as the connection lives.

    False when another session has the lock: one of ours, as a rule, whose end the server has not noticed yet.
    """
    await connection.fetch(SQL["listen"])
    return bool((await connection.fetch(SQL["hold_number"], (number,)))[0][0])


async def others(connection: TrioConnection, holder: str) -> list[OtherEngine]:
    """Return the other engines."""
    return [OtherEngine(*cast(Any, row)) for row in await connection.fetch(SQL["others"], (holder,))]


async def notify(connection: TrioConnection, payload: str) -> None:
    """Wake the other engines. A hint: it may be lost."""
    await connection.fetch(SQL["notify"], (payload,))


async def needed_version(connection: TrioConnection) -> int:
    """The schema version that an engine has to know to work on this database; see `require_version`."""
    return cast(int, (await connection.fetch(SQL["needed_version"]))[0][0])


async def needed_since(connection: TrioConnection, version: int) -> float:
    """Since when all engines here have known a schema version, in seconds since 1970: 0 for a database that never had
    an older one, infinity while `require_version` has not succeeded."""
    return cast(float, (await connection.fetch(SQL["needed_since"], (version,)))[0][0])


async def require_version(connection: TrioConnection, version: int) -> None:
    """Before the first use of what engines older than ``version`` would break: from now on none may join.

    Raises Conflict, and changes nothing, while such an engine lives. Asking again is cheap.
    """
    if await needed_version(connection) >= version:
        return
    async with connection.transaction():
        await connection.fetch(SQL["lock_engines"])  # one that is joining is seen here, or sees the new version itself
        older = await connection.fetch(SQL["older_engines"], (version,))
        if older:
            raise Conflict(
                f"upgrade all engines first: {older[0][0]} knows schema version {older[0][1]}, not {version}"
            )
        await connection.fetch(SQL["raise_needed_version"], (version,))
