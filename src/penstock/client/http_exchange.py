"""One HTTP request as a value, and what requests are made of. Pure: sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from penstock.wire.model import StartRequest

_START_FIELDS = [
    (field.name, field.encode_name) for field in msgspec.structs.fields(StartRequest) if field.name != "idempotency_key"
]


class Exchange(NamedTuple):
    """One HTTP request and how to read its answer. ``body`` is sent as JSON (bytes as they are)."""

    method: str
    path: str
    answer: Callable[[bytes], Any]
    body: object = None
    query: Mapping[str, str | int | None] | None = None
    idempotency_key: str | None = None


def quoted(part: str) -> str:
    """Return one part of a path."""
    return quote(part, safe="")


def rfc3339(at: datetime | None) -> str | None:
    """Return a time for a query. One without a zone is the caller's own."""
    return None if at is None else at.astimezone(UTC).isoformat()


def given(**fields: object) -> dict[str, object]:
    """Only what was given: a request field that is null counts as absent, and is not sent."""
    return {name: value for name, value in fields.items() if not _is_absent(value)}


def _is_absent(value: object) -> bool:
    return value is None or value is msgspec.UNSET or (isinstance(value, msgspec.Raw) and not value)


def start_body(request: StartRequest) -> dict[str, object]:
    """Return a start; its key goes elsewhere."""
    fields = {coded: getattr(request, name) for name, coded in _START_FIELDS}
    return given(**fields | {name: fields[name] or None for name in ("keepInstanceKey", "waitSeconds")})


def nothing(_content: bytes) -> None:
    """Reads an answer without a body."""
    return


def reader(kind: Any) -> Callable[[bytes], Any]:
    """Reads an answer of that kind."""
    return msgspec.json.Decoder(kind).decode


def list_reader(field: str, kind: Any) -> Callable[[bytes], Any]:
    """Reads the list in a field of the answer; a missing one is empty."""
    decode = msgspec.json.Decoder(msgspec.defstruct("Answer", [(field, list[kind], [])])).decode

    def read(content: bytes) -> Any:
        return getattr(decode(content), field)

    return read
