"""Batches: many starts that are asked for together, started in the background, and followed as one.

A batch is a row, and one for each item. Whatever engine is free takes the batch that is due longest, for as long as a
lease: it starts the next items, cancels some, or looks whether all have ended. Killed in between, another engine does
the same again; an item is started by the transaction that writes its instance into its row, so it is started once.
"""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
import trio

from penstock.access.identity import actor
from penstock.api.batches import STATES
from penstock.engine.instances.instances import REASON_MAX_CHARS, Instances
from penstock.engine.requests import ids
from penstock.engine.requests.paging import NAME_MAX_CHARS, read_numbers
from penstock.engine.requests.payload import PayloadLimits, check_text, check_variables, clean_text
from penstock.engine.starts.full_starts import NotDue
from penstock.engine.starts.start_item import StartItem
from penstock.errors import (
    BadRequest,
    Conflict,
    IdempotencyConflict,
    NotFound,
    PayloadTooLarge,
    PenstockError,
    TooManyRequests,
    Unavailable,
)
from penstock.loop.offload import run_long
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import LOCKED, Database
from penstock.store.rows import audit as audit_store
from penstock.store.rows import batches as store
from penstock.store.rows import engines as engine_store
from penstock.store.rows.batches import AT_THE_END, BatchPlace, BatchRequest, BatchWork, NewBatch
from penstock.telemetry.metrics import Metrics
from penstock.wire.batch import Batch, BatchResult
from penstock.wire.model import Instance, StartRequest
from penstock.wire.page import Page

SCHEMA_VERSION_NEEDED: Final = 18
NOTE_MAX_CHARS: Final = 4_096
STARTS_AT_ONCE: Final = 128
CANCELS_AT_ONCE: Final = 100
ENDS_AT_ONCE: Final = 1_000
"""Items that one look asks for."""
IDLE_S: Final = 5.0
POLL_MIN_S: Final = 0.2
"""Between two looks whether all have ended: a tenth of the batch's age, but so long at least."""
WAIT_POLL_S: Final = 0.2
WAITING_MAX: Final = 1_000
"""Calls that wait for the end of batches at once in one engine."""
CANCEL_WAIT_S: Final = 5.0
LIST_MAX: Final = 200
RESULTS_MAX: Final = 200
VARIABLE: Final = "batch"
"""Of what is started at the end."""
ENDED: Final = STATES[2:]
_AWAY: Final = (Unavailable, TooManyRequests)


class BatchStart(NamedTuple):
    """What is asked for."""

    items: Sequence[StartRequest]
    on_complete: str | None = None
    note: str | None = None
    idempotency_key: str | None = None


