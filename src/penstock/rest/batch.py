"""Batch bodies: one bad item never fails its neighbours.

The whole body is decoded at once; only when that is refused, item by item, 20 times as dear. A body that is no JSON is
refused whole: nobody knows where its items end. Must not know what the items mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar, cast

import msgspec

from penstock.engine.requests.payload import check_count
from penstock.errors import BadRequest
from penstock.rest.codec import RequestBody, decoder, required, sanitized
from penstock.rest.tolerant import Unsplittable, bytes_of, split_object, text_of, value_of

T = TypeVar("T", bound=msgspec.Struct)


class Results(RequestBody, Generic[T]):
    """Completions or failures."""

    worker_id: str | None = None
    results: list[T] | None = None


class JobBatch(RequestBody, Generic[T]):
    """Heartbeats or releases."""

    worker_id: str | None = None
    jobs: list[T] | None = None


class StartItems(RequestBody, Generic[T]):
    """Starts, which have no worker."""

    items: list[T] | None = None


class BadItem(NamedTuple):
    """An item that can't be read."""

    job_id: str
    reason: str


class RequestBatch(NamedTuple, Generic[T]):
    """A batch as it was read, in order."""

    worker_id: str
    items: list[T | BadItem]


class BatchReader(Generic[T]):
    """Reads the bodies of one batch route: ``body_kind`` is one of the three above, made for ``item_kind``."""

    def __init__(
        self, body_kind: type[RequestBody], item_kind: type[T], field: str, *, has_worker: bool = True
    ) -> None:
        self._read_all: Callable[[bytes], RequestBody] = decoder(body_kind)
        self._read_item: Callable[[bytes], T] = decoder(item_kind)
        self._field = field
        self._has_worker = has_worker

    def read(self, body: bytes) -> RequestBatch[T]:
        """Return the batch. Raises BadRequest for what concerns all of it."""
        try:
            whole = self._read_all(body)
            items = cast("list[T | BadItem] | None", getattr(whole, self._field))
            worker_id = cast("str | None", getattr(whole, "worker_id", None))
        except BadRequest:
            fields, parts = _cut(body, self._field)
            if parts is None:
                raise
            items = [self._read_alone(part) for part in parts]
            named = value_of(fields.get("workerId", "null"))
            if self._has_worker and not isinstance(named, str):
                raise
            worker_id = cast("str | None", named)
        if items is None:
            raise BadRequest(f"{self._field}: is required")
        check_count(len(items), self._field)
        return RequestBatch(required(worker_id, "workerId") if self._has_worker else "", items)

    def _read_alone(self, part: str) -> T | BadItem:
        job_id = ""
        body = bytes_of(part)
        if part.startswith("{"):
            try:
                fields, _ = split_object(part)
            except Unsplittable:
                pass
            else:
                named = value_of(fields.get("jobId", "null"))
                job_id = named if isinstance(named, str) else ""
                body = sanitized(fields)
        try:
            return self._read_item(body)
        except BadRequest as error:
            return BadItem(job_id.encode(errors="replace").decode(), error.reason)


def _cut(body: bytes, field: str) -> tuple[dict[str, str], list[str] | None]:
    try:
        return split_object(text_of(body), field)
    except Unsplittable:
        return {}, None
