"""One act on many instances: retry, cancel or signal all that match, at a bounded rate, whatever happens meanwhile.

A bulk operation is a row. One engine at a time works on it under a lease: a page of instances, then how far it came.
What is done to an instance is counted in the same transaction, with its id, until its page is over. Killed in the
middle of a page, another engine does that page again; the acts make that harmless: who ended can't be cancelled twice,
a signal has the operation's id, and a retry is only of failures from before the operation; and who is counted is not
counted again. Instances started later are left out.
"""

from __future__ import annotations

import builtins
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import msgspec
import trio

from penstock.access.identity import Identity, actor, set_identity
from penstock.core.advance.migration import CantMigrate
from penstock.core.graph.definition import BUSINESS_KEY_MAX_CHARS
from penstock.engine.instances.causes import cause_of
from penstock.engine.instances.instance_filter import InstanceFilter, check_filter
from penstock.engine.instances.views import InstanceSummary
from penstock.engine.repair.bulk_acts import REPAIR_VERSION, TIMERS_VERSION, Acts, check_act, details_of, rule_of
from penstock.engine.requests import ids
from penstock.engine.requests.paging import CAUSE_MAX_CHARS, NAME_MAX_CHARS, show_cursor
from penstock.engine.requests.payload import PayloadLimits, check_text
from penstock.errors import (
    BadRequest,
    Conflict,
    MailboxFull,
    NotFound,
    Overloaded,
    PenstockError,
    TooManyRequests,
    Unavailable,
)
from penstock.store.db.database import Database
from penstock.store.db.vault import KeyMissing
from penstock.store.rows import bulk as store
from penstock.store.rows import engines as engine_store
from penstock.wire.bulk import BulkFilter, BulkRequest
from penstock.wire.error_code import BETWEEN, failure_text
from penstock.wire.noun import raw
from penstock.wire.page import Page
from penstock.wire.repair import (
    BulkCause,
    BulkDetails,
    BulkOutcome,
    BulkPreview,
    BulkRefusals,
    BulkStarted,
    BulkStep,
    BulkView,
    MigrationCheck,
)

IDS_MAX: Final = 1_000
PAGE_MAX: Final = 100
PER_SECOND_MAX: Final = 10_000.0
NOTE_MAX_CHARS: Final = 4_096
LEASE_S: Final = 30.0
HOLD_S: Final = 10.0
"""So often an operation with a low rate is looked at between pages."""
PAGE_S: Final = 5.0
"""A page lasts about so long at most when there is a rate."""
IDLE_S: Final = 1.0
SCAN_MAX_S: Final = 2.0
"""So long a look at what matches may take; then its count is not exact."""
_AWAY: Final = (Unavailable, Overloaded, TooManyRequests)
_OF_ONE: Final = (KeyMissing, MailboxFull)
"""Of these those that are one instance's: what is done to the others does not wait for it."""
FILTERS_SINCE_VERSION: Final = 13
"""Engines of an older schema know the first four fields of a filter only, and can't read what has more."""
ERROR_CONTAINS_VERSION: Final = 21
"""Engines of an older schema can't read a filter with ``error_contains``."""
SUMMARIES_MAX: Final = 1_000
"""Of these causes and steps are counted."""
LIST_MAX: Final = 200
OUTCOMES_MAX: Final = 10_000
"""Of so many instances an operation tells what became of them."""
COUNT_MAX: Final = 1_000_000
"""So many are counted exactly before an act, as far as there is time."""
COUNTED_AT_ONCE: Final = 5_000
DEAD_MAX: Final = 1_024
"""Engines that died of late and are remembered: as many as there are numbers."""


class _Wanted(BulkFilter, frozen=True, rename="camel", omit_defaults=True):
    """As it is stored: a filter, or ids; and what is left out of them."""

    ids: list[str] | None = None
    besides: BulkFilter | None = msgspec.field(default=None, name="except")

    @property
    def is_seen_one_by_one(self) -> bool:
        """Return whether the list has more than is wanted."""
        return self.cause is not None or self.besides is not None


