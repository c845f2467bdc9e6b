"""Which instances a list or a count has: what may be asked for, and what the store lists for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.api.instances import CountInstances
from penstock.core.rules import search_attributes
from penstock.core.rules.search_attributes import ATTRIBUTE_NAME, TEXT_MAX_CHARS, Wanted
from penstock.engine.requests import ids
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import check_text
from penstock.errors import BadRequest, NotFound
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import definitions as definition_store
from penstock.store.rows import instances as store
from penstock.store.rows import search_attributes as attribute_store
from penstock.store.rows.instances import BEYOND_ALL
from penstock.wire.alike import alike

ATTRIBUTES_MAX: Final = 5
BULK_ID_MAX_CHARS: Final = 18
_BOUNDS: Final = {"": "exactly", "from": "at_least", "to": "below"}
NEWEST: Final = "newest"
OLDEST: Final = "oldest"
BY_KEY: Final = "businessKey"
BY_END: Final = "ended"
BY_CHANGE: Final = "changed"
ORDERS: Final = (NEWEST, OLDEST, BY_KEY, BY_END, BY_CHANGE)
"""An index gives the first three: by the time of the start, and by business key. For the others those that match are
sorted."""
VERSION_MAX: Final = 2**31 - 1
STATUSES = frozenset({"ACTIVE", "WAITING", "COMPLETED", "FAILED", "CANCELLED"})


class InstanceFilter(CountInstances, frozen=True, kw_only=True):
    """Which instances a list has, as a request names them: those with all that is given. ``code``: runs of durable
    workflows. ``order``: one of `ORDERS`, newest first without; ``ended`` and ``changed`` have the latest first."""

    code: bool = False
    order: str | None = None

    @property
    def by_key(self) -> bool:
        """Return whether it is listed by business key: only those that have one."""
        return self.order == BY_KEY

    @property
    def by_time(self) -> bool:
        """Return whether it is sorted by a time that no index has."""
        return self.order in (BY_END, BY_CHANGE)


def filter_of(ask: CountInstances) -> InstanceFilter:
    """Return what a request asks for. Raises BadRequest."""
    if not 0 <= (ask.definition_version or 0) <= VERSION_MAX:
        raise BadRequest("definitionVersion: must be a version")
    return alike(ask, InstanceFilter)


def check_filter(wanted: InstanceFilter) -> None:
    """Raises BadRequest for filters that do not go together."""
    _check_bulk(wanted)
    if wanted.status is not None and wanted.status not in STATUSES:
        raise BadRequest(f"status: must be one of {', '.join(sorted(STATUSES))}")
    if wanted.delayed and wanted.status not in (None, "ACTIVE"):
        raise BadRequest(
            "delayed: can only be combined with the status ACTIVE: an instance that has not begun is ACTIVE"
        )
    _check_blocked(wanted)
    _check_failures(wanted)
    _check_step(wanted)
    _check_order(wanted)
    for name, given in (("stepId", wanted.step_id), ("definitionVersion", wanted.definition_version)):
        if given is not None and wanted.definition_id is None and (name != "stepId" or wanted.cause is None):
            raise BadRequest(f"{name}: needs a definitionId")
    if wanted.parent_instance_id is not None and (wanted.cause is not None or wanted.step_id is not None):
        raise BadRequest("parentInstanceId: can't be combined with cause or stepId")
    if wanted.attributes and not (wanted.cause is wanted.step_id is wanted.parent_instance_id is None):
        raise BadRequest("attr: can't be combined with cause, stepId or parentInstanceId")
    wanted_attributes(wanted.attributes)
    led = wanted.cause, wanted.step_id, wanted.parent_instance_id, wanted.attributes or None
    if wanted.flow_key is not None and any(value is not None for value in led):
        raise BadRequest("flowKey: can't be combined with cause, stepId, parentInstanceId or attr")
    if wanted.business_key is not None and wanted.business_key_prefix is not None:
        raise BadRequest("businessKeyPrefix: can't be combined with businessKey")
    more = (wanted.definition_version, wanted.cause, wanted.step_id, wanted.started_after, wanted.started_before,
            wanted.business_key_prefix, wanted.parent_instance_id, wanted.flow_key,
            wanted.error_contains, wanted.attributes or None, wanted.delayed or None,
            wanted.blocked or None, wanted.current_step_id,
            None if wanted.order == NEWEST else wanted.order)  # fmt: skip
    if wanted.instance_key is not None and any(value is not None for value in more):
        raise BadRequest("instanceKey: can only be combined with definitionId, status and businessKey")


def _check_blocked(wanted: InstanceFilter) -> None:
    if wanted.blocked and (wanted.delayed or wanted.status not in (None, "WAITING")):
        raise BadRequest("blocked: a blocked run is WAITING, and has begun")


def _check_step(wanted: InstanceFilter) -> None:
    if wanted.current_step_id is None:
        return
    if wanted.definition_id is None:
        raise BadRequest("currentStepId: needs a definitionId")
    if wanted.status not in (None, "ACTIVE", "WAITING"):
        raise BadRequest(
            f"currentStepId: an instance that is {wanted.status} stands on no step; a failure has a stepId"
        )
    others = (wanted.cause, wanted.step_id, wanted.error_contains, wanted.bulk_id, wanted.parent_instance_id,
              wanted.attributes or None, (wanted.delayed or wanted.blocked) or None)  # fmt: skip
    if any(value is not None for value in others):
        raise BadRequest("currentStepId: can only be combined with definition, version, status, keys and times")


def _check_order(wanted: InstanceFilter) -> None:
    if wanted.order is not None and wanted.order not in ORDERS:
        raise BadRequest(f"order: must be one of {', '.join(ORDERS)}")
    led = (wanted.cause, wanted.step_id, wanted.error_contains, wanted.bulk_id, wanted.parent_instance_id,
           wanted.business_key, wanted.attributes or None)  # fmt: skip
    if wanted.by_key and any(value is not None for value in led):
        raise BadRequest(
            "order: businessKey can only be combined with definition, version, status, step, flow key, times "
            "and businessKeyPrefix"
        )


def _check_bulk(wanted: InstanceFilter) -> None:
    if wanted.open and (wanted.bulk_id is None or wanted.status is not None):
        raise BadRequest("open: needs a bulkId, and no status")
    if wanted.bulk_id is None:
        return
    if not (wanted.bulk_id.isascii() and wanted.bulk_id.isdigit() and len(wanted.bulk_id) <= BULK_ID_MAX_CHARS):
        raise BadRequest("bulkId: must be the id of a bulk operation")
    others = (wanted.cause, wanted.step_id, wanted.error_contains, wanted.parent_instance_id, wanted.flow_key,
              wanted.instance_key, wanted.attributes or None, (wanted.delayed or wanted.blocked) or None)  # fmt: skip
    if any(value is not None for value in others):
        raise BadRequest("bulkId: can only be combined with definitionId, status, keys and times")


def _check_failures(wanted: InstanceFilter) -> None:
    of_failures = ("cause", wanted.cause), ("stepId", wanted.step_id), ("errorContains", wanted.error_contains)
    for name, value in of_failures:
        if value is not None and wanted.status != "FAILED":
            raise BadRequest(f"{name}: needs the status FAILED")
    led = wanted.cause, wanted.parent_instance_id, wanted.attributes or None
    if wanted.error_contains is not None and any(value is not None for value in led):
        raise BadRequest("errorContains: can't be combined with cause, parentInstanceId or attr")


def wanted_attributes(given: Mapping[str, str]) -> tuple[Wanted, ...]:
    """What is looked for, exact values first: they lead to fewer. Raises BadRequest."""
    parts: dict[str, dict[str, str]] = {}
    for key, value in given.items():
        name, _, bound = key.partition(".")
        if ATTRIBUTE_NAME.fullmatch(name) is None or bound not in _BOUNDS:
            raise BadRequest(f"attr.{key[:NAME_MAX_CHARS]}: must be attr.NAME, attr.NAME.from or attr.NAME.to")
        parts.setdefault(name, {})[_BOUNDS[bound]] = check_text(value, f"attr.{key}", TEXT_MAX_CHARS)
    if len(parts) > ATTRIBUTES_MAX:
        raise BadRequest(f"attr: at most {ATTRIBUTES_MAX} attributes at once")
    found: list[Wanted] = []
    for name, bounds in parts.items():
        if len(bounds) > 1 and "exactly" in bounds:
            raise BadRequest(f"attr.{name}: can't be combined with its bounds")
        if (one := search_attributes.wanted(name, **bounds)) is None:
            raise BadRequest(f"attr.{name}: bounds must be numbers, or times such as 2026-01-31T12:00:00Z")
        found.append(one)
    return tuple(sorted(found, key=lambda each: each.text is None))


async def _check_declared(connection: TrioConnection, attributes: Sequence[Wanted]) -> None:
    """Raises BadRequest for a variable by which nothing is ever found: an empty list would say that none has it."""
    if not attributes:
        return
    for name in await attribute_store.undeclared(connection, [each.name for each in attributes]):
        raise BadRequest(
            f"attr.{name}: no definition declares this variable in searchAttributes, and only those that are declared "
            "filter. Upload the definition with it: instances that start from then on are found"
        )


async def listed_by(connection: TrioConnection, wanted: InstanceFilter) -> store.Listed | None:
    """What the store lists for a filter; None when there is no such definition, or parent."""
    parent: int | None = None
    if wanted.parent_instance_id is not None:
        try:
            parent = ids.read_instance(wanted.parent_instance_id)
        except NotFound:
            return None
    keys: Sequence[int] | None = None
    at_step: Sequence[int] | None = None
    id, version, step = wanted.definition_id, wanted.definition_version, wanted.current_step_id
    if id is not None and step is not None:
        numbers = await definition_store.steps_of(connection, id, version, step)
        keys, at_step = [*numbers], [*numbers.values()]
    elif id is not None:
        keys = await definition_store.keys_of(connection, id, version)
    elif wanted.code:
        keys = await definition_store.keys_of_code(connection)
    if keys == []:
        return None
    since = 0 if wanted.started_after is None else ids.first_instance(wanted.started_after)
    until = BEYOND_ALL if wanted.started_before is None else ids.first_instance(wanted.started_before)
    attributes = wanted_attributes(wanted.attributes)
    await _check_declared(connection, attributes)
    bulk = None if wanted.bulk_id is None else int(wanted.bulk_id)
    about = wanted.cause, wanted.step_id, wanted.business_key_prefix, parent, wanted.flow_key
    status = store.DELAYED if wanted.delayed else store.BLOCKED if wanted.blocked else wanted.status
    status = store.OPEN if wanted.open or (at_step is not None and status is None) else status
    rest = wanted.error_contains, bulk, at_step, attributes
    return store.Listed(keys, status, wanted.business_key, since, until, *about, *rest)
