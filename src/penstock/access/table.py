"""What each RPC needs, and how a call is let pass. An RPC without a row here is refused, and fails the test suite.

What an operation needs stands in its row (`penstock.api`), or still here and, of REST, in the table of routes,
`penstock.rest.operations`. Must not import the services: the test compares both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.access.identity import Identity
from penstock.api import ROWS
from penstock.api.permission import Permission
from penstock.errors import Forbidden, PenstockError

OPEN, VIEW, WORK, OPERATE = Permission.NONE, Permission.VIEW, Permission.WORK, Permission.OPERATE
MODEL, STREAM = Permission.MODEL, Permission.STREAM

METRICS: Final = VIEW
"""The whole metrics port."""

_WORKFLOW: Final = "/workflow.v1.WorkflowEngine/"
_WORKER: Final = "/penstock.v1.Worker/"

RPC: Final[Mapping[str, Permission]] = {
    _WORKFLOW + "UploadDefinition": MODEL,
    _WORKFLOW + "GetDefinition": VIEW,
    _WORKFLOW + "ListDefinitions": VIEW,
    _WORKFLOW + "StartInstance": OPERATE,
    _WORKFLOW + "PollJobs": WORK,
    _WORKFLOW + "CompleteJob": WORK,
    _WORKFLOW + "FailJob": WORK,
    _WORKER + "Work": STREAM,
    **{grpc.method: row.needs for row in ROWS for grpc in row.methods},
    "/grpc.health.v1.Health/Check": OPEN,
    "/grpc.health.v1.Health/Watch": OPEN,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": VIEW,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": VIEW,
}


def require(needed: Permission | None, caller: Identity | PenstockError) -> None:
    """Let a call pass. ``caller`` is who calls, or why that is not known. Raises that, or Forbidden."""
    if needed is Permission.NONE:
        return
    if isinstance(caller, PenstockError):
        raise caller
    if needed is None:
        raise Forbidden("nobody may make this call: access/table.py has no permission for it")
    caller.require(needed)
