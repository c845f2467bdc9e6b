"""The messages of ``workflow.v1`` (proto/workflow/v1/engine.proto) as the service sees them.

Plain structs, with the names of the proto file; variables and other free-form values are JSON text, so that no
``Struct`` is made in between. Enums are their numbers: one that is not known is a number like any other here, and
the service answers INVALID_ARGUMENT. tests/rpc/test_messages.py compares every field with the proto file.
"""

from __future__ import annotations

from datetime import datetime
from enum import IntEnum
from typing import Annotated

from msgspec import Struct, field

from penstock.rpc.codec import STRUCT, UINT32, VALUE, Proto


class StepType(IntEnum):
    """``workflow.v1.StepType``; the names are those of the engine and of REST."""

    UNSPECIFIED = 0
    SERVICE_TASK = 1
    USER_TASK = 2
    DECISION = 3
    TRANSFORMATION = 4
    WAIT = 5
    PARALLEL_GATEWAY = 6
    JOIN_GATEWAY = 7
    END = 8


class InstanceStatus(IntEnum):
    """``workflow.v1.InstanceStatus`` and ``penstock.v1.InstanceStatus``."""

    UNSPECIFIED = 0
    ACTIVE = 1
    WAITING = 2
    COMPLETED = 3
    FAILED = 4
    CANCELLED = 5


class StepExecutionStatus(IntEnum):
    """``workflow.v1.StepExecutionStatus``."""

    UNSPECIFIED = 0
    RUNNING = 1
    COMPLETED = 2
    FAILED = 3
    SKIPPED = 4


class BoundaryEventType(IntEnum):
    """``workflow.v1.BoundaryEventType``."""

    UNSPECIFIED = 0
    TIMER = 1


# ------------------------------------------------------------------------------------------------- definitions


class BoundaryEvent(Struct):
    type: Annotated[int, Proto(1)] = 0
    duration: Annotated[str, Proto(2)] = ""
    interrupting: Annotated[bool, Proto(3)] = False
    target_step_id: Annotated[str, Proto(4)] = ""


class WorkflowStep(Struct):
    """``transformations`` are JSON texts by name. Maps come in any order: the service sorts them."""

    id: Annotated[str, Proto(1)] = ""
    name: Annotated[str, Proto(2)] = ""
    type: Annotated[int, Proto(3)] = 0
    description: Annotated[str, Proto(4)] = ""
    next_step: Annotated[str, Proto(10)] = ""
    parallel_next_steps: Annotated[list[str], Proto(11)] = field(default_factory=list[str])
    join_step: Annotated[str, Proto(12)] = ""
    conditional_next_steps: Annotated[dict[str, str], Proto(20)] = field(default_factory=dict[str, str])
    transformations: Annotated[dict[str, bytes], Proto(30, VALUE)] = field(default_factory=dict[str, bytes])
    job_type: Annotated[str, Proto(40)] = ""
    delegate_class: Annotated[str, Proto(41)] = ""
    retry_count: Annotated[int, Proto(42)] = 0
    boundary_events: Annotated[list[BoundaryEvent], Proto(50)] = field(default_factory=list[BoundaryEvent])
    buffer: Annotated[bool, Proto(60)] = False


class WorkflowDefinition(Struct):
    id: Annotated[str, Proto(1)] = ""
    version: Annotated[int, Proto(2)] = 0
    name: Annotated[str, Proto(3)] = ""
    description: Annotated[str, Proto(4)] = ""
    auto_start_next_workflow: Annotated[bool, Proto(5)] = False
    next_workflow_id: Annotated[str, Proto(6)] = ""
    steps: Annotated[list[WorkflowStep], Proto(7)] = field(default_factory=list[WorkflowStep])
    metadata: Annotated[bytes, Proto(8, STRUCT)] = b""


class UploadDefinitionRequest(Struct):
    definition: Annotated[WorkflowDefinition | None, Proto(1)] = None


