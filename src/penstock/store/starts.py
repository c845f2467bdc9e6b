"""Starts that share a key for a while (`start_window`), and those that have not begun."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, cast

from penstock.store.connection import TrioConnection
from penstock.store.statements import SQL
from penstock.store.vault import Sealing


class Window(NamedTuple):
    """A row of `start_window`: of a definition id, for what (`core.start_rules.WindowKind`), under which key."""

    definition_id: str
    kind: int
    key: str


async def claim(connection: TrioConnection, window: Window, seconds: float, instance: int) -> int:
    """Take a window for ``instance``, if nobody has it; who has it then. Waits for a transaction that holds it."""
    while True:
        rows = await connection.fetch(SQL["claim_window"], (*window, seconds, instance))
        rows = rows or await connection.fetch(SQL["find_window"], tuple(window))
        if rows:
            return cast(int, rows[0][0])


async def hold(connection: TrioConnection, window: Window, seconds: float, instance: int) -> tuple[int, datetime]:
    """Take a window for ``instance``, if there is none, and lock it; who has it then, and until when."""
    rows = await connection.fetch(SQL["hold_window"], (*window, seconds, instance))
    return cast("tuple[int, datetime]", rows[0])


async def take(connection: TrioConnection, window: Window, seconds: float, instance: int, before: int) -> bool:
    """Take a window away from ``before``. False: it has gone to another one meanwhile."""
    return bool(await connection.fetch(SQL["take_window"], (*window, seconds, instance, before)))


async def throttle(
    connection: TrioConnection, window: Window, pace_s: float, burst: int, wait_max_s: float
) -> tuple[bool, float]:
    """Whether one more start may begin within ``wait_max_s``, and in how many seconds it may."""
    rows = await connection.fetch(SQL["throttle_start"], (*window, pace_s, burst, wait_max_s))
    if rows:
        return True, cast(float, rows[0][0])
    rows = await connection.fetch(SQL["throttled_for"], (*window, pace_s, burst))
    return False, cast(float, rows[0][0]) if rows else 0.0


async def hold_delayed(connection: TrioConnection, instance: int) -> int | None:
    """Lock an instance that has not begun: the seq of its root token. None: it has, or is gone."""
    rows = await connection.fetch(SQL["hold_delayed"], (instance,))
    return cast(int, rows[0][0]) if rows else None


async def put_off(connection: TrioConnection, instance: int, seq: int, wait_s: float, latest: datetime) -> datetime:
    """Let an instance begin in ``wait_s`` seconds, but at ``latest`` at the latest; when that is."""
    rows = await connection.fetch(SQL["put_off"], (instance, seq, wait_s, latest))
    return cast(datetime, rows[0][0])


async def replace_variables(
    connection: TrioConnection, instance: int, variables: bytes, *, merges: bool
) -> tuple[int, int]:
    """Give an instance that has not begun other variables, or more of them; how many bytes it has then, and the key of
    its definition."""
    vault = connection.vault
    given: str | Sealing = variables.decode()
    if vault is not None:
        given = Sealing(len(variables), lambda: vault.seal(variables).decode())
    rows = await connection.fetch(SQL["replace_start_variables"], (instance, given, merges))
    return cast("tuple[int, int]", rows[0])


async def purge_windows(connection: TrioConnection, limit: int) -> int:
    """Forget up to ``limit`` windows that are over; how many went."""
    return cast(int, (await connection.fetch(SQL["purge_windows"], (limit,)))[0][0])
