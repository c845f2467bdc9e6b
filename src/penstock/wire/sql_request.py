"""Requests of SQL functions, as REST, the client and the console show them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import field

from penstock.wire.noun import Answer


class SqlRequest(Answer, frozen=True):
    """A request that a SQL function made in somebody's own transaction, and that is not carried out. `id` is what the
    function returned, of a `start` the number beside the instance's id. `instance_id` is the instance it is about, of a
    `start` the one that will be. `request` has its arguments without variables. One that failed has `failed_at`,
    `error` (a code such as "not-found") and `reason`."""

    id: str
    operation: str
    role: str
    asked_at: datetime
    instance_id: str | None = None
    definition_id: str | None = None
    instance_key: str | None = None
    request: dict[str, Any] = field(default_factory=dict[str, Any])
    size_bytes: int = 0
    tries: int = 0
    due_at: datetime | None = None
    failed_at: datetime | None = None
    error: str | None = None
    reason: str | None = None
