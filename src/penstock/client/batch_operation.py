"""The operations on batches, as `operation` has the others."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.operation import ListWindow, Operation
from penstock.wire.batch import Batch, BatchResult
from penstock.wire.model import StartRequest
from penstock.wire.page import Page


class StartBatch(Operation[Batch], frozen=True):
    """Start many as one; repeatable because of its key."""

    items: Sequence[StartRequest]
    idempotency_key: str
    on_complete: str | None = None
    note: str | None = None


class GetBatch(Operation[Batch], frozen=True):
    """Read a batch, or wait for its end, so long at most."""

    id: str
    wait_s: int = 0

    @property
    def hold_s(self) -> float:
        return self.wait_s


class ListBatches(Operation[Page[Batch]], frozen=True):
    """Batches, newest first."""

    window: ListWindow = ListWindow(limit=50)


class ListBatchResults(Operation[Page[BatchResult]], frozen=True):
    """What became of the items of a batch."""

    id: str
    state: str | None = None
    window: ListWindow = ListWindow(limit=50)


class CancelBatch(Operation[Batch], frozen=True):
    """Start nothing more of it, and cancel what it started."""

    id: str
    reason: str | None = None
