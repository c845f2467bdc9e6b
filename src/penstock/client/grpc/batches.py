"""The gRPC calls about batches: ``penstock.v1.Batches``. Pure, as `exchange.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.batch_operation import CancelBatch, GetBatch, ListBatches, ListBatchResults, StartBatch
from penstock.client.grpc.unary import UnaryExchange
from penstock.client.grpc.values import int32, start_message
from penstock.client.operation import Operation
from penstock.wire import batches_v1 as w
from penstock.wire.batch import Batch, BatchResult
from penstock.wire.page import Page

_SERVICE = "/penstock.v1.Batches/"


def _as_it_is(answer: Any) -> Any:
    return answer


def _start(operation: StartBatch) -> UnaryExchange:
    items = [start_message(item) for item in operation.items]
    request = w.CreateBatchRequest(items, operation.on_complete or "", operation.note or "", operation.idempotency_key)
    return UnaryExchange(f"{_SERVICE}CreateBatch", request, Batch, _as_it_is)


def _get(operation: GetBatch) -> UnaryExchange:
    return UnaryExchange(
        f"{_SERVICE}GetBatch", w.GetBatchRequest(operation.id, operation.wait_s * 1000), Batch, _as_it_is
    )


def _list(operation: ListBatches) -> UnaryExchange:
    def read(answer: w.ListBatchesResponse) -> Page[Batch]:
        return Page(items=answer.batches, next=answer.next or None)

    window = operation.window
    request = w.ListBatchesRequest(window.cursor or "", int32(window.limit, "limit"))
    return UnaryExchange(f"{_SERVICE}ListBatches", request, w.ListBatchesResponse, read)


def _results(operation: ListBatchResults) -> UnaryExchange:
    def read(answer: w.ListBatchResultsResponse) -> Page[BatchResult]:
        return Page(items=answer.results, next=answer.next or None)

    window, limit = operation.window, int32(operation.window.limit, "limit")
    request = w.ListBatchResultsRequest(operation.id, operation.state or "", window.cursor or "", limit)
    return UnaryExchange(f"{_SERVICE}ListBatchResults", request, w.ListBatchResultsResponse, read)


def _cancel(operation: CancelBatch) -> UnaryExchange:
    request = w.CancelBatchRequest(operation.id, operation.reason or "")
    return UnaryExchange(f"{_SERVICE}CancelBatch", request, Batch, _as_it_is)


BATCH_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], UnaryExchange]] = {
    StartBatch: _start,
    GetBatch: _get,
    ListBatches: _list,
    ListBatchResults: _results,
    CancelBatch: _cancel,
}
