"""The scenarios' driver over gRPC: stubs that grpcio and google.protobuf make of the proto file, called in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import trio
from google.protobuf.json_format import MessageToDict

from tests.rest.drivers import Execution, Instance, JobView, Json, Refused
from tests.rpc.conftest import Google

TIMEOUT_S = 60.0
CODES = {
    grpc.StatusCode.NOT_FOUND: "not-found",
    grpc.StatusCode.INVALID_ARGUMENT: "bad-request",
    grpc.StatusCode.FAILED_PRECONDITION: "conflict",
    grpc.StatusCode.ABORTED: "lease-lost",
}


class GrpcDriver:
    """`tests.rest.drivers.Driver`."""

    keeps_order = False

    def __init__(self, google: Google, channel: grpc.Channel) -> None:
        self.messages: Any = google.workflow
        self.stub: Any = google.workflow_grpc.WorkflowEngineStub(channel)

    async def call(self, method: str, request: Any) -> Any:
        """The answer. Raises Refused, or the RpcError of a status that the contract does not have."""
        serve: Callable[..., Any] = getattr(self.stub, method)
        try:
            return await trio.to_thread.run_sync(lambda: serve(request, timeout=TIMEOUT_S), abandon_on_cancel=True)
        except grpc.RpcError as error:
            if error.code() not in CODES:
                raise
            raise Refused(CODES[error.code()], error.details()) from None

    async def upload(self, definition: Json) -> int:
        """The parts that the message does not have are left out; wrong types and names are refused here already."""
        unknown = set(definition) - {
            "id",
            "name",
            "description",
            "autoStartNextWorkflow",
            "nextWorkflowId",
            "steps",
            "metadata",
        }
        if unknown:
            raise Refused("bad-request", f"the message has no {unknown}")
        m = self.messages
        message = m.WorkflowDefinition(
            id=definition["id"],
            name=definition["name"],
            description=definition.get("description"),
            auto_start_next_workflow=definition.get("autoStartNextWorkflow"),
            next_workflow_id=definition.get("nextWorkflowId"),
            steps=[self._step(step) for step in definition["steps"]],
        )
        if "metadata" in definition:
            message.metadata.update(definition["metadata"])
        return int((await self.call("UploadDefinition", m.UploadDefinitionRequest(definition=message))).version)

    def _step(self, step: Json) -> Any:
        m = self.messages
        kinds = dict(m.StepType.items())
        events = [
            m.BoundaryEvent(
                type=m.BOUNDARY_EVENT_TYPE_TIMER,
                duration=event["duration"],
                interrupting=event["interrupting"],
                target_step_id=event["targetStepId"],
            )
            for event in step.get("boundaryEvents", [])
        ]
        message = m.WorkflowStep(
            id=step["id"],
            name=step["name"],
            type=kinds.get(f"STEP_TYPE_{step['type']}", 99),
            description=step.get("description"),
            next_step=step.get("nextStep"),
            parallel_next_steps=step.get("parallelNextSteps"),
            join_step=step.get("joinStep"),
            conditional_next_steps=step.get("conditionalNextSteps"),
            job_type=step.get("jobType"),
            delegate_class=step.get("delegateClass"),
            retry_count=step.get("retryCount"),
            boundary_events=events,
        )
        for name, value in step.get("transformations", {}).items():
            holder = m.WorkflowDefinition().metadata
            holder.update({"value": value})
            message.transformations[name].CopyFrom(holder.fields["value"])
        return message

    async def read_definition(self, id: str, version: int = 0) -> Json:
        answer = await self.call("GetDefinition", self.messages.GetDefinitionRequest(id=id, version=version))
        found = MessageToDict(answer.definition)
        for step in found["steps"]:
            step["type"] = step["type"].removeprefix("STEP_TYPE_")
            if step["type"] == "SERVICE_TASK":
                step.setdefault("retryCount", 0)  # a zero is not sent, and the tests' factories write it
        return found

    async def list_definitions(self, keyword: str) -> list[tuple[str, int]]:
        request = self.messages.ListDefinitionsRequest(keyword=keyword, page_size=200)
        answer = await self.call("ListDefinitions", request)
        assert all(item.steps for item in answer.definitions)
        return [(item.id, item.version) for item in answer.definitions]

    async def start(
        self, definition_id: str, variables: Json | None = None, *, version: int = 0, business_key: str | None = None
    ) -> Instance:
        request = self.messages.StartInstanceRequest(
            definition_id=definition_id, definition_version=version, business_key=business_key
        )
        if variables is not None:
            request.variables.update(variables)
        return _instance((await self.call("StartInstance", request)).instance)

    async def instance(self, id: str) -> Instance:
        return _instance((await self.call("GetInstance", self.messages.GetInstanceRequest(id=id))).instance)

    async def list_instances(
        self,
        *,
        definition_id: str | None = None,
        status: str | None = None,
        business_key: str | None = None,
        page: int = 0,
        page_size: int = 0,
    ) -> tuple[list[Instance], int]:
        request = self.messages.ListInstancesRequest(
            definition_id=definition_id, business_key=business_key, page=page, page_size=page_size
        )
        if status is not None:
            request.status = f"INSTANCE_STATUS_{status}"
        answer = await self.call("ListInstances", request)
        return [_instance(item) for item in answer.instances], answer.total

    async def slice_instances(
        self, definition_id: str, *, cursor: str | None = None, limit: int = 0
    ) -> tuple[list[Instance], str | None]:
        request = self.messages.ListInstancesRequest(definition_id=definition_id, cursor=cursor, limit=limit)
        answer = await self.call("ListInstances", request)
        assert answer.total == 0
        return [_instance(item) for item in answer.instances], answer.next or None

    async def history(self, id: str) -> list[Execution]:
        answer = await self.call("GetInstanceHistory", self.messages.GetInstanceHistoryRequest(id=id))
        m = self.messages
        for item in answer.executions:
            assert item.instance_id == id
            assert item.HasField("started_at")
        return [
            Execution(
                id=item.id,
                step_id=item.step_id,
                step_type=m.StepType.Name(item.step_type).removeprefix("STEP_TYPE_"),
                status=m.StepExecutionStatus.Name(item.status).removeprefix("STEP_EXECUTION_STATUS_"),
                attempt_number=item.attempt_number,
                failure=item.failure_reason or None,
                ended=item.HasField("ended_at"),
            )
            for item in answer.executions
        ]

    async def cancel(self, id: str, reason: str | None = None) -> Instance:
        request = self.messages.CancelInstanceRequest(id=id, reason=reason)
        return _instance((await self.call("CancelInstance", request)).instance)

    async def poll(
        self, *job_types: str, worker: str = "w", max_jobs: int = 1, lease_s: int = 30, wait_s: float = 0
    ) -> list[JobView]:
        request = self.messages.PollJobsRequest(
            worker_id=worker, job_types=job_types, max_jobs=max_jobs, lease_seconds=lease_s
        )
        deadline = trio.current_time() + wait_s
        while not (jobs := (await self.call("PollJobs", request)).jobs) and trio.current_time() < deadline:
            await trio.lowlevel.checkpoint()
        assert all(job.HasField("lock_expires_at") for job in jobs)
        return [
            JobView(
                id=job.id,
                job_type=job.job_type,
                instance_id=job.instance_id,
                step_id=job.step_id,
                step_execution_id=job.step_execution_id,
                retries_remaining=job.retries_remaining,
                variables=_json(job.variables),
                attempt=job.attempt,
                idempotency_key=job.idempotency_key,
            )
            for job in jobs
        ]

    async def complete(self, job_id: str, variables: Json | None = None, *, worker: str = "w") -> None:
        request = self.messages.CompleteJobRequest(job_id=job_id, worker_id=worker)
        if variables is not None:
            request.variables_to_set.update(variables)
        await self.call("CompleteJob", request)

    async def fail(self, job_id: str, error: str = "boom", *, retryable: bool = True, worker: str = "w") -> None:
        request = self.messages.FailJobRequest(
            job_id=job_id, worker_id=worker, retryable=retryable, error_message=error
        )
        await self.call("FailJob", request)

    async def complete_user_task(self, instance_id: str, step_id: str, result: Json | None = None) -> None:
        request = self.messages.CompleteUserTaskRequest(instance_id=instance_id, user_task_step_id=step_id)
        if result is not None:
            request.result.update(result)
        await self.call("CompleteUserTask", request)

    async def signal(self, instance_id: str, step_id: str, variables: Json | None = None) -> None:
        request = self.messages.SignalWaitRequest(instance_id=instance_id, wait_step_id=step_id)
        if variables is not None:
            request.variables.update(variables)
        await self.call("SignalWait", request)


def _json(struct: Any) -> Json:
    """A Struct as JSON; its doubles that are whole as whole numbers, as MessageToDict shows them."""
    return dict(MessageToDict(struct))


def _instance(found: Any) -> Instance:
    assert found.HasField("started_at")
    status = found.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number[found.status].name
    return Instance(
        id=found.id,
        definition_id=found.definition_id,
        version=found.definition_version,
        status=status.removeprefix("INSTANCE_STATUS_"),
        steps=list(found.current_step_ids),
        variables=_json(found.variables),
        failure=found.failure_reason or None,
        business_key=found.business_key or None,
        ended=found.HasField("completed_at"),
    )
