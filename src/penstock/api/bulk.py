"""The operations on many instances at once. Over gRPC a status is a number, and a rate a whole number."""

from __future__ import annotations

from typing import Final

from penstock.api.instances import status_name, status_number
from penstock.api.operation import SLICE, Body, DeclaredOperation, Grpc, Repeat, Rest, items_in
from penstock.api.permission import Permission
from penstock.wire import repair_v1 as w
from penstock.wire.alike import alike
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.page import Page
from penstock.wire.repair import BulkPreview, BulkStarted, BulkView

_SERVICE: Final = "/penstock.v1.Repair/"
PER_SECONDS: Final = 1_000
"""A rate is a whole number in so many seconds."""
RATE_MAX: Final = 2**32 - 1


def _send(asked: BulkRequest) -> w.BulkRequest:
    """Raises ValueError."""
    rate = round((asked.per_second or 0) * PER_SECONDS)
    if asked.per_second is not None and not 0 < rate <= RATE_MAX:
        raise ValueError(f"per_second: {asked.per_second} does not fit")
    chosen, besides = _send_filter(asked.filter), _send_filter(asked.besides)
    return alike(asked, w.BulkRequest, filter=chosen, besides=besides, per_1000_seconds=rate)


def _take(message: w.BulkRequest) -> BulkRequest:
    """Raises ValueError."""
    rate = message.per_1000_seconds / PER_SECONDS if message.per_1000_seconds else None
    chosen, besides = _take_filter(message.filter), _take_filter(message.besides)
    return alike(message, BulkRequest, filter=chosen, besides=besides, per_second=rate)


def _send_filter(wanted: BulkFilter | None) -> w.BulkFilter | None:
    return None if wanted is None else alike(wanted, w.BulkFilter, status=status_number(wanted.status))


def _take_filter(given: w.BulkFilter | None) -> BulkFilter | None:
    return None if given is None else alike(given, BulkFilter, status=status_name(given.status))


PREVIEW_BULK: Final = DeclaredOperation(
    name="previewBulk",
    summary="Count the instances that a bulk operation would meet",
    tag="instances",
    request=BulkRequest,
    answer=BulkPreview,
    needs=Permission.OPERATE,
    rest=Rest("POST", "/v1/instances/bulk", body=Body(kind=BulkRequest), when="dry_run"),
    grpc=Grpc(_SERVICE + "PreviewBulk", w.BulkRequest, _send, _take),
    required=("action",),
)
START_BULK: Final = DeclaredOperation(
    name="startBulk",
    summary="Retry, cancel, signal, skip, move, migrate or edit many instances (addition)",
    description=(
        "In the background. Fields depend on `action`: of a retry `fromStepId`, of a move `toStepId`, of a "
        "migration `version`, `steps` and `timers`, of an edit `variables` and `remove`. `filter` and `except` "
        "(what is left out) are those of the list: `status`, `definitionId`, `definitionVersion`, `businessKey`, "
        "`businessKeyPrefix`, `cause`, `stepId`, `errorContains`, `startedAfter`, `startedBefore`. Each failure "
        "is retried once, each signal acts once, variables are changed once, whatever happens to engines. "
        "Instances that start later are left out. With `dryRun` you get 200 and the instances that it would meet:"
        " `count`, `exact`, `byCause`, `byStep`, of a migration `refusals`, too."
    ),
    tag="instances",
    request=BulkRequest,
    answer=BulkStarted,
    needs=Permission.OPERATE,
    rest=Rest("POST", "/v1/instances/bulk", body=Body(kind=BulkRequest), status=202, id="bulk"),
    grpc=Grpc(_SERVICE + "StartBulk", w.BulkRequest, _send, _take),
    errors=(400, 409),
    required=("action",),
    repeat=Repeat.IF_NOT_APPLIED,
)
LIST_BULK: Final = DeclaredOperation(
    name="listBulk",
    summary="List bulk operations, newest first (addition)",
    tag="instances",
    request=w.ListBulkRequest,
    answer=Page[BulkView],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/bulk", SLICE),
    grpc=items_in(_SERVICE + "ListBulk", w.ListBulkResponse, "operations"),
    errors=(400,),
)
GET_BULK: Final = DeclaredOperation(
    name="getBulk",
    summary="Read a bulk operation (addition)",
    description=(
        "`state` is RUNNING, DONE or STOPPED. `skipped`: there was nothing to do any more. `errors` has the first"
        " 20 failures. `outcome` counts how the instances stand now (the first 10,000, of the newest 100 "
        "operations)."
    ),
    tag="instances",
    request=w.GetBulkRequest,
    answer=BulkView,
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/bulk/{id}"),
    grpc=Grpc(_SERVICE + "GetBulk"),
    errors=(404,),
)
STOP_BULK: Final = DeclaredOperation(
    name="stopBulk",
    summary="Stop a bulk operation (addition)",
    description="It ends after the page that is being worked on. What is done stays done.",
    tag="instances",
    request=w.StopBulkRequest,
    answer=BulkView,
    needs=Permission.OPERATE,
    rest=Rest("POST", "/v1/bulk/{id}/stop"),
    grpc=Grpc(_SERVICE + "StopBulk"),
    errors=(404,),
)
