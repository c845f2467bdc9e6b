"""Where instances stand in their definitions. Reads only, and not for long."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from psycopg.errors import QueryCanceled

from penstock.errors import Unavailable
from penstock.store.connection import TrioConnection
from penstock.store.statements import SQL

SAMPLED_ABOVE: Final = 500_000
"""Tokens; of more of them a tenth of the pages is looked at."""


class StepUse(NamedTuple):
    """What stands on a step of a definition: ``open`` tokens, some ``backing_off``; ``roots`` are as many instances."""

    definition: int
    step: int
    open: int
    oldest: datetime
    backing_off: int
    roots: int


class VersionRow(NamedTuple):
    """A version of a definition."""

    version: int
    name: str
    uploaded_at: datetime


async def versions(connection: TrioConnection, id: str, below: int, limit: int) -> list[VersionRow]:
    """Newest first."""
    rows = cast(Any, await connection.fetch(SQL["versions_of"], (id, below, limit)))
    return [VersionRow(*row) for row in rows]


async def keys(connection: TrioConnection, id: str) -> dict[int, int]:
    """The versions of a definition by their keys."""
    return dict(cast(Any, await connection.fetch(SQL["definition_versions"], (id,))))


async def by_step(connection: TrioConnection) -> tuple[list[StepUse], bool]:
    """Of all definitions; and whether it is an estimate from a sample. Walks over the tokens. Raises Unavailable."""
    estimate = cast(int, (await connection.fetch(SQL["open_tokens_estimate"]))[0][0])
    sampled = estimate > SAMPLED_ABOVE
    name = "tokens_by_step_sampled" if sampled else "tokens_by_step"
    settings = [(SQL["begin"], ()), (SQL["walk_for_seconds"], ()), (SQL["allow_sequential_scan"], ())]
    try:
        *_, rows, _ = await connection.roundtrip([*settings, (SQL[name], ()), (SQL["commit"], ())])
    except QueryCanceled:
        await connection.rollback()
        raise Unavailable("counting takes longer than ten seconds now; try again later") from None
    return [StepUse(*cast(Any, row)) for row in rows], sampled