class Bulk:
    """Makes operations, shows them, and works on them."""

    def __init__(
        self,
        database: Database,
        acts: Acts,
        limits: PayloadLimits,
        engine_number: int,
    ) -> None:
        self._database = database
        self._acts = acts
        self._instances = acts.instances
        self._limits = limits
        self._engine = engine_number
        self._made = trio.Event()
        self._dead: deque[str] = deque(maxlen=DEAD_MAX)

    def on_dead(self, tags: Sequence[str]) -> None:
        """These engines are dead: what they worked on is taken over at once."""
        self._dead.extend(tag for tag in tags if tag not in self._dead)
        self._made.set()

    # -- for callers

    async def preview(self, request: BulkRequest) -> BulkPreview:
        """What the operation would meet now; nothing is done. Raises BadRequest."""
        check_act(request, self._limits)
        wanted = _wanted(request)
        found = await self._scan(wanted, SUMMARIES_MAX)
        if request.action != "migrate":
            return found
        return msgspec.structs.replace(found, refusals=await self._refusals(request, wanted))

    async def create(self, request: BulkRequest) -> BulkStarted:
        """Begin; returns as soon as it is stored. Raises BadRequest, and Conflict when nothing matches."""
        variables = check_act(request, self._limits)
        wanted, details = _wanted(request), details_of(request)
        if request.action == "migrate":  # all of them to that of now, whatever is uploaded meanwhile
            version = await self._acts.migrations.find_version(
                wanted.definition_id, request.version or 0, request.steps or {}
            )
            details = msgspec.structs.replace(details, version=version)
        found = await self._scan(wanted, 0)
        if found.count == 0:
            raise Conflict("no instance matches")
        new = store.NewBulk(
            request.action,
            msgspec.json.encode(wanted),
            request.step_id,
            variables,
            request.note,
            actor(),
            request.per_second,
            found.count,
            found.exact,
            None if details == BulkDetails() else msgspec.json.encode(details),
        )
        async with self._database.connection() as connection:
            if request.timers:
                await engine_store.require_version(connection, TIMERS_VERSION)
            elif new.details is not None or request.action not in ("retry", "cancel", "signal"):
                await engine_store.require_version(connection, REPAIR_VERSION)
            elif _is_new_to_older_engines(wanted):
                await engine_store.require_version(connection, FILTERS_SINCE_VERSION)
            if any(one is not None and one.error_contains is not None for one in (wanted, wanted.besides)):
                await engine_store.require_version(connection, ERROR_CONTAINS_VERSION)
            number = await store.create(connection, new)
        self._made.set()
        return BulkStarted(id=str(number))

    async def list(self, cursor: str | None, limit: int) -> Page[BulkView]:
        """Newest first. Raises BadRequest."""
        before = (
            store.BEYOND_ALL if cursor is None else _number(cursor, BadRequest("cursor: is not a `next` of this list"))
        )
        limit = min(max(limit, 1), LIST_MAX)
        async with self._database.connection() as connection:
            rows = await store.read(connection, before=before, limit=limit)
        return Page(items=[_view(row) for row in rows], next=str(rows[-1].id) if len(rows) == limit else None)

    async def get(self, id: str) -> BulkView:
        """Raises NotFound."""
        unknown = NotFound(f"bulk operation '{id}' is unknown")
        number = _number(id, unknown)
        async with self._database.connection() as connection:
            rows = await store.read(connection, id=number)
            outcome = await store.outcome(connection, number) if rows else None
        if not rows:
            raise unknown
        return msgspec.structs.replace(_view(rows[0]), outcome=None if outcome is None else _outcome(outcome))

    async def stop(self, id: str) -> BulkView:
        """What has not begun is left undone. Stopping one that has ended changes nothing. Raises NotFound."""
        await self.get(id)
        async with self._database.connection() as connection:
            await store.stop(connection, int(id))
        return await self.get(id)

    async def _scan(self, wanted: _Wanted, summaries_max: int) -> BulkPreview:
        """Counts what matches, in bounded time; ``summaries_max`` of them by cause and step."""
        causes: Counter[str] = Counter()
        texts: dict[str, str] = {}
        steps: Counter[str] = Counter()
        count, scanned, below, more = 0, 0, store.BEYOND_ALL, True
        with trio.move_on_after(SCAN_MAX_S):
            while more and count <= COUNT_MAX:
                in_detail = wanted.is_seen_one_by_one or scanned < summaries_max
                page, below, more = await self._page(wanted, below, 2 * PAGE_MAX if in_detail else COUNTED_AT_ONCE)
                if in_detail:
                    matching = _matching(wanted, await self._summaries(page))
                    for one in matching if scanned < summaries_max else ():
                        if one.failure_reason is not None:
                            text = failure_text(one.failure_reason, one.failure_code)
                            cause = cause_of(text)
                            causes[cause] += 1
                            texts.setdefault(cause, text)
                        steps.update({place.step_id for place in one.where})
                    scanned += len(page)
                    count += len(matching)
                else:
                    count += len(page)
        return BulkPreview(
            count=min(count, COUNT_MAX),
            exact=not more and count <= COUNT_MAX,
            by_cause=[BulkCause(cause=name, text=texts[name], count=n) for name, n in causes.most_common(20)],
            by_step=[BulkStep(step_id=name, count=n) for name, n in steps.most_common(20)],
        )

    async def _refusals(self, request: BulkRequest, wanted: _Wanted) -> BulkRefusals:
        """What a migration would refuse, of the newest."""
        below, more, checked = store.BEYOND_ALL, True, 0
        refused: builtins.list[MigrationCheck] = []
        due, rule = 0, rule_of(request.timers)
        with trio.move_on_after(SCAN_MAX_S):
            while more and checked < SUMMARIES_MAX:
                page, below, more = await self._page(wanted, below, PAGE_MAX)
                if wanted.is_seen_one_by_one:
                    page = [ids.read_instance(one.id) for one in _matching(wanted, await self._summaries(page))]
                checks = await self._acts.migrations.check_page(page, request.version or 0, request.steps or {}, rule)
                due += sum(check.timers_due for check in checks)
                refused += [check for check in checks if not check.possible]
                checked += len(page)
        return BulkRefusals(checked=checked, refused=len(refused), instances=refused[:PAGE_MAX], timers_due=due)

    async def _page(self, wanted: _Wanted, below: int, limit: int) -> tuple[Sequence[int], int, bool]:
        """(instances below that one, newest first; where to go on; whether there may be more)."""
        if wanted.ids is not None:
            left = sorted({number for number in map(ids.read_instance, wanted.ids) if number < below}, reverse=True)
            page = left[:limit]
            return page, page[-1] if page else below, len(left) > limit
        cursor = None if below == store.BEYOND_ALL else show_cursor(below)
        listed = _listed(wanted)
        if wanted.step_id is None:  # what failed long ago may have no cause stored yet
            listed = msgspec.structs.replace(listed, cause=None)
        found = await self._instances.find_slice(listed, cursor, limit, decides=True, most=COUNTED_AT_ONCE)
        if found.next is None:
            return found.items, below, False
        return found.items, ids.read_instance(found.next), True

    async def _summaries(self, page: Sequence[int]) -> Sequence[InstanceSummary]:
        return await self._instances.summaries(page, decides=True)

    # -- the work

    async def step(self) -> None:
        """One round of the service loop: a whole operation, or a wait for one."""
        async with self._database.connection() as connection:
            work = await store.claim(connection, self._engine, LEASE_S, self._dead)
        if work is None:
            with trio.move_on_after(IDLE_S):
                await self._made.wait()
            self._made = trio.Event()
            return
        await self.work_on(work)

    async def work_on(self, work: store.BulkWork) -> None:
        """Page by page to its end, or until somebody stops it or takes it over."""
        wanted = msgspec.json.decode(work.filter, type=_Wanted)
        rate = work.per_second
        limit = PAGE_MAX if rate is None else max(1, min(PAGE_MAX, int(rate * PAGE_S)))
        below, more = work.below, True
        while more:
            began = trio.current_time()
            page, below, more = await self._page(wanted, below, limit)
            if wanted.is_seen_one_by_one:
                matching = _matching(wanted, await self._summaries(page))
                page = [ids.read_instance(one.id) for one in matching]
            found = await self._act(work, page)
            async with self._database.connection() as connection:
                if not await store.advance(
                    connection,
                    work.id,
                    self._engine,
                    below=below,
                    page=found,
                    last=not more,
                    lease_s=LEASE_S,
                    kept_max=OUTCOMES_MAX,
                ):
                    return
            if rate is not None and more and not await self._hold(work.id, began + len(page) / rate):
                return
        async with self._database.connection() as connection:
            await store.purge(connection)

    async def _hold(self, id: int, until: float) -> bool:
        """Keep an operation until its next page may begin; False: it was stopped or taken over."""
        while True:
            await trio.sleep_until(min(until, trio.current_time() + HOLD_S))
            async with self._database.connection() as connection:
                if not await store.hold(connection, id, self._engine, LEASE_S):
                    return False
            if trio.current_time() >= until:
                return True

    async def _act(self, work: store.BulkWork, page: Sequence[int]) -> store.BulkPage:
        """Raises what the database's absence raises: then the page is done again."""
        found = store.BulkPage()
        away: builtins.list[PenstockError] = []

        async def act(instance: int) -> None:
            if work.actor is not None:
                set_identity(Identity(work.actor, frozenset()))
            try:
                await self._acts.do(work, instance)
                found.done.append(instance)
            except PenstockError as error:
                if isinstance(error, (Conflict, NotFound)) and not isinstance(error, CantMigrate):
                    found.skipped.append(instance)
                elif isinstance(error, _AWAY) and not isinstance(error, _OF_ONE):
                    away.append(error)
                else:
                    found.failed += 1
                    found.errors.append(f"{ids.show_instance(instance)}: {error.reason}")

        async with trio.open_nursery() as nursery:
            for instance in page:
                nursery.start_soon(act, instance)
        if away:
            raise away[0]
        return found


