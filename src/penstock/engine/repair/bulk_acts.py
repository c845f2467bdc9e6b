"""What a bulk operation does to each of its instances, and which requests for it make sense.

Each act is harmless when a page is done again after a crash: what was done since the operation began is left alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.core.advance.migration import TIMER_RULES, TimerRule
from penstock.engine.instances.instances import Instances
from penstock.engine.instances.tasks import Tasks
from penstock.engine.repair.migrations import DEFAULT_RULE, Migrations
from penstock.engine.repair.repair import Repair, check_edit
from penstock.engine.requests import ids
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import EMPTY_OBJECT, PayloadLimits, check_text, check_variables
from penstock.errors import BadRequest
from penstock.store.rows.bulk import BulkWork
from penstock.wire.bulk import BulkRequest
from penstock.wire.model import Signal
from penstock.wire.repair import BulkDetails

ACTIONS: Final = ("retry", "cancel", "signal", "skip", "move", "migrate", "edit")
REPAIR_VERSION: Final = 18
"""Of the schema: engines before know the first three actions, without details."""
TIMERS_VERSION: Final = 21
"""Engines before would migrate as if nothing were said of timers."""
_FIELDS: Final = {
    "retry": {"from_step_id"},
    "cancel": set[str](),
    "signal": {"step_id", "variables"},
    "skip": {"step_id", "variables"},
    "move": {"step_id", "to_step_id"},
    "migrate": {"version", "steps", "timers"},
    "edit": {"variables", "remove"},
}
"""Of each action, those of its own."""
_NEEDED: Final = {"signal": ("step_id",), "skip": ("step_id",), "move": ("step_id", "to_step_id")}


def check_act(request: BulkRequest, limits: PayloadLimits) -> bytes | None:
    """Whether what is to be done makes sense; its variables. Raises BadRequest."""
    if request.action not in ACTIONS:
        raise BadRequest(f"action: must be one of {', '.join(ACTIONS)}")
    variables = bytes(request.variables or b"")
    for name in sorted({name for names in _FIELDS.values() for name in names}):
        given = variables if name == "variables" else getattr(request, name)
        if given and name not in _FIELDS[request.action]:
            raise BadRequest(f"{_camel(name)}: does not belong to the action {request.action}")
        if not given and name in _NEEDED.get(request.action, ()):
            raise BadRequest(f"{_camel(name)}: is required for the action {request.action}")
        if isinstance(given, str):
            check_text(given, _camel(name), NAME_MAX_CHARS)
    rule_of(request.timers)
    if request.version is not None and not 0 <= request.version < 2**31:
        raise BadRequest("version: must be a version, or 0 for the latest")
    if request.action == "edit":
        return check_edit(variables or EMPTY_OBJECT, request.remove or [], limits, "variables")[0]
    return check_variables(variables, limits) if variables else None


def details_of(request: BulkRequest) -> BulkDetails:
    """What is stored of it beside step and variables."""
    return BulkDetails(
        from_step_id=request.from_step_id,
        to_step_id=request.to_step_id,
        version=request.version,
        steps=request.steps or {},
        remove=request.remove or [],
        timers=request.timers or None,
    )


def rule_of(timers: str | None) -> TimerRule:
    """What a request says of boundary timers with another duration. Raises BadRequest."""
    wanted = timers or DEFAULT_RULE
    for rule in TIMER_RULES:
        if wanted == rule:
            return rule
    raise BadRequest(f"timers: must be one of {', '.join(TIMER_RULES)}")


class Acts(NamedTuple):
    """Does it."""

    instances: Instances
    tasks: Tasks
    repair: Repair
    migrations: Migrations

    async def do(self, work: BulkWork, instance: int) -> None:
        """To one instance, whose audit trail names the operation. Raises what the operation on one does."""
        details = BulkDetails() if work.details is None else msgspec.json.decode(work.details, type=BulkDetails)
        name = f"bulk-{work.id}"
        note = f"{name}: {work.note}" if work.note else name
        match work.action:
            case "retry" if details.from_step_id is not None:
                await self.repair.move_one_of_many(
                    instance, None, details.from_step_id, note, work.created_at, work.id, retries=True
                )
            case "retry":
                await self.instances.retry_one_of_many(instance, note, work.created_at, work.id)
            case "cancel":
                await self.instances.cancel_one_of_many(instance, work.note, note, work.id)
            case "migrate":
                await self.migrations.migrate_to(
                    instance, details.version or 0, details.steps, note, work.id, rule_of(details.timers)
                )
            case "skip" if work.step is not None:
                await self.repair.skip_one_of_many(instance, work.step, work.output, note, work.created_at, work.id)
            case "move" if work.step is not None and details.to_step_id is not None:
                await self.repair.move_one_of_many(
                    instance, work.step, details.to_step_id, note, work.created_at, work.id, retries=False
                )
            case "edit":
                await self.repair.edit_one_of_many(instance, work.output or EMPTY_OBJECT, details.remove, note, work.id)
            case _:
                assert work.step is not None
                signal = Signal(
                    instance_id=ids.show_instance(instance),
                    step_id=work.step,
                    variables=work.output,
                    signal_id=name,
                )
                await self.tasks.signal_one_of_many(instance, signal, work.id)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
