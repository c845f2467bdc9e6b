"""Operations on what is open and who works on it, as `operation` has the others; and their REST calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.client.http_exchange import Exchange, quoted, reader
from penstock.client.operation import Operation, Window
from penstock.wire.open_work import OpenJobView, WorkerView
from penstock.wire.page import Page
from penstock.wire.why import Why


class Standing(msgspec.Struct, frozen=True):
    """What is read of where an instance stands."""

    why: Why


_read_standing = reader(Standing)
_read_jobs = reader(Page[OpenJobView])
_read_workers = reader(Page[WorkerView])


class ListOpenJobs(Operation[Page[OpenJobView]], frozen=True):
    """Open jobs in a state."""

    status: str
    job_type: str | None = None
    window: Window = Window(limit=50)


class ListWorkers(Operation[Page[WorkerView]], frozen=True):
    """Workers that were seen within a day."""


class GetStanding(Operation[Standing], frozen=True):
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


WORK_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], Exchange]] = {
    GetStanding: lambda each: Exchange("GET", f"/v1/instances/{quoted(each.id)}/state", _read_standing),
    ListOpenJobs: _list_jobs,
    ListWorkers: lambda _: Exchange("GET", "/v1/workers", _read_workers),
}
