"""Instances and their history as clients see them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.core.parsing.turns import shown_priority
from penstock.core.rules.state import DONE_KINDS, INTERRUPTED_REASON, HistoryKind, InstanceStatus, TokenState
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.definitions.versions import Versions
from penstock.engine.instances.causes import cause_of
from penstock.engine.queues.attempts import attempts_of
from penstock.engine.queues.variables import without
from penstock.engine.requests import ids
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import instances as store
from penstock.wire.error_code import failure_text
from penstock.wire.model import Instance, ItemCounts, StepExecution
from penstock.wire.noun import Answer, raw

LEFT_OUT: Any = msgspec.UNSET
"""Variables of an instance whose answer has none."""
STATUS_OF_KIND = {
    HistoryKind.COMPLETED: "COMPLETED",
    HistoryKind.FAILED: "FAILED",
    HistoryKind.SKIPPED: "SKIPPED",
    HistoryKind.INTERRUPTED: "FAILED",
    HistoryKind.CAUGHT: "FAILED",
    HistoryKind.COMPENSATED: "COMPLETED",
}


async def view_instances(
    connection: TrioConnection,
    definitions: Definitions,
    wanted: Sequence[int],
    variables_max_bytes: int,
    *,
    listed: bool = False,
    secrets: bool = True,
) -> tuple[list[Instance], int]:
    """The instances that exist, in the order asked for, up to the first whose variables are more than
    ``variables_max_bytes`` together with those before it; and the bytes of that one's, 0 when there is none such.

    Not ``secrets``: without the variables that their definitions call secret. ``listed``: without results, too.
    """
    views: list[Instance] = []
    for row in await store.view(connection, wanted, variables_max_bytes):
        if row.variables is None:
            return views, row.variables_bytes or 0
        loaded = await definitions.by_key(connection, row.definition)
        variables, result = row.variables, None if listed else row.result
        if loaded.secret_variables and (listed or not secrets):
            variables = without(variables, loaded.secret_variables)
            result = result if result is None else without(result, loaded.secret_variables)
        shown = None if result is None else raw(result)
        views.append(Instance(**_shown(row, loaded), variables=raw(variables), result=shown))
    return views, 0


async def summarize_instances(
    connection: TrioConnection, definitions: Definitions, wanted: Sequence[int]
) -> list[Instance]:
    """Return the instances that exist, in the order asked for, without their variables."""
    rows = await store.view(connection, wanted, None)
    return [
        Instance(**_shown(row, await definitions.by_key(connection, row.definition)), variables=LEFT_OUT)
        for row in rows
    ]


class Whereabouts(Answer, frozen=True, kw_only=True):
    """A step that an instance stands on, in the state of its token, since when; or the one at which it FAILED."""

    step_id: str
    state: str
    since: datetime | None = None


class InstanceSummary(Instance, frozen=True, kw_only=True):
    """An instance without its variables, and where it stands: at most 20 places. ``cause``: what its failure has in
    common with others. ``changed_at``: when it ended, or last came to a step, or had a job taken."""

    where: list[Whereabouts]
    cause: str | None = None
    changed_at: datetime | None = None


async def list_summaries(
    connection: TrioConnection, definitions: Definitions, wanted: Sequence[int]
) -> list[InstanceSummary]:
    """As `summarize_instances`, with where each stands."""
    async with store.one_snapshot(connection):
        rows = await store.view(connection, wanted, None)
        places = await store.places(connection, wanted)
        changed = await store.changed_at(connection, wanted)
        loaded = {row.id: await definitions.by_key(connection, row.definition) for row in rows}
    return [
        InstanceSummary(
            **_shown(row, loaded[row.id]),
            variables=LEFT_OUT,
            where=[_place(place, row, loaded[row.id]) for place in places.get(row.id, ())],
            cause=_cause(row),
            changed_at=changed.get(row.id),
        )
        for row in rows
    ]


def _cause(row: store.InstanceRow) -> str | None:
    failed = row.status == InstanceStatus.FAILED
    return cause_of(failure_text(row.failure, row.failure_code)) if failed else None


def _place(place: store.StepPlace, row: store.InstanceRow, loaded: LoadedDefinition) -> Whereabouts:
    if place.failed_step is not None:
        return Whereabouts(step_id=place.failed_step, state="FAILED", since=row.ended_at)
    assert place.step is not None
    assert place.state is not None
    return Whereabouts(step_id=loaded.step_id_of(place.step), state=TokenState(place.state).name, since=place.since)


def _shown(row: store.InstanceRow, loaded: LoadedDefinition) -> dict[str, Any]:
    """Return the fields of a summary. Each open step once, in order of entry."""
    steps = loaded.definition.steps
    active = row.status == InstanceStatus.ACTIVE
    progress: dict[str, msgspec.Raw] = {}
    if row.progress is not None:
        noted = msgspec.json.decode(row.progress, type=list[tuple[int, msgspec.Raw]])
        progress = {steps[step].id: value for step, value in noted}
    return {
        "id": ids.show_instance(row.id),
        "definition_id": loaded.definition.id,
        "definition_version": loaded.version,
        "status": status_of(row),
        "current_step_ids": list(dict.fromkeys(steps[step].id for step in row.open_steps or ())) if active else [],
        "started_at": row.started_at,
        "completed_at": row.ended_at,
        "failure_reason": row.failure,
        "failure_code": row.failure_code,
        "business_key": row.business_key,
        "instance_key": row.instance_key,
        "parent_instance_id": None if row.parent_id is None else ids.show_instance(row.parent_id),
        "schedule_id": row.schedule,
        "scheduled_at": row.scheduled_at,
        "start_at": row.start_at,
        "priority": shown_priority(row.priority),
        "flow_key": row.flow_key,
        "progress": progress,
        "blocked": True if row.blocked_since is not None else None,
        "blocked_since": row.blocked_since,
        "blocked_reason": row.blocked_reason,
    }


def status_of(row: store.InstanceRow) -> str:
    """As the wire calls it: WAITING is an active one with something open that waits, or a blocked run."""
    waits = row.status == InstanceStatus.ACTIVE and (row.waiting or row.blocked_since is not None)
    return "WAITING" if waits else InstanceStatus(row.status).name


def history_items(id: int, versions: Versions, rows: Sequence[store.HistoryEntry]) -> list[StepExecution]:
    """Return one item per step execution in order of entry; ended attempts are folded into their execution."""
    executions: dict[tuple[int, int], list[store.HistoryEntry]] = {}
    for row in rows:
        executions.setdefault((row.token, row.seq), []).append(row)
    entered: dict[str, int] = {}
    items: list[StepExecution] = []
    for (token, seq), parts in executions.items():
        closing = next((part for part in parts if part.kind is not None and part.kind < 10), None)
        current = closing or parts[-1]
        step = versions.step(current.step, current.position)
        if current.item is None or step.id not in entered:  # the items of one entry are no entries
            entered[step.id] = entered.get(step.id, 0) + 1
        kind = None if closing is None or closing.kind is None else HistoryKind(closing.kind)
        reason = None
        if closing is not None and kind not in DONE_KINDS:
            reason = INTERRUPTED_REASON if kind is HistoryKind.INTERRUPTED else closing.reason
        attempts = attempts_of(parts)
        items.append(
            StepExecution(
                id=ids.show_job(id, token, seq),
                instance_id=ids.show_instance(id),
                step_id=step.id,
                step_type=step.type.value,
                attempt_number=entered[step.id],
                status="RUNNING" if kind is None else STATUS_OF_KIND[kind],
                started_at=current.started_at,
                ended_at=None if closing is None else closing.ended_at,
                failure_reason=reason,
                error_code=None if closing is None else closing.code,
                attempts=attempts,
                child_instance_id=None if current.child is None else ids.show_instance(current.child),
                item=current.item,
                items=None if current.items is None else msgspec.json.decode(current.items, type=ItemCounts),
            )
        )
    return items
