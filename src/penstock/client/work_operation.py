"""Operations on what is open and who works on it, as `operation` has the others; and their REST calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.client.http_exchange import Exchange, reader
from penstock.client.operation import ListWindow, Operation
from penstock.wire.open_work import OpenJobView
from penstock.wire.page import Page
from penstock.wire.why import Why


class WaitState(msgspec.Struct, frozen=True):
    """What is read of where an instance stands."""

    why: Why


_read_jobs = reader(Page[OpenJobView])


class ListOpenJobs(Operation[Page[OpenJobView]], frozen=True):
    """Open jobs in a state."""

    status: str
    job_type: str | None = None
    window: ListWindow = ListWindow(limit=50)


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
    ListOpenJobs: _list_jobs,
}
