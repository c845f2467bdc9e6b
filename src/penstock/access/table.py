"""What each route and each RPC needs. One table: a route without a row here is refused, and fails the test suite.

Must not import the routes: the test compares both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.access.identity import Identity
from penstock.access.roles import Permission
from penstock.errors import Forbidden, PenstockError

OPEN, VIEW, TASKS = Permission.NONE, Permission.VIEW, Permission.TASKS
WORK, OPERATE, MODEL = Permission.WORK, Permission.OPERATE, Permission.MODEL

REST: Final[Mapping[tuple[str, str], Permission]] = {
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/openapi.json"): VIEW,
    ("GET", "/docs"): VIEW,
    ("GET", "/v1/me"): Permission.PROVED,
    ("GET", "/v1/overview"): VIEW,
    ("GET", "/v1/workers"): VIEW,
    ("GET", "/v1/engines"): VIEW,
    ("POST", "/v1/definitions"): MODEL,
    ("GET", "/v1/definitions"): VIEW,
    ("GET", "/v1/definitions/{id}"): VIEW,
    ("GET", "/v1/definitions/{id}/versions/{number}"): VIEW,
    ("POST", "/v1/definitions/{id}/keys/{key}/signals/{stepId}"): OPERATE,
    ("POST", "/v1/instances"): OPERATE,
    ("POST", "/v1/instances/batch"): OPERATE,
    ("GET", "/v1/instances"): VIEW,
    ("GET", "/v1/instances/{id}"): VIEW,
    ("GET", "/v1/instances/{id}/history"): VIEW,
    ("GET", "/v1/instances/{id}/audit"): VIEW,
    ("GET", "/v1/instances/{id}/journal"): VIEW,
    ("GET", "/v1/instances/{id}/tree"): VIEW,
    ("POST", "/v1/instances/{id}/messages"): OPERATE,
    ("GET", "/v1/instances/{id}/signals"): VIEW,
    ("POST", "/v1/instances/{id}/cancel"): OPERATE,
    ("POST", "/v1/instances/{id}/retry"): OPERATE,
    ("POST", "/v1/instances/{id}/signals/{stepId}"): OPERATE,
    ("POST", "/v1/instances/{id}/user-tasks/{stepId}/complete"): TASKS,
    ("GET", "/v1/jobs"): VIEW,
    ("POST", "/v1/jobs/poll"): WORK,
    ("POST", "/v1/jobs/lost"): WORK,
    ("POST", "/v1/jobs/complete"): WORK,
    ("POST", "/v1/jobs/fail"): WORK,
    ("POST", "/v1/jobs/heartbeat"): WORK,
    ("POST", "/v1/jobs/release"): WORK,
    ("POST", "/v1/jobs/{id}/complete"): WORK,
    ("POST", "/v1/jobs/{id}/fail"): WORK,
    ("POST", "/v1/jobs/{id}/heartbeat"): WORK,
}

METRICS: Final = VIEW
"""The whole metrics port."""

_WORKFLOW: Final = "/workflow.v1.WorkflowEngine/"
_WORKER: Final = "/penstock.v1.Worker/"

RPC: Final[Mapping[str, Permission]] = {
    _WORKFLOW + "UploadDefinition": MODEL,
    _WORKFLOW + "GetDefinition": VIEW,
    _WORKFLOW + "ListDefinitions": VIEW,
    _WORKFLOW + "StartInstance": OPERATE,
    _WORKFLOW + "GetInstance": VIEW,
    _WORKFLOW + "GetInstanceHistory": VIEW,
    _WORKFLOW + "CancelInstance": OPERATE,
    _WORKFLOW + "ListInstances": VIEW,
    _WORKFLOW + "PollJobs": WORK,
    _WORKFLOW + "CompleteJob": WORK,
    _WORKFLOW + "FailJob": WORK,
    _WORKFLOW + "CompleteUserTask": TASKS,
    _WORKFLOW + "SignalWait": OPERATE,
    _WORKER + "StartInstances": OPERATE,
    _WORKER + "CompleteJobs": WORK,
    _WORKER + "FailJobs": WORK,
    _WORKER + "ReleaseJobs": WORK,
    _WORKER + "HeartbeatJobs": WORK,
    _WORKER + "Work": WORK,
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
        raise Forbidden("nobody may do this: it has no row in the table of what is needed")
    caller.require(needed)
