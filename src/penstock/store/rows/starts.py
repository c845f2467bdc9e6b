"""Starts that share a key for a while (`start_window`), and those that have not begun."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import LOCKED
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import sealed

LINES_BEING_MADE_MAX: Final = 5


class StartWindow(NamedTuple):
    """A row of `start_window`: of a definition id, for what (`core.rules.start_rules.WindowKind`), under which key."""

    definition_id: str
    kind: int
    key: str


async def claim(connection: TrioConnection, window: StartWindow, seconds: float, instance: int) -> int:
    """Take a window for ``instance``, if nobody has it; who has it then. Waits for a transaction that holds it."""
    while True:
        rows = await connection.fetch(SQL["claim_window"], (*window, seconds, instance))
        rows = rows or await connection.fetch(SQL["find_window"], tuple(window))
        if rows:
            return cast(int, rows[0][0])


async def hold(connection: TrioConnection, window: StartWindow, seconds: float, instance: int) -> tuple[int, datetime]:
    """Take a window for ``instance``, if there is none, and lock it; who has it then, and until when."""
    rows = await connection.fetch(SQL["hold_window"], (*window, seconds, instance))
    return cast("tuple[int, datetime]", rows[0])


async def take(connection: TrioConnection, window: StartWindow, seconds: float, instance: int, before: int) -> bool:
    """Take a window away from ``before``. False: it has gone to another one meanwhile."""
    return bool(await connection.fetch(SQL["take_window"], (*window, seconds, instance, before)))


async def throttle(
    connection: TrioConnection, window: StartWindow, pace_s: float, burst: int, wait_max_s: float
) -> tuple[bool, float]:
    """Return whether one more start may begin within ``wait_max_s``, and in how many seconds it may."""
    rows = await connection.fetch(SQL["throttle_start"], (*window, pace_s, burst, wait_max_s))
    if rows:
        return True, cast(float, rows[0][0])
    rows = await connection.fetch(SQL["throttled_for"], (*window, pace_s, burst))
    return False, cast(float, rows[0][0]) if rows else 0.0


def keep_throttle(instance: int, window: StartWindow, pace_s: float, burst: int) -> Statement:
    """A start that is put off stands in the line of a window."""
    return SQL["keep_throttle"], (instance, window.definition_id, window.key, pace_s, burst)


class Line(NamedTuple):
    """In which throttled starts stand that begin one after the other."""

    definition_id: str
    key: str


def line_columns(lines: Iterable[Line]) -> tuple[str, str]:
    """As parameters of a statement, in the order in which they are locked."""
    ordered = sorted(lines)
    return arrays.texts(line.definition_id for line in ordered), arrays.texts(line.key for line in ordered)


async def space_out(
    connection: TrioConnection, starts: Sequence[tuple[int, int]], lines: Sequence[Line]
) -> tuple[int, set[Line]]:
    """Throttled starts, (token, seq) each, with their lines, that are due: those that come late, and those behind them,
    are put off, one after the other; how many were, and the lines that somebody else holds, whose starts are as they
    were. A transaction of its own, and safe to repeat; rolled back by the caller when it fails."""
    asked = set(lines)
    columns = line_columns(asked)
    *_, rows = await connection.roundtrip(
        [(SQL["begin"], ()), (SQL["open_lines"], columns), (SQL["hold_lines"], columns)]
    )
    held = {Line(*cast("tuple[str, str]", row)) for row in rows}
    ours = [start for start, line in zip(starts, lines, strict=True) if line in held]
    tokens, seqs = arrays.ints(token for token, _ in ours), arrays.ints(seq for _, seq in ours)
    rows, _ = await connection.roundtrip([(SQL["space_out"], (tokens, seqs)), (SQL["commit"], ())])
    return cast(int, rows[0][0]), asked - held


async def lines_being_made(connection: TrioConnection, lines: Iterable[Line]) -> set[Line]:
    """Those of these lines, `LINES_BEING_MADE_MAX` at most, of which somebody makes a window that is not committed yet:
    as one that hangs. Each takes `LOCK_WAIT_MS`."""
    found = set[Line]()
    for line in sorted(set(lines)):
        if len(found) == LINES_BEING_MADE_MAX:
            break
        try:
            await connection.roundtrip([
                (SQL["begin"], ()), (SQL["open_lines"], line_columns([line])), (SQL["commit"], ())
            ])  # fmt: skip
        except LOCKED:
            await connection.rollback()
            found.add(line)
    return found


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
    rows = await connection.fetch(
        SQL["replace_start_variables"], (instance, sealed(variables, connection.vault), merges)
    )
    return cast("tuple[int, int]", rows[0])


async def purge_windows(connection: TrioConnection, limit: int) -> int:
    """Forget up to ``limit`` windows that are over; how many went."""
    return cast(int, (await connection.fetch(SQL["purge_windows"], (limit,)))[0][0])
