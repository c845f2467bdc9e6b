"""The gRPC calls about jobs. ``penstock.v1`` has them all but the poll. Pure, as `exchange.py`."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.client.encoding import to_json
from penstock.client.errors import BadRequest, ClientError, error_for
from penstock.client.grpc.unary import ENGINE, WORKER, UnaryExchange
from penstock.client.grpc.values import int32, json_text, only, there
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
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.model import Completion, Failure, Heartbeat, HeartbeatOutcome, Job, JobOutcome, JobRef, Lease, Park


def poll_jobs(operation: PollJobs) -> UnaryExchange:
    """See ``PollJobs``."""
    request = operation.request
    int32(request.max_jobs, "max_jobs")
    int32(request.lease_seconds, "lease_s")
    return UnaryExchange(f"{ENGINE}PollJobs", request, m.PollJobsResponse, _read_polled)


def _read_polled(answer: m.PollJobsResponse) -> list[Job]:
    return answer.jobs


def job_of(message: Job, worker_id: str) -> Job:
    """A job that was pushed, with what the stream need not say."""
    return msgspec.structs.replace(message, step_execution_id=message.id, worker_id=worker_id)


def completion_message(item: Completion) -> Completion:
    """Return a completion whose values fit the wire, with its variables as text."""
    int32(item.attempt, "attempt")
    return item if item.variables is None else msgspec.structs.replace(item, variables=json_text(item.variables))


def failure_message(item: Failure) -> Failure:
    """Return a failure whose values fit the wire."""
    int32(item.attempt, "attempt")
    return item


def park_message(item: Park) -> Park:
    """A job that its worker waits with, whose values fit the wire."""
    int32(item.attempt, "attempt")
    return item


def release_message(item: JobRef) -> JobRef:
    """A job that is given back."""
    int32(item.attempt, "attempt")
    return item


def _read_outcomes(answer: Any) -> list[JobOutcome]:
    found: list[JobOutcome] = answer.results
    return found


def _error_of(outcome: JobOutcome) -> ClientError | None:
    """The error that a single report of this outcome ends with."""
    if outcome.outcome in ("ok", "already-completed"):
        return None
    reason = outcome.reason or outcome.outcome
    return BadRequest(reason) if outcome.outcome == "invalid" else error_for(outcome.outcome, reason)


def complete_job(operation: CompleteJob) -> UnaryExchange:
    """See ``CompleteJob``."""

    def read(answer: w.CompleteJobsResponse) -> None:
        error = _error_of(only(answer.results))
        if error is not None:
            raise error

    request = w.CompleteJobsRequest(operation.worker_id, [completion_message(operation.completion)])
    return UnaryExchange(f"{WORKER}CompleteJobs", request, w.CompleteJobsResponse, read)


def fail_job(operation: FailJob) -> UnaryExchange:
    """See ``FailJob``."""
    fenced = operation.failure.attempt is not None

    def read(answer: w.FailJobsResponse) -> None:
        outcome: JobOutcome = only(answer.results)
        error = _error_of(outcome)
        # Without an attempt a refused failure is no error, as over REST.
        if error is not None and (fenced or outcome.outcome not in ("lease-lost", "cancelled")):
            raise error

    request = w.FailJobsRequest(operation.worker_id, [failure_message(operation.failure)])
    return UnaryExchange(f"{WORKER}FailJobs", request, w.FailJobsResponse, read)


def park_job(operation: ParkJob) -> UnaryExchange:
    """See ``ParkJob``."""

    def read(answer: w.ParkJobsResponse) -> None:
        error = _error_of(only(answer.results))
        if error is not None:
            raise error

    request = w.ParkJobsRequest(operation.worker_id, [park_message(operation.park)])
    return UnaryExchange(f"{WORKER}ParkJobs", request, w.ParkJobsResponse, read)


def heartbeat_job(operation: HeartbeatJob) -> UnaryExchange:
    """See ``HeartbeatJob``."""

    def given(value: object) -> bytes:
        return b"" if value is None or value is msgspec.UNSET else to_json(value)

    def read(answer: w.HeartbeatJobsResponse) -> Lease:
        result: HeartbeatOutcome = only(answer.results)
        error = _error_of(result)
        if error is not None:
            raise error
        return Lease(lock_expires_at=there(result.lock_expires_at))

    job = operation.job
    beat = Heartbeat(
        job.job_id,
        int32(job.attempt, "attempt"),
        int32(operation.lease_s, "lease_s"),
        given(operation.checkpoint),
        given(operation.progress),
    )
    request = w.HeartbeatJobsRequest(operation.worker_id, [beat])
    return UnaryExchange(f"{WORKER}HeartbeatJobs", request, w.HeartbeatJobsResponse, read)


def heartbeat_jobs(operation: HeartbeatJobs) -> UnaryExchange:
    """See ``HeartbeatJobs``."""
    lease_s = int32(operation.lease_s, "lease_s")
    beats = [Heartbeat(job.job_id, int32(job.attempt, "attempt"), lease_s) for job in operation.jobs]
    request = w.HeartbeatJobsRequest(operation.worker_id, beats)
    return UnaryExchange(f"{WORKER}HeartbeatJobs", request, w.HeartbeatJobsResponse, _read_outcomes)


def complete_jobs(operation: CompleteJobs) -> UnaryExchange:
    """See ``CompleteJobs``."""
    request = w.CompleteJobsRequest(operation.worker_id, [completion_message(item) for item in operation.results])
    return UnaryExchange(f"{WORKER}CompleteJobs", request, w.CompleteJobsResponse, _read_outcomes)


def fail_jobs(operation: FailJobs) -> UnaryExchange:
    """See ``FailJobs``."""
    request = w.FailJobsRequest(operation.worker_id, [failure_message(item) for item in operation.results])
    return UnaryExchange(f"{WORKER}FailJobs", request, w.FailJobsResponse, _read_outcomes)


def release_jobs(operation: ReleaseJobs) -> UnaryExchange:
    """See ``ReleaseJobs``."""
    request = w.ReleaseJobsRequest(operation.worker_id, [release_message(item) for item in operation.jobs])
    return UnaryExchange(f"{WORKER}ReleaseJobs", request, w.ReleaseJobsResponse, _read_outcomes)