def _wanted(request: BulkRequest) -> _Wanted:
    """Which instances, checked. Raises BadRequest."""
    if request.per_second is not None and not 0 < request.per_second <= PER_SECOND_MAX:
        raise BadRequest(f"perSecond: must be more than 0 and at most {PER_SECOND_MAX:,.0f}")
    if request.note is not None:
        check_text(request.note, "note", NOTE_MAX_CHARS)
    match request.filter, request.ids:
        case None, builtins.list() as named:
            wanted = _named(named)
        case BulkFilter() as given, None:
            _check_filter(given, "filter")
            wanted = _Wanted(**msgspec.structs.asdict(given))
        case _:
            raise BadRequest("filter: give either a filter or ids")
    if request.action == "migrate" and wanted.definition_id is None and not request.version:
        raise BadRequest("filter.definitionId: is required to migrate, unless a version is given")
    if request.besides is None:
        return wanted
    _check_filter(request.besides, "except")
    return msgspec.structs.replace(wanted, besides=request.besides)


def _named(named: Sequence[str]) -> _Wanted:
    if not 0 < len(named) <= IDS_MAX:
        raise BadRequest(f"ids: must have 1 to {IDS_MAX:,} ids")
    for id in named:
        try:
            ids.read_instance(id)
        except NotFound:
            raise BadRequest(f"ids: '{id}' is not an instance id") from None
    return _Wanted(ids=list(named))


