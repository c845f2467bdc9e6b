"""The REST calls about many instances at once, as `exchange` has the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.client.bulk_operation import GetBulk, ListBulk, PreviewBulk, StartBulk, StopBulk
from penstock.client.http_exchange import Exchange, quoted, reader
from penstock.client.operation import Operation
from penstock.wire.page import Page
from penstock.wire.repair import BulkPreview, BulkStarted, BulkView

_PATH = "/v1/instances/bulk"
_read_preview = reader(BulkPreview)
_read_started = reader(BulkStarted)
_read_view = reader(BulkView)
_read_views = reader(Page[BulkView])


def _preview(operation: PreviewBulk) -> Exchange:
    return Exchange("POST", _PATH, _read_preview, msgspec.structs.replace(operation.request, dry_run=True))


def _start(operation: StartBulk) -> Exchange:
    return Exchange("POST", _PATH, _read_started, msgspec.structs.replace(operation.request, dry_run=False))


def _list(operation: ListBulk) -> Exchange:
    window = operation.window
    return Exchange("GET", "/v1/bulk", _read_views, query={"cursor": window.cursor, "limit": window.limit})


BULK_EXCHANGES: dict[type[Operation[Any]], Callable[[Any], Exchange]] = {
    PreviewBulk: _preview,
    StartBulk: _start,
    GetBulk: lambda get: Exchange("GET", f"/v1/bulk/{quoted(get.id)}", _read_view),
    ListBulk: _list,
    StopBulk: lambda stop: Exchange("POST", f"/v1/bulk/{quoted(stop.id)}/stop", _read_view),
}
