"""The wire contract's REST calls: for each operation its method, path, body, and how to read the answer.

Pure: builds and reads, sends nothing. One function per operation and one table at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.batch_exchange import BATCH_EXCHANGES
from penstock.client.bulk_exchange import BULK_EXCHANGES
from penstock.client.http_exchange import Exchange, given, list_reader, nothing, quoted, reader, rfc3339, start_body
from penstock.client.model import StartResult
from penstock.client.operation import (
    ActivateVersion,
    CancelInstance,
    CheckMigration,
    CheckReady,
    CompleteJob,
    CompleteJobs,
    CompleteUserTask,
    DeleteDefinition,
    EditVariables,
    FailJob,
    FailJobs,
    ForgetCheckpoint,
    GetAttempts,
    GetAudit,
    GetDefinition,
    GetHistory,
    GetImpact,
    GetInstance,
    GetJournal,
    GetTree,
    HeartbeatJob,
    HeartbeatJobs,
    ListDefinitions,
    ListFailedJobs,
    ListInstances,
    ListMessages,
    ListSignals,
    ListWindow,
    MigrateInstance,
    MoveToken,
    Operation,
    ParkJob,
    PollJobs,
    PublishMessage,
    ReleaseJobs,
    ResolveMessage,
    RetryInstance,
    SendMessage,
    SendSignal,
    SetPriority,
    SkipStep,
    StartInstance,
    StartInstances,
    UploadDefinition,
    WaitLostJobs,
)
from penstock.client.queue_operation import DeleteQueue, GetQueue, ListQueues, PauseQueue, PutQueue
from penstock.client.schedule_exchange import SCHEDULE_EXCHANGES
from penstock.client.work_operation import WORK_EXCHANGES
from penstock.wire.model import (
    AuditRecord,
    Completion,
    DefinitionSummary,
    FailedJob,
    Failure,
    Instance,
    Job,
    JobOutcome,
    JournalRecord,
    KeptMessage,
    KeptSignal,
    Lease,
    LostJob,
    PublishedMessage,
    RecordedAttempt,
    RunTree,
    StepExecution,
)
from penstock.wire.page import Page
from penstock.wire.queue import Queue
from penstock.wire.repair import ImpactView, MigrationCheck


def exchange_for(operation: Operation[Any]) -> Exchange:
    """The HTTP exchange of an operation."""
    return _EXCHANGES[type(operation)](operation)


_read_history = list_reader("items", StepExecution)
_read_audit = reader(Page[AuditRecord])
_read_journal = reader(Page[JournalRecord])
_read_tree = reader(RunTree)
_read_published = reader(PublishedMessage)
_read_messages = reader(Page[KeptMessage])
_read_attempts = list_reader("items", RecordedAttempt)
_read_signals = list_reader("items", KeptSignal)
_read_jobs = list_reader("jobs", Job)
_read_lost = list_reader("lost", LostJob)
_read_outcomes = list_reader("results", JobOutcome)
_read_started = list_reader("results", StartResult)
_read_instance = reader(Instance)
_read_summary = reader(DefinitionSummary)
_read_document = reader(dict[str, Any])
_read_summaries = reader(Page[DefinitionSummary])
_read_instances = reader(Page[Instance])
_read_failed_jobs = reader(Page[FailedJob])
_read_lease = reader(Lease)
_read_queue = reader(Queue)
_read_queues = reader(Page[Queue])
_read_impact = reader(ImpactView)
_read_migration_check = reader(MigrationCheck)


def _window(window: ListWindow) -> dict[str, str | int | None]:
    if window.by_key:
        return {"cursor": window.cursor, "limit": window.limit}
    return {"page": window.page, "pageSize": window.page_size}


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


def _upload_definition(operation: UploadDefinition) -> Exchange:
    return Exchange("POST", "/v1/definitions", _read_summary, operation.document)


def _get_definition(operation: GetDefinition) -> Exchange:
    path = f"/v1/definitions/{quoted(operation.id)}"
    if operation.version is not None:
        path += f"/versions/{operation.version}"
    return Exchange("GET", path, _read_document)


def _activate_version(operation: ActivateVersion) -> Exchange:
    path = f"/v1/definitions/{quoted(operation.id)}/versions/{operation.version}/activate"
    return Exchange("POST", path, _read_summary)


def _delete_definition(operation: DeleteDefinition) -> Exchange:
    return Exchange("DELETE", f"/v1/definitions/{quoted(operation.id)}", nothing)


def _list_definitions(operation: ListDefinitions) -> Exchange:
    query = {"keyword": operation.keyword, **_window(operation.window)}
    return Exchange("GET", "/v1/definitions", _read_summaries, query=query)


def _get_impact(operation: GetImpact) -> Exchange:
    path = f"/v1/definitions/{quoted(operation.id)}/impact"
    return Exchange("POST", path, _read_impact, operation.document, query={"version": operation.version})


def _start_instance(operation: StartInstance) -> Exchange:
    request = operation.request
    return Exchange(
        "POST", "/v1/instances", _read_instance, start_body(request), idempotency_key=request.idempotency_key
    )


def _start_instances(operation: StartInstances) -> Exchange:
    items = [start_body(item) | given(idempotencyKey=item.idempotency_key) for item in operation.items]
    return Exchange("POST", "/v1/instances/batch", _read_started, {"items": items})


def _get_instance(operation: GetInstance) -> Exchange:
    query = {"waitSeconds": operation.wait_s} if operation.wait_s else None
    return Exchange("GET", f"/v1/instances/{quoted(operation.id)}", _read_instance, query=query)


def _list_instances(operation: ListInstances) -> Exchange:
    query = {
        "definitionId": operation.definition_id,
        "status": operation.status,
        "businessKey": operation.business_key,
        "instanceKey": operation.instance_key,
        "businessKeyPrefix": operation.business_key_prefix,
        "parentInstanceId": operation.parent_instance_id,
        "flowKey": operation.flow_key,
        "definitionVersion": operation.definition_version,
        "cause": operation.cause,
        "stepId": operation.step_id,
        "currentStepId": operation.current_step_id,
        "errorContains": operation.error_contains,
        "bulkId": operation.bulk_id,
        "open": "true" if operation.open else None,
        "startedAfter": rfc3339(operation.started_after),
        "startedBefore": rfc3339(operation.started_before),
        "delayed": "true" if operation.delayed else None,
        "blocked": "true" if operation.blocked else None,
        "order": operation.order,
        **{f"attr.{name}": value for name, value in operation.attributes.items()},
        **_window(operation.window),
    }
    return Exchange("GET", "/v1/instances", _read_instances, query=query)


def _get_history(operation: GetHistory) -> Exchange:
    return Exchange("GET", f"/v1/instances/{quoted(operation.id)}/history", _read_history)


def _get_attempts(operation: GetAttempts) -> Exchange:
    return Exchange("GET", f"/v1/executions/{quoted(operation.execution_id)}/attempts", _read_attempts)


def _forget_checkpoint(operation: ForgetCheckpoint) -> Exchange:
    path = f"/v1/jobs/{quoted(operation.job_id)}/checkpoint"
    return Exchange("DELETE", path, nothing, query={"note": operation.note})


def _get_audit(operation: GetAudit) -> Exchange:
    path = f"/v1/instances/{quoted(operation.id)}/audit"
    return Exchange("GET", path, _read_audit, query={"limit": operation.limit, "cursor": operation.cursor})


def _list_signals(operation: ListSignals) -> Exchange:
    return Exchange("GET", f"/v1/instances/{quoted(operation.instance_id)}/signals", _read_signals)


def _cancel_instance(operation: CancelInstance) -> Exchange:
    path = f"/v1/instances/{quoted(operation.id)}/cancel"
    body = given(reason=operation.reason, force=operation.force or None, compensate=operation.compensate or None)
    return Exchange("POST", path, _read_instance, body)


def _get_journal(operation: GetJournal) -> Exchange:
    path = f"/v1/instances/{quoted(operation.instance_id)}/journal"
    return Exchange("GET", path, _read_journal, query={"cursor": operation.cursor, "limit": operation.limit})


def _get_tree(operation: GetTree) -> Exchange:
    return Exchange("GET", f"/v1/instances/{quoted(operation.instance_id)}/tree", _read_tree)


def _send_message(operation: SendMessage) -> Exchange:
    path = f"/v1/instances/{quoted(operation.instance_id)}/messages"
    body = {"name": operation.name, "payload": operation.payload} | given(force=operation.force or None)
    return Exchange("POST", path, nothing, body, idempotency_key=operation.idempotency_key)


def _resolve_message(operation: ResolveMessage) -> Exchange:
    path = f"/v1/instances/{quoted(operation.instance_id)}/messages/{quoted(operation.position)}"
    what = {"drop": True} if operation.drop else {"payload": operation.payload}
    return Exchange("POST", path, nothing, what | given(note=operation.note, force=operation.force or None))


def _edit_variables(operation: EditVariables) -> Exchange:
    body = given(
        set=operation.variables,
        remove=list(operation.remove) or None,
        ifVersion=operation.if_version,
        note=operation.note,
    )
    return Exchange("POST", f"/v1/instances/{quoted(operation.id)}/variables", _read_instance, body)


def _retry_instance(operation: RetryInstance) -> Exchange:
    again = operation.again or None
    body = given(fromStepId=operation.from_step_id, stepId=operation.step_id, note=operation.note, again=again)
    return Exchange("POST", f"/v1/instances/{quoted(operation.id)}/retry", _read_instance, body or None)


def _skip_step(operation: SkipStep) -> Exchange:
    body = given(
        stepId=operation.step_id,
        variables=operation.variables,
        executionId=operation.execution_id,
        note=operation.note,
    )
    return Exchange("POST", f"/v1/instances/{quoted(operation.id)}/skip", _read_instance, body)


def _set_priority(operation: SetPriority) -> Exchange:
    path = f"/v1/instances/{quoted(operation.id)}/priority"
    return Exchange("POST", path, _read_instance, {"priority": operation.priority})


def _move_token(operation: MoveToken) -> Exchange:
    body = given(
        stepId=operation.step_id,
        toStepId=operation.to_step_id,
        executionId=operation.execution_id,
        note=operation.note,
    )
    return Exchange("POST", f"/v1/instances/{quoted(operation.id)}/move", _read_instance, body)


def _migrate_instance(operation: MigrateInstance) -> Exchange:
    body = given(version=operation.version, steps=operation.steps, timers=operation.timers, note=operation.note)
    return Exchange("POST", f"/v1/instances/{quoted(operation.id)}/migrate", _read_instance, body)


def _check_migration(operation: CheckMigration) -> Exchange:
    body = given(version=operation.version, steps=operation.steps, timers=operation.timers, dryRun=True)
    return Exchange("POST", f"/v1/instances/{quoted(operation.id)}/migrate", _read_migration_check, body)


def _complete_user_task(operation: CompleteUserTask) -> Exchange:
    done = operation.completion
    path = f"/v1/instances/{quoted(done.instance_id)}/user-tasks/{quoted(done.step_id)}/complete"
    body = given(variables=done.variables, completedBy=done.completed_by, executionId=done.execution_id)
    return Exchange("POST", path, nothing, body)


def _send_signal(operation: SendSignal) -> Exchange:
    signal = operation.signal
    if signal.definition_id is None:
        path = f"/v1/instances/{quoted(signal.instance_id)}"
    else:
        path = f"/v1/definitions/{quoted(signal.definition_id)}/keys/{quoted(signal.instance_key or '')}"
    path += f"/signals/{quoted(signal.step_id)}"
    query = {"buffer": "true" if signal.buffer else None, "signalId": signal.signal_id}
    return Exchange("POST", path, nothing, signal.variables, query, signal.idempotency_key)


def _publish_message(operation: PublishMessage) -> Exchange:
    message = operation.message
    body = {"name": message.name, "correlationKey": message.correlation_key} | given(
        variables=message.variables, ttl=message.ttl, messageId=message.message_id, deliver=message.deliver
    )
    return Exchange("POST", "/v1/messages", _read_published, body)


def _list_messages(operation: ListMessages) -> Exchange:
    query = {
        "name": operation.name,
        "correlationKey": operation.correlation_key,
        "cursor": operation.cursor,
        "limit": operation.limit,
    }
    return Exchange("GET", "/v1/messages", _read_messages, query=query)


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


def _list_failed_jobs(operation: ListFailedJobs) -> Exchange:
    query: dict[str, str | int | None] = {
        "status": "FAILED",
        "jobType": operation.job_type,
        **_window(operation.window),
    }
    return Exchange("GET", "/v1/jobs", _read_failed_jobs, query=query)


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


def _queue(method: str, name: str, verb: str = "", body: object = None) -> Exchange:
    return Exchange(method, f"/v1/queues/{quoted(name)}{verb}", nothing if method == "DELETE" else _read_queue, body)


_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], Exchange]] = {
    CheckReady: _check_ready,
    UploadDefinition: _upload_definition,
    GetDefinition: _get_definition,
    ActivateVersion: _activate_version,
    DeleteDefinition: _delete_definition,
    ListDefinitions: _list_definitions,
    GetImpact: _get_impact,
    StartInstance: _start_instance,
    StartInstances: _start_instances,
    GetInstance: _get_instance,
    ListInstances: _list_instances,
    GetHistory: _get_history,
    GetAudit: _get_audit,
    GetAttempts: _get_attempts,
    ForgetCheckpoint: _forget_checkpoint,
    ListSignals: _list_signals,
    CancelInstance: _cancel_instance,
    EditVariables: _edit_variables,
    GetJournal: _get_journal,
    GetTree: _get_tree,
    SendMessage: _send_message,
    ResolveMessage: _resolve_message,
    RetryInstance: _retry_instance,
    SkipStep: _skip_step,
    SetPriority: _set_priority,
    MoveToken: _move_token,
    MigrateInstance: _migrate_instance,
    CheckMigration: _check_migration,
    CompleteUserTask: _complete_user_task,
    SendSignal: _send_signal,
    PublishMessage: _publish_message,
    ListMessages: _list_messages,
    ListFailedJobs: _list_failed_jobs,
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
    PutQueue: lambda put: _queue("PUT", put.name, body=put.policy),
    GetQueue: lambda get: _queue("GET", get.name),
    ListQueues: lambda each: Exchange("GET", "/v1/queues", _read_queues, query=_window(each.window)),
    PauseQueue: lambda pause: _queue("POST", pause.name, "/pause" if pause.paused else "/resume"),
    DeleteQueue: lambda gone: _queue("DELETE", gone.name),
    **BATCH_EXCHANGES,
    **BULK_EXCHANGES,
    **WORK_EXCHANGES,
    **SCHEDULE_EXCHANGES,
}