class UploadDefinitionResponse(Struct):
    id: Annotated[str, Proto(1)] = ""
    version: Annotated[int, Proto(2)] = 0
    uploaded_at: Annotated[datetime | None, Proto(3)] = None


class GetDefinitionRequest(Struct):
    id: Annotated[str, Proto(1)] = ""
    version: Annotated[int, Proto(2)] = 0


class GetDefinitionResponse(Struct):
    definition: Annotated[WorkflowDefinition | None, Proto(1)] = None


class ListDefinitionsRequest(Struct):
    keyword: Annotated[str, Proto(1)] = ""
    page: Annotated[int, Proto(2)] = 0
    page_size: Annotated[int, Proto(3)] = 0
    cursor: Annotated[str, Proto(6)] = ""
    limit: Annotated[int, Proto(7)] = 0


class ListDefinitionsResponse(Struct):
    definitions: Annotated[list[WorkflowDefinition], Proto(1)] = field(default_factory=list[WorkflowDefinition])
    total: Annotated[int, Proto(2)] = 0
    next: Annotated[str, Proto(6)] = ""


# --------------------------------------------------------------------------------------------------- instances


class WorkflowInstance(Struct):
    id: Annotated[str, Proto(1)] = ""
    definition_id: Annotated[str, Proto(2)] = ""
    definition_version: Annotated[int, Proto(3)] = 0
    status: Annotated[int, Proto(4)] = 0
    current_step_ids: Annotated[list[str], Proto(5)] = field(default_factory=list[str])
    variables: Annotated[bytes, Proto(6, STRUCT)] = b""
    started_at: Annotated[datetime | None, Proto(7)] = None
    completed_at: Annotated[datetime | None, Proto(8)] = None
    failure_reason: Annotated[str, Proto(9)] = ""
    business_key: Annotated[str, Proto(10)] = ""
    instance_key: Annotated[str, Proto(12)] = ""


class StepExecution(Struct):
    id: Annotated[str, Proto(1)] = ""
    instance_id: Annotated[str, Proto(2)] = ""
    step_id: Annotated[str, Proto(3)] = ""
    step_type: Annotated[int, Proto(4)] = 0
    attempt_number: Annotated[int, Proto(5)] = 0
    status: Annotated[int, Proto(6)] = 0
    started_at: Annotated[datetime | None, Proto(7)] = None
    ended_at: Annotated[datetime | None, Proto(8)] = None
    failure_reason: Annotated[str, Proto(9)] = ""


class StartInstanceRequest(Struct):
    definition_id: Annotated[str, Proto(1)] = ""
    definition_version: Annotated[int, Proto(2)] = 0
    variables: Annotated[bytes, Proto(3, STRUCT)] = b""
    business_key: Annotated[str, Proto(4)] = ""
    instance_key: Annotated[str, Proto(6)] = ""
    keep_instance_key: Annotated[bool, Proto(7)] = False


class StartInstanceResponse(Struct):
    instance: Annotated[WorkflowInstance | None, Proto(1)] = None


class GetInstanceRequest(Struct):
    id: Annotated[str, Proto(1)] = ""


class GetInstanceResponse(Struct):
    instance: Annotated[WorkflowInstance | None, Proto(1)] = None


class GetInstanceHistoryRequest(Struct):
    id: Annotated[str, Proto(1)] = ""


class GetInstanceHistoryResponse(Struct):
    executions: Annotated[list[StepExecution], Proto(1)] = field(default_factory=list[StepExecution])


class CancelInstanceRequest(Struct):
    id: Annotated[str, Proto(1)] = ""
    reason: Annotated[str, Proto(2)] = ""


class CancelInstanceResponse(Struct):
    instance: Annotated[WorkflowInstance | None, Proto(1)] = None


class ListInstancesRequest(Struct):
    definition_id: Annotated[str, Proto(1)] = ""
    status: Annotated[int, Proto(2)] = 0
    business_key: Annotated[str, Proto(3)] = ""
    page: Annotated[int, Proto(4)] = 0
    page_size: Annotated[int, Proto(5)] = 0
    cursor: Annotated[str, Proto(6)] = ""
    limit: Annotated[int, Proto(7)] = 0
    instance_key: Annotated[str, Proto(8)] = ""


