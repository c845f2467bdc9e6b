"""Operations on instances: start, read, list, history, audit, cancel, retry."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime
from typing import Protocol

import msgspec
import trio

from penstock.core.graph.definition import BUSINESS_KEY_MAX_CHARS
from penstock.core.rules.start_rules import StartRules, read_rules
from penstock.engine.advance.command import IsCode
from penstock.engine.advance.commands import CancelCommand, RetryCommand
from penstock.engine.advance.full_path import FullPath
from penstock.engine.advance.run_commands import RetryRunCommand
from penstock.engine.definitions.definitions import Definitions
from penstock.engine.definitions.versions import versions_of
from penstock.engine.instances.audit import audit_records, place_after, slice_of
from penstock.engine.instances.instance_filter import BY_END, NEWEST, OLDEST, InstanceFilter, check_filter, listed_by
from penstock.engine.instances.views import (
    InstanceSummary,
    history_items,
    list_summaries,
    summarize_instances,
    view_instances,
)
from penstock.engine.queues.ends import Ends
from penstock.engine.queues.journal_items import PATH_MAX_CHARS
from penstock.engine.queues.queues import check_flow_key, check_priority
from penstock.engine.requests import ids
from penstock.engine.requests.answers import COPIES, MemoryReservation, current_reservation
from penstock.engine.requests.paging import (
    COUNT_MAX,
    NAME_MAX_CHARS,
    PAGE_SIZE_MAX,
    page_bounds,
    read_cursor,
    read_key_cursor,
    read_time_cursor,
    show_cursor,
    show_key_cursor,
    show_time_cursor,
    slice_limit,
)
from penstock.engine.requests.payload import EMPTY_OBJECT, check_text
from penstock.engine.requests.read_pool import ReadPool
from penstock.engine.starts.forked_run import Fork
from penstock.engine.starts.start_item import StartItem
from penstock.engine.starts.starts import Starts
from penstock.errors import BadRequest, NotFound, Overloaded, PenstockError
from penstock.loop.taskless import need_task
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import AWAY, Database
from penstock.store.rows import audit as audit_store
from penstock.store.rows import instances as store
from penstock.store.rows import keys as key_store
from penstock.store.rows.batches import BatchPlace
from penstock.store.rows.calls import CodeCall
from penstock.store.rows.instances import BEYOND_ALL
from penstock.wire.model import AuditRecord, Instance, StartRequest, StartResult, StepExecution
from penstock.wire.page import Count, Page

REASON_MAX_CHARS = 4096
AUDIT_PAGE_MAX = 1000
FIRST_READ_BYTES = 16_384
"""Variables that are read without asking for their size: nearly all of them."""
PIECE_BYTES = 262_144
"""Variables in one piece of a list, if they are not one instance's."""
PIECE_COUNT = 16
"""Instances that are looked at for the next piece, once all of them were too much for one."""
LARGE_READS_AT_ONCE = 1
"""PostgreSQL makes text of 3 MB of variables in 15 ms, as the event loop does of it: more at a time leave the loop no
core, and are not read sooner."""
HISTORY_ITEM_BYTES = 2_048
"""Of one step execution or attempt while its answer is made."""


class CancelsRuns(Protocol):
    """Ends instances whose body is code."""

    async def cancel(
        self, instance_id: str, reason: str | None = None, *, note: str | None = None, bulk: int | None = None
    ) -> None: ...


