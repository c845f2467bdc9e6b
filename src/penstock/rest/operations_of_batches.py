"""Rows of the table of routes for batches. The table is `operations`; this is a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.access.roles import Permission
from penstock.engine.instances.batches import STATES
from penstock.rest.batches import BatchCancelBody, BatchRoutes
from penstock.rest.operation import INTEGER, SLICE, STRING, Kind, Parameter, RestOperation, Schema, ref, struct
from penstock.wire.batch import Batch, BatchResult
from penstock.wire.page import Page

KINDS_OF_BATCHES: Final[Sequence[Kind]] = (
    BatchCancelBody,
    Batch,
    Page[Batch],
    BatchResult,
    Page[BatchResult],
)
BODY: Final[Schema] = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "items": ref("StartItem"),
            "minItems": 1,
            "description": "Up to `start_batch_max_items`, 10,000 by default.",
        },
        "onComplete": {**STRING, "description": "The id of a definition that is started when all have ended."},
        "note": STRING,
    },
    "required": ["items"],
}
OF_BATCHES: Final[Sequence[RestOperation]] = (
    RestOperation(
        "POST", "/v1/batches", BatchRoutes.create, Permission.OPERATE,
        "startBatch", "batches", "Start up to 10,000 instances in the background (addition)",
        "In their order, each once, whatever becomes of the engines. An item that can't be read refuses all.",
        parameters=(
            Parameter("Idempotency-Key", "header", "The same key and request: the same batch, as long as it is kept."),
        ),
        body=BODY, status=202, answer=struct(Batch), errors=(400, 409, 413, 429),
    ),
    RestOperation(
        "GET", "/v1/batches", BatchRoutes.list, Permission.VIEW,
        "listBatches", "batches", "List batches, newest first (addition)", "Without the counts of their items.",
        parameters=SLICE, answer=struct(Page[Batch]), errors=(400,),
    ),
    RestOperation(
        "GET", "/v1/batches/{id}", BatchRoutes.get, Permission.VIEW,
        "getBatch", "batches", "Read a batch, with its items by state (addition)",
        parameters=(
            Parameter("waitSeconds", "query", "Answer when it has ended, or after so long, at most 60.", INTEGER),
        ),
        answer=struct(Batch), errors=(400, 404, 429), waits=True,
    ),
    RestOperation(
        "GET", "/v1/batches/{id}/results", BatchRoutes.results, Permission.VIEW,
        "listBatchResults", "batches", "What became of its items, in their order (addition)",
        "A slice may be shorter than `limit`, where variables are large.",
        parameters=(
            Parameter("state", "query", "Only those in this state.", {"type": "string", "enum": [*STATES]}), *SLICE,
        ),
        answer=struct(Page[BatchResult]), errors=(400, 404, 503),
    ),
    RestOperation(
        "POST", "/v1/batches/{id}/cancel", BatchRoutes.cancel, Permission.OPERATE,
        "cancelBatch", "batches", "Start nothing more of it, and cancel what it started (addition)",
        "In the background. What others started, and an item was answered with, goes on.",
        body=struct(BatchCancelBody), body_required=False, status=202, answer=struct(Batch),
        errors=(400, 404, 409, 503),
    ),
)  # fmt: skip
