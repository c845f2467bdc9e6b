"""``workflow.v1.WorkflowEngine``: the old service, unchanged on the wire. Each noun has its file.

Relies on the engine's operations, which REST shares; ``problems`` has the table of statuses. Must not decide anything
that REST would decide otherwise: one scenario suite runs over both (tests/rest/test_scenarios.py).
"""

from __future__ import annotations

from grpclib.const import Handler

from penstock.engine.engine import Engine
from penstock.rpc.definitions import DefinitionCalls
from penstock.rpc.instances import InstanceCalls
from penstock.rpc.jobs import JobCalls


class WorkflowEngine:
    """The thirteen calls."""

    def __init__(self, engine: Engine) -> None:
        self._parts = (DefinitionCalls(engine), InstanceCalls(engine), JobCalls(engine))

    def __mapping__(self) -> dict[str, Handler]:
        mapping: dict[str, Handler] = {}
        for part in self._parts:
            mapping |= part.__mapping__()
        return mapping
