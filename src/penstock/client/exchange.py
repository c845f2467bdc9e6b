"""The wire contract's REST calls: for each operation its method, path, body, and how to read the answer.

Pure: builds and reads, sends nothing. One function per operation and one table at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.call import RowCall, exchange_of
from penstock.client.http_exchange import Exchange, given, list_reader, nothing, quoted, reader, start_body
from penstock.client.model import StartResult
from penstock.client.operation import (
    CheckReady,
    CompleteJob,
    CompleteJobs,
    FailJob,
    FailJobs,
    HeartbeatJob,
    HeartbeatJobs,
    Operation,
    ParkJob,
    PollJobs,
    ReleaseJobs,
    StartInstance,
    StartInstances,
    WaitLostJobs,
)
from penstock.wire.model import (
    Completion,
    Failure,
    Instance,
    Job,
    JobOutcome,
    Lease,
    LostJob,
)


def exchange_for(operation: Operation[Any]) -> Exchange:
    """The HTTP exchange of an operation."""
    return _EXCHANGES[type(operation)](operation)


_read_jobs = list_reader("jobs", Job)
_read_lost = list_reader("lost", LostJob)
_read_outcomes = list_reader("results", JobOutcome)
_read_started = list_reader("results", StartResult)
_read_instance = reader(Instance)
_read_lease = reader(Lease)


def _completion_body(item: Completion) -> dict[str, object]:
    return given(attempt=item.attempt, variables=item.variables)


def _failure_body(item: Failure) -> dict[str, object]:
    return given(
        attempt=item.attempt,
        retryable=item.retryable,
        errorMessage=item.error_message,
        retryAfterSeconds=item.retry_after_s,
        errorCode=item.error_code,
        variables=item.variables,
        stackTrace=item.stack_trace,
    )


def _check_ready(_operation: CheckReady) -> Exchange:
    return Exchange("GET", "/readyz", nothing)


def _start_instance(operation: StartInstance) -> Exchange:
    request = operation.request
    return Exchange(
        "POST", "/v1/instances", _read_instance, start_body(request), idempotency_key=request.idempotency_key
    )


def _start_instances(operation: StartInstances) -> Exchange:
    items = [start_body(item) | given(idempotencyKey=item.idempotency_key) for item in operation.items]
    return Exchange("POST", "/v1/instances/batch", _read_started, {"items": items})


def _poll_jobs(operation: PollJobs) -> Exchange:
    request = operation.request
    body: dict[str, object] = {
        "workerId": request.worker_id,
        "jobTypes": request.job_types,
        "maxJobs": request.max_jobs,
        "leaseSeconds": request.lease_seconds,
        "waitSeconds": request.wait_seconds or 0,
    }
    return Exchange("POST", "/v1/jobs/poll", _read_jobs, body)


def _wait_lost_jobs(operation: WaitLostJobs) -> Exchange:
    body = {"workerId": operation.worker_id, "waitSeconds": operation.wait_s}
    return Exchange("POST", "/v1/jobs/lost", _read_lost, body)


def _complete_job(operation: CompleteJob) -> Exchange:
    path = f"/v1/jobs/{quoted(operation.completion.job_id)}/complete"
    body = {"workerId": operation.worker_id} | _completion_body(operation.completion)
    return Exchange("POST", path, nothing, body)


def _fail_job(operation: FailJob) -> Exchange:
    path = f"/v1/jobs/{quoted(operation.failure.job_id)}/fail"
    body = {"workerId": operation.worker_id} | _failure_body(operation.failure)
    return Exchange("POST", path, nothing, body)


def _park_job(operation: ParkJob) -> Exchange:
    park = operation.park
    path = f"/v1/jobs/{quoted(park.job_id)}/park"
    body = given(workerId=operation.worker_id, attempt=park.attempt, until=park.until, signal=park.signal)
    return Exchange("POST", path, nothing, body)


def _heartbeat_job(operation: HeartbeatJob) -> Exchange:
    path = f"/v1/jobs/{quoted(operation.job.job_id)}/heartbeat"
    body = given(
        workerId=operation.worker_id,
        attempt=operation.job.attempt,
        leaseSeconds=operation.lease_s,
        checkpoint=operation.checkpoint,
        progress=operation.progress,
    )
    return Exchange("POST", path, _read_lease, body)


def _heartbeat_jobs(operation: HeartbeatJobs) -> Exchange:
    jobs = [given(jobId=job.job_id, attempt=job.attempt, leaseSeconds=operation.lease_s) for job in operation.jobs]
    return Exchange("POST", "/v1/jobs/heartbeat", _read_outcomes, {"workerId": operation.worker_id, "jobs": jobs})


def _complete_jobs(operation: CompleteJobs) -> Exchange:
    results = [{"jobId": item.job_id} | _completion_body(item) for item in operation.results]
    body = {"workerId": operation.worker_id, "results": results}
    return Exchange("POST", "/v1/jobs/complete", _read_outcomes, body)


def _fail_jobs(operation: FailJobs) -> Exchange:
    results = [{"jobId": item.job_id} | _failure_body(item) for item in operation.results]
    body = {"workerId": operation.worker_id, "results": results}
    return Exchange("POST", "/v1/jobs/fail", _read_outcomes, body)


def _release_jobs(operation: ReleaseJobs) -> Exchange:
    jobs = [given(jobId=job.job_id, attempt=job.attempt) for job in operation.jobs]
    return Exchange("POST", "/v1/jobs/release", _read_outcomes, {"workerId": operation.worker_id, "jobs": jobs})


_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], Exchange]] = {
    CheckReady: _check_ready,
    StartInstance: _start_instance,
    StartInstances: _start_instances,
    PollJobs: _poll_jobs,
    WaitLostJobs: _wait_lost_jobs,
    CompleteJob: _complete_job,
    FailJob: _fail_job,
    ParkJob: _park_job,
    HeartbeatJob: _heartbeat_job,
    HeartbeatJobs: _heartbeat_jobs,
    CompleteJobs: _complete_jobs,
    FailJobs: _fail_jobs,
    ReleaseJobs: _release_jobs,
    RowCall: exchange_of,
}
