"""Timers: boundary events, back-offs, ends of waits. `store.wide` arms and disarms them under the instance's lock."""

from __future__ import annotations

from typing import cast

from penstock.core.state import OWN_TIMERS
from penstock.store import arrays
from penstock.store.connection import TrioConnection
from penstock.store.statements import SQL, Statement


async def due(connection: TrioConnection, limit: int) -> list[tuple[int, int, int, int, float]]:
    """The next timers: (token, seq, index, instance, seconds until it is due; negative when it is)."""
    rows = await connection.fetch(SQL["due_timers"], (limit, arrays.ints(OWN_TIMERS)))
    return [cast(tuple[int, int, int, int, float], row) for row in rows]


def delete(token: int, seq: int, index: int) -> Statement:
    """Deletes one timer."""
    return SQL["delete_fired"], (arrays.ints([token]), arrays.ints([seq]), arrays.ints([index]))
