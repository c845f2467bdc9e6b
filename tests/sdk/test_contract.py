"""The client has an operation for every route that the engine serves, and none besides."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec

from penstock.api import (
    audit,
    batches,
    bulk,
    declared,
    definitions,
    instances,
    messages,
    queues,
    repair,
    runs,
    schedules,
    sql_requests,
    tasks,
    updates,
    workers,
)
from penstock.client import Completion, Failure, JobRef, StartRequest
from penstock.client import operation as calls
from penstock.client.call import RowCall
from penstock.client.exchange import exchange_for
from penstock.client.instances import WaitState
from penstock.rest.operations import OPERATIONS
from penstock.wire import batches_v1 as b
from penstock.wire import penstock_v1 as w
from penstock.wire import repair_v1 as r
from penstock.wire import schedules_v1 as s
from penstock.wire import updates_v1 as u
from penstock.wire.bulk import BulkRequest
from penstock.wire.model import FailedJob, Park, PollRequest, PublishRequest, Signal, UserTaskCompletion
from penstock.wire.open_work import OpenJobView
from penstock.wire.page import Page
from penstock.wire.queue import QueuePolicy
from penstock.wire.runs_v1 import ForkRunRequest
from penstock.wire.schedule import ScheduleSpec
from penstock.wire.update import UpdateCall

# What no client calls: the description of the API itself, the sign of life, for which readiness stands in, and what is
# for people: the console calls it.
FOR_PEOPLE = {
    ("GET", "/v1/overview"), ("GET", "/v1/engines"),
    ("GET", "/v1/tasks"), ("GET", "/v1/tasks/count"),
    ("POST", "/v1/tasks/{id}/{stepId}/claim"), ("POST", "/v1/tasks/{id}/{stepId}/release"),
    ("POST", "/v1/jobs/{id}/unlock"), ("GET", "/v1/timers"), ("GET", "/v1/settings"),
    ("GET", "/v1/definition-activity"),
    ("GET", "/v1/definitions/{id}/versions"), ("GET", "/v1/definitions/{id}/tokens"),
    ("GET", "/v1/definitions/{id}/counts"), ("GET", "/v1/definitions/{id}/variables"),
    ("POST", "/v1/definitions/validate"), ("POST", "/v1/expressions/check"), ("POST", "/v1/simulations"),
    ("GET", "/v1/expressions/language"),
    ("GET", "/v1/instances/count"), ("GET", "/v1/failures"),
    ("GET", "/v1/watch"), ("GET", "/v1/instances/{id}/variables"),
    ("GET", "/v1/sessions/ways"), ("POST", "/v1/sessions"), ("POST", "/v1/sessions/end"),
    ("POST", "/v1/sessions/oidc"), ("GET", "/v1/sessions/oidc/callback"),
}  # fmt: skip
NOT_CALLED = {("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/healthz"), ("GET", "/v1/me"), *FOR_PEOPLE}

CALLS = (
    calls.CheckReady(),
    RowCall(definitions.UPLOAD_DEFINITION, definitions.UploadDefinition(b"{}")),
    RowCall(definitions.GET_DEFINITION, definitions.GetDefinition("{id}"), dict[str, Any]),
    RowCall(definitions.GET_DEFINITION_VERSION, definitions.GetDefinitionVersion("{id}", 1), dict[str, Any]),
    RowCall(definitions.LIST_DEFINITIONS, definitions.ListDefinitions(page=0, page_size=20)),
    RowCall(definitions.ACTIVATE_VERSION, r.ActivateVersionRequest("{id}", 1)),
    RowCall(definitions.DELETE_DEFINITION, r.DeleteDefinitionRequest("{id}")),
    RowCall(definitions.GET_IMPACT, r.GetImpactRequest("{id}", 2)),
    calls.StartInstance(request=StartRequest(definition_id="d")),
    calls.StartInstances(items=[]),
    RowCall(instances.GET_INSTANCE, instances.GetInstance("{id}")),
    RowCall(instances.LIST_INSTANCES, instances.ListInstances(page=0, page_size=20)),
    RowCall(instances.GET_HISTORY, instances.GetHistory("{id}")),
    RowCall(instances.LIST_ATTEMPTS, instances.ListAttempts("{id}")),
    RowCall(workers.FORGET_CHECKPOINT, workers.ForgetCheckpoint("{id}", "n")),
    RowCall(instances.GET_AUDIT, instances.GetAudit("{id}")),
    RowCall(instances.LIST_SIGNALS, instances.ListSignals("{id}")),
    RowCall(instances.GET_JOURNAL, instances.GetJournal("{id}")),
    RowCall(instances.GET_TREE, r.GetTreeRequest("{id}")),
    RowCall(runs.FORK_RUN, ForkRunRequest("{id}", "a/0")),
    RowCall(runs.SEND_MESSAGE, runs.SendMessage("{id}", "n", msgspec.Raw(b"1"), "k")),
    RowCall(runs.RESOLVE_MESSAGE, runs.ResolveMessage("{id}", "{position}", payload=msgspec.Raw(b"1"), note="n")),
    RowCall(instances.CANCEL_INSTANCE, instances.CancelInstance("{id}")),
    RowCall(repair.RETRY_INSTANCE, r.RetryInstanceRequest("{id}")),
    RowCall(repair.SKIP_STEP, r.SkipStepRequest("{id}", "a")),
    RowCall(repair.SET_PRIORITY, r.SetPriorityRequest("{id}", 2)),
    RowCall(repair.MIGRATE_INSTANCE, r.MigrateInstanceRequest("{id}")),
    RowCall(repair.CHECK_MIGRATION, r.CheckMigrationRequest("{id}", 2, {"a": "b"})),
    RowCall(repair.MOVE_TOKEN, r.MoveTokenRequest("{id}", "a", "b")),
    RowCall(repair.EDIT_VARIABLES, r.EditVariablesRequest("{id}", b'{"a":1}', ["b"], "1", "n")),
    RowCall(bulk.PREVIEW_BULK, BulkRequest(action="retry", ids=["1"])),
    RowCall(bulk.START_BULK, BulkRequest(action="retry", ids=["1"])),
    RowCall(bulk.GET_BULK, r.GetBulkRequest("{id}")),
    RowCall(bulk.LIST_BULK, r.ListBulkRequest(limit=50)),
    RowCall(bulk.STOP_BULK, r.StopBulkRequest("{id}")),
    RowCall(tasks.COMPLETE_USER_TASK, UserTaskCompletion("{id}", "{stepId}")),
    RowCall(tasks.SIGNAL, Signal("{id}", "{stepId}")),
    RowCall(
        tasks.SIGNAL_BY_KEY,
        Signal(step_id="{stepId}", definition_id="{id}", instance_key="{key}", signal_id="s"),
    ),
    RowCall(messages.PUBLISH_MESSAGE, PublishRequest(name="n", correlation_key="k")),
    RowCall(messages.LIST_MESSAGES, messages.ListMessages("n")),
    calls.PollJobs(request=PollRequest("w", ["t"], 1, 30)),
    calls.WaitLostJobs(worker_id="w", wait_s=1),
    RowCall(workers.LIST_JOBS, workers.ListJobs(workers.FAILED, page=0, page_size=20), Page[FailedJob]),
    RowCall(workers.LIST_JOBS, workers.ListJobs("LOCKED", limit=50), Page[OpenJobView]),
    RowCall(workers.LIST_WORKERS, workers.ListWorkers()),
    RowCall(workers.LIST_JOB_TYPES, workers.ListJobTypes()),
    RowCall(audit.LIST_AUDIT, r.ListAuditRequest("k", limit=50)),
    RowCall(audit.LIST_ATTENTION, r.ListAttentionRequest()),
    RowCall(audit.ACKNOWLEDGE_ATTENTION, r.AcknowledgeAttentionRequest("{key}")),
    RowCall(audit.WITHDRAW_ACKNOWLEDGEMENT, r.WithdrawAcknowledgementRequest("{key}")),
    RowCall(instances.GET_STATE, instances.GetState("{id}"), WaitState),
    calls.CompleteJob(worker_id="w", completion=Completion(job_id="{id}")),
    calls.FailJob(worker_id="w", failure=Failure(job_id="{id}", retryable=True, error_message="")),
    calls.HeartbeatJob(worker_id="w", job=JobRef(job_id="{id}")),
    calls.ParkJob(worker_id="w", park=Park(job_id="{id}", attempt=1, signal="s")),
    calls.CompleteJobs(worker_id="w", results=[]),
    calls.FailJobs(worker_id="w", results=[]),
    calls.HeartbeatJobs(worker_id="w", jobs=[]),
    RowCall(batches.START_BATCH, b.CreateBatchRequest([StartRequest(definition_id="d")], idempotency_key="k")),
    RowCall(batches.GET_BATCH, batches.GetBatch("{id}")),
    RowCall(batches.LIST_BATCHES, b.ListBatchesRequest(limit=50)),
    RowCall(batches.LIST_BATCH_RESULTS, b.ListBatchResultsRequest("{id}", limit=50)),
    RowCall(batches.CANCEL_BATCH, b.CancelBatchRequest("{id}")),
    RowCall(updates.ASK_RUN, u.AskRunRequest("{id}", UpdateCall("set_limit", msgspec.Raw(b"[1]"), "u"))),
    RowCall(updates.GET_RUN_VIEW, u.GetRunViewRequest("{id}", "order_id", 5)),
    RowCall(updates.GET_RUN_UPDATE, u.GetRunUpdateRequest("{id}", "{updateId}")),
    RowCall(schedules.PUT_SCHEDULE, s.PutScheduleRequest("{id}", ScheduleSpec(definition_id="d", every="PT1H"))),
    RowCall(schedules.GET_SCHEDULE, s.GetScheduleRequest("{id}")),
    RowCall(schedules.LIST_SCHEDULES, s.ListSchedulesRequest()),
    RowCall(schedules.DELETE_SCHEDULE, s.DeleteScheduleRequest("{id}")),
    RowCall(schedules.PAUSE_SCHEDULE, s.PauseScheduleRequest("{id}", "n")),
    RowCall(schedules.RESUME_SCHEDULE, s.ResumeScheduleRequest("{id}")),
    RowCall(schedules.TRIGGER_SCHEDULE, s.TriggerScheduleRequest("{id}", "ALLOW")),
    RowCall(
        schedules.BACKFILL_SCHEDULE,
        s.BackfillScheduleRequest("{id}", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
    ),
    RowCall(
        schedules.PREVIEW_SCHEDULE, s.PreviewScheduleRequest("n", ScheduleSpec(definition_id="d", every="PT1H"), 10)
    ),
    calls.ReleaseJobs(worker_id="w", jobs=[]),
    RowCall(queues.PUT_QUEUE, queues.PutQueue("{id}", QueuePolicy(["t"]))),
    RowCall(queues.GET_QUEUE, w.GetQueueRequest("{id}")),
    RowCall(queues.LIST_QUEUES, w.ListQueuesRequest(limit=50)),
    RowCall(queues.PAUSE_QUEUE, w.PauseQueueRequest("{id}")),
    RowCall(queues.RESUME_QUEUE, w.ResumeQueueRequest("{id}")),
    RowCall(queues.DELETE_QUEUE, w.DeleteQueueRequest("{id}")),
    RowCall(sql_requests.LIST_SQL_REQUESTS, sql_requests.ListSqlRequests("WAITING")),
    RowCall(sql_requests.RETRY_SQL_REQUEST, sql_requests.OneSqlRequest("{id}")),
    RowCall(sql_requests.DROP_SQL_REQUEST, sql_requests.OneSqlRequest("{id}")),
    RowCall(declared.LIST_DECLARATIONS, s.ListDeclarationsRequest("schedule:a", 7)),
    RowCall(declared.APPLY_DECLARATION, s.ApplyDeclarationRequest("{kind}", "{id}")),
)


def test_every_route_has_its_operation_and_every_operation_its_route() -> None:
    called = {
        (made.method, unquote(made.path).replace("/versions/1", "/versions/{number}"))
        for made in map(exchange_for, CALLS)
    }
    assert called == {(served.method, served.path) for served in OPERATIONS} - NOT_CALLED