def _check_filter(wanted: BulkFilter, field: str) -> None:
    """Raises BadRequest, which names the field."""
    if wanted == BulkFilter():
        raise BadRequest(f"{field}: is empty, so it would match all instances: name what to match")
    for time, name in ((wanted.started_after, "startedAfter"), (wanted.started_before, "startedBefore")):
        if time is not None and time.tzinfo is None:
            raise BadRequest(f"{field}.{name}: must be a time such as 2026-01-31T12:00:00Z")
    if wanted.definition_version is not None and not 0 < wanted.definition_version < 2**31:
        raise BadRequest(f"{field}.definitionVersion: must be a version")
    if wanted.business_key_prefix == "":
        raise BadRequest(f"{field}.businessKeyPrefix: must not be empty: it would match all keys")
    if wanted.error_contains == "":
        raise BadRequest(f"{field}.errorContains: must not be empty: it would match all failures")
    for text, name, most in (
        (wanted.definition_id, "definitionId", NAME_MAX_CHARS),
        (wanted.business_key, "businessKey", BUSINESS_KEY_MAX_CHARS),
        (wanted.business_key_prefix, "businessKeyPrefix", BUSINESS_KEY_MAX_CHARS),
        (wanted.step_id, "stepId", NAME_MAX_CHARS),
        (wanted.cause, "cause", CAUSE_MAX_CHARS),
        (wanted.error_contains, "errorContains", CAUSE_MAX_CHARS),
    ):
        if text is not None:
            check_text(text, f"{field}.{name}", most)
    try:
        check_filter(_listed(wanted))
    except BadRequest as error:
        raise BadRequest(f"{field}.{error.reason}") from None


