"""Which instances a list or a count has: what may be asked for, and what the store lists for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from penstock.engine import ids
from penstock.errors import BadRequest, NotFound
from penstock.store import definitions as definition_store
from penstock.store import instances as store
from penstock.store.connection import TrioConnection
from penstock.store.instances import BEYOND_ALL

STATUSES = frozenset({"ACTIVE", "WAITING", "COMPLETED", "FAILED", "CANCELLED"})


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
    parent_instance_id: str | None = None


def check_filter(wanted: InstanceFilter) -> None:
    """Raises BadRequest for filters that do not go together."""
    if wanted.status is not None and wanted.status not in STATUSES:
        raise BadRequest(f"status: must be one of {', '.join(sorted(STATUSES))}")
    for name, value in (("cause", wanted.cause), ("stepId", wanted.step_id)):
        if value is not None and wanted.status != "FAILED":
            raise BadRequest(f"{name}: needs the status FAILED")
    for name, given in (("stepId", wanted.step_id), ("definitionVersion", wanted.definition_version)):
        if given is not None and wanted.definition_id is None and (name != "stepId" or wanted.cause is None):
            raise BadRequest(f"{name}: needs a definitionId")
    if wanted.parent_instance_id is not None and (wanted.cause is not None or wanted.step_id is not None):
        raise BadRequest("parentInstanceId: not together with cause or stepId")
    if wanted.business_key is not None and wanted.business_key_prefix is not None:
        raise BadRequest("businessKeyPrefix: not together with businessKey")
    more = (wanted.definition_version, wanted.cause, wanted.step_id, wanted.started_after, wanted.started_before,
            wanted.business_key_prefix, wanted.parent_instance_id)  # fmt: skip
    if wanted.instance_key is not None and any(value is not None for value in more):
        raise BadRequest("instanceKey: with definitionId, status and businessKey only")


async def listed_by(connection: TrioConnection, wanted: InstanceFilter) -> store.Listed | None:
    """What the store lists for a filter; None when there is no such definition, or parent."""
    parent: int | None = None
    if wanted.parent_instance_id is not None:
        try:
            parent = ids.read_instance(wanted.parent_instance_id)
        except NotFound:
            return None
    keys: Sequence[int] | None = None
    if wanted.definition_id is not None:
        version = wanted.definition_version
        keys = await definition_store.keys_of(connection, wanted.definition_id, version)
        if not keys:
            return None
    since = 0 if wanted.started_after is None else ids.first_instance(wanted.started_after)
    until = BEYOND_ALL if wanted.started_before is None else ids.first_instance(wanted.started_before)
    about = wanted.cause, wanted.step_id, wanted.business_key_prefix, parent
    return store.Listed(keys, wanted.status, wanted.business_key, since, until, *about)
