"""Instances go on in another version of their definition: checked, tried without effect, and done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from penstock.core.advance.migration import CantMigrate, TimerRule, not_compensated_any_more, plan_migration
from penstock.core.graph.definition import Definition, DefinitionLimits
from penstock.engine.advance.full_path import FullPath
from penstock.engine.advance.timers import Timers
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.queues.polls import Polls
from penstock.engine.repair.migrate import MigrateCommand, check_target, evaluator
from penstock.engine.repair.repair import check_note
from penstock.engine.requests import ids
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import activity as activity_store
from penstock.store.rows import engines as engine_store
from penstock.store.rows import migration as store
from penstock.wire.edits import MigrationRequest
from penstock.wire.repair import MigrationCheck

MIGRATION_VERSION: Final = 18
"""Of the schema: engines before would go on with what they remember of the version before."""
RENAMED_MAX: Final = 10_000
DEFAULT_RULE: Final[TimerRule] = "FROM_ENTRY"


class Target(NamedTuple):
    """A version that instances are looked at for. ``key``: none of one that was not uploaded."""

    definition: Definition
    version: int
    uploaded_at: datetime
    key: int | None = None

    @classmethod
    def of(cls, loaded: LoadedDefinition) -> Target:
        """One that was uploaded."""
        return cls(loaded.definition, loaded.version, loaded.uploaded_at, loaded.key)


class Migrations:
    """The operations on versions of instances."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        definitions: Definitions,
        full_path: FullPath,
        polls: Polls,
        timers: Timers,
    ) -> None:
        self._database = database
        self._settings = settings
        self._definitions = definitions
        self._full_path = full_path
        self._polls = polls
        self._timers = timers

    async def check(self, id: str, request: MigrationRequest) -> MigrationCheck:
        """What `migrate` would say; nothing is changed. Raises NotFound, BadRequest."""
        number = ids.read_instance(id)
        async with self._database.connection() as connection:
            target = await self._target(connection, number, request.version)
            check_steps(target, request.steps)
            rule = request.timers or DEFAULT_RULE
            [found] = await self.check_many(connection, [number], Target.of(target), request.steps, rule)
        return found

    async def migrate(self, id: str, request: MigrationRequest) -> None:
        """Let an open or FAILED instance go on in another version of its definition, on the steps on which it stands.

        Raises NotFound, BadRequest, and Conflict with every reason why it can't.
        """
        number = ids.read_instance(id)
        note = check_note(request.note)
        async with self._database.connection() as connection:
            target = await self._target(connection, number, request.version)
        check_steps(target, request.steps)
        await self.migrate_one(number, target, request.steps, note, rule=request.timers or DEFAULT_RULE)

    async def migrate_one(
        self,
        instance: int,
        target: LoadedDefinition,
        renamed: Mapping[str, str],
        note: str | None,
        bulk: int | None = None,
        *,
        rule: TimerRule = DEFAULT_RULE,
    ) -> None:
        """As `migrate`, into a version that was found."""
        async with self._database.connection() as connection:
            await engine_store.require_version(connection, MIGRATION_VERSION)
            if await store.flow_key_of(connection, instance) is not None:  # its jobs wait for turns, of all types
                steps = target.definition.steps
                types = {step.job_type or "": id for step in steps if (id := target.job_types[step.index]) is not None}
                await self._polls.queues.remember_keyed(connection, types)
        command = MigrateCommand(
            instance,
            target,
            renamed,
            note=note,
            audit=self._settings.audit_log_enabled,
            to_outbox=self._settings.through_kafka,
            place_key=self._polls.queues.place_key,
            changed=self._on_changed,
            rule=rule,
        )
        await self._full_path.submit(command.of(bulk))

    async def migrate_to(
        self,
        instance: int,
        version: int,
        renamed: Mapping[str, str],
        note: str | None,
        bulk: int,
        rule: TimerRule = DEFAULT_RULE,
    ) -> None:
        """As `migrate`, without looking at it afterwards."""
        async with self._database.connection() as connection:
            target = await self._target(connection, instance, version)
        await self.migrate_one(instance, target, renamed, note, bulk, rule=rule)

    async def find_version(self, definition_id: str | None, version: int, renamed: Mapping[str, str]) -> int:
        """Which version one means, of a definition 0 the latest. Raises NotFound, BadRequest."""
        if definition_id is None:
            return version
        target = await self._definitions.get(definition_id, version)
        check_steps(target, renamed)
        return target.version

    async def check_page(
        self, instances: Sequence[int], version: int, renamed: Mapping[str, str], rule: TimerRule = DEFAULT_RULE
    ) -> list[MigrationCheck]:
        """As `check`, of instances of any definitions; those that have no such version are left out."""
        checks: list[MigrationCheck] = []
        async with self._database.connection() as connection:
            for instance in instances:
                try:
                    target = await self._target(connection, instance, version)
                except NotFound:  # gone meanwhile, or of a definition without such a version
                    continue
                checks += await self.check_many(connection, [instance], Target.of(target), renamed, rule)
        return checks

    async def check_many(
        self,
        connection: TrioConnection,
        instances: Sequence[int],
        target: Target,
        renamed: Mapping[str, str],
        rule: TimerRule = DEFAULT_RULE,
    ) -> list[MigrationCheck]:
        """Each of the instances that are there, as it stands now."""
        checks: list[MigrationCheck] = []
        now = await activity_store.read_clock(connection)
        for seen in await store.read_snapshots(connection, instances):
            loaded = await self._definitions.by_key(connection, seen.definition)
            try:
                check_target(seen.status, loaded, target.definition, target.key)
                if seen.tokens is None:
                    raise Conflict("nothing is left to retry: migrate or move the instance")
                old, new, due = loaded.definition, target.definition, 0
                lost = not_compensated_any_more(old, new, renamed)
                completed = await store.completed_steps(connection, seen.id, lost)
                evaluate = await evaluator(connection, seen.id, new, now)
                due = plan_migration(
                    old, new, renamed, seen.tokens, seen.timers, seen.signals, now, completed, evaluate, rule
                ).due
                reasons: list[str] = []
            except CantMigrate as error:
                reasons, due = error.reasons, 0
            except Conflict as error:
                reasons, due = [error.reason], 0
            checks.append(
                MigrationCheck(
                    instance_id=ids.show_instance(seen.id),
                    from_version=loaded.version,
                    to_version=target.version,
                    possible=not reasons,
                    reasons=reasons,
                    timers_due=due,
                )
            )
        return checks

    async def _target(self, connection: TrioConnection, instance: int, version: int) -> LoadedDefinition:
        found = await store.read_snapshots(connection, [instance])
        if not found:
            raise NotFound(f"instance '{ids.show_instance(instance)}' is unknown")
        loaded = await self._definitions.by_key(connection, found[0].definition)
        target = await self._definitions.find(connection, loaded.definition.id, version)
        if target is None:
            raise Definitions.unknown(loaded.definition.id, version)
        return target

    def _on_changed(self, queued: set[str], armed: Sequence[datetime], now: datetime) -> None:
        for job_type in queued:
            self._polls.queued(job_type)
        if armed:
            self._timers.on_armed(min(armed), now)


def check_steps(target: LoadedDefinition, renamed: Mapping[str, str]) -> None:
    """Raises BadRequest for what is no step of the version."""
    if len(renamed) > RENAMED_MAX:
        raise BadRequest(f"steps: has more than {RENAMED_MAX:,} entries")
    longest = DefinitionLimits().id_max_chars
    for before, after in renamed.items():
        if len(before) > longest or target.definition.step(after) is None:
            about = f"'{target.definition.id}' version {target.version}"
            raise BadRequest(f"steps: '{before[:longest]}' becomes '{after[:longest]}', which is not a step of {about}")
