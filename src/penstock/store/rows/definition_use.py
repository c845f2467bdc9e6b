"""Where instances stand in their definitions. Reads only, and not for long."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from psycopg.errors import QueryCanceled

from penstock.errors import Unavailable
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL

FAILED_MAX: Final = 10_000
RECENT_FAILED_MAX: Final = 100_000
Counts = dict[str, int]
"""By statuses of the wire."""
COUNTED_MAX: Final = 10_000
"""Instances of one version; of more a sample is looked at."""
SAMPLE_ROWS: Final = 100_000
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
    active: bool


async def versions(connection: TrioConnection, id: str, below: int, limit: int) -> list[VersionRow]:
    """Newest first."""
    rows = cast(Any, await connection.fetch(SQL["versions_of"], (id, below, limit)))
    return [VersionRow(*row) for row in rows]


async def keys_by_version(connection: TrioConnection, id: str) -> dict[int, int]:
    """Return the key of each version of a definition."""
    rows = cast(list[tuple[int, int]], await connection.fetch(SQL["definition_versions"], (id,)))
    return {version: key for key, version in rows}


async def by_status(connection: TrioConnection, definitions: Sequence[int]) -> tuple[dict[int, Counts], set[int]]:
    """How many instances each definition (its key) has in each status of the wire's: counted up to `COUNTED_MAX` of
    them, and for those with more, whose keys come too, from a sample. Raises Unavailable."""
    settings = [(SQL["begin"], ()), (SQL["look_briefly"], ())]
    params = (arrays.ints(definitions), COUNTED_MAX + 1)
    try:
        *_, rows, sizes, _ = await connection.roundtrip(
            [*settings, (SQL["count_by_status"], params), (SQL["estimate_instances"], ()), (SQL["commit"], ())]
        )
        found = _counts(rows)
        many = sorted(key for key, counts in found.items() if sum(counts.values()) > COUNTED_MAX)
        if many:
            percent = min(100.0, 100 * SAMPLE_ROWS / max(cast(int, sizes[0][0]), 1))
            sample = (SQL["count_by_status_sampled"], (arrays.ints(many), percent))
            scan = (SQL["allow_sequential_scan"], ())
            *_, rows, _ = await connection.roundtrip([*settings, scan, sample, (SQL["commit"], ())])
            sampled = _counts(rows)
            found |= {key: sampled[key] for key in many if sum(sampled.get(key, {}).values()) > COUNTED_MAX}
    except QueryCanceled:
        await connection.rollback()
        raise Unavailable("counting takes longer than two seconds at the moment; try again later") from None
    return found, set(many)


def _counts(rows: Sequence[Any]) -> dict[int, Counts]:
    found: dict[int, Counts] = {}
    for key, status, count in rows:
        found.setdefault(key, {})[status] = count
    return found


class RecentUse(NamedTuple):
    """Of a definition: the ``keys`` of its versions, and of instances from an id on how many there are and failed."""

    id: str
    keys: list[int]
    started: int
    failed: int


async def recent(
    connection: TrioConnection, ids: Sequence[str], since: int, *, most: int, versions: int
) -> list[RecentUse]:
    """Each is counted to ``most``, of its newest ``versions``; failures among the newest `RECENT_FAILED_MAX` of all."""
    params = (arrays.texts(ids), since, most, versions, RECENT_FAILED_MAX)
    return [RecentUse(*cast(Any, row)) for row in await connection.fetch(SQL["recent_instances"], params)]


async def failed_by_step(connection: TrioConnection, definition: int) -> dict[str, int]:
    """Of a definition's instances that failed, `FAILED_MAX` at most, how many did at each step."""
    return dict(cast(Any, await connection.fetch(SQL["failed_by_step"], (definition, FAILED_MAX))))


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
        raise Unavailable("counting takes longer than ten seconds at the moment; try again later") from None
    return [StepUse(*cast(Any, row)) for row in rows], sampled
