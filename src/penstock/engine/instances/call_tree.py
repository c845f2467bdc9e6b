"""The tree of calls below an instance, in the shape of a run's: a branch is an instance that was called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.core.rules.state import InstanceStatus
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.requests import ids
from penstock.store.rows.calls import CalledRow
from penstock.wire.model import Branch

TREE_MAX: Final = 1_000
"""Instances in one tree; those that were called last are left out."""
_STATUS: Final = {
    InstanceStatus.ACTIVE: "open",
    InstanceStatus.COMPLETED: "done",
    InstanceStatus.FAILED: "failed",
    InstanceStatus.CANCELLED: "stopped",
}


def branches_of(instance: int, rows: Sequence[CalledRow], loaded: Mapping[int, LoadedDefinition]) -> list[Branch]:
    """What was called by an instance; ``rows`` in order of id, so that callers may come after what they called."""
    below: dict[int, list[CalledRow]] = {}
    for row in rows:
        below.setdefault(row.caller, []).append(row)
    return [_branch(row, "", below, loaded) for row in below.get(instance, ())]


def _branch(
    row: CalledRow, path: str, below: Mapping[int, Sequence[CalledRow]], loaded: Mapping[int, LoadedDefinition]
) -> Branch:
    """As deep as calls are, which is bounded."""
    step = None if row.step is None else loaded[row.caller_definition].definition.steps[row.step]
    own = path + (row.path or f"/{row.step if step is None else step.id}")
    status = InstanceStatus(row.status)
    return Branch(
        path=own,
        status="waiting" if status is InstanceStatus.ACTIVE and row.waiting else _STATUS[status],
        name=loaded[row.definition].definition.id,
        kind="child",
        instance_id=ids.show_instance(row.id),
        started_at=row.started_at,
        ended_at=row.ended_at,
        children=[_branch(child, own, below, loaded) for child in below.get(row.id, ())],
    )
