"""The messages of ``penstock.v1`` (proto/penstock/v1/worker.proto) as the service sees them.

Plain structs with the names of the proto file, which says what each field means. ``variables``, ``checkpoint`` and
``progress`` are JSON text as the other side wrote it: not checked here. tests/rpc/test_messages.py compares every
field with the proto file.
"""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import Annotated

from msgspec import Struct, field

from penstock.rpc.codec import UINT32, Proto


class Outcome(IntEnum):
    """``penstock.v1.Outcome``; the names, in lower case and with hyphens, are those of REST's batch calls."""

    UNSPECIFIED = 0
    OK = 1
    ALREADY_COMPLETED = 2
    LEASE_LOST = 3
    CANCELLED = 4
    NOT_FOUND = 5
    INVALID = 6
    UNAVAILABLE = 7


class StartItem(Struct):
    definition_id: Annotated[str, Proto(1)] = ""
    definition_version: Annotated[int, Proto(2)] = 0
    variables: Annotated[bytes, Proto(3)] = b""
    business_key: Annotated[str, Proto(4)] = ""
    idempotency_key: Annotated[str, Proto(5)] = ""
    instance_key: Annotated[str, Proto(6)] = ""
    keep_instance_key: Annotated[bool, Proto(7)] = False


class StartInstancesRequest(Struct):
    items: Annotated[list[StartItem], Proto(1)] = field(default_factory=list[StartItem])


class Instance(Struct):
    id: Annotated[str, Proto(1)] = ""
    definition_id: Annotated[str, Proto(2)] = ""
    definition_version: Annotated[int, Proto(3)] = 0
    status: Annotated[int, Proto(4)] = 0
    current_step_ids: Annotated[list[str], Proto(5)] = field(default_factory=list[str])
    variables: Annotated[bytes, Proto(6)] = b""
    started_at: Annotated[datetime | None, Proto(7)] = None
    completed_at: Annotated[datetime | None, Proto(8)] = None
    failure_reason: Annotated[str, Proto(9)] = ""
    business_key: Annotated[str, Proto(10)] = ""
    parent_instance_id: Annotated[str, Proto(11)] = ""
    instance_key: Annotated[str, Proto(12)] = ""


class StartResult(Struct):
    instance: Annotated[Instance | None, Proto(1)] = None
    error: Annotated[str, Proto(2)] = ""
    reason: Annotated[str, Proto(3)] = ""


class StartInstancesResponse(Struct):
    results: Annotated[list[StartResult], Proto(1)] = field(default_factory=list[StartResult])


class Job(Struct):
    id: Annotated[str, Proto(1)] = ""
    job_type: Annotated[str, Proto(2)] = ""
    instance_id: Annotated[str, Proto(3)] = ""
    step_id: Annotated[str, Proto(4)] = ""
    attempt: Annotated[int, Proto(5)] = 0
    retries_remaining: Annotated[int, Proto(6)] = 0
    variables: Annotated[bytes, Proto(7)] = b""
    checkpoint: Annotated[bytes, Proto(8)] = b""
    lock_expires_at: Annotated[datetime | None, Proto(9)] = None
    created_at: Annotated[datetime | None, Proto(10)] = None
    idempotency_key: Annotated[str, Proto(13)] = ""


class Completion(Struct):
    job_id: Annotated[str, Proto(1)] = ""
    attempt: Annotated[int, Proto(2)] = 0
    variables: Annotated[bytes, Proto(3)] = b""


class Failure(Struct):
    job_id: Annotated[str, Proto(1)] = ""
    attempt: Annotated[int, Proto(2)] = 0
    retryable: Annotated[bool, Proto(3)] = False
    error_message: Annotated[str, Proto(4)] = ""
    retry_after_ms: Annotated[int, Proto(5, UINT32)] = 0


class Release(Struct):
    job_id: Annotated[str, Proto(1)] = ""
    attempt: Annotated[int, Proto(2)] = 0


class Heartbeat(Struct):
    job_id: Annotated[str, Proto(1)] = ""
    attempt: Annotated[int, Proto(2)] = 0
    lease_seconds: Annotated[int, Proto(3)] = 0
    checkpoint: Annotated[bytes, Proto(4)] = b""
    progress: Annotated[bytes, Proto(5)] = b""


