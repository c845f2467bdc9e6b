"""What a bulk operation does to each of its instances, and which requests for it make sense.

Each act is harmless when a page is done again after a crash: what was done since the operation began is left alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.engine import ids
from penstock.engine.instances import Instances
from penstock.engine.migrations import Migrations
from penstock.engine.paging import NAME_MAX_CHARS
from penstock.engine.payload import PayloadLimits, check_text, check_variables
from penstock.engine.repair import Repair
from penstock.engine.tasks import Tasks
from penstock.errors import BadRequest
from penstock.store.bulk import BulkWork
from penstock.wire.model import Signal

ACTIONS: Final = ("retry", "cancel", "signal", "skip", "move", "migrate")
MENDING_VERSION: Final = 18
"""Of the schema: engines before know the first three actions, without details."""
_FIELDS: Final = {
    "retry": {"from_step_id"},
    "cancel": set[str](),
    "signal": {"step_id", "variables"},
    "skip": {"step_id", "variables"},
    "move": {"step_id", "to_step_id"},
    "migrate": {"version", "steps"},
}
"""Of each action, those of its own."""
_NEEDED: Final = {"signal": ("step_id",), "skip": ("step_id",), "move": ("step_id", "to_step_id")}


class Details(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What an action needs beside step and variables; stored."""

    from_step_id: str | None = None
    to_step_id: str | None = None
    version: int | None = None
    steps: dict[str, str] | None = None


class Act(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is to be done: ``step_id`` is what is signalled, skipped or left, ``steps`` map ids to those of
    ``version``."""

    action: str
    step_id: str | None = None
    variables: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    from_step_id: str | None = None
    to_step_id: str | None = None
    version: int | None = None
    steps: dict[str, str] | None = None

    def check(self, limits: PayloadLimits) -> None:
        """Raises BadRequest."""
        if self.action not in ACTIONS:
            raise BadRequest(f"action: must be one of {', '.join(ACTIONS)}")
        own = {name for names in _FIELDS.values() for name in names}
        for name in sorted(own):
            given = bytes(self.variables) if name == "variables" else getattr(self, name)
            if given and name not in _FIELDS[self.action]:
                raise BadRequest(f"{_camel(name)}: not of the action {self.action}")
            if not given and name in _NEEDED.get(self.action, ()):
                raise BadRequest(f"{_camel(name)}: is needed for the action {self.action}")
            if isinstance(given, str):
                check_text(given, _camel(name), NAME_MAX_CHARS)
        if bytes(self.variables):
            check_variables(bytes(self.variables), limits)
        if self.version is not None and not 0 <= self.version < 2**31:
            raise BadRequest("version: must be a version, or 0 for the latest")

    @property
    def details(self) -> Details:
        return Details(self.from_step_id, self.to_step_id, self.version, self.steps)


class Acts(NamedTuple):
    """Does it."""

    instances: Instances
    tasks: Tasks
    repair: Repair
    migrations: Migrations

    async def do(self, work: BulkWork, instance: int) -> None:
        """To one instance. Raises what the operation on one does."""
        details = Details() if work.details is None else msgspec.json.decode(work.details, type=Details)
        match work.action:
            case "retry" if details.from_step_id is not None:
                await self.repair.move_one_of_many(
                    instance, None, details.from_step_id, work.note, work.created_at, retries=True
                )
            case "retry":
                await self.instances.retry_one_of_many(instance, work.note, work.created_at)
            case "cancel":
                await self.instances.cancel_one_of_many(instance, work.note)
            case "migrate":
                await self.migrations.migrate_to(instance, details.version or 0, details.steps or {}, work.note)
            case "skip" if work.step is not None:
                await self.repair.skip_one_of_many(instance, work.step, work.output, work.note, work.created_at)
            case "move" if work.step is not None and details.to_step_id is not None:
                await self.repair.move_one_of_many(
                    instance, work.step, details.to_step_id, work.note, work.created_at, retries=False
                )
            case _:
                assert work.step is not None
                signal = Signal(
                    instance_id=ids.show_instance(instance),
                    step_id=work.step,
                    variables=work.output,
                    signal_id=f"bulk-{work.id}",
                )
                await self.tasks.signal(signal)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
