"""The operations on workers, and on what they left with a job, that only REST has so far."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from penstock.api.operation import CURSOR_MAX_CHARS, PAGE, SLICE, Body, DeclaredOperation, Rest
from penstock.api.permission import Permission
from penstock.wire.open_work import QueueRow, WorkerView
from penstock.wire.page import Page

FAILED: Final = "FAILED"


class ListWorkers(Struct, frozen=True):
    """Which workers."""

    limit: int | None = None
    cursor: str | None = None
    job_type: str | None = None


class ListJobs(Struct, frozen=True):
    """In which state, `FAILED` without, of which type, and which part of the list."""

    status: str | None = None
    job_type: str | None = None
    page: int | None = None
    page_size: int | None = None
    cursor: str | None = None
    limit: int | None = None


class ForgetCheckpoint(Struct, frozen=True):
    """Whose checkpoint, and why."""

    id: str
    note: str | None = None


class ListJobTypes(Struct, frozen=True):
    """All of them."""


class UnlockJob(Struct, frozen=True):
    """Whose lease is ended, and why."""

    id: str
    note: str | None = None


LIST_WORKERS: Final = DeclaredOperation(
    name="listWorkers",
    summary="List the workers of the last day (addition)",
    description="By name, of a `jobType` or all. The jobs that each had, did and failed are as of its last poll.",
    tag="service",
    request=ListWorkers,
    answer=Page[WorkerView],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/workers", {**SLICE, "jobType": "Those that polled for it."}),
)
LIST_JOBS: Final = DeclaredOperation(
    name="listJobs",
    summary="List jobs by state (addition)",
    description=(
        "FAILED: jobs that failed their instance, newest first. WAITING (needs `jobType`): by priority and flow "
        "key, in the order in which they are claimed. LOCKED and DISPATCHED: those first that workers, or Kafka, "
        "have longest, at most 200, as of the last ten seconds. BACKOFF: those first whose time comes first. All "
        "but FAILED take `cursor` and `limit` only, and answer `OpenJobViewPage`."
    ),
    tag="jobs",
    request=ListJobs,
    answer=Page[Any],
    needs=Permission.VIEW,
    rest=Rest(
        "GET",
        "/v1/jobs",
        {"status": "Which; by default FAILED.", "jobType": "The whole name of a type.", **PAGE},
        choices={"status": (FAILED, "WAITING", "LOCKED", "DISPATCHED", "BACKOFF")},
        max_chars={"cursor": CURSOR_MAX_CHARS},
        answer={
            "anyOf": [{"$ref": "#/components/schemas/FailedJobPage"}, {"$ref": "#/components/schemas/OpenJobViewPage"}]
        },
    ),
    errors=(400,),
)
FORGET_CHECKPOINT: Final = DeclaredOperation(
    name="forgetCheckpoint",
    summary="Delete the checkpoint of an open job (addition)",
    description="Its next attempt begins without. A worker that has the job may leave another one. 404: the job is not "
    "open.",
    tag="jobs",
    request=ForgetCheckpoint,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest("DELETE", "/v1/jobs/{id}/checkpoint", {"note": "For the audit trail."}, status=204),
    errors=(400, 404),
)
LIST_JOB_TYPES: Final = DeclaredOperation(
    name="listJobTypes",
    summary="List job types with their waiting jobs and workers (addition)",
    description=(
        "Those first that wait longest. `locked` counts jobs under lease, as engines know of theirs. "
        "`donePerSecond` is of the last minute."
    ),
    tag="jobs",
    request=ListJobTypes,
    answer=list[QueueRow],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/job-types"),
    errors=(503,),
)
UNLOCK_JOB: Final = DeclaredOperation(
    name="unlockJob",
    summary="End a job's lease now (addition)",
    description=(
        "An operator ends the lease. The job goes back to the queue, no retry is used up, and its worker gets to "
        "know that it lost the job. 409: no worker has it."
    ),
    tag="jobs",
    request=UnlockJob,
    answer=type(None),
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        "/v1/jobs/{id}/unlock",
        body=Body(name="UnlockBody", text="Why a lease is ended, for the audit trail.", required=False),
        status=204,
    ),
    errors=(400, 404, 409),
)