class Batches:
    """Makes batches, shows them, and works on them."""

    def __init__(self, database: Database, settings: Settings, metrics: Metrics, instances: Instances) -> None:
        self._database = database
        self._settings = settings
        self._limits = PayloadLimits.of(settings)
        self._metrics = metrics
        self._instances = instances
        self._made = trio.Event()
        self._waiting = 0
        self._draining = False

    # -- for callers

    async def create(self, wanted: BatchStart) -> Batch:
        """Begin; returns as soon as it is stored. Raises BadRequest with the item, PayloadTooLarge,
        IdempotencyConflict, Conflict while older engines live, and TooManyRequests."""
        requests, digest = await run_long(self._read, wanted)
        key = wanted.idempotency_key
        new = NewBatch(key, digest, len(requests), wanted.on_complete, wanted.note, actor())
        if wanted.on_complete is not None:
            end = StartRequest(definition_id=wanted.on_complete)
            requests.append(BatchRequest(AT_THE_END, msgspec.json.encode(end), b"{}"))
        async with self._database.connection() as connection, connection.transaction():
            await engine_store.require_version(connection, SCHEMA_VERSION_NEEDED)
            known = key is not None and await store.with_key(connection, key) is not None
            most = self._settings.start_batches_open_max_items
            if not known and await store.count_open(connection, most) >= most:
                raise TooManyRequests(f"{most} batches have not ended")
            id = await store.create(connection, new, requests)
            if id is None:
                assert key is not None
                used = await store.with_key(connection, key)
                if used is None:
                    raise Unavailable("the batch with this Idempotency-Key was removed meanwhile: try again")
                id = used[0]
                if bytes(used[1]) != digest:
                    raise IdempotencyConflict(
                        "the Idempotency-Key was used for another batch: of other items, onComplete or note"
                    )
            else:
                await self._note(connection, "BATCH_STARTED", f"{id}: {len(wanted.items)} items")
        self._made.set()
        return await self.get(str(id))

    async def get(self, id: str, wait_s: float = 0.0) -> Batch:
        """As it stands, or, with ``wait_s``, when it has ended, or after so long. Raises NotFound, TooManyRequests."""
        number = _number(id)
        if wait_s > 0:
            await self._wait(number, min(wait_s, self._settings.poll_max_wait_seconds))
        async with self._database.connection() as connection:
            row = await self._row(connection, number)
            counts = await store.count(connection, number)
        return _view(row, counts)

    async def list(self, cursor: str | None, limit: int) -> Page[Batch]:
        """Newest first, without the counts of their items. Raises BadRequest."""
        before = store.BEYOND_ALL if cursor is None else read_numbers(cursor, digits=18)[0]
        size = min(max(limit, 1), LIST_MAX)
        async with self._database.connection() as connection:
            rows = await store.read(connection, before=before, limit=size)
        return Page(items=[_view(row, {}) for row in rows], next=str(rows[-1].id) if len(rows) == size else None)

    async def results(self, id: str, state: str | None, cursor: str | None, limit: int) -> Page[BatchResult]:
        """What became of its items, in their order: as many as fit into an answer. Raises BadRequest, NotFound,
        Overloaded."""
        number = _number(id)
        if state is not None and state not in STATES:
            raise BadRequest(f"state: must be one of {', '.join(STATES)}")
        since = 0 if cursor is None else read_numbers(cursor, digits=9)[0]
        size = min(max(limit, 1), RESULTS_MAX)
        async with self._database.connection() as connection:
            await self._row(connection, number)
            rows = await store.results(connection, number, since, size + 1, state)
        wanted = list(dict.fromkeys(row.instance for row in rows[:size] if row.instance is not None))
        views, count = await self._instances.read_some(wanted) if wanted else ([], 0)
        read, there = set(wanted[:count]), {ids.read_instance(view.id): view for view in views}
        results: builtins.list[BatchResult] = []
        for row in rows[:size]:
            if row.instance is not None and row.instance not in read:
                break
            results.append(_result(row, None if row.instance is None else there.get(row.instance)))
        more = len(results) < len(rows)
        return Page(items=results, next=str(rows[len(results)].place) if more else None)

    async def cancel(self, id: str, reason: str | None) -> Batch:
        """Start nothing more of it, and cancel what it started; goes on in the background. Raises BadRequest, NotFound,
        Conflict when it has ended."""
        number = _number(id)
        text = None if not reason else check_text(reason, "reason", REASON_MAX_CHARS)
        begun = await self._mark_cancelled(number, text)
        if not begun:
            async with self._database.connection() as connection:
                row = await self._row(connection, number)
            if not row.is_cancelled:
                raise Conflict(f"batch '{id}' has ended")
        self._made.set()
        return await self.get(id)

    async def _mark_cancelled(self, batch: int, reason: str | None) -> bool:
        """Nothing of it is started from then on. False: it has ended, or is cancelled, or there is none."""
        deadline = trio.current_time() + CANCEL_WAIT_S
        while True:
            try:
                async with self._database.connection() as connection, connection.transaction():
                    begun = await store.cancel(connection, batch, reason)
                    if begun:
                        detail = str(batch) if reason is None else f"{batch}: {reason}"
                        await self._note(connection, "BATCH_CANCELLED", detail)
                    return begun
            except LOCKED:  # some of it is being started
                if trio.current_time() > deadline:
                    raise Unavailable("the batch is being started; try again") from None

    def _read(self, wanted: BatchStart) -> tuple[builtins.list[BatchRequest], bytes]:
        """What is stored of the items, and what makes two batches the same. Raises BadRequest, PayloadTooLarge."""
        most, most_bytes, size_bytes = self._settings.start_batch_max_items, self._settings.start_batch_max_bytes, 0
        if not 1 <= len(wanted.items) <= most:
            raise BadRequest(f"items: has {len(wanted.items)} items; a batch has 1 to {most}")
        for text, field, most in (
            (wanted.on_complete, "onComplete", NAME_MAX_CHARS),
            (wanted.idempotency_key, "Idempotency-Key", NAME_MAX_CHARS),
            (wanted.note, "note", NOTE_MAX_CHARS),
        ):
            if text is not None:
                check_text(text, field, most)
        digest = hashlib.sha256(msgspec.json.encode((wanted.on_complete, wanted.note)))
        requests: builtins.list[BatchRequest] = []
        for place, given in enumerate(wanted.items):
            item = msgspec.structs.replace(given, instance_key=given.instance_key or None)
            try:
                variables = check_variables(None if item.variables is None else bytes(item.variables), self._limits)
                self._instances.check_start(item)
                for value, field in ((item.idempotency_key, "idempotencyKey"), (item.wait_seconds, "waitSeconds")):
                    if value:
                        raise BadRequest(f"{field}: is of the batch, not of its items")
            except (BadRequest, PayloadTooLarge) as error:
                raise type(error)(f"items[{place}].{error.reason}") from None
            request = msgspec.json.encode(msgspec.structs.replace(item, variables=None))
            requests.append(BatchRequest(place, request, variables))
            size_bytes += len(request) + len(variables)
            if size_bytes > most_bytes:
                raise PayloadTooLarge(f"items: have more than {most_bytes} bytes together, from items[{place}] on")
            digest.update(request + msgspec.json.encode(msgspec.json.decode(variables), order="sorted"))
        return requests, digest.digest()

    async def _wait(self, batch: int, wait_s: float) -> None:
        """Until it has ended, or is not there, or the time is over."""
        if self._waiting >= WAITING_MAX:
            raise TooManyRequests(f"{WAITING_MAX} calls wait for batches to end")
        deadline = trio.current_time() + wait_s
        self._waiting += 1
        try:
            while not self._draining and trio.current_time() < deadline:
                async with self._database.connection() as connection:
                    work = await store.work_of(connection, batch)
                if work is None:
                    return
                instance = None
                if work.is_through:
                    instance = await self._settle(work)
                    if instance is None:
                        return
                left_s = max(0.0, deadline - trio.current_time())
                if instance is None:
                    await trio.sleep(min(WAIT_POLL_S, left_s))
                else:
                    await self._instances.ends.wait(instance, left_s)
        finally:
            self._waiting -= 1

    def drain(self) -> None:
        """Answer all who wait, and new ones at once."""
        self._draining = True

    async def _row(self, connection: TrioConnection, batch: int) -> store.BatchRow:
        rows = await store.read(connection, id=batch)
        if not rows:
            raise NotFound(f"batch '{batch}' is unknown")
        return rows[0]

    async def _note(self, connection: TrioConnection, kind: str, detail: str) -> None:
        if self._settings.audit_log_enabled:
            await connection.fetch(*audit_store.add(None, None, kind, actor(), detail))

    # -- the work

    async def step(self) -> None:
        """One round of the service loop: something of one batch, or a wait until one is due."""
        async with self._database.connection(ahead=True) as connection:
            work = await store.claim(connection, self._settings.start_batch_lease_seconds)
            due_s = await store.due_in(connection) if work is None else 0.0
        if work is not None:
            await self.work_on(work)
            return
        with trio.move_on_after(IDLE_S if due_s is None else min(max(due_s, POLL_MIN_S), IDLE_S)):
            await self._made.wait()
        self._made = trio.Event()

    async def work_on(self, work: BatchWork) -> None:
        """Start its next items, cancel some, or look whether all have ended."""
        if work.cancelled is not None and work.cancelled < work.total:
            await self._cancel_next(work, work.cancelled)
        elif work.cancelled is None and work.begun < work.total:
            await self._start_next(work)
        else:
            await self._settle(work, read_pool=True)

    async def _start_next(self, work: BatchWork) -> None:
        async with self._database.connection() as connection:
            requests = await store.requests(connection, work.id, work.begun, STARTS_AT_ONCE)
        refused = await self._start(work.id, requests)
        async with self._database.connection() as connection, connection.transaction():
            await store.record_begun(connection, work.id, min(work.begun + STARTS_AT_ONCE, work.total), refused)

    async def _start(self, batch: int, requests: Sequence[BatchRequest]) -> builtins.list[tuple[int, str, str]]:
        """Those that can't be started: place, code and reason. Raises what is tried again: the others are started."""
        refused: builtins.list[tuple[int, str, str]] = []
        items: builtins.list[tuple[int, StartItem]] = []
        away: PenstockError | None = None

        def refuse(place: int, error: PenstockError) -> None:
            nonlocal away
            if isinstance(error, _AWAY):
                away = error
            else:
                refused.append((place, error.code, clean_text(error.reason, REASON_MAX_CHARS)))

        for place, request, variables in requests:
            try:
                known = msgspec.structs.replace(msgspec.json.decode(request, type=StartRequest), variables=variables)
                items.append((place, self._instances.submit_of_batch(known, BatchPlace(batch, place))))
            except PenstockError as error:
                refuse(place, error)
        for place, item in items:
            try:
                await item.wait_answer()
                self._metrics.batch_starts["STARTED"].inc()
            except NotDue:
                pass
            except PenstockError as error:
                refuse(place, error)
        if away is not None:
            raise away
        self._metrics.batch_starts["REFUSED"].inc(len(refused))
        return refused

    async def _cancel_next(self, work: BatchWork, since: int) -> None:
        name = f"batch-{work.id}"
        note = f"{name}: {work.reason}" if work.reason else name
        away: builtins.list[PenstockError] = []

        async def cancel(instance: int) -> None:
            try:
                with suppress(Conflict, NotFound):  # it has ended by itself
                    await self._instances.cancel_one_of_many(instance, work.reason, note)
            except PenstockError as error:
                away.append(error)

        async with self._database.connection() as connection:
            found = await store.open_instances(connection, work.id, since, CANCELS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for instance in found:
                nursery.start_soon(cancel, instance)
        if away:  # outside of the nursery: a group of errors would end the process
            raise away[0]
        async with self._database.connection() as connection:
            await store.record_cancelled(connection, work.id, min(since + CANCELS_AT_ONCE, work.total))

    async def _settle(self, work: BatchWork, *, read_pool: bool = False) -> int | None:
        """End a batch of which all have ended; else an instance that is open. With ``read_pool`` the next look is
        set."""
        within = (POLL_MIN_S, self._settings.start_batch_look_max_seconds) if read_pool else None
        async with self._database.connection() as connection:
            since = work.ended
            while since < work.total:
                found = await store.first_open(connection, work.id, since, ENDS_AT_ONCE)
                if found is not None:
                    place, instance = found
                    if read_pool or place > work.ended:
                        await store.record_ended(connection, work.id, place, within)
                    return instance
                since += ENDS_AT_ONCE
        if work.on_complete is not None and work.cancelled is None:
            await self._complete(work)
        async with self._database.connection() as connection:
            await store.end(connection, work.id)
        return None

    async def _complete(self, work: BatchWork) -> None:
        """Start what comes at the end, once."""
        async with self._database.connection() as connection:
            requests = await store.requests(connection, work.id, AT_THE_END, 1)
            counts = await store.count(connection, work.id)
        about = {"id": str(work.id), "total": work.total} | {state.lower(): counts.get(state, 0) for state in ENDED}
        variables = msgspec.json.encode({VARIABLE: about})
        refused = await self._start(work.id, [request._replace(variables=variables) for request in requests])
        if refused:
            async with self._database.connection() as connection, connection.transaction():
                await store.refuse(connection, work.id, refused)


def _number(id: str) -> int:
    if not (id.isascii() and id.isdigit() and len(id) <= 18):
        raise NotFound(f"batch '{id[:NAME_MAX_CHARS]}' is unknown")
    return int(id)


def _result(row: store.ItemRow, instance: Instance | None) -> BatchResult:
    gone = row.instance is not None and instance is None
    state = "REMOVED" if gone else row.state
    return BatchResult(index=row.place, state=state, instance=instance, error=row.error, reason=row.reason)


def _view(row: store.BatchRow, counts: dict[str, int]) -> Batch:
    if row.ended_at is not None:
        state = "CANCELLED" if row.is_cancelled else "DONE"
    elif row.is_cancelled:
        state = "CANCELLING"
    else:
        state = "STARTING" if row.begun < row.total else "RUNNING"
    error = None if row.completion_error is None else f"{row.completion_error}: {row.completion_reason}"
    return Batch(
        id=str(row.id),
        state=state,
        total=row.total,
        **{name.lower(): counts.get(name, 0) for name in STATES},
        created_at=row.created_at,
        ended_at=row.ended_at,
        on_complete=row.on_complete,
        completion_id=None if row.completion is None else ids.show_instance(row.completion),
        completion_error=error,
        note=row.note,
        actor=row.actor,
        reason=row.reason,
    )
