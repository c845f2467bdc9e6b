"""Starting and listing instances over gRPC."""

from __future__ import annotations

from typing import Final

from grpclib.const import Handler

from penstock.engine.engine import Engine
from penstock.engine.instances.instance_filter import InstanceFilter
from penstock.rpc.methods import taskless, unary
from penstock.rpc.reading import given, known, read_variables, required, slice_of
from penstock.wire import workflow_v1 as m
from penstock.wire.model import StartRequest

_PREFIX: Final = "/workflow.v1.WorkflowEngine/"


class InstanceService:
    """StartInstance, ListInstances."""

    def __init__(self, engine: Engine) -> None:
        self._instances = engine.instances
        self._limits = engine.limits

    def __mapping__(self) -> dict[str, Handler]:
        methods = {
            "StartInstance": unary(self.start, StartRequest, m.StartInstanceResponse),
            "ListInstances": unary(self.list, m.ListInstancesRequest, m.ListInstancesResponse),
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
            current_step_id=given(request.current_step_id, "current_step_id"),
            order=given(request.order, "order"),
        )
        if (part := slice_of(request)) is not None:
            found = await self._instances.list_slice(wanted, *part)
            return m.ListInstancesResponse(found.items, next=found.next or "")
        page = await self._instances.list(wanted, request.page, request.page_size)
        return m.ListInstancesResponse(page.items, total=page.total or 0)
