"""Starting and listing instances over gRPC."""

from __future__ import annotations

from typing import Final

from grpclib.const import Handler

from penstock.engine.engine import Engine
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.engine.requests.payload import ERROR_MESSAGE_MAX_BYTES, clean_text
from penstock.errors import BadRequest
from penstock.rpc.call import ServerCall
from penstock.rpc.methods import taskless, unary
from penstock.rpc.reading import given, known, read_variables, required, slice_of
from penstock.wire import workflow_v1 as m
from penstock.wire.model import Signal, StartRequest, UserTaskCompletion

_PREFIX: Final = "/workflow.v1.WorkflowEngine/"


class InstanceService:
    """StartInstance, ListInstances."""

    def __init__(self, engine: Engine) -> None:
        self._instances = engine.instances
        self._tasks = engine.tasks
        self._limits = engine.limits

    def __mapping__(self) -> dict[str, Handler]:
        methods = {
            "StartInstance": unary(self.start, StartRequest, m.StartInstanceResponse),
            "GetInstance": unary(self.get, m.GetInstanceRequest, m.GetInstanceResponse),
            "GetInstanceHistory": unary(self.history, m.GetInstanceHistoryRequest, m.GetInstanceHistoryResponse),
            "CancelInstance": unary(self.cancel, m.CancelInstanceRequest, m.CancelInstanceResponse),
            "ListInstances": unary(self.list, m.ListInstancesRequest, m.ListInstancesResponse),
            "CompleteUserTask": unary(self.complete_user_task, UserTaskCompletion, m.CompleteUserTaskResponse),
            "SignalWait": unary(self.signal, Signal, m.SignalWaitResponse),
        }
        return {_PREFIX + name: handler for name, handler in methods.items()}

    @taskless
    async def start(self, request: StartRequest, _call: object) -> m.StartInstanceResponse:
        """Version 0 is the latest."""
        view = await self._instances.start(
            StartRequest(
                definition_id=required(request.definition_id, "definition_id"),
                definition_version=request.definition_version,
                variables=await read_variables(request.variables, self._limits, "variables") or b"{}",
                business_key=request.business_key or None,
                instance_key=request.instance_key or None,
                keep_instance_key=request.keep_instance_key,
            )
        )
        return m.StartInstanceResponse(view)

    async def get(self, request: m.GetInstanceRequest, _call: object) -> m.GetInstanceResponse:
        """One instance as it is now, or when it has ended."""
        return m.GetInstanceResponse(await self._instances.get(required(request.id, "id"), request.wait_ms / 1_000))

    async def history(self, request: m.GetInstanceHistoryRequest, _call: object) -> m.GetInstanceHistoryResponse:
        """Every step execution in order of entry."""
        items = await self._instances.history(required(request.id, "id"))
        return m.GetInstanceHistoryResponse(items)

    async def cancel(self, request: m.CancelInstanceRequest, _call: object) -> m.CancelInstanceResponse:
        """FAILED_PRECONDITION when it has ended."""
        reason = clean_text(request.reason, ERROR_MESSAGE_MAX_BYTES)
        id = required(request.id, "id")
        view = await self._instances.cancel(id, reason or None, compensate=request.compensate)
        return m.CancelInstanceResponse(view)

    async def list(self, request: m.ListInstancesRequest, _call: object) -> m.ListInstancesResponse:
        """Newest first."""
        status = known(m.InstanceStatus, request.status, "status")
        wanted = InstanceFilter(
            definition_id=given(request.definition_id, "definition_id"),
            status=None if status is None else status.name,
            business_key=given(request.business_key, "business_key"),
            instance_key=given(request.instance_key, "instance_key"),
            delayed=request.delayed,
            blocked=request.blocked,
        )
        if (part := slice_of(request)) is not None:
            found = await self._instances.list_slice(wanted, *part)
            return m.ListInstancesResponse(found.items, next=found.next or "")
        page = await self._instances.list(wanted, request.page, request.page_size)
        return m.ListInstancesResponse(page.items, total=page.total or 0)

    async def complete_user_task(self, request: UserTaskCompletion, _call: object) -> m.CompleteUserTaskResponse:
        """The oldest open execution of that step, or the one that is named."""
        await self._tasks.complete_user_task(
            UserTaskCompletion(
                instance_id=required(request.instance_id, "instance_id"),
                step_id=required(request.step_id, "user_task_step_id"),
                variables=await read_variables(request.variables, self._limits, "result"),
                completed_by=request.completed_by or None,
                execution_id=request.execution_id or None,
            )
        )
        return m.CompleteUserTaskResponse()

    async def signal(self, request: Signal, call: ServerCall[Signal, m.SignalWaitResponse]) -> m.SignalWaitResponse:
        """The oldest open execution of that wait, in the instance by its id or its key. Metadata ``idempotency-key``
        does what REST's header does."""
        by_key = bool(request.definition_id or request.instance_key)
        if by_key and request.instance_id:
            raise BadRequest("instance_id: can't be given with definition_id and instance_key")
        signal = Signal(
            instance_id="" if by_key else required(request.instance_id, "instance_id"),
            step_id=required(request.step_id, "wait_step_id"),
            variables=await read_variables(request.variables, self._limits, "variables"),
            idempotency_key=call.header("idempotency-key") or None,
            signal_id=request.signal_id or None,
            buffer=request.buffer,
        )
        if by_key:
            definition_id = required(request.definition_id or "", "definition_id")
            instance_key = required(request.instance_key or "", "instance_key")
            await self._tasks.signal_by_key(definition_id, instance_key, signal)
        else:
            await self._tasks.signal(signal)
        return m.SignalWaitResponse()
