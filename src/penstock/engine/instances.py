"""Operations on instances: start, read, list, history, audit, cancel, retry."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.engine import ids
from penstock.engine.audit import audit_records
from penstock.engine.definitions import Definitions
from penstock.engine.items import CancelItem, RetryItem
from penstock.engine.paging import (
    BUSINESS_KEY_MAX_CHARS,
    NAME_MAX_CHARS,
    page_bounds,
    read_cursor,
    show_cursor,
    slice_limit,
)
from penstock.engine.payload import check_text
from penstock.engine.starts import StartItem, Starts
from penstock.engine.views import history_items, view_instances
from penstock.engine.vocabulary import (
    AuditRecord,
    HistoryItem,
    InstancePage,
    InstanceSlice,
    InstanceView,
    StartRequest,
    StartResult,
)
from penstock.engine.wide import WideLane
from penstock.errors import BadRequest, NotFound, PenstockError
from penstock.settings import Settings
from penstock.store import definitions as definition_store
from penstock.store import instances as store
from penstock.store import wide as wide_store
from penstock.store.database import Database

STATUSES = frozenset({"ACTIVE", "WAITING", "COMPLETED", "FAILED", "CANCELLED"})
REASON_MAX_CHARS = 4096
AUDIT_PAGE_MAX = 1000


class Instances:
    """The operations on instances."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        definitions: Definitions,
        starts: Starts,
        wide: WideLane,
    ) -> None:
        self._database = database
        self._settings = settings
        self._definitions = definitions
        self._starts = starts
        self._wide = wide

    async def start(self, request: StartRequest) -> InstanceView:
        """Start one instance. Idempotent with a key. Raises NotFound, BadRequest, IdempotencyConflict, Unavailable."""
        self._check(request)
        return await self._starts.submit(request)

    async def start_batch(self, requests: Sequence[StartRequest]) -> list[StartResult]:
        """Start many; one result each, in order. A bad item never fails its neighbours."""
        items: list[StartItem | PenstockError] = []
        for request in requests:
            try:
                self._check(request)
                items.append(self._starts.submit_nowait(request))
            except PenstockError as error:
                items.append(error)
        results: list[StartResult] = []
        for item in items:
            try:
                if isinstance(item, PenstockError):
                    raise item
                results.append(StartResult(instance=await item.wait_answer()))
            except PenstockError as error:
                results.append(StartResult(error=error.code, reason=error.reason))
        return results

    async def get(self, id: str) -> InstanceView:
        """One instance as it is now. Raises NotFound."""
        number = ids.read_instance(id)
        async with self._database.connection() as connection:
            views = await view_instances(connection, self._definitions, [number])
        if not views:
            raise NotFound(f"instance '{id}' is unknown")
        return views[0]

    async def history(self, id: str) -> list[HistoryItem]:
        """Every step execution in order of entry. Raises NotFound."""
        number = ids.read_instance(id)
        async with self._database.connection() as connection:
            found = await store.history(connection, number)
            if found is None:
                raise NotFound(f"instance '{id}' is unknown")
            loaded = await self._definitions.by_key(connection, found[0])
        return history_items(number, loaded, found[1])

    async def audit(self, id: str, limit: int = AUDIT_PAGE_MAX, after: int = 0) -> list[AuditRecord]:
        """The audit trail, oldest first: the audit records joined with what instance and history record.

        At most ``limit`` (1,000) records, leaving out the first ``after``. Raises NotFound.
        """
        number = ids.read_instance(id)
        async with self._database.connection() as connection, wide_store.one_snapshot(connection):
            views = await view_instances(connection, self._definitions, [number])
            found = await store.history(connection, number)
            if not views or found is None:
                raise NotFound(f"instance '{id}' is unknown")
            loaded = await self._definitions.by_key(connection, found[0])
            rows = await wide_store.audit_of(connection, number)
        records = audit_records(number, views[0], loaded, found[1], rows)
        first = max(after, 0)
        return records[first : first + min(max(limit, 1), AUDIT_PAGE_MAX)]

    async def cancel(self, id: str, reason: str | None) -> InstanceView:
        """End an instance, whatever it is doing. Raises NotFound, Conflict when it has ended."""
        number = ids.read_instance(id)
        text = None if not reason else check_text(reason, "reason", REASON_MAX_CHARS)
        await self._wide.submit(CancelItem(number, text))
        return await self.get(id)

    async def retry(self, id: str) -> InstanceView:
        """Let a FAILED instance go on where it failed. Raises NotFound, Conflict when it is not FAILED."""
        await self._wide.submit(RetryItem(ids.read_instance(id)))
        return await self.get(id)

    def _check(self, request: StartRequest) -> None:
        if not request.definition_id:
            raise BadRequest("definitionId: is required")
        chars = NAME_MAX_CHARS
        check_text(request.definition_id, "definitionId", chars)
        for value, field, most in (
            (request.business_key, "businessKey", BUSINESS_KEY_MAX_CHARS),
            (request.instance_key, "instanceKey", chars),
            (request.idempotency_key, "Idempotency-Key", chars),
        ):
            if value is not None:
                check_text(value, field, most)

    async def list(
        self,
        definition_id: str | None,
        status: str | None,
        business_key: str | None,
        page: int,
        page_size: int,
    ) -> InstancePage:
        """A page, newest first; the total is exact up to a limit, beyond it an estimate. Raises BadRequest."""
        size, offset = page_bounds(page, page_size)
        _check_status(status)
        limit = self._settings.list_exact_total_limit
        async with self._database.connection() as connection:
            keys = None if definition_id is None else await definition_store.keys_of(connection, definition_id)
            found: list[int] = []
            total = 0
            if keys is None or keys:
                found, total = await store.find_page(
                    connection,
                    definitions=keys,
                    status=status,
                    business_key=business_key,
                    limit=size,
                    offset=offset,
                    count_max=limit + 1,
                )
            items = await view_instances(connection, self._definitions, found)
            if total <= limit:
                return InstancePage(items=items, total=total)
            if definition_id is None and status is None and business_key is None:
                total = max(total, await store.estimate(connection))
        return InstancePage(items=items, total=total, total_is_estimate=True)

    async def list_slice(
        self, definition_id: str | None, status: str | None, business_key: str | None, cursor: str | None, limit: int
    ) -> InstanceSlice:
        """Those after ``cursor``, newest first. Whatever changes meanwhile, no instance that matches all the time is
        left out or comes twice. Raises BadRequest."""
        _check_status(status)
        before = read_cursor(cursor)
        async with self._database.connection() as connection:
            keys = None if definition_id is None else await definition_store.keys_of(connection, definition_id)
            found: list[int] = []
            last: int | None = None
            if keys is None or keys:
                found, last = await store.find_slice(
                    connection,
                    definitions=keys,
                    status=status,
                    business_key=business_key,
                    limit=slice_limit(limit),
                    before=before,
                )
            items = await view_instances(connection, self._definitions, found)
        return InstanceSlice(items=items, next=show_cursor(last))


def _check_status(status: str | None) -> None:
    if status is not None and status not in STATUSES:
        raise BadRequest(f"status: must be one of {', '.join(sorted(STATUSES))}")
