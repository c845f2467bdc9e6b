"""The operations on many instances at once, as `operation` has the others."""

from __future__ import annotations

from penstock.client.operation import ListWindow, Once, Operation
from penstock.wire.bulk import BulkRequest
from penstock.wire.page import Page
from penstock.wire.repair import BulkPreview, BulkStarted, BulkView


class PreviewBulk(Operation[BulkPreview], frozen=True):
    """What a bulk operation would meet."""

    request: BulkRequest


class StartBulk(Once[BulkStarted], frozen=True):
    """Begin a bulk operation. A second one would be another, so a lost answer is not simply asked for again."""

    request: BulkRequest


class GetBulk(Operation[BulkView], frozen=True):
    """A bulk operation as it stands."""

    id: str


class ListBulk(Operation[Page[BulkView]], frozen=True):
    """Bulk operations, newest first."""

    window: ListWindow = ListWindow(limit=50)


class StopBulk(Operation[BulkView], frozen=True):
    """Begin no more of it."""

    id: str
