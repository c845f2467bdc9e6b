"""Mending an instance by hand: changing its variables, skipping a step, moving a token, retrying from another step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from penstock.access.identity import actor
from penstock.core.advance.event import Event
from penstock.core.rules.search_attributes import SearchAttributes
from penstock.core.rules.state import InstanceStatus, TokenState
from penstock.engine.advance.command import Command, IsCode, WritesOnly
from penstock.engine.advance.full_path import FullPath
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.instances.instances import REASON_MAX_CHARS, Instances
from penstock.engine.queues.journal_items import PATH_MAX_CHARS
from penstock.engine.queues.queues import check_priority
from penstock.engine.repair.prioritize import PriorityCommand
from penstock.engine.repair.repair_commands import MoveCommand, SkipCommand
from penstock.engine.requests import ids
from penstock.engine.requests.hiding import Hiding
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import EMPTY_OBJECT, PayloadLimits, check_text, check_variables
from penstock.errors import BadRequest, Conflict, PayloadTooLarge
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.statements import Statement
from penstock.store.db.vault import Vault
from penstock.store.rows import audit, search_attributes, variables
from penstock.store.rows.full_path import LockedInstance
from penstock.store.rows.jobs import ExecutionInfo
from penstock.wire.edits import StepSkip, TokenMove, VariablesEdit
from penstock.wire.model import Instance

EDIT_NAMES_MAX: Final = 1_000
"""Variables that one edit removes."""
NAMES_MAX_CHARS: Final = 1_000
"""Of the variables that an audit record names."""
VALUE_MAX_CHARS: Final = 200
"""Of a value there."""
_VERSION: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class EditCommand(Command):
    """Set and remove variables of an instance that waits or has failed. ``version``: only if that is the newest.
    ``bulk``: only if that operation has not done it."""

    __slots__ = (
        "_actor", "_audit", "_before", "_bulk", "_declared", "_given", "_hiding", "_limit_bytes", "_note", "_removed",
        "_vault", "_version",
    )  # fmt: skip

    def __init__(
        self,
        instance: int,
        given: bytes,
        removed: Sequence[str],
        *,
        note: str | None,
        limit_bytes: int,
        audit: bool,
        vault: Vault | None,
        hiding: Hiding,
        version: int | None = None,
        bulk: int | None = None,
    ) -> None:
        super().__init__(instance)
        self._hiding = hiding
        self._before = EMPTY_OBJECT
        self._given = given
        self._removed = removed
        self._version = version
        self._bulk = bulk
        self._note = note
        self._limit_bytes = limit_bytes
        self._audit = audit
        self._actor = actor()
        self._vault = vault
        self._declared: SearchAttributes | None = None

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        if self._version is not None and await variables.version(connection, self.instance) != self._version:
            raise Conflict("ifVersion: the variables were written again since you read them: read them again")
        if self._bulk is not None and await variables.was_edited(connection, self.instance, self._bulk):
            raise Conflict("the bulk operation has changed its variables already")
        size_bytes = await variables.edited_size(connection, self.instance, self._given, self._removed, self._vault)
        if size_bytes > self._limit_bytes:
            raise PayloadTooLarge(f"variables: the instance would have more than {self._limit_bytes} bytes of them")
        if self._audit and self._vault is None:
            names = [*msgspec.json.decode(self._given), *self._removed]
            self._before = await variables.named(connection, self.instance, names)

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        self._declared = loaded.search_attributes
        if loaded.code:
            raise Conflict("the variables of a durable run are its arguments: they can't be changed")
        status = locked.instance.status
        waits = any(token.state in (TokenState.PARKED, TokenState.DELAYED) for token in locked.tokens)
        if status is not InstanceStatus.FAILED and not (status is InstanceStatus.ACTIVE and waits):
            raise Conflict(f"the instance is {status.name}: its variables can be changed while it waits or has failed")
        raise WritesOnly

    def statements(self) -> list[Statement]:
        writes = [variables.edit(self.instance, self._given, self._removed, self._vault, self._bulk)]
        if self._declared is not None:
            removed = self._declared.types.keys() & set(self._removed)
            writes += search_attributes.of_edit(self.instance, self._declared.read(self._given), removed)
        if not self._audit:
            return writes
        names = [*self._named(self._given), *(f"-{name}" for name in self._removed)]
        detail = ", ".join(names)[:NAMES_MAX_CHARS] + (f": {self._note}" if self._note else "")
        before = ", ".join(self._named(self._before)) or None
        return [*writes, audit.add(self.instance, None, "VARIABLES_EDITED", self._actor, detail, before)]

    def _named(self, given: bytes) -> list[str]:
        """``name=value`` each; only the name of what is encrypted, or hidden from people's pages."""
        found: dict[str, msgspec.Raw] = msgspec.json.decode(given, type=dict[str, msgspec.Raw])
        if self._vault is not None:
            return [*found]
        return [name if self._hiding.hides(name) else f"{name}={_cut(bytes(value))}" for name, value in found.items()]


