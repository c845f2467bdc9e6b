"""What of instances people watch has changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from penstock.store import arrays
from penstock.store.connection import TrioConnection
from penstock.store.statements import SQL


async def marks(connection: TrioConnection, instances: Sequence[int]) -> dict[int, int]:
    """A number for each that exists, another one after a change."""
    return dict(cast(Any, await connection.fetch(SQL["watch_marks"], (arrays.ints(instances),))))


async def newest(connection: TrioConnection) -> int:
    """The instance that was started last; 0 when there is none."""
    rows = await connection.fetch(SQL["newest_instance"])
    return cast(int, rows[0][0]) if rows else 0
