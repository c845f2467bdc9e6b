"""What of instances people watch has changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL


async def marks(connection: TrioConnection, instances: Sequence[int]) -> dict[int, int]:
    """Return a number for each that exists, another one after a change."""
    return dict(cast(Any, await connection.fetch(SQL["watch_marks"], (arrays.ints(instances),))))


async def newer(connection: TrioConnection, than: int, limit: int) -> list[int]:
    """Return the newest instances with a greater id, at most so many, the oldest of them first."""
    return sorted(cast(int, row[0]) for row in await connection.fetch(SQL["newer_instances"], (than, limit)))