class JobOutcome(Struct):
    job_id: Annotated[str, Proto(1)] = ""
    attempt: Annotated[int, Proto(2)] = 0
    outcome: Annotated[int, Proto(3)] = 0
    reason: Annotated[str, Proto(4)] = ""


class HeartbeatOutcome(Struct):
    job_id: Annotated[str, Proto(1)] = ""
    attempt: Annotated[int, Proto(2)] = 0
    outcome: Annotated[int, Proto(3)] = 0
    reason: Annotated[str, Proto(4)] = ""
    lock_expires_at: Annotated[datetime | None, Proto(5)] = None


class CompleteJobsRequest(Struct):
    worker_id: Annotated[str, Proto(1)] = ""
    completions: Annotated[list[Completion], Proto(2)] = field(default_factory=list[Completion])


class CompleteJobsResponse(Struct):
    results: Annotated[list[JobOutcome], Proto(1)] = field(default_factory=list[JobOutcome])


class FailJobsRequest(Struct):
    worker_id: Annotated[str, Proto(1)] = ""
    failures: Annotated[list[Failure], Proto(2)] = field(default_factory=list[Failure])


class FailJobsResponse(Struct):
    results: Annotated[list[JobOutcome], Proto(1)] = field(default_factory=list[JobOutcome])


class ReleaseJobsRequest(Struct):
    worker_id: Annotated[str, Proto(1)] = ""
    releases: Annotated[list[Release], Proto(2)] = field(default_factory=list[Release])


class ReleaseJobsResponse(Struct):
    results: Annotated[list[JobOutcome], Proto(1)] = field(default_factory=list[JobOutcome])


class HeartbeatJobsRequest(Struct):
    worker_id: Annotated[str, Proto(1)] = ""
    heartbeats: Annotated[list[Heartbeat], Proto(2)] = field(default_factory=list[Heartbeat])


class HeartbeatJobsResponse(Struct):
    results: Annotated[list[HeartbeatOutcome], Proto(1)] = field(default_factory=list[HeartbeatOutcome])


# ------------------------------------------------------------------------------------------------ the Work stream


class Credit(Struct):
    job_type: Annotated[str, Proto(1)] = ""
    jobs: Annotated[int, Proto(2)] = 0


class LeaseLoss(Struct):
    job_id: Annotated[str, Proto(1)] = ""
    attempt: Annotated[int, Proto(2)] = 0


class Cancellation(Struct):
    job_id: Annotated[str, Proto(1)] = ""
    attempt: Annotated[int, Proto(2)] = 0
    reason: Annotated[str, Proto(3)] = ""


class WorkRequest(Struct):
    worker_id: Annotated[str, Proto(1)] = ""
    lease_seconds: Annotated[int, Proto(2)] = 0
    credits: Annotated[list[Credit], Proto(3)] = field(default_factory=list[Credit])
    completions: Annotated[list[Completion], Proto(4)] = field(default_factory=list[Completion])
    failures: Annotated[list[Failure], Proto(5)] = field(default_factory=list[Failure])
    heartbeats: Annotated[list[Heartbeat], Proto(6)] = field(default_factory=list[Heartbeat])
    releases: Annotated[list[Release], Proto(7)] = field(default_factory=list[Release])


class WorkResponse(Struct):
    jobs: Annotated[list[Job], Proto(1)] = field(default_factory=list[Job])
    outcomes: Annotated[list[JobOutcome], Proto(2)] = field(default_factory=list[JobOutcome])
    heartbeats: Annotated[list[HeartbeatOutcome], Proto(3)] = field(default_factory=list[HeartbeatOutcome])
    lease_losses: Annotated[list[LeaseLoss], Proto(4)] = field(default_factory=list[LeaseLoss])
    cancellations: Annotated[list[Cancellation], Proto(5)] = field(default_factory=list[Cancellation])
    credits: Annotated[list[Credit], Proto(6)] = field(default_factory=list[Credit])
