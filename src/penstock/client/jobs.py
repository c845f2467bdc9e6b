"""The client's calls about jobs. ``penstock.worker`` makes them for you; here they are for other designs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime

import msgspec

from penstock.api import audit as api
from penstock.api import workers
from penstock.client.call import RowCall, pages_of
from penstock.client.caller import Caller, every_item
from penstock.client.encoding import optional_object
from penstock.client.operation import (
    CompleteJob,
    CompleteJobs,
    FailJob,
    FailJobs,
    HeartbeatJob,
    HeartbeatJobs,
    ParkJob,
    PollJobs,
    ReleaseJobs,
)
from penstock.wire import repair_v1 as w
from penstock.wire.attention import Attention
from penstock.wire.audit import AuditTrailRecord
from penstock.wire.model import Completion, FailedJob, Failure, Job, JobOutcome, JobRef, Lease, Park, PollRequest
from penstock.wire.open_work import OpenJobView, QueueRow, WorkerView
from penstock.wire.page import Page

LIST_PART_ITEMS = 200


class JobCalls(Caller):
    """Lease jobs and report what became of them, one at a time or many in one call."""

    async def poll_jobs(
        self, worker_id: str, job_types: Sequence[str], *, max_jobs: int = 10, lease_s: int = 30, wait_s: int = 0
    ) -> list[Job]:
        """Lease up to ``max_jobs`` jobs (≤ 1000) for ``lease_s`` (5 to 3600) seconds.

        ``wait_s`` (0 to 60) holds the call until there is a job.

        Raises:
            DispatchModeConflict: the engine dispatches through Kafka.
        """
        return await self.call(PollJobs(request=PollRequest(worker_id, [*job_types], max_jobs, lease_s, wait_s)))

    async def list_failed_jobs(
        self,
        *,
        job_type: str | None = None,
        page: int = 0,
        page_size: int = 20,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Page[FailedJob]:
        """List one page of the jobs that failed their instance, newest first; of one type or of all.

        ``page``, ``limit`` and ``cursor`` as with ``list_instances``.
        """
        wanted = workers.ListJobs(workers.FAILED, job_type, *pages_of(page, page_size, cursor, limit), cursor, limit)
        return await self.call(RowCall(workers.LIST_JOBS, wanted, Page[FailedJob]))

    async def list_open_jobs(
        self, status: str, *, job_type: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[OpenJobView]:
        """List open jobs in a state: ``WAITING`` (of one type, in the order in which they are taken), ``LOCKED`` or
        ``DISPATCHED`` (longest first, at most 200), ``BACKOFF`` (those first whose time comes first).

        Raises:
            BadRequest: another state; WAITING without a job type.
        """
        wanted = workers.ListJobs(status, job_type, cursor=cursor, limit=limit)
        return await self.call(RowCall(workers.LIST_JOBS, wanted, Page[OpenJobView]))

    async def list_job_types(self) -> list[QueueRow]:
        """List job types with jobs that wait or are in progress, or with workers, those first that wait longest.

        One with ``waiting`` jobs and no ``workers`` has nobody who does them.
        """
        return await self.call(RowCall(workers.LIST_JOB_TYPES, workers.ListJobTypes()))

    async def list_audit(
        self,
        *,
        kind: str | None = None,
        actor: str | None = None,
        contains: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[AuditTrailRecord]:
        """List what people and programs did, newest first: who paused, changed, uploaded, made a token or signed in.

        A page may have fewer than ``limit`` and still a ``next``.
        """
        wanted = w.ListAuditRequest(kind, actor, contains, since, until, cursor, limit)
        return await self.call(RowCall(api.LIST_AUDIT, wanted))

    async def list_attention(self) -> list[Attention]:
        """List what needs attention, as the console does: what concerns most work first, what is acknowledged last."""
        return (await self.call(RowCall(api.LIST_ATTENTION, w.ListAttentionRequest()))).items

    async def acknowledge(self, key: str, *, count: int = 0, note: str | None = None) -> None:
        """Acknowledge a row of `list_attention` by its ``key``, for `attention_acknowledged_hours`.

        With more failures than ``count`` the row needs attention again.

        Raises:
            Conflict: an engine of an older version is at work.
        """
        await self.call(RowCall(api.ACKNOWLEDGE_ATTENTION, w.AcknowledgeAttentionRequest(key, count or None, note)))

    async def withdraw_acknowledgement(self, key: str) -> None:
        """Let a row need attention again.

        Raises:
            NotFound: it is not acknowledged.
        """
        await self.call(RowCall(api.WITHDRAW_ACKNOWLEDGEMENT, w.WithdrawAcknowledgementRequest(key)))

    async def list_workers(self) -> list[WorkerView]:
        """List the workers that engines have seen within a day, with what they do."""
        return list((await self.call(RowCall(workers.LIST_WORKERS, workers.ListWorkers()))).items)

    def iterate_failed_jobs(self, *, job_type: str | None = None) -> AsyncIterator[FailedJob]:
        """Read all jobs that failed their instance, newest first, as you go; you may retry their instances
        meanwhile."""
        return every_item(lambda cursor: self.list_failed_jobs(job_type=job_type, cursor=cursor, limit=LIST_PART_ITEMS))

    async def complete_job(
        self, job_id: str, worker_id: str, variables: object = None, *, attempt: int | None = None
    ) -> None:
        """Complete a job and merge its variables. Idempotent.

        Raises:
            NotFound: no such job.
            LeaseLost: the worker does not hold it (any more).
            JobCancelled: its instance has ended; only with ``attempt``.
        """
        completion = Completion(job_id=job_id, attempt=attempt, variables=optional_object(variables))
        await self.call(CompleteJob(worker_id=worker_id, completion=completion))

    async def fail_job(
        self,
        job_id: str,
        worker_id: str,
        error_message: str,
        *,
        retryable: bool = True,
        attempt: int | None = None,
        retry_after_s: float | None = None,
        error_code: str | None = None,
        variables: object = None,
        stack_trace: str | None = None,
    ) -> None:
        """Report a failure: retried while the step has retries left, else the instance fails.

        With an ``error_code`` (1 to 100 of letters, digits, ``_``, ``.`` and ``-``) that an error boundary of the step
        names, the instance goes on there at once; ``variables`` are what it knows of the error then.
        ``stack_trace`` is shown to those who may operate.

        Raises:
            BadRequest: that is no code.
            NotFound: no such job.
            LeaseLost, JobCancelled: as ``complete_job``, only with ``attempt``.
        """
        failure = Failure(
            job_id=job_id,
            retryable=retryable,
            error_message=error_message,
            attempt=attempt,
            retry_after_s=retry_after_s,
            error_code=error_code,
            variables=optional_object(variables),
            stack_trace=stack_trace,
        )
        await self.call(FailJob(worker_id=worker_id, failure=failure))

    async def forget_checkpoint(self, job_id: str, *, note: str | None = None) -> None:
        """Take away the checkpoint of an open job: its next attempt begins anew. The note is for the audit trail.

        Raises:
            NotFound: the job is not open.
        """
        await self.call(RowCall(workers.FORGET_CHECKPOINT, workers.ForgetCheckpoint(job_id, note)))

    async def park_job(
        self, job_id: str, worker_id: str, *, attempt: int, until: datetime | None = None, signal: str | None = None
    ) -> None:
        """Wait with a job: until a time, for a signal of that name (or to the step), or for whichever comes first.

        The job comes back then as the next attempt, with its checkpoint; no retry is spent.

        Raises:
            BadRequest: neither is given, or a time without an offset.
            NotFound: no such job.
            LeaseLost, JobCancelled: as ``complete_job``.
            Conflict: an engine is there that does not know parked jobs.
        """
        park = Park(job_id=job_id, attempt=attempt, until=until, signal=signal)
        await self.call(ParkJob(worker_id=worker_id, park=park))

    async def heartbeat_job(
        self,
        job_id: str,
        worker_id: str,
        *,
        attempt: int | None = None,
        lease_s: int | None = None,
        checkpoint: object = msgspec.UNSET,
        progress: object = msgspec.UNSET,
    ) -> Lease:
        """Extend a lease; store a checkpoint (≤ 256 kB) for the next attempt, show progress.

        Raises:
            LeaseLost: the worker does not hold the job (any more).
            JobCancelled: its instance has ended.
        """
        return await self.call(
            HeartbeatJob(
                worker_id=worker_id,
                job=JobRef(job_id=job_id, attempt=attempt),
                lease_s=lease_s,
                checkpoint=checkpoint,
                progress=progress,
            )
        )

    async def heartbeat_jobs(
        self, worker_id: str, jobs: Sequence[JobRef], *, lease_s: int | None = None
    ) -> list[JobOutcome]:
        """Extend many leases in one call; one outcome per item."""
        return await self.call(HeartbeatJobs(worker_id=worker_id, jobs=jobs, lease_s=lease_s))

    async def complete_jobs(self, worker_id: str, results: Sequence[Completion]) -> list[JobOutcome]:
        """Complete many jobs in one call; one outcome per item, one bad item never fails its neighbours."""
        return await self.call(CompleteJobs(worker_id=worker_id, results=results))

    async def fail_jobs(self, worker_id: str, results: Sequence[Failure]) -> list[JobOutcome]:
        """Report many failures in one call; one outcome per item."""
        return await self.call(FailJobs(worker_id=worker_id, results=results))

    async def release_jobs(self, worker_id: str, jobs: Sequence[JobRef]) -> list[JobOutcome]:
        """Give leased jobs back at once, without using up a retry; one outcome per item."""
        return await self.call(ReleaseJobs(worker_id=worker_id, jobs=jobs))
