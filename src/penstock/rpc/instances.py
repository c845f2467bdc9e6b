"""Starting an instance over gRPC, as the contract has it."""

from __future__ import annotations

from typing import Final

from grpclib.const import Handler

from penstock.engine.engine import Engine
from penstock.rpc.methods import taskless, unary
from penstock.rpc.reading import read_variables, required
from penstock.wire import workflow_v1 as m
from penstock.wire.model import StartRequest

_PREFIX: Final = "/workflow.v1.WorkflowEngine/"


class InstanceService:
    """StartInstance."""

    def __init__(self, engine: Engine) -> None:
        self._instances = engine.instances
        self._limits = engine.limits

    def __mapping__(self) -> dict[str, Handler]:
        methods = {
            "StartInstance": unary(self.start, StartRequest, m.StartInstanceResponse),
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
