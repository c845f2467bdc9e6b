"""Which versions a definition has, where open instances stand in them, and which variables they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, cast

import msgspec
import trio

from penstock.engine.definitions.definitions import Definitions
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.instances.instances import Instances
from penstock.engine.requests import ids
from penstock.engine.requests.paging import read_numbers, slice_limit
from penstock.engine.requests.read_pool import ReadPool
from penstock.errors import NotFound
from penstock.loop.offload import run_sized
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import definition_use as store
from penstock.store.rows.definition_use import StepUse
from penstock.wire.definition_use import (
    DefinitionActivity,
    StepTokens,
    TokensView,
    VariablesInUse,
    VariableUse,
    VersionCounts,
    VersionView,
)
from penstock.wire.page import Page

KEPT_S: Final = 60.0
"""So old a count may be: it costs a walk over all tokens."""
COUNTED_VERSIONS_MAX: Final = 20
"""Versions of one answer with counts: of each up to 10,000 instances are looked at."""
RECENT: Final = timedelta(hours=1)
RECENT_MAX: Final = 1_000
"""Recent instances of a definition are counted to here."""
VARIABLES_OF: Final = 100
"""Instances whose variables are looked at, the newest ones."""
VARIABLE_NAMES_MAX: Final = 1_000
_TYPES: Final[Mapping[bytes, str]] = {
    b"{": "object", b"[": "array", b'"': "string", b"t": "boolean", b"f": "boolean", b"n": "null",
}  # fmt: skip
"""By the first character of a value's text; others are numbers."""


class SampledUse(NamedTuple):
    """What stood where at a time, by the keys of definitions; ``sampled``: estimated."""

    until: float
    at: datetime
    sampled: bool
    by_definition: Mapping[int, list[StepUse]]


