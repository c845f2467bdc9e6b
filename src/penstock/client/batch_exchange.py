"""The REST calls about batches, as `exchange` has the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.batch_operation import CancelBatch, GetBatch, ListBatches, ListBatchResults, StartBatch
from penstock.client.http_exchange import Exchange, given, quoted, reader, start_body
from penstock.client.operation import Operation
from penstock.wire.batch import Batch, BatchResult
from penstock.wire.page import Page

_read_batch = reader(Batch)
_read_batches = reader(Page[Batch])
_read_results = reader(Page[BatchResult])


def _start(operation: StartBatch) -> Exchange:
    body: dict[str, object] = {"items": [start_body(item) for item in operation.items]}
    body |= given(onComplete=operation.on_complete, note=operation.note)
    return Exchange("POST", "/v1/batches", _read_batch, body, idempotency_key=operation.idempotency_key)


def _get(operation: GetBatch) -> Exchange:
    query = {"waitSeconds": operation.wait_s} if operation.wait_s else None
    return Exchange("GET", f"/v1/batches/{quoted(operation.id)}", _read_batch, query=query)


def _list(operation: ListBatches) -> Exchange:
    window = operation.window
    return Exchange("GET", "/v1/batches", _read_batches, query={"cursor": window.cursor, "limit": window.limit})


def _results(operation: ListBatchResults) -> Exchange:
    window = operation.window
    query = {"state": operation.state, "cursor": window.cursor, "limit": window.limit}
    return Exchange("GET", f"/v1/batches/{quoted(operation.id)}/results", _read_results, query=query)


def _cancel(operation: CancelBatch) -> Exchange:
    body = given(reason=operation.reason)
    return Exchange("POST", f"/v1/batches/{quoted(operation.id)}/cancel", _read_batch, body)


BATCH_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], Exchange]] = {
    StartBatch: _start,
    GetBatch: _get,
    ListBatches: _list,
    ListBatchResults: _results,
    CancelBatch: _cancel,
}
