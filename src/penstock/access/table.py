"""What each RPC needs, and how a call is let pass. An RPC without a row here is refused, and fails the test suite.

What an operation needs stands in its row (`penstock.api`), or still here and, of REST, in the table of routes,
`penstock.rest.operations`. Must not import the services: the test compares both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.access.identity import Identity
from penstock.access.roles import Permission
from penstock.errors import Forbidden, PenstockError

OPEN, VIEW, TASKS = Permission.NONE, Permission.VIEW, Permission.TASKS
WORK, OPERATE, MODEL = Permission.WORK, Permission.OPERATE, Permission.MODEL
STREAM, RUNS, EXECUTE = Permission.STREAM, Permission.RUNS, Permission.EXECUTE

METRICS: Final = VIEW
"""The whole metrics port."""

_WORKFLOW: Final = "/workflow.v1.WorkflowEngine/"
_WORKER: Final = "/penstock.v1.Worker/"
_SCHEDULES: Final = "/penstock.v1.Schedules/"
_BATCHES: Final = "/penstock.v1.Batches/"
_FLOW: Final = "/penstock.v1.Flow/"
_REPAIR: Final = "/penstock.v1.Repair/"
_RUNS: Final = "/penstock.v1.Runs/"

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
    _WORKER + "PublishMessages": OPERATE,
    _WORKER + "CompleteJobs": WORK,
    _WORKER + "FailJobs": WORK,
    _WORKER + "ReleaseJobs": WORK,
    _WORKER + "ParkJobs": WORK,
    _WORKER + "HeartbeatJobs": WORK,
    _WORKER + "Work": STREAM,
    _SCHEDULES + "PutSchedule": OPERATE,
    _SCHEDULES + "GetSchedule": VIEW,
    _SCHEDULES + "ListSchedules": VIEW,
    _SCHEDULES + "DeleteSchedule": OPERATE,
    _SCHEDULES + "PauseSchedule": OPERATE,
    _SCHEDULES + "ResumeSchedule": OPERATE,
    _SCHEDULES + "TriggerSchedule": OPERATE,
    _SCHEDULES + "BackfillSchedule": OPERATE,
    _SCHEDULES + "PreviewSchedule": VIEW,
    _BATCHES + "CreateBatch": OPERATE,
    _BATCHES + "GetBatch": VIEW,
    _BATCHES + "ListBatches": VIEW,
    _BATCHES + "ListBatchResults": VIEW,
    _BATCHES + "CancelBatch": OPERATE,
    _FLOW + "PutQueue": OPERATE,
    _FLOW + "GetQueue": VIEW,
    _FLOW + "ListQueues": VIEW,
    _FLOW + "DeleteQueue": OPERATE,
    _FLOW + "PauseQueue": OPERATE,
    _FLOW + "ResumeQueue": OPERATE,
    _REPAIR + "EditVariables": OPERATE,
    _REPAIR + "RetryInstance": OPERATE,
    _REPAIR + "SkipStep": OPERATE,
    _REPAIR + "SetPriority": OPERATE,
    _REPAIR + "MoveToken": OPERATE,
    _REPAIR + "MigrateInstance": OPERATE,
    _REPAIR + "CheckMigration": OPERATE,
    _REPAIR + "PreviewBulk": OPERATE,
    _REPAIR + "StartBulk": OPERATE,
    _REPAIR + "GetBulk": VIEW,
    _REPAIR + "ListBulk": VIEW,
    _REPAIR + "StopBulk": OPERATE,
    _REPAIR + "GetImpact": VIEW,
    _REPAIR + "ActivateVersion": MODEL,
    _REPAIR + "DeleteDefinition": MODEL,
    _REPAIR + "GetInstance": VIEW,
    _REPAIR + "GetTree": VIEW,
    _REPAIR + "ListAudit": OPERATE,
    _REPAIR + "ListAttention": VIEW,
    _REPAIR + "AcknowledgeAttention": OPERATE,
    _REPAIR + "WithdrawAcknowledgement": OPERATE,
    _RUNS + "Register": EXECUTE,
    _RUNS + "Start": RUNS,
    _RUNS + "Find": VIEW,
    _RUNS + "List": VIEW,
    _RUNS + "Send": RUNS,
    _RUNS + "ResolveMessage": OPERATE,
    _RUNS + "Cancel": OPERATE,
    _RUNS + "Retry": OPERATE,
    _RUNS + "Result": VIEW,
    _RUNS + "Ended": VIEW,
    _RUNS + "Tree": VIEW,
    _RUNS + "Journal": VIEW,
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
        raise Forbidden("this call is closed to everybody: access/table.py has no permission for it")
    caller.require(needed)
