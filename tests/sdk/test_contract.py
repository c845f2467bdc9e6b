"""The client has an operation for every route that the engine serves, and none besides."""

from __future__ import annotations

from urllib.parse import unquote

from penstock.client import Completion, Failure, JobRef, StartRequest
from penstock.client import batch_operation as batch_calls
from penstock.client import bulk_operation as bulk_calls
from penstock.client import operation as calls
from penstock.client import queue_operation as queue_calls
from penstock.client import schedule_operation as schedule_calls
from penstock.client import work_operation as work_calls
from penstock.client.exchange import exchange_for
from penstock.rest.operations import OPERATIONS
from penstock.wire.bulk import BulkRequest
from penstock.wire.model import Park, PollRequest, PublishRequest, Signal, UserTaskCompletion
from penstock.wire.queue import QueuePolicy
from penstock.wire.schedule import ScheduleSpec

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
    calls.UploadDefinition(document=b"{}"),
    calls.GetDefinition(id="{id}"),
    calls.GetDefinition(id="{id}", version=1),
    calls.ListDefinitions(),
    calls.ActivateVersion(id="{id}", version=1),
    calls.DeleteDefinition(id="{id}"),
    calls.GetImpact(id="{id}", version=2),
    calls.StartInstance(request=StartRequest(definition_id="d")),
    calls.StartInstances(items=[]),
    calls.GetInstance(id="{id}"),
    calls.ListInstances(),
    calls.GetHistory(id="{id}"),
    calls.GetAttempts(execution_id="{id}"),
    calls.ForgetCheckpoint(job_id="{id}", note="n"),
    calls.GetAudit(id="{id}"),
    calls.ListSignals(instance_id="{id}"),
    calls.GetJournal(instance_id="{id}"),
    calls.GetTree(instance_id="{id}"),
    calls.SendMessage(instance_id="{id}", name="n", payload=1, idempotency_key="k"),
    calls.ResolveMessage(instance_id="{id}", position="{position}", payload=1, note="n"),
    calls.CancelInstance(id="{id}"),
    calls.RetryInstance(id="{id}"),
    calls.SkipStep(id="{id}", step_id="a"),
    calls.SetPriority(id="{id}", priority=2),
    calls.MigrateInstance(id="{id}"),
    calls.CheckMigration(id="{id}", version=2, steps={"a": "b"}),
    calls.MoveToken(id="{id}", step_id="a", to_step_id="b"),
    calls.EditVariables(id="{id}", variables={"a": 1}, remove=["b"], if_version="1", note="n"),
    bulk_calls.PreviewBulk(request=BulkRequest(action="retry", ids=["1"])),
    bulk_calls.StartBulk(request=BulkRequest(action="retry", ids=["1"])),
    bulk_calls.GetBulk(id="{id}"),
    bulk_calls.ListBulk(),
    bulk_calls.StopBulk(id="{id}"),
    calls.CompleteUserTask(completion=UserTaskCompletion("{id}", "{stepId}")),
    calls.SendSignal(signal=Signal("{id}", "{stepId}")),
    calls.SendSignal(signal=Signal(step_id="{stepId}", definition_id="{id}", instance_key="{key}", signal_id="s")),
    calls.PublishMessage(message=PublishRequest(name="n", correlation_key="k")),
    calls.ListMessages(name="n"),
    calls.PollJobs(request=PollRequest("w", ["t"], 1, 30)),
    calls.WaitLostJobs(worker_id="w", wait_s=1),
    calls.ListFailedJobs(),
    work_calls.ListOpenJobs(status="LOCKED"),
    work_calls.ListWorkers(),
    work_calls.ListJobTypes(),
    work_calls.ListAudit(kind="k"),
    work_calls.ListAttention(),
    work_calls.Acknowledge(key="{key}"),
    work_calls.Acknowledge(key="{key}", withdraw=True),
    work_calls.GetStanding(id="{id}"),
    calls.CompleteJob(worker_id="w", completion=Completion(job_id="{id}")),
    calls.FailJob(worker_id="w", failure=Failure(job_id="{id}", retryable=True, error_message="")),
    calls.HeartbeatJob(worker_id="w", job=JobRef(job_id="{id}")),
    calls.ParkJob(worker_id="w", park=Park(job_id="{id}", attempt=1, signal="s")),
    calls.CompleteJobs(worker_id="w", results=[]),
    calls.FailJobs(worker_id="w", results=[]),
    calls.HeartbeatJobs(worker_id="w", jobs=[]),
    batch_calls.StartBatch(items=[StartRequest(definition_id="d")], idempotency_key="k"),
    batch_calls.GetBatch(id="{id}"),
    batch_calls.ListBatches(),
    batch_calls.ListBatchResults(id="{id}"),
    batch_calls.CancelBatch(id="{id}"),
    schedule_calls.PutSchedule(id="{id}", spec=ScheduleSpec(definition_id="d", every="PT1H")),
    schedule_calls.GetSchedule(id="{id}"),
    schedule_calls.ListSchedules(),
    schedule_calls.DeleteSchedule(id="{id}"),
    schedule_calls.PauseSchedule(id="{id}", note="n"),
    schedule_calls.ResumeSchedule(id="{id}"),
    schedule_calls.TriggerSchedule(id="{id}", overlap="ALLOW"),
    schedule_calls.BackfillSchedule(id="{id}", since="2026-01-01T00:00:00Z", until="2026-01-02T00:00:00Z"),
    schedule_calls.PreviewSchedule(id="n", spec=ScheduleSpec(definition_id="d", every="PT1H")),
    calls.ReleaseJobs(worker_id="w", jobs=[]),
    queue_calls.PutQueue(name="{id}", policy=QueuePolicy(["t"])),
    queue_calls.GetQueue(name="{id}"),
    queue_calls.ListQueues(),
    queue_calls.PauseQueue(name="{id}", paused=True),
    queue_calls.PauseQueue(name="{id}", paused=False),
    queue_calls.DeleteQueue(name="{id}"),
)


def test_every_route_has_its_operation_and_every_operation_its_route() -> None:
    called = {
        (made.method, unquote(made.path).replace("/versions/1", "/versions/{number}"))
        for made in map(exchange_for, CALLS)
    }
    assert called == {(served.method, served.path) for served in OPERATIONS} - NOT_CALLED