class DefinitionUse:
    """Looks for people."""

    def __init__(self, read_pool: ReadPool, definitions: Definitions, instances: Instances) -> None:
        self._read_pool = read_pool
        self._instances = instances
        self._definitions = definitions
        self._counted: SampledUse | None = None
        self._counting = trio.Lock()

    async def versions(self, id: str, cursor: str | None, limit: int) -> Page[VersionView]:
        """Newest first. Raises NotFound, BadRequest."""
        limit = slice_limit(limit)
        below = read_numbers(cursor, digits=9)[0] if cursor else 2**31 - 1
        async with self._read_pool.connection() as connection:
            rows = await store.versions(connection, id, below, limit + 1)
            counted = self._counted if self._is_counted() else None
            keys = await store.keys_by_version(connection, id) if counted is not None else {}
        if not rows and not cursor:
            raise NotFound(f"definition '{id[:256]}' is unknown")
        items = [VersionView(*row, _open(counted, keys.get(row.version))) for row in rows[:limit]]
        return Page(items=items, next=str(items[-1].version) if len(rows) > limit else None)

    async def activity(self, keyword: str | None, cursor: str | None, limit: int) -> Page[DefinitionActivity]:
        """Of the definitions of a list, and as that is paged. Raises Unavailable."""
        listed = await self._definitions.list_slice(keyword, cursor, limit)
        since = ids.first_instance(datetime.now(UTC) - RECENT)
        async with self._read_pool.connection() as connection:
            counted = await self.count(connection)
            found = await store.recent(
                connection, [one.id for one in listed.items], since, most=RECENT_MAX, versions=COUNTED_VERSIONS_MAX
            )
        return listed.holding(
            [
                DefinitionActivity(
                    id=one.id,
                    open=sum(_open(counted, key) or 0 for key in one.keys),
                    started_within_hour=one.started,
                    failed_of_these=one.failed,
                    counted_at=counted.at,
                    sampled=counted.sampled,
                )
                for one in found
            ]
        )

    async def counts(self, id: str, cursor: str | None, limit: int) -> Page[VersionCounts]:
        """Instances of each version by status, newest version first. Raises NotFound, BadRequest, Unavailable."""
        below = read_numbers(cursor, digits=9)[0] if cursor else 2**31 - 1
        async with self._read_pool.connection() as connection:
            keys = await store.keys_by_version(connection, id)
            if not keys:
                raise Definitions.unknown(id, 0)
            wanted = sorted((version for version in keys if version < below), reverse=True)
            part = wanted[: min(slice_limit(limit), COUNTED_VERSIONS_MAX)]
            found, estimated = await store.by_status(connection, [keys[version] for version in part])
        items = [
            VersionCounts(
                version=version,
                total=sum(counts.values()),
                **{status.lower(): count for status, count in counts.items()},
                total_is_estimate=keys[version] in estimated,
            )
            for version in part
            for counts in [found.get(keys[version], {})]
        ]
        return Page(items=items, next=str(part[-1]) if len(wanted) > len(part) else None)

    async def tokens(self, id: str, version: int) -> TokensView:
        """Of a version, 0 for the latest; as they stood within the last minute. Raises NotFound, Unavailable."""
        async with self._read_pool.connection() as connection:
            loaded = await self._definitions.find(connection, id, version)
            if loaded is None:
                raise Definitions.unknown(id, version)
            counted = await self.count(connection)
            failed = await store.failed_by_step(connection, loaded.key)
        found = {row.step: row for row in counted.by_definition.get(loaded.key, [])}
        steps: list[StepTokens] = []
        for step in loaded.definition.steps:
            row, ends = found.get(step.index), failed.get(step.id, 0)
            if row is not None:
                steps.append(StepTokens(step.id, row.open, row.oldest, row.backing_off, ends))
            elif ends:
                steps.append(StepTokens(step.id, 0, failed=ends))
        instances = sum(row.roots for row in found.values())
        return TokensView(at=counted.at, sampled=counted.sampled, instances=instances, steps=steps)

    async def variables(self, id: str) -> VariablesInUse:
        """Which variables the newest instances have, of any version, and of what types. Raises NotFound, Overloaded,
        Unavailable."""
        found = await self._instances.find_slice(InstanceFilter(definition_id=id), None, VARIABLES_OF)
        if not found.items:
            async with self._read_pool.connection() as connection:
                if await self._definitions.find(connection, id, 0) is None:
                    raise Definitions.unknown(id, 0)
        seen: defaultdict[str, list[str]] = defaultdict(list)
        of = 0
        async with aclosing(self._instances.read(found.items)) as pieces:
            async for piece in pieces:
                of += len(piece)
                for types in await _types_of_each([bytes(cast(msgspec.Raw, one.variables)) for one in piece]):
                    for name, kind in types.items():
                        if name in seen or len(seen) < VARIABLE_NAMES_MAX:
                            seen[name].append(kind)
        items = [VariableUse(name, sorted(set(kinds)), len(kinds)) for name, kinds in seen.items()]
        return VariablesInUse(of, sorted(items, key=lambda item: (-item.found_in, item.name)))

    def forget(self) -> None:
        """Count anew the next time."""
        self._counted = None

    def _is_counted(self) -> bool:
        return self._counted is not None and self._counted.until > trio.current_time()

    async def count(self, connection: TrioConnection) -> SampledUse:
        """At most `KEPT_S` old. Raises Unavailable."""
        async with self._counting:  # the second one in line finds the first one's answer
            if self._counted is None or not self._is_counted():
                rows, sampled = await store.by_step(connection)
                by_definition: defaultdict[int, list[StepUse]] = defaultdict(list)
                for row in rows:
                    by_definition[row.definition].append(row)
                self._counted = SampledUse(trio.current_time() + KEPT_S, datetime.now(UTC), sampled, by_definition)
            return self._counted


def _open(counted: SampledUse | None, key: int | None) -> int | None:
    return None if counted is None or key is None else sum(row.roots for row in counted.by_definition.get(key, []))


async def _types_of_each(variables: Sequence[bytes]) -> list[dict[str, str]]:
    return await run_sized(sum(map(len, variables)), lambda: [_types(text) for text in variables])


def _types(variables: bytes) -> dict[str, str]:
    """The JSON type of each."""
    found = msgspec.json.decode(variables, type=dict[str, msgspec.Raw])
    return {name: _TYPES.get(bytes(value)[:1], "number") for name, value in found.items()}