def _listed(wanted: BulkFilter) -> InstanceFilter:
    return InstanceFilter(**{name: getattr(wanted, name) for name in BulkFilter.__struct_fields__})


def _is_new_to_older_engines(wanted: _Wanted) -> bool:
    return wanted.besides is not None or any(
        getattr(wanted, name) is not None for name in BulkFilter.__struct_fields__[4:]
    )


def _matching(wanted: _Wanted, found: Sequence[InstanceSummary]) -> list[InstanceSummary]:
    """Those whose cause is the one asked for, but for what is left out."""
    cause = BulkFilter(cause=wanted.cause)
    besides = wanted.besides
    return [one for one in found if _fits(cause, one) and not (besides is not None and _fits(besides, one))]


def _fits(wanted: BulkFilter, one: InstanceSummary) -> bool:
    """As the list would find it."""
    number, after, before = ids.read_instance(one.id), wanted.started_after, wanted.started_before
    return (
        wanted.status in (None, one.status)
        and wanted.definition_id in (None, one.definition_id)
        and wanted.definition_version in (None, one.definition_version)
        and wanted.business_key in (None, one.business_key)
        and (one.business_key or "").startswith(wanted.business_key_prefix or "")
        and _failed_so(wanted, one)
        and (wanted.step_id is None or any(place.step_id == wanted.step_id for place in one.where))
        and (after is None or number >= ids.first_instance(after))
        and (before is None or number < ids.first_instance(before))
    )


def _failed_so(wanted: BulkFilter, one: InstanceSummary) -> bool:
    text = failure_text(one.failure_reason, one.failure_code)
    return (wanted.cause is None or cause_of(wanted.cause) == cause_of(text)) and (
        wanted.error_contains is None
        or wanted.error_contains.lower() in f"{one.failure_code or ''}{BETWEEN}{one.failure_reason or ''}".lower()
    )


def _number(id: str, unknown: PenstockError) -> int:
    if not (id.isascii() and id.isdigit() and len(id) <= 18):
        raise unknown
    return int(id)


def _outcome(found: store.InstanceCounts) -> BulkOutcome | None:
    """None where it is not kept, or nothing was done."""
    return BulkOutcome(found.completed, found.failed, found.running, found.cancelled) if any(found) else None


def _view(row: store.BulkRow) -> BulkView:
    return BulkView(
        id=str(row.id),
        action=row.action,
        filter=raw(row.filter),
        state=row.stage,
        done=row.done,
        skipped=row.skipped,
        failed=row.failed,
        total=row.total,
        total_exact=row.total_exact,
        errors=msgspec.json.decode(row.errors, type=list[str]),
        created_at=row.created_at,
        ended_at=row.ended_at,
        step_id=row.step,
        per_second=row.per_second,
        note=row.note,
        actor=row.actor,
        details=None if row.details is None else msgspec.json.decode(row.details, type=BulkDetails),
    )
