"""Timers: boundary events, back-offs, ends of waits. `store.rows.full_path` arms and disarms them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, cast

from penstock.core.rules.state import OWN_TIMERS
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.rows.starts import Line, line_columns

Timer = tuple[int, int, int]
"""Token, seq and index."""


class NextTimer(NamedTuple):
    """A timer that is due, or the next that will be: ``left_s`` is negative when it is. ``failures``: how often it
    could not be acted on, by whichever engine. ``line``: in which a throttled start stands (`starts.space_out`)."""

    key: Timer
    instance: int
    left_s: float
    failures: int
    line: Line | None


async def due(
    connection: TrioConnection, limit: int, *, throttled: bool = True, without: Collection[Line] = ()
) -> list[NextTimer]:
    """Return the next timers; not ``throttled``: without throttled starts that are due. ``without``: those of these
    lines."""
    params = (limit, arrays.ints(OWN_TIMERS), throttled, *line_columns(without))
    rows = cast(Any, await connection.fetch(SQL["due_timers"], params))
    return [NextTimer(row[:3], row[3], row[4], row[5], None if row[6] is None else Line(*row[6:])) for row in rows]


async def count_failures(connection: TrioConnection, timers: Collection[Timer]) -> None:
    """Note that these could not be acted on."""
    columns = zip(*timers, strict=True)
    await connection.fetch(SQL["count_timer_failures"], tuple(arrays.ints(column) for column in columns))


def delete(token: int, seq: int, index: int) -> Statement:
    """Deletes one timer."""
    return SQL["delete_fired"], (arrays.ints([token]), arrays.ints([seq]), arrays.ints([index]))
