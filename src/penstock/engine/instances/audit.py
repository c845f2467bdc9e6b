"""The audit trail of one instance: joined from its row, its history and the audit table. Writes nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from penstock.core.graph.definition import StepType
from penstock.core.rules.state import HistoryKind
from penstock.engine.definitions.versions import Versions
from penstock.engine.queues.attempts import FROM_ELSEWHERE
from penstock.engine.requests import ids
from penstock.errors import BadRequest
from penstock.store.rows.audit import AuditEntry
from penstock.store.rows.instances import HistoryEntry
from penstock.wire.model import AuditRecord, Instance
from penstock.wire.page import Page

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_CURSOR = re.compile(r"[0-9]{1,18}-[0-9]-[0-9]{1,6}", re.ASCII)
_KINDS = {
    HistoryKind.COMPLETED: "STEP_COMPLETED",
    HistoryKind.FAILED: "STEP_FAILED",
    HistoryKind.SKIPPED: "STEP_SKIPPED",
    HistoryKind.INTERRUPTED: "STEP_INTERRUPTED",
    HistoryKind.CAUGHT: "STEP_CAUGHT",
    HistoryKind.COMPENSATED: "STEP_COMPENSATED",
    HistoryKind.ATTEMPT_FAILED: "JOB_RETRIED",
    HistoryKind.ATTEMPT_EXPIRED: "LEASE_EXPIRED",
    HistoryKind.ATTEMPT_RELEASED: "JOB_RELEASED",
    HistoryKind.ATTEMPT_REDISPATCHED: "JOB_REDISPATCHED",
    HistoryKind.ATTEMPT_PARKED: "JOB_PARKED",
    HistoryKind.JOB_SIGNALLED: "JOB_SIGNALLED",
    HistoryKind.OUTPUT_MAPPED: "OUTPUT_MAPPED",
}


# At one moment the cause stands before what it did: the start, what people and timers did (all that is not named here),
# what became of steps and jobs, the end.
_CAUSE, _EFFECT = 1, 2
_RANKS = (
    {"STARTED": 0, "CHAINED": 0}
    | dict.fromkeys([*_KINDS.values(), "JOB_DISPATCHED", "DISPATCHED_VIA_BROKER"], _EFFECT)
    | {f"INSTANCE_{status}": 3 for status in ("COMPLETED", "FAILED", "CANCELLED")}
)


def audit_records(
    id: int,
    view: Instance,
    versions: Versions,
    history: Sequence[HistoryEntry],
    rows: Sequence[AuditEntry],
    started_by: str | None = None,
) -> list[AuditRecord]:
    """Return all records, oldest first. A dispatch is recorded by the attempt it began."""
    kind = "STARTED" if view.parent_instance_id is None else "CHAINED"
    assert view.started_at is not None
    records = [AuditRecord(at=view.started_at, kind=kind, actor=view.parent_instance_id or started_by)]
    dispatched: set[tuple[int, int, int]] = set()  # after an attempt its job has it still, until the next one begins
    for entry in history:
        attempt = (entry.token, entry.seq, entry.attempt)
        execution = ids.show_job(id, entry.token, entry.seq)
        step = versions.step(entry.step, entry.position)
        if entry.claimed_at is not None and attempt not in dispatched and step.type is StepType.SERVICE_TASK:
            dispatched.add(attempt)
            records.append(
                AuditRecord(
                    at=entry.claimed_at,
                    kind="JOB_DISPATCHED",
                    step_id=step.id,
                    step_execution_id=execution,
                    actor=entry.worker,
                    detail=f"attempt {entry.attempt}",
                )
            )
        if entry.kind is not None and entry.ended_at is not None:
            records.append(
                AuditRecord(
                    at=entry.ended_at,
                    kind=_KINDS[HistoryKind(entry.kind)],
                    step_id=step.id,
                    step_execution_id=execution,
                    actor=None if entry.kind in FROM_ELSEWHERE else entry.worker,
                    detail=entry.reason,
                )
            )
    records.extend(
        AuditRecord(
            at=row.at,
            kind=row.kind,
            step_id=None if row.step is None else versions.step(row.step, row.position).id,
            actor=row.actor,
            detail=row.detail,
        )
        for row in rows
    )
    if view.completed_at is not None:
        records.append(AuditRecord(at=view.completed_at, kind=f"INSTANCE_{view.status}", detail=view.failure_reason))
    return sorted(records, key=_order)


def _order(record: AuditRecord) -> tuple[datetime, int]:
    return record.at, _RANKS.get(record.kind, _CAUSE)


def slice_of(records: Sequence[AuditRecord], first: int, limit: int) -> Page[AuditRecord]:
    """``limit`` records from place ``first`` on. The cursor names the last one by its place among those at its moment:
    what is recorded later comes after it, and an end that `retry` takes back moves nothing."""
    items = list(records[first : first + limit])
    if first + limit >= len(records):
        return Page(items=items)
    at, rank = _order(items[-1])
    seen = sum(_order(record) == (at, rank) for record in records[: first + limit])
    return Page(items=items, next=f"{(at - _EPOCH) // _MICROSECOND}-{rank}-{seen}")


def place_after(records: Sequence[AuditRecord], cursor: str) -> int:
    """Where the records after ``cursor`` begin. Raises BadRequest."""
    if _CURSOR.fullmatch(cursor) is None:
        raise BadRequest("cursor: is not a `next` of this list")
    micros, rank, seen = map(int, cursor.split("-"))
    for place, record in enumerate(records):
        order = (record.at - _EPOCH) // _MICROSECOND, _order(record)[1]
        if order == (micros, rank) and seen:
            seen -= 1
        elif order >= (micros, rank):
            return place
    return len(records)
