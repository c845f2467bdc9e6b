"""Timers: boundary events, back-offs, ends of waits. `store.full_path` arms and disarms them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, cast

from penstock.core.state import OWN_TIMERS
from penstock.store import arrays
from penstock.store.connection import TrioConnection
from penstock.store.statements import SQL, Statement

Timer = tuple[int, int, int]
"""Token, seq and index."""


class NextTimer(NamedTuple):
    """A timer that is due, or the next that will be: ``left_s`` is negative when it is. ``failures``: how often it
    could not be acted on, by whichever engine."""

    key: Timer
    instance: int
    left_s: float
    failures: int


async def due(connection: TrioConnection, limit: int) -> list[NextTimer]:
    """The next timers."""
    rows = await connection.fetch(SQL["due_timers"], (limit, arrays.ints(OWN_TIMERS)))
    return [NextTimer(cast(Timer, row[:3]), *cast(tuple[int, float, int], row[3:])) for row in rows]


async def count_failures(connection: TrioConnection, timers: Collection[Timer]) -> None:
    """Note that these could not be acted on."""
    columns = zip(*timers, strict=True)
    await connection.fetch(SQL["count_timer_failures"], tuple(arrays.ints(column) for column in columns))


def delete(token: int, seq: int, index: int) -> Statement:
    """Deletes one timer."""
    return SQL["delete_fired"], (arrays.ints([token]), arrays.ints([seq]), arrays.ints([index]))
