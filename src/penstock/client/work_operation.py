"""Operations on what is open and who works on it, as `operation` has the others; and their REST calls."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from penstock.client.http_exchange import Exchange, nothing, quoted, reader, rfc3339
from penstock.client.operation import ListWindow, Operation
from penstock.wire.attention import AcknowledgeBody, AttentionList
from penstock.wire.audit import AuditTrailRecord
from penstock.wire.open_work import OpenJobView, QueueRow, WorkerView
from penstock.wire.page import Page
from penstock.wire.why import Why


class WaitState(msgspec.Struct, frozen=True):
    """What is read of where an instance stands."""

    why: Why


_read_standing = reader(WaitState)
_read_jobs = reader(Page[OpenJobView])
_read_audit = reader(Page[AuditTrailRecord])
_read_workers = reader(Page[WorkerView])
_read_types = reader(Page[QueueRow])
_read_attention = reader(AttentionList)


class ListOpenJobs(Operation[Page[OpenJobView]], frozen=True):
    """Open jobs in a state."""

    status: str
    job_type: str | None = None
    window: ListWindow = ListWindow(limit=50)


class ListWorkers(Operation[Page[WorkerView]], frozen=True):
    """Workers that were seen within a day."""


class ListJobTypes(Operation[Page[QueueRow]], frozen=True):
    """Job types with jobs or workers, those first that wait longest."""


class ListAttention(Operation[AttentionList], frozen=True):
    """What needs somebody."""


class Acknowledge(Operation[None], frozen=True):
    """Acknowledge what needs somebody, or let it need attention again."""

    key: str
    count: int = 0
    note: str | None = None
    withdraw: bool = False


class ListAudit(Operation[Page[AuditTrailRecord]], frozen=True):
    """What people and programs did, newest first."""

    kind: str | None = None
    actor: str | None = None
    contains: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    window: ListWindow = ListWindow(limit=50)


class GetStanding(Operation[WaitState], frozen=True):
    """Where an instance stands, and why."""

    id: str


def _list_jobs(operation: ListOpenJobs) -> Exchange:
    window = operation.window
    query = {
        "status": operation.status,
        "jobType": operation.job_type,
        "cursor": window.cursor,
        "limit": window.limit,
    }
    return Exchange("GET", "/v1/jobs", _read_jobs, query=query)


def _acknowledge(operation: Acknowledge) -> Exchange:
    path = f"/v1/attention/{quoted(operation.key)}"
    if operation.withdraw:
        return Exchange("DELETE", path, nothing)
    return Exchange("PUT", path, nothing, body=AcknowledgeBody(operation.count, operation.note))


def _list_audit(operation: ListAudit) -> Exchange:
    query = {
        "kind": operation.kind,
        "actor": operation.actor,
        "contains": operation.contains,
        "since": rfc3339(operation.since),
        "until": rfc3339(operation.until),
        "cursor": operation.window.cursor,
        "limit": operation.window.limit,
    }
    return Exchange("GET", "/v1/audit", _read_audit, query=query)


WORK_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], Exchange]] = {
    Acknowledge: _acknowledge,
    ListAudit: _list_audit,
    ListAttention: lambda _: Exchange("GET", "/v1/attention", _read_attention),
    ListJobTypes: lambda _: Exchange("GET", "/v1/job-types", _read_types),
    GetStanding: lambda each: Exchange("GET", f"/v1/instances/{quoted(each.id)}/state", _read_standing),
    ListOpenJobs: _list_jobs,
    ListWorkers: lambda _: Exchange("GET", "/v1/workers", _read_workers),
}
