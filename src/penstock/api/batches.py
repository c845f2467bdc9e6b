"""The operations on batches: many starts that are asked for and followed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.api.operation import SLICE, Body, DeclaredOperation, Grpc, Rest, items_in
from penstock.api.permission import Permission
from penstock.wire import batches_v1 as w
from penstock.wire.batch import Batch, BatchResult
from penstock.wire.model import StartRequest
from penstock.wire.page import Page

_PATH: Final = "/v1/batches/{id}"
_SERVICE: Final = "/penstock.v1.Batches/"
STATES: Final = ("PENDING", "ACTIVE", "COMPLETED", "FAILED", "CANCELLED", "REFUSED", "REMOVED")
"""Of the items of a batch."""
_BODY: Final = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "items": {"$ref": "#/components/schemas/StartItem"},
            "minItems": 1,
            "description": "Up to `start_batch_max_items`, 10,000 by default.",
        },
        "onComplete": {"type": "string", "description": "The id of a definition that is started when all have ended."},
        "note": {"type": "string"},
    },
    "required": ["items"],
}


class BatchBody(Struct, rename="camel"):
    """The body of a batch."""

    items: Sequence[StartRequest]
    on_complete: str | None = None
    note: str | None = None


class GetBatch(Struct, frozen=True):
    """Which batch, and how long its end is waited for."""

    id: str
    wait_seconds: float | None = None


START_BATCH: Final = DeclaredOperation(
    name="startBatch",
    summary="Start up to 10,000 instances in the background (addition)",
    description=(
        "In the order of the items, each once, whatever happens to engines. An item that can't be read refuses "
        "all, with the item in the error (400). 429: 1,000 batches have not ended."
    ),
    tag="batches",
    request=w.CreateBatchRequest,
    answer=Batch,
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        "/v1/batches",
        body=Body(kind=BatchBody, schema=_BODY),
        status=202,
        names={"idempotency_key": "Idempotency-Key"},
        headers={"Idempotency-Key": "The same key and request: the same batch, as long as it is kept."},
    ),
    grpc=Grpc(_SERVICE + "CreateBatch"),
    errors=(400, 409, 413, 429),
)
LIST_BATCHES: Final = DeclaredOperation(
    name="listBatches",
    summary="List batches, newest first (addition)",
    description="Without the counts of their items.",
    tag="batches",
    request=w.ListBatchesRequest,
    answer=Page[Batch],
    needs=Permission.VIEW,
    rest=Rest("GET", "/v1/batches", SLICE),
    grpc=items_in(_SERVICE + "ListBatches", w.ListBatchesResponse, "batches"),
    errors=(400,),
)
GET_BATCH: Final = DeclaredOperation(
    name="getBatch",
    summary="Read a batch, with its items by state (addition)",
    description=(
        "`state` is STARTING, RUNNING, CANCELLING, DONE or CANCELLED. Items are counted by state: `pending`, "
        "`active`, `completed`, `failed`, `cancelled`, `refused`, `removed`. With `waitSeconds` (0 to 60) you get"
        " the answer when the batch has ended."
    ),
    tag="batches",
    request=GetBatch,
    answer=Batch,
    needs=Permission.VIEW,
    rest=Rest("GET", _PATH, {"waitSeconds": "Answer when it has ended, or after so long, at most 60."}),
    grpc=Grpc(
        _SERVICE + "GetBatch",
        message=w.GetBatchRequest,
        send=lambda asked: w.GetBatchRequest(asked.id, round(1_000 * (asked.wait_seconds or 0))),
        take=lambda message: GetBatch(message.id, message.wait_ms / 1_000),
    ),
    errors=(400, 404, 429),
    holds="wait_seconds",
)
LIST_BATCH_RESULTS: Final = DeclaredOperation(
    name="listBatchResults",
    summary="List the results of a batch, in the order of its items (addition)",
    description="A slice may be shorter than `limit`, where variables are large.",
    tag="batches",
    request=w.ListBatchResultsRequest,
    answer=Page[BatchResult],
    needs=Permission.VIEW,
    rest=Rest("GET", _PATH + "/results", {"state": "Only those in this state.", **SLICE}, choices={"state": STATES}),
    grpc=items_in(_SERVICE + "ListBatchResults", w.ListBatchResultsResponse, "results"),
    errors=(400, 404, 503),
)
CANCEL_BATCH: Final = DeclaredOperation(
    name="cancelBatch",
    summary="Cancel a batch and the instances that it started (addition)",
    description=(
        "In the background: nothing more of it is started, and the instances that it started are cancelled. "
        "Instances that others started, and that an item was answered with, go on. 409: it has ended. 503: it is "
        "being started."
    ),
    tag="batches",
    request=w.CancelBatchRequest,
    answer=Batch,
    needs=Permission.OPERATE,
    rest=Rest(
        "POST",
        _PATH + "/cancel",
        body=Body(
            name="BatchCancelBody",
            text="``reason``: shown with the batch, and with what is cancelled.",
            required=False,
        ),
        status=202,
    ),
    grpc=Grpc(_SERVICE + "CancelBatch"),
    errors=(400, 404, 409, 503),
)
