"""The operations of workers and starters that take many items. Each has a result of its own, in order.

Over REST they are read by hand: what is wrong with one item never fails the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.api.operation import Body, DeclaredOperation, Grpc, Rest
from penstock.api.permission import Permission
from penstock.wire import penstock_v1 as w

_SERVICE: Final = "/penstock.v1.Worker/"
_ITEM_BY_ITEM: Final = "a bad item is told from its neighbours, in a body that no decoder takes, too"
_EACH: Final = "One outcome each, in order. A bad item never fails the others."


def _list(field: str, item: str, *, has_worker: bool = False) -> Mapping[str, Any]:
    """Return the schema of an object with a list, and with a worker."""
    listed = {field: {"type": "array", "items": {"$ref": f"#/components/schemas/{item}"}}}
    if not has_worker:
        return {"type": "object", "properties": listed, "required": [field]}
    worker = {"workerId": {"type": "string"}}
    return {"type": "object", "properties": {**worker, **listed}, "required": ["workerId", field]}


def _rest(path: str, field: str, item: str, outcome: str, *, has_worker: bool = True) -> Rest:
    return Rest(
        "POST",
        path,
        body=Body(schema=_list(field, item, has_worker=has_worker)),
        answer=_list("results", outcome),
        by_hand=_ITEM_BY_ITEM,
    )


START_INSTANCES: Final = DeclaredOperation(
    name="startInstances",
    summary="Start many instances (addition)",
    description=(
        "One result each, in order: an `instance`, or `error` and `reason`. A bad item never fails the others. An"
        " item has the fields of a start, and an `idempotencyKey`."
    ),
    tag="instances",
    request=w.StartInstancesRequest,
    answer=w.StartInstancesResponse,
    needs=Permission.OPERATE,
    rest=_rest("/v1/instances/batch", "items", "StartItem", "StartResult", has_worker=False),
    grpc=Grpc(_SERVICE + "StartInstances", as_is=True),
    errors=(400,),
)
PUBLISH_MESSAGES: Final = DeclaredOperation(
    name="publishMessages",
    summary="Publish many messages",
    tag="tasks",
    request=w.PublishMessagesRequest,
    answer=w.PublishMessagesResponse,
    needs=Permission.OPERATE,
    grpc=Grpc(_SERVICE + "PublishMessages", as_is=True),
)
COMPLETE_JOBS: Final = DeclaredOperation(
    name="completeJobs",
    summary="Complete many jobs (addition)",
    description=_EACH,
    tag="jobs",
    request=w.CompleteJobsRequest,
    answer=w.CompleteJobsResponse,
    needs=Permission.WORK,
    rest=_rest("/v1/jobs/complete", "results", "CompletionItem", "ItemOutcome"),
    grpc=Grpc(_SERVICE + "CompleteJobs", as_is=True),
    errors=(400,),
    required=("worker_id",),
)
FAIL_JOBS: Final = DeclaredOperation(
    name="failJobs",
    summary="Report many failures (addition)",
    description=_EACH,
    tag="jobs",
    request=w.FailJobsRequest,
    answer=w.FailJobsResponse,
    needs=Permission.WORK,
    rest=_rest("/v1/jobs/fail", "results", "FailureItem", "ItemOutcome"),
    grpc=Grpc(_SERVICE + "FailJobs", as_is=True),
    errors=(400,),
    required=("worker_id",),
)
HEARTBEAT_JOBS: Final = DeclaredOperation(
    name="heartbeatJobs",
    summary="Extend many leases (addition)",
    description="One outcome each, in order, `ok` with `lockExpiresAt`.",
    tag="jobs",
    request=w.HeartbeatJobsRequest,
    answer=w.HeartbeatJobsResponse,
    needs=Permission.WORK,
    rest=_rest("/v1/jobs/heartbeat", "jobs", "HeartbeatItem", "BeatOutcome"),
    grpc=Grpc(_SERVICE + "HeartbeatJobs", as_is=True),
    errors=(400,),
    required=("worker_id",),
)
RELEASE_JOBS: Final = DeclaredOperation(
    name="releaseJobs",
    summary="Release jobs unused (addition)",
    description="They are handed out again at once. No retry is used up.",
    tag="jobs",
    request=w.ReleaseJobsRequest,
    answer=w.ReleaseJobsResponse,
    needs=Permission.WORK,
    rest=_rest("/v1/jobs/release", "jobs", "ReleaseItem", "ItemOutcome"),
    grpc=Grpc(_SERVICE + "ReleaseJobs", as_is=True),
    errors=(400,),
    required=("worker_id",),
)
PARK_JOBS: Final = DeclaredOperation(
    name="parkJobs",
    summary="Wait with many jobs",
    tag="jobs",
    request=w.ParkJobsRequest,
    answer=w.ParkJobsResponse,
    needs=Permission.WORK,
    grpc=Grpc(_SERVICE + "ParkJobs", as_is=True),
    required=("worker_id",),
)
