"""What failed, by cause: the newest failures, grouped by definition, step and what their reasons have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import trio

from penstock.engine.definitions.definitions import Definitions
from penstock.engine.instances.causes import cause_of
from penstock.engine.requests import ids
from penstock.engine.requests.read_pool import ReadPool
from penstock.engine.status.overview import RANGES
from penstock.errors import BadRequest
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import activity as activity_store
from penstock.store.rows import definitions as definition_store
from penstock.store.rows import instances as store
from penstock.store.rows.instances import FailureRow
from penstock.wire.error_code import failure_text
from penstock.wire.failures import FailureGroup, FailureList

FAILURES_MAX: Final = 1_000
SCANNED_MAX: Final = 100_000
"""So many of the newest are looked through for those of a definition: of a million it took 0.4 s."""
FILL_ROWS: Final = 2_000
KEPT_S: Final = 5.0
"""So old an answer may be."""
_KEPT_MAX_COUNT: Final = 100
ALL: Final = "all"
_RANGES_S: Final[Mapping[str, int | None]] = {name: range_s for name, (range_s, _) in RANGES.items()} | {ALL: None}


class _Kept(NamedTuple):
    until: float
    answer: FailureList


class Failures:
    """Groups them. One reading serves all who ask within some seconds."""

    def __init__(self, database: Database, read_pool: ReadPool, definitions: Definitions) -> None:
        self._database = database
        self._read_pool = read_pool
        self._definitions = definitions
        self._kept: dict[tuple[str | None, str], _Kept] = {}
        self._reading = trio.Lock()
        self._fill_after: int | None = 0

    async def fill(self) -> bool:
        """Do one round of housekeeping: failures without a cause, or with one of older rules, get one.

        Returns whether all were looked at.
        """
        if self._fill_after is not None:
            async with self._database.connection() as connection:
                self._fill_after = await store.fill_causes(connection, self._fill_after, FILL_ROWS)
        return self._fill_after is None

    async def read(self, definition_id: str | None, range_name: str) -> FailureList:
        """Of instances that started within the range, or of all. Raises BadRequest for a range that there is not."""
        if range_name not in _RANGES_S:
            raise BadRequest(f"range: must be one of {', '.join(_RANGES_S)}")
        wanted = definition_id, range_name
        async with self._reading:
            kept = self._kept.get(wanted)
            if kept is None or trio.current_time() >= kept.until:
                if len(self._kept) >= _KEPT_MAX_COUNT:
                    self._kept.clear()
                answer = await self._read(definition_id, _RANGES_S[range_name])
                kept = self._kept[wanted] = _Kept(trio.current_time() + KEPT_S, answer)
            return kept.answer

    def forget(self) -> None:
        """Read anew the next time."""
        self._kept.clear()

    async def _read(self, definition_id: str | None, range_s: int | None) -> FailureList:
        async with self._read_pool.connection() as connection:
            keys = None if definition_id is None else await definition_store.keys_of(connection, definition_id)
            if keys is not None and not keys:
                return FailureList([], exact=True)
            first = 0
            if range_s is not None:
                since = await activity_store.read_clock(connection) - timedelta(seconds=range_s)
                first = ids.first_instance(since)
            behind = None if keys is None else await store.failure_behind(connection, first, SCANNED_MAX)
            if behind is not None:
                first = behind + 1
            rows = await store.newest_failures(connection, keys, first, FAILURES_MAX)
            groups: dict[tuple[int, str | None, str], list[FailureRow]] = {}
            for row in rows:
                cause = cause_of(failure_text(row.reason, row.code))
                groups.setdefault((row.definition, row.step, cause), []).append(row)
            items = [await self._group(connection, cause, group) for (_, _, cause), group in groups.items()]
        items.sort(key=lambda item: -item.count)
        return FailureList(items, exact=len(rows) < FAILURES_MAX and behind is None)

    async def _group(self, connection: TrioConnection, cause: str, group: Sequence[FailureRow]) -> FailureGroup:
        loaded = await self._definitions.by_key(connection, group[0].definition)
        return FailureGroup(
            cause,
            failure_text(group[0].reason, group[0].code),
            loaded.definition.id,
            loaded.version,
            len(group),
            min(row.ended_at for row in group),
            max(row.ended_at for row in group),
            ids.show_instance(group[0].id),
            group[0].step,
        )