def _cut(value: bytes) -> str:
    text = value.decode()
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[:VALUE_MAX_CHARS]}…"


class Repair:
    """The operations that repair instances."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        limits: PayloadLimits,
        instances: Instances,
        full_path: FullPath,
        hiding: Hiding,
    ) -> None:
        self._database = database
        self._hiding = hiding
        self._settings = settings
        self._limits = limits
        self._instances = instances
        self._full_path = full_path

    async def edit_variables(self, id: str, edit: VariablesEdit) -> Instance:
        """Set and remove variables of an instance that waits or has failed.

        Raises NotFound, BadRequest (nothing to change, or what is no variable), Conflict (another status, a run of
        code, ``if_version`` is not the newest any more) and PayloadTooLarge.
        """
        number = ids.read_instance(id)
        given, removed = check_edit(bytes(edit.set), edit.remove, self._limits, "set")
        check_note(edit.note)
        if edit.if_version is not None and _VERSION.fullmatch(edit.if_version) is None:
            raise BadRequest("ifVersion: is not a version of variables")
        command = EditCommand(
            number,
            given,
            removed,
            note=edit.note,
            limit_bytes=self._settings.instance_variables_max_bytes,
            audit=self._settings.audit_log_enabled,
            vault=self._database.vault,
            hiding=self._hiding,
            version=None if edit.if_version is None else int(edit.if_version),
        )
        await self._full_path.submit(command)
        return await self._instances.after_change(id)

    async def set_priority(self, id: str, priority: int) -> Instance:
        """Change how early the jobs of an instance come that wait now, and those that come to wait later.

        Raises NotFound, BadRequest, Conflict (it has ended).
        """
        check_priority(priority)
        settings = self._settings
        command = PriorityCommand(
            ids.read_instance(id), priority, audit=settings.audit_log_enabled, to_outbox=settings.through_kafka
        )
        return await self._repair_one(id, command)

    async def skip(self, id: str, skip: StepSkip) -> Instance:
        """Let a step of an open or FAILED instance count as done, with a result.

        Raises NotFound, BadRequest (no such step), Conflict (it is not open, or nothing that can be skipped; a run of
        code).
        """
        command = SkipCommand(
            ids.read_instance(id),
            check_text(skip.step_id, "stepId", NAME_MAX_CHARS),
            check_variables(bytes(skip.variables), self._limits),
            execution=ids.read_execution(skip.execution_id),
            note=check_note(skip.note),
        )
        return await self._repair_one(id, command)

    async def move(self, id: str, move: TokenMove) -> Instance:
        """Let what stands on a step of an open or FAILED instance go on at another one.

        Raises NotFound, BadRequest (no such step), Conflict (the step is not open; a join would never end; a run of
        code).
        """
        command = MoveCommand(
            ids.read_instance(id),
            check_text(move.step_id, "stepId", NAME_MAX_CHARS),
            check_text(move.to_step_id, "toStepId", NAME_MAX_CHARS),
            execution=ids.read_execution(move.execution_id),
            note=check_note(move.note),
        )
        return await self._repair_one(id, command)

    async def retry_from(self, id: str, from_step_id: str, step_id: str | None, note: str | None) -> Instance:
        """Let a FAILED instance go on at another step than the one that failed, or in its place than ``step_id``. Of a
        durable run the step is the path of an operation (`Instances.retry_run`).

        Raises NotFound, BadRequest (no such step), Conflict (as `move`, and when it is not FAILED).
        """
        command = MoveCommand(
            ids.read_instance(id),
            None if step_id is None else check_text(step_id, "stepId", NAME_MAX_CHARS),
            check_text(from_step_id, "fromStepId", PATH_MAX_CHARS),
            note=check_note(note),
            retries=True,
        )
        try:
            return await self._repair_one(id, command)
        except IsCode:
            if step_id is not None:
                raise BadRequest("stepId: a durable run has no steps: give a path as fromStepId") from None
            return await self._instances.retry_run(id, from_step_id, note)

    async def edit_one_of_many(
        self, instance: int, given: bytes, removed: Sequence[str], note: str | None, bulk: int
    ) -> None:
        """As `edit_variables`, of what was checked, unless that operation has done it. Raises Conflict then."""
        command = EditCommand(
            instance,
            given,
            removed,
            note=note,
            limit_bytes=self._settings.instance_variables_max_bytes,
            audit=self._settings.audit_log_enabled,
            vault=self._database.vault,
            hiding=self._hiding,
            bulk=bulk,
        )
        await self._full_path.submit(command.of(bulk))

    async def skip_one_of_many(
        self, instance: int, step_id: str, output: bytes | None, note: str | None, until: datetime, bulk: int
    ) -> None:
        """As `skip`, if the step was entered, or the instance failed, by then. Raises Conflict otherwise."""
        await self._full_path.submit(SkipCommand(instance, step_id, output, note=note, entered_until=until).of(bulk))

    async def move_one_of_many(
        self,
        instance: int,
        step_id: str | None,
        target: str,
        note: str | None,
        until: datetime,
        bulk: int | None = None,
        *,
        retries: bool,
    ) -> None:
        """As `move`, or `retry_from`, likewise."""
        command = MoveCommand(instance, step_id, target, note=note, entered_until=until, retries=retries)
        try:
            await self._full_path.submit(command.of(bulk))
        except IsCode:
            await self._instances.retry_one_of_many(instance, note, until, bulk, from_path=target)

    async def _repair_one(self, id: str, command: Command) -> Instance:
        await self._full_path.submit(command)
        return await self._instances.after_change(id)


def check_edit(given: bytes, remove: Sequence[str], limits: PayloadLimits, field: str) -> tuple[bytes, list[str]]:
    """What is set (named ``field`` by the caller) and removed. Raises BadRequest and PayloadTooLarge."""
    checked = check_variables(given, limits, field)
    if len(remove) > EDIT_NAMES_MAX:
        raise BadRequest(f"remove: has more than {EDIT_NAMES_MAX} names")
    removed = sorted(set(remove))
    for name in removed:
        check_text(name, "remove", limits.variables_max_bytes)
    names = msgspec.json.decode(checked, type=dict[str, msgspec.Raw])
    if not names and not removed:
        raise BadRequest(f"{field}: is empty, and so is remove: name a variable")
    if twice := names.keys() & set(removed):
        raise BadRequest(f"remove: '{min(twice)[:NAME_MAX_CHARS]}' is set, too")
    return checked, removed


def check_note(note: str | None) -> str | None:
    """What is kept in the audit trail. Raises BadRequest."""
    return None if note is None else check_text(note, "note", REASON_MAX_CHARS)
