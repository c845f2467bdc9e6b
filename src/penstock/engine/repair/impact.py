"""Whom a new version of a definition would not fit: counted by step, and tried on the newest open instances.

Running instances stay on their version: this says what a change is about, it stops nobody from uploading. The counts
are those of `definition_use`; what is tried is what a migration would check, in slices, for two seconds at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import trio

from penstock.core.advance.migration import step_reasons
from penstock.core.graph.definition import Definition
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.instances.definition_use import DefinitionUse
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.instances.instances import Instances
from penstock.engine.repair.migrations import Migrations, Target
from penstock.engine.requests.read_pool import ReadPool
from penstock.errors import BadRequest, Conflict
from penstock.loop.offload import run_sized
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import definition_use as store
from penstock.store.rows.definition_use import StepUse
from penstock.wire.repair import BulkRefusals, ChangedSteps, ImpactView, MigrationCheck, StepImpact, VersionImpact

VERSIONS_MAX: Final = 200
"""Versions that one answer looks at, newest first."""
TRIED_MAX: Final = 500
"""Instances of each status that are tried."""
SLICE_ITEMS: Final = 25
"""Read and planned at once: of a forEach an instance may have a thousand tokens."""
REFUSALS_MAX: Final = 100
SCAN_MAX_S: Final = 2.0
"""So long instances are tried."""
OPEN: Final = ("ACTIVE", "WAITING")
SAME, CHANGED, REMOVED = "SAME", "CHANGED", "REMOVED"


class Impact:
    """Looks for people and their scripts."""

    def __init__(
        self,
        read_pool: ReadPool,
        definitions: Definitions,
        use: DefinitionUse,
        instances: Instances,
        migrations: Migrations,
    ) -> None:
        self._read_pool = read_pool
        self._definitions = definitions
        self._use = use
        self._instances = instances
        self._migrations = migrations

    async def of(self, id: str, version: int, definition: Definition | None = None) -> ImpactView:
        """Of a version that was uploaded, 0 for the latest, or of a definition as the next version. Nothing is stored.

        Raises NotFound, BadRequest, Conflict (durable workflows), Unavailable.
        """
        if definition is not None and definition.id != id:
            raise BadRequest(f"id: is '{definition.id}', and the address names '{id[:256]}'")
        if definition is not None and version:
            raise BadRequest("version: can't be combined with a definition")
        async with self._read_pool.connection() as connection:
            found = await self._definitions.find(connection, id, version)
            if found is None:
                raise Definitions.unknown(id, version)
            if found.code:
                raise Conflict(f"'{id}' is a durable workflow: `penstock check` says what a change breaks")
            if definition is None:
                target = Target.of(found)
                before = await self._definitions.find(connection, id, max(found.version - 1, 1)) or found
            else:
                target, before = Target(definition, found.version + 1, datetime.now(UTC)), found
            counted = await self._use.count(connection)
            after = await _steps(target.definition)
            keys = await store.keys_by_version(connection, id)
            open_keys = [
                key
                for _, key in sorted(keys.items(), reverse=True)
                if key in counted.by_definition and key != target.key
            ]
            versions: list[VersionImpact] = []
            for key in open_keys[:VERSIONS_MAX]:
                loaded = await self._definitions.by_key(connection, key)
                versions.append(
                    _version(loaded, target, counted.by_definition[key], await _steps(loaded.definition), after)
                )
            was = await _steps(before.definition)
        return ImpactView(
            at=counted.at,
            exact=not counted.sampled,
            versions=versions,
            steps=ChangedSteps(
                added=[name for name in after if name not in was],
                changed=[name for name in after if name in was and after[name] != was[name]],
                removed=[name for name in was if name not in after],
            ),
            refusals=await self._refusals(target),
        )

    async def _refusals(self, target: Target) -> BulkRefusals:
        """What migrations of the newest open instances of other versions would be refused for."""
        checked: list[MigrationCheck] = []
        with trio.move_on_after(SCAN_MAX_S):
            for status in OPEN:
                wanted = InstanceFilter(definition_id=target.definition.id, status=status)
                cursor, tried = None, 0
                while tried < TRIED_MAX:
                    page = await self._instances.find_slice(wanted, cursor, SLICE_ITEMS)
                    async with self._read_pool.connection() as connection:
                        checked += await self._try(connection, page.items, target)
                    tried, cursor = tried + len(page.items), page.next
                    if cursor is None:
                        break
        refused = [check for check in checked if not check.possible]
        due = sum(check.timers_due for check in checked)
        return BulkRefusals(
            checked=len(checked), refused=len(refused), instances=refused[:REFUSALS_MAX], timers_due=due
        )

    async def _try(self, connection: TrioConnection, instances: list[int], target: Target) -> list[MigrationCheck]:
        checks = await self._migrations.check_many(connection, instances, target, {})
        return [check for check in checks if target.key is None or check.from_version != target.version]


def _version(
    loaded: LoadedDefinition,
    target: Target,
    rows: list[StepUse],
    before: Mapping[str, bytes],
    after: Mapping[str, bytes],
) -> VersionImpact:
    """What stands where in a version, against the target."""
    steps: list[StepImpact] = []
    at: Counter[str] = Counter()
    for row in sorted(rows, key=lambda row: row.step):
        step = loaded.definition.steps[row.step]
        name = step.id if step.compensates is None else loaded.definition.steps[step.compensates].id
        if row.step == loaded.definition.undo_step:  # its own, whatever it undoes
            change = SAME if target.definition.undo_step is not None else REMOVED
        else:
            change = REMOVED if name not in after else SAME if after[name] == before.get(name) else CHANGED
        at[change] += row.open
        reasons = step_reasons(loaded.definition, target.definition, row.step)
        steps.append(StepImpact(step_id=step.id, open=row.open, change=change, reasons=reasons))
    return VersionImpact(
        version=loaded.version,
        open=sum(row.roots for row in rows),
        at_changed=at[CHANGED],
        at_removed=at[REMOVED],
        steps=steps,
    )


async def _steps(definition: Definition) -> dict[str, bytes]:
    """What each step says, by its id. Order is meaning only within a step, where JSON text would keep it."""
    content = definition.content

    def read() -> dict[str, Any]:
        document = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        steps = msgspec.json.decode(document["steps"], type=list[msgspec.Raw])
        return {msgspec.json.decode(step, type=_Named).id: bytes(step) for step in steps}

    return await run_sized(len(content), read)


class _Named(msgspec.Struct):
    id: str