class Instances:
    """The operations on instances."""

    def __init__(
        self,
        database: Database,
        read_pool: ReadPool,
        settings: Settings,
        definitions: Definitions,
        starts: Starts,
        full_path: FullPath,
        runs: CancelsRuns,
        ends: Ends,
    ) -> None:
        self._database = database
        self._read_pool = read_pool
        self._settings = settings
        self._definitions = definitions
        self._starts = starts
        self._full_path = full_path
        self._runs = runs
        self._large_reads = trio.CapacityLimiter(LARGE_READS_AT_ONCE)
        self.ends = ends

    async def start(self, request: StartRequest) -> Instance:
        """Start one instance. Idempotent with a key. Raises NotFound, BadRequest, IdempotencyConflict, Throttled,
        Unavailable. With ``wait_seconds`` as it is when it has ended, or after so long."""
        started = await self._submit(request).wait_answer()
        return await self._at_end(started, request.wait_seconds) if request.wait_seconds else started

    async def _at_end(self, started: Instance, wait_s: float, *, one: bool = True) -> Instance:
        """``one``: of several those for which there is no room are shown as they were started."""
        if started.ended or wait_s <= 0:
            return started
        await need_task()
        await self.ends.wait_started(ids.read_instance(started.id), min(wait_s, self._settings.poll_max_wait_seconds))
        with suppress(PenstockError, *AWAY):  # it is started: what can't be read now is shown as it was
            view = await self._view(started.id, committed=one, secrets=not started.deduplicated)
            return msgspec.structs.replace(view, deduplicated=started.deduplicated)
        return started

    async def start_called(self, request: StartRequest, call: CodeCall) -> tuple[Instance, bool]:
        """Start an instance that a durable run waits for, under the lease of that; the one with its instance key, whose
        caller may be another one, where that is there. And whether it was there. Raises LeaseLost, too."""
        item = self._submit(request, call)
        return await item.wait_answer(), item.found

    async def start_forked(self, request: StartRequest, fork: Fork) -> tuple[Instance, bool]:
        """Start a durable run that begins with the journal of another one. Return it, and whether the one with its
        instance key was there. Raises as `start` does, and NotFound, BadRequest, Conflict (`starts.forked_run`)."""
        item = self._submit(request, fork=fork)
        return await item.wait_answer(), item.found

    def submit_of_batch(self, request: StartRequest, place: BatchPlace) -> StartItem:
        """Queue the start of an item of a batch. Raises as `start` does; waiting for its answer raises `NotDue` when it
        was started before."""
        return self._submit(request, place=place)

    def submit_reserved(self, request: StartRequest, id: int) -> StartItem:
        """Queue the start of an instance whose id was given before. As `submit_of_batch`."""
        return self._submit(request, reserved=id)

    def begin(self, request: StartRequest, reservation: MemoryReservation, by: str | None, now: float) -> StartItem:
        """Queue a start for a caller who has no task, and does not wait for its end. Raises as `start` does; so does
        what the item is answered with. ``by``: who calls; ``now``: trio time."""
        return self._submit(request, reservation=reservation, by=by, now=now)

    def _submit(
        self,
        request: StartRequest,
        call: CodeCall | None = None,
        place: BatchPlace | None = None,
        reservation: MemoryReservation | None = None,
        by: str | None = None,
        now: float | None = None,
        reserved: int = 0,
        fork: Fork | None = None,
    ) -> StartItem:
        """Queue a start, with room for its answer: its own variables come back."""
        rules = self.check_start(request)
        if request.variables is None:
            request = msgspec.structs.replace(request, variables=EMPTY_OBJECT)
        item = StartItem(request, rules, call, place, reservation, by, reserved, fork)
        item.reservation.reserve(COPIES * len(request.variables))
        (self._starts.keyed if item.keyed else self._starts.commit_queue).submit_nowait(item, now=now)
        return item

    async def start_batch(self, requests: Sequence[StartRequest]) -> list[StartResult]:
        """Start many; one result each, in order. A bad item never fails its neighbours."""
        items: list[StartItem | PenstockError] = []
        for request in requests:
            try:
                items.append(self._submit(request))
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
        if any(request.wait_seconds for request in requests):
            await self._all_at_end(requests, results)
        return results

    async def _all_at_end(self, requests: Sequence[StartRequest], results: builtins.list[StartResult]) -> None:
        async def wait(index: int, started: Instance, wait_s: float) -> None:
            results[index] = StartResult(instance=await self._at_end(started, wait_s, one=False))

        async with trio.open_nursery() as nursery:
            for index, (request, result) in enumerate(zip(requests, results, strict=True)):
                if request.wait_seconds and result.instance is not None:
                    nursery.start_soon(wait, index, result.instance, request.wait_seconds)

    async def get(self, id: str, wait_s: float = 0.0) -> Instance:
        """One instance as it is now, or, if it has not ended, when it has, after ``wait_s`` seconds at most. Raises
        NotFound, Overloaded, TooManyRequests."""
        if wait_s > 0:
            await self.ends.wait(ids.read_instance(id), min(wait_s, self._settings.poll_max_wait_seconds))
        return await self._view(id, committed=False)

    async def _view(self, id: str, *, committed: bool, secrets: bool = True) -> Instance:
        """``committed``: the answer to a change, which waits for room but is not refused for want of it.
        ``secrets``: see `view_instances`."""
        number, reservation, size_bytes = ids.read_instance(id), current_reservation(), FIRST_READ_BYTES
        while True:
            try:
                await reservation.reserve_soon(COPIES * size_bytes)
            except Overloaded:
                if not committed:
                    raise
                reservation.add(COPIES * size_bytes)
            reserved = size_bytes
            async with self._connection(large=size_bytes > FIRST_READ_BYTES) as connection:
                views, size_bytes = await view_instances(
                    connection, self._definitions, [number], size_bytes, secrets=secrets
                )
            if views:
                return views[0]
            if not size_bytes:
                raise NotFound(f"instance '{id}' is unknown")
            reservation.keep(reservation.bytes - COPIES * reserved)  # not what the call holds for others

    @asynccontextmanager
    async def _connection(self, *, large: bool, listed: bool = False) -> AsyncGenerator[TrioConnection]:
        """A connection to read variables by: whoever reads many bytes waits for its turn."""
        async with AsyncExitStack() as stack:
            if large:
                await stack.enter_async_context(self._large_reads)
            source = self._read_pool.list_connection() if listed else self._database.connection()
            yield await stack.enter_async_context(source)

    async def find_by_key(self, definition_id: str, instance_key: str) -> int | None:
        """The instance that has a key: the open one, or the one that keeps it. Raises BadRequest."""
        check_text(definition_id, "definitionId", NAME_MAX_CHARS)
        check_text(instance_key, "instanceKey", NAME_MAX_CHARS)
        async with self._database.connection() as connection:
            return await key_store.find(connection, definition_id, instance_key)

    async def history(self, id: str) -> list[StepExecution]:
        """Every step execution in order of entry. Raises NotFound."""
        number = ids.read_instance(id)
        await self._reserve_history(number)
        async with self._database.connection() as connection, store.one_snapshot(connection):
            found = await store.history(connection, number)
            if found is None:
                raise NotFound(f"instance '{id}' is unknown")
            versions = await versions_of(connection, self._definitions, found[0])
        return history_items(number, versions, found[1])

    async def audit(
        self, id: str, limit: int = AUDIT_PAGE_MAX, after: int = 0, cursor: str | None = None
    ) -> Page[AuditRecord]:
        """Return the audit trail, oldest first: the audit records joined with what instance and history record.

        At most ``limit`` (1,000) records, leaving out the first ``after``, or those up to ``cursor``. Raises NotFound,
        BadRequest.
        """
        if cursor is not None and after:
            raise BadRequest("after: can't be combined with `cursor`")
        number = ids.read_instance(id)
        await self._reserve_history(number)
        async with self._database.connection() as connection, store.one_snapshot(connection):
            views = await summarize_instances(connection, self._definitions, [number])
            found = await store.history(connection, number)
            if not views or found is None:
                raise NotFound(f"instance '{id}' is unknown")
            versions = await versions_of(connection, self._definitions, found[0])
            rows = await audit_store.of_instance(connection, number)
            started_by = await store.started_by(connection, number)
        records = audit_records(number, views[0], versions, found[1], rows, started_by)
        first = max(after, 0) if cursor is None else place_after(records, cursor)
        return slice_of(records, first, min(max(limit, 1), AUDIT_PAGE_MAX))

    async def _reserve_history(self, number: int) -> None:
        async with self._database.connection() as connection:
            count = await store.history_count(connection, number)
        await current_reservation().reserve_soon(count * HISTORY_ITEM_BYTES)

    async def cancel(self, id: str, reason: str | None, *, force: bool = False, compensate: bool = False) -> Instance:
        """End an instance, whatever it is doing; with ``compensate`` its steps are compensated first. A durable run is
        asked to end, and cleans up, unless ``force`` is set. Raises NotFound, Conflict when it has ended, or is being
        undone."""
        number = ids.read_instance(id)
        text = None if not reason else check_text(reason, "reason", REASON_MAX_CHARS)
        try:
            await self._full_path.submit(CancelCommand(number, text, force=force, compensate=compensate))
        except IsCode:
            await self._runs.cancel(id, text)
        return await self._view(id, committed=True)

    async def retry(self, id: str, note: str | None = None, *, again: bool = False) -> Instance:
        """Let a FAILED instance go on where it failed; ``note`` is for the audit trail. Raises NotFound, BadRequest,
        and Conflict when it is not FAILED, or when work would be done ``again``."""
        if note is not None:
            check_text(note, "note", REASON_MAX_CHARS)
        await self._retry(ids.read_instance(id), note, again=again)
        return await self._view(id, committed=True)

    async def retry_run(self, id: str, from_path: str | None, note: str | None = None) -> Instance:
        """As `retry`, of a durable run: from the operation with a path of its journal; ``start``: from its beginning,
        ``end``: from where it ended. Without: from the step that failed last, or from the end where none did. What came
        after that is forgotten, but for messages. Raises Conflict where something was done after that step."""
        if note is not None:
            check_text(note, "note", REASON_MAX_CHARS)
        if from_path is not None:
            check_text(from_path, "fromStepId", PATH_MAX_CHARS)
        await self._full_path.submit(RetryRunCommand(ids.read_instance(id), note, from_path=from_path))
        return await self._view(id, committed=True)

    async def _retry(
        self,
        instance: int,
        note: str | None,
        failed_until: datetime | None = None,
        bulk: int | None = None,
        *,
        again: bool = False,
    ) -> None:
        try:
            await self._full_path.submit(RetryCommand(instance, note, failed_until, again=again).of(bulk))
        except IsCode:
            await self._full_path.submit(RetryRunCommand(instance, note, failed_until).of(bulk))

    async def after_change(self, id: str) -> Instance:
        """An instance that was changed just now: the answer waits for room, but is not refused for want of it."""
        return await self._view(id, committed=True)

    async def cancel_one_of_many(
        self, instance: int, reason: str | None, note: str | None = None, bulk: int | None = None
    ) -> None:
        """As `cancel`, without looking at it afterwards. ``note``: for the audit trail, in place of the reason."""
        try:
            await self._full_path.submit(CancelCommand(instance, reason, note=note).of(bulk))
        except IsCode:
            await self._runs.cancel(ids.show_instance(instance), reason, note=note, bulk=bulk)

    async def retry_one_of_many(
        self,
        instance: int,
        note: str | None,
        failed_until: datetime,
        bulk: int | None = None,
        *,
        from_path: str | None = None,
    ) -> None:
        """As `retry`, if it failed by then; with ``from_path`` as `retry_run`. Raises Conflict when it is not FAILED,
        or failed again since."""
        if from_path is None:
            await self._retry(instance, note, failed_until, bulk)
        else:
            await self._full_path.submit(RetryRunCommand(instance, note, failed_until, from_path).of(bulk))

    def check_start(self, request: StartRequest) -> StartRules | None:
        """What it asks for beside its definition. Raises BadRequest."""
        self._check(request)
        return read_rules(request)

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
        check_priority(request.priority)
        if request.flow_key is not None:
            check_flow_key(request.flow_key)
        if request.keep_instance_key and request.instance_key is None:
            raise BadRequest("keepInstanceKey: needs an instanceKey to keep")

    async def read(self, found: Sequence[int]) -> AsyncGenerator[builtins.list[Instance]]:
        """The instances, in pieces that fit into the memory for answers; each is to have left when the next is asked
        for. Waits for room; raises Overloaded only before the first piece."""
        left, reservation, size_bytes, count = [*found], current_reservation(), PIECE_BYTES, len(found)
        begun = False
        while left:
            if begun:
                await reservation.wait(COPIES * size_bytes)
            else:
                await reservation.reserve_soon(COPIES * size_bytes)
            async with self._connection(large=True, listed=True) as connection:
                views, more = await view_instances(connection, self._definitions, left[:count], size_bytes, listed=True)
            if not more:
                del left[:count]
            elif views:  # those that are gone meanwhile are left out: the last one that came says how far it went
                del left[: left.index(ids.read_instance(views[-1].id)) + 1]
            # PostgreSQL makes the text of all that it is asked for: one that came alone is followed by few
            count = min(max(len(views), 1) if more else 2 * count, PIECE_COUNT)
            size_bytes = max(more, size_bytes // 2, PIECE_BYTES)
            if views:
                begun = True
                yield views
                del views
            reservation.keep(0)

    async def read_some(self, found: Sequence[int]) -> tuple[builtins.list[Instance], int]:
        """Return the first of the instances, as many as fit into a piece of an answer, but one at least; those that are
        gone are left out. And how many of ``found`` these are. Raises Overloaded."""
        reservation, size_bytes = current_reservation(), PIECE_BYTES
        while True:
            await reservation.reserve_soon(COPIES * size_bytes)
            async with self._connection(large=True) as connection:
                views, more = await view_instances(connection, self._definitions, found, size_bytes, secrets=False)
            if not more:
                return views, len(found)
            if views:
                return views, found.index(ids.read_instance(views[-1].id)) + 1
            reservation.keep(0)
            size_bytes = more

    async def find_ended(self, found: Sequence[str]) -> builtins.list[str]:
        """Those of the instances that have ended, or are not there. Cheap, also for many."""
        numbers = {ids.read_instance(id): id for id in found}
        async with self._database.connection() as connection:
            return [numbers[number] for number in await store.find_ended(connection, [*numbers])]

    async def summarize(self, found: Sequence[int]) -> Sequence[Instance]:
        """Return the instances without their variables."""
        async with self._read_pool.list_connection() as connection:
            return await summarize_instances(connection, self._definitions, found)

    async def summaries(self, found: Sequence[int], *, decides: bool = False) -> Sequence[InstanceSummary]:
        """The instances without their variables, and where each stands; ``decides`` as of `find_slice`."""
        async with self._lists(decides=decides) as connection:
            return await list_summaries(connection, self._definitions, found)

    def _lists(self, *, decides: bool) -> AbstractAsyncContextManager[TrioConnection]:
        return self._database.connection() if decides else self._read_pool.list_connection()

    async def find(self, wanted: InstanceFilter, page: int, page_size: int) -> Page[int]:
        """Return a page, newest first; the total is exact up to a limit, beyond it an estimate. Raises BadRequest."""
        size, offset = page_bounds(page, page_size)
        check_filter(wanted)
        if wanted.order not in (None, NEWEST):
            raise BadRequest("order: pages are newest first; give a `limit`, and go on with `cursor`")
        if wanted.instance_key is not None:
            found_one = await self._with_key(wanted, wanted.instance_key)
            return Page(items=found_one[offset:], total=len(found_one))
        limit = self._settings.list_exact_total_limit
        async with self._read_pool.list_connection() as connection:
            listed = await listed_by(connection, wanted)
            if listed is None:
                return Page(items=[], total=0)
            found = await store.find_page(connection, listed, limit=size, offset=offset, count_max=limit + 1)
            if found.complete and found.total <= limit:
                return Page(items=found.ids, total=found.total)
            total = found.total
            if listed == store.Listed():
                total = max(total, await store.estimate(connection))
        return Page(items=found.ids, total=total, total_is_estimate=True)

    async def find_slice(
        self,
        wanted: InstanceFilter,
        cursor: str | None,
        limit: int,
        *,
        decides: bool = False,
        most: int = PAGE_SIZE_MAX,
    ) -> Page[int]:
        """Those after ``cursor``, newest first or as they are wanted. Whatever changes meanwhile, no instance that
        matches all the time is left out or comes twice. ``decides``: it is for more than to be shown; a replica may
        lack some. Raises BadRequest."""
        check_filter(wanted)
        size = slice_limit(limit, most)
        if wanted.by_key:
            return await self._slice_by_key(wanted, read_key_cursor(cursor), size, decides=decides)
        if wanted.by_time:
            return await self._slice_by_time(wanted, read_time_cursor(cursor), size, decides=decides)
        oldest = wanted.order == OLDEST
        before = read_cursor(cursor, 0 if oldest else BEYOND_ALL)
        if wanted.instance_key is not None:
            found_one = await self._with_key(wanted, wanted.instance_key)
            return Page(items=[number for number in found_one if number < before])
        async with self._lists(decides=decides) as connection:
            listed = await listed_by(connection, wanted)
            if listed is None:
                return Page(items=[])
            if oldest:
                listed, before = listed._replace(since=max(listed.since, before + 1)), BEYOND_ALL
            found, last = await store.find_slice(connection, listed, limit=size, before=before, oldest=oldest)
        return Page(items=found, next=show_cursor(last))

    async def _slice_by_key(
        self, wanted: InstanceFilter, after: store.KeyPlace, limit: int, *, decides: bool
    ) -> Page[int]:
        async with self._lists(decides=decides) as connection:
            listed = await listed_by(connection, wanted)
            if listed is None:
                return Page(items=[])
            found, last = await store.find_by_key(connection, listed, after, limit)
        return Page(items=found, next=show_key_cursor(last))

    async def _slice_by_time(
        self, wanted: InstanceFilter, after: store.TimePlace, limit: int, *, decides: bool
    ) -> Page[int]:
        async with self._lists(decides=decides) as connection:
            listed = await listed_by(connection, wanted)
            if listed is None:
                return Page(items=[])
            ended = wanted.order == BY_END
            found = await store.find_by_time(connection, listed, after, limit, most=COUNT_MAX, ended=ended)
        if found is None:
            raise BadRequest(
                f"order: {wanted.order} sorts at most {COUNT_MAX:,} instances, and there are more to look through. "
                "Narrow the list, by definitionId, status or startedAfter"
            )
        return Page(items=found[0], next=show_time_cursor(found[1]))

    async def count(self, wanted: InstanceFilter) -> Count:
        """How many match. Raises BadRequest, and Unavailable while others look at too much."""
        check_filter(wanted)
        if wanted.instance_key is not None:
            return Count(count=len(await self._with_key(wanted, wanted.instance_key)), exact=True)
        async with self._read_pool.connection() as connection:
            listed = await listed_by(connection, wanted)
            found, exact = (0, True) if listed is None else await store.count(connection, listed, COUNT_MAX)
        return Count(count=found, exact=exact)

    async def _read_at_once(self, found: Sequence[int]) -> list[Instance]:
        """Return all or none of them."""
        reservation, size_bytes = current_reservation(), FIRST_READ_BYTES
        while True:
            await reservation.reserve_soon(COPIES * size_bytes)
            async with self._connection(large=True, listed=True) as connection:
                items, more = await view_instances(connection, self._definitions, found, size_bytes, listed=True)
                if not more:
                    return items
                sizes = [row.variables_bytes or 0 for row in await store.view(connection, found, 0)]
            reservation.keep(0)
            size_bytes = sum(sizes)
            if COPIES * size_bytes > reservation.memory.max_bytes // 2 and len(found) > 1:
                raise Overloaded(f"the variables of these have {size_bytes} bytes: ask for fewer instances at once")

    async def list(self, wanted: InstanceFilter, page: int, page_size: int) -> Page[Instance]:
        """Return a page with all its variables at once. Raises as `find`, and Overloaded when they are too many
        bytes."""
        found = await self.find(wanted, page, page_size)
        return found.holding(await self._read_at_once(found.items))

    async def list_slice(self, wanted: InstanceFilter, cursor: str | None, limit: int) -> Page[Instance]:
        """Return a slice with all its variables at once. Raises as `find_slice`, and Overloaded."""
        found = await self.find_slice(wanted, cursor, limit)
        return found.holding(await self._read_at_once(found.items))

    async def _with_key(self, wanted: InstanceFilter, instance_key: str) -> builtins.list[int]:
        if wanted.definition_id is None:
            raise BadRequest("instanceKey: needs a definitionId, whose key it is")
        number = await self.find_by_key(wanted.definition_id, instance_key)
        if number is None:
            return []
        return [
            number
            for view in await self.summarize([number])
            if wanted.status in (None, view.status) and wanted.business_key in (None, view.business_key)
        ]
