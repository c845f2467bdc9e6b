"""What instances leave in the archive before they are removed: lines of JSON, read a piece at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, cast

from penstock.store.db.arrays import ints
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.rows.retention import Selected

PIECE_ROWS: Final = 200
"""Steps, or records of a journal, that are in memory at once."""


async def lines_of(connection: TrioConnection, selected: Selected) -> AsyncGenerator[list[str]]:
    """The lines of an instance that ended: itself, its steps in order, of a durable run its journal. None when it has
    changed since it was selected, or is gone."""
    instance = selected.id
    rows = cast(Any, await connection.fetch(SQL["archived_instance"], selected))
    if not rows:
        return
    yield [rows[0][0]]
    last, more = (-1, -1), True
    while more:
        rows = cast(Any, await connection.fetch(SQL["archived_steps"], (instance, *last, PIECE_ROWS)))
        yield [line for _, _, line in rows]
        more = len(rows) == PIECE_ROWS
        last = rows[-1][:2] if more else last
    position = -1
    while True:
        records = cast(Any, await connection.fetch(SQL["archived_records"], (instance, position, PIECE_ROWS)))
        yield [line for _, line in records]
        if len(records) < PIECE_ROWS:
            return
        position = records[-1][0]


async def are_there(connection: TrioConnection, instances: Sequence[Selected]) -> bool:
    """Return whether none of them has been removed."""
    ids = ints([each.id for each in instances])
    left = cast(int, (await connection.fetch(SQL["archived_left"], (ids,)))[0][0])
    return left == len(instances)