class ListInstancesResponse(Struct):
    instances: Annotated[list[WorkflowInstance], Proto(1)] = field(default_factory=list[WorkflowInstance])
    total: Annotated[int, Proto(2)] = 0
    next: Annotated[str, Proto(6)] = ""


# ---------------------------------------------------------------------------------------------------- jobs


class Job(Struct):
    id: Annotated[str, Proto(1)] = ""
    job_type: Annotated[str, Proto(2)] = ""
    instance_id: Annotated[str, Proto(3)] = ""
    step_id: Annotated[str, Proto(4)] = ""
    step_execution_id: Annotated[str, Proto(5)] = ""
    retries_remaining: Annotated[int, Proto(6)] = 0
    variables: Annotated[bytes, Proto(7, STRUCT)] = b""
    lock_expires_at: Annotated[datetime | None, Proto(8)] = None
    attempt: Annotated[int, Proto(9)] = 0
    idempotency_key: Annotated[str, Proto(10)] = ""


class JobDispatchEvent(Struct):
    """The value of a Kafka record; ``job_payload`` is the variables' JSON text as it is."""

    schema_version: Annotated[int, Proto(1, UINT32)] = 0
    dedup_id: Annotated[str, Proto(2)] = ""
    job_id: Annotated[str, Proto(10)] = ""
    instance_id: Annotated[str, Proto(11)] = ""
    step_execution_id: Annotated[str, Proto(12)] = ""
    job_type: Annotated[str, Proto(13)] = ""
    retries_remaining: Annotated[int, Proto(20)] = 0
    job_payload: Annotated[bytes, Proto(30)] = b""
    created_at: Annotated[datetime | None, Proto(40)] = None
    attempt: Annotated[int, Proto(41)] = 0
    step_id: Annotated[str, Proto(42)] = ""
    idempotency_key: Annotated[str, Proto(43)] = ""


class PollJobsRequest(Struct):
    worker_id: Annotated[str, Proto(1)] = ""
    job_types: Annotated[list[str], Proto(2)] = field(default_factory=list[str])
    max_jobs: Annotated[int, Proto(3)] = 0
    lease_seconds: Annotated[int, Proto(4)] = 0


class PollJobsResponse(Struct):
    jobs: Annotated[list[Job], Proto(1)] = field(default_factory=list[Job])


class CompleteJobRequest(Struct):
    job_id: Annotated[str, Proto(1)] = ""
    worker_id: Annotated[str, Proto(2)] = ""
    variables_to_set: Annotated[bytes, Proto(3, STRUCT)] = b""


class CompleteJobResponse(Struct):
    pass


class FailJobRequest(Struct):
    job_id: Annotated[str, Proto(1)] = ""
    worker_id: Annotated[str, Proto(2)] = ""
    retryable: Annotated[bool, Proto(3)] = False
    error_message: Annotated[str, Proto(4)] = ""


class FailJobResponse(Struct):
    pass


class CompleteUserTaskRequest(Struct):
    completed_by: Annotated[str, Proto(2)] = ""
    result: Annotated[bytes, Proto(3, STRUCT)] = b""
    instance_id: Annotated[str, Proto(4)] = ""
    user_task_step_id: Annotated[str, Proto(5)] = ""


class CompleteUserTaskResponse(Struct):
    pass


class SignalWaitRequest(Struct):
    instance_id: Annotated[str, Proto(1)] = ""
    wait_step_id: Annotated[str, Proto(2)] = ""
    variables: Annotated[bytes, Proto(3, STRUCT)] = b""
    buffer: Annotated[bool, Proto(4)] = False
    signal_id: Annotated[str, Proto(5)] = ""
    definition_id: Annotated[str, Proto(6)] = ""
    instance_key: Annotated[str, Proto(7)] = ""


class SignalWaitResponse(Struct):
    pass
