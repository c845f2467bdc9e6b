"""``workflow.v1.WorkflowEngine``: the old service, unchanged on the wire. Each noun has its file.

Relies on the engine's operations, which REST shares; ``problems`` has the table of statuses. Must not decide anything
that REST would decide otherwise: one scenario suite runs over both (tests/rest/test_scenarios.py).
"""

from __future__ import annotations

from grpclib.const import Handler

from penstock.engine.engine import Engine
from penstock.rpc.definitions import DefinitionService
from penstock.rpc.instances import InstanceService
from penstock.rpc.jobs import JobService


class WorkflowEngine:
    """The thirteen calls."""

    def __init__(self, engine: Engine) -> None:
        self._parts = (DefinitionService(engine), InstanceService(engine), JobService(engine))

    def __mapping__(self) -> dict[str, Handler]:
        mapping: dict[str, Handler] = {}
        for part in self._parts:
            mapping |= part.__mapping__()
        return mapping
