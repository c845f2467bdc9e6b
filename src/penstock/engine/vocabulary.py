"""What the engine's operations take and give that has no message of its own: the other nouns are `penstock.wire.model`.

Field names are snake_case here and camelCase on the wire (``rename="camel"``): `msgspec.json.encode` of an answer is
the REST body. Variables are JSON objects as ``bytes`` (`msgspec.Raw` in answers), never Python dicts: most calls only
pass them through, and a dict would cost a decode and an encode (3 µs at 200 bytes, 150 µs at 16 kB). Ids are opaque
strings. Times are aware and in UTC. Plain data only.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from penstock.core.definition import Definition
from penstock.wire.model import AuditRecord, DefinitionSummary, FailedJob, Instance
from penstock.wire.noun import Answer

EMPTY_OBJECT = b"{}"


class DefinitionPage(Answer, frozen=True, kw_only=True):
    """One page of the latest versions."""

    items: list[DefinitionSummary]
    page: int
    page_size: int
    total: int


class DefinitionSlice(Answer, frozen=True, kw_only=True):
    """Some of the latest versions. ``next`` is the cursor of those after them; the last slice has none."""

    items: list[DefinitionSummary]
    next: str | None = None


class StoredDefinition(Answer, frozen=True, kw_only=True):
    """A definition version. ``definition.content`` is its canonical JSON without ``version``."""

    definition: Definition
    version: int
    uploaded_at: datetime


class InstanceFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which instances a list has: those with all that is given. ``status`` is one of the wire's; ``instance_key`` and
    ``definition_version`` need the ``definition_id``. Of a business key the whole is given, or how it begins.
    ``cause`` (a reason, whose numbers and quoted parts may differ) and ``step_id`` need the status FAILED, the latter a
    ``definition_id`` as well."""

    definition_id: str | None = None
    status: str | None = None
    business_key: str | None = None
    instance_key: str | None = None
    definition_version: int | None = None
    cause: str | None = None
    step_id: str | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    business_key_prefix: str | None = None


class InstanceCount(Answer, frozen=True, kw_only=True):
    """How many match, to 10,000; not exact when there are more, or too many to look at."""

    count: int
    exact: bool


class InstancePage(Answer, frozen=True, kw_only=True):
    """One page, newest first. ``total`` is exact up to 10,000."""

    items: list[Instance]
    total: int
    total_is_estimate: bool = False


class InstanceSlice(Answer, frozen=True, kw_only=True):
    """Some instances, newest first; maybe fewer than asked for. ``next`` is the cursor of those after them."""

    items: list[Instance]
    next: str | None = None


class AuditSlice(Answer, frozen=True, kw_only=True):
    """Some records, oldest first. ``next`` is the cursor of those after them; the last slice has none."""

    items: list[AuditRecord]
    next: str | None = None


class DeadJobPage(Answer, frozen=True, kw_only=True):
    """One page of failed jobs, newest first. ``total`` is exact up to 10,000."""

    items: list[FailedJob]
    page: int
    page_size: int
    total: int
    total_is_estimate: bool = False


class DeadJobSlice(Answer, frozen=True, kw_only=True):
    """Some failed jobs, newest first. ``next`` is the cursor of those after them; the last slice has none."""

    items: list[FailedJob]
    next: str | None = None


def raw(value: Any) -> Any:
    """``value`` (text or bytes of JSON) as it goes into an answer."""
    return msgspec.Raw(value if isinstance(value, bytes) else str(value).encode())
