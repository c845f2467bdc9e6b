"""Bulk operations as callers ask for them: which instances, and what is done to them. `repair` has the answers."""

from __future__ import annotations

from datetime import datetime

import msgspec

from penstock.wire.noun import JsonText


class BulkFilter(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Which instances: all that is given has to fit, as in their list."""

    status: str | None = None
    definition_id: str | None = None
    business_key: str | None = None
    cause: str | None = None
    definition_version: int | None = None
    step_id: str | None = None
    business_key_prefix: str | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    error_contains: str | None = None


class BulkRequest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What is to be done, to the instances of ``filter`` or to those named, but for those that fit ``besides``.

    ``action``: retry, cancel, signal, skip, move, migrate or edit. ``step_id`` is what is signalled, skipped or left,
    ``variables`` what a signal, a skip or an edit sets, ``remove`` what an edit takes away, ``steps`` map ids to those
    of ``version``, ``timers`` says when boundary timers with another duration fire. ``per_second``: at most so many.
    """

    action: str
    step_id: str | None = None
    variables: JsonText = None
    remove: list[str] | None = None
    from_step_id: str | None = None
    to_step_id: str | None = None
    version: int | None = None
    steps: dict[str, str] | None = None
    timers: str | None = None
    filter: BulkFilter | None = None
    besides: BulkFilter | None = msgspec.field(default=None, name="except")
    ids: list[str] | None = None
    per_second: float | None = None
    note: str | None = None
    dry_run: bool = False
