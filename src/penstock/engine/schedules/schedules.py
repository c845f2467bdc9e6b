"""Schedules: make, change, pause, trigger, backfill, look at; and the loop that fires what is due.

The loop is like that of timers: asleep until the first schedule is due, five seconds at most, woken by who makes or
changes one here. What a look decides is `core.time.schedule`'s, what it writes the group-commit queue's
(`schedules.firings`). The clock is the database's, so engines whose clocks differ agree.
"""

from __future__ import annotations

import builtins
import contextlib
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec
import trio

from penstock.access.identity import actor
from penstock.api import schedules as api
from penstock.core.time.duration import TimestampError, parse_timestamp
from penstock.core.time.schedule import CATCH_UP_WINDOW_DEFAULT, Backfill, CatchUp, Overlap, Rules, RunOutcome
from penstock.core.time.schedule_times import ScheduleError
from penstock.engine.advance.quarantine import Quarantine
from penstock.engine.advance.timers import SCAN_INTERVAL_MAX_S
from penstock.engine.definitions.definitions import Definitions
from penstock.engine.instances.instances import Instances
from penstock.engine.queues.variables import without
from penstock.engine.requests import ids
from penstock.engine.requests.bound import Binding, bind, needed
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import EMPTY_OBJECT, PayloadLimits, check_text, check_variables
from penstock.engine.schedules.firings import OVERTAKEN_REASON, FiringItem, Firings, TriggeredNow
from penstock.engine.schedules.schedule_spec import (
    NOTE_MAX_CHARS,
    TIMELESS,
    check_spec,
    hint_of,
    read_overlap,
    read_rules,
    read_spec,
)
from penstock.errors import BadRequest, Conflict, NotFound, PenstockError, TooManyRequests, Unavailable
from penstock.loop.offload import run_long, run_sized
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import LOCKED, Database
from penstock.store.db.vault import KeyMissing
from penstock.store.rows import activity
from penstock.store.rows import audit as audit_store
from penstock.store.rows import definitions as definition_store
from penstock.store.rows import engines as engine_store
from penstock.store.rows import schedules as store
from penstock.store.rows import timers as timer_store
from penstock.store.rows.schedules import ScheduleRow
from penstock.wire.noun import raw
from penstock.wire.page import Page
from penstock.wire.schedule import Schedule, SchedulePreview, ScheduleRun, ScheduleSpec, ScheduleTime

SCHEMA_VERSION_NEEDED: Final = 18
"""Of all engines on the database: an older one would not tell a schedule of the end of its run."""
DUE_MAX: Final = 500
"""Schedules taken at a look."""
NEXT_TIMES: Final = 10
RUNS_SHOWN: Final = 20
LIST_DEFAULT: Final = 50
LIST_MAX: Final = 200
PREVIEW_DEFAULT: Final = 10
PREVIEW_MAX: Final = 100
BACKFILL_MAX: Final = 10_000
"""Times of one backfill."""
SERVICE: Final = "schedules"
_BUSY: Final = (Unavailable, TooManyRequests)


class Schedules:
    """The operations on schedules, and their loop."""

    def __init__(
        self,
        database: Database,
        limits: PayloadLimits,
        definitions: Definitions,
        firings: Firings,
        instances: Instances,
        quarantine: Quarantine,
        *,
        audit: bool,
    ) -> None:
        self._database = database
        self._audit = audit
        self._limits = limits
        self._definitions = definitions
        self._firings = firings
        self._instances = instances
        self._quarantine = quarantine
        self._next_at = 0.0  # trio time of the next look
        self._wake = trio.Event()
        self._reckoned = False

    # -- for callers

    async def put(self, id: str, spec: ScheduleSpec) -> Schedule:
        """Make a schedule, or change it from now on. Idempotent. Raises BadRequest, PayloadTooLarge, and Conflict while
        older engines live."""
        given = b"" if spec.variables is None else bytes(spec.variables)
        variables = EMPTY_OBJECT if given in (b"", b"null") else check_variables(given, self._limits)
        async with self._database.connection() as connection:
            now = await activity.read_clock(connection)
        kept = await run_long(check_spec, id, spec, now)
        await self._firings.check(spec, variables)
        async with self._database.connection() as connection, connection.transaction():
            await engine_store.require_version(connection, SCHEMA_VERSION_NEEDED)
            before, changed = list[ScheduleRow](), list[str]()
            if self._audit:
                with contextlib.suppress(KeyMissing):  # the trail does without what it was: whoever puts it mends it
                    before = await store.read(connection, name=id)
                was = before[0].variables if before else EMPTY_OBJECT
                changed = await run_sized(len(was) + len(variables), partial(_changed_names, was, variables))
            old = before[0].spec if before else None
            about = f"; variables: {', '.join(changed)[:1000]}" if changed else ""
            await self._note(connection, "SCHEDULE_CHANGED", f"{id}: {kept.decode()[:1000]}{about}", old)
            await store.put(
                connection, id, spec=kept, variables=variables, definition_id=spec.definition_id, paused=spec.paused,
                timeless=TIMELESS,
            )  # fmt: skip
        self.scan_early()
        async with self._database.connection() as connection:
            known = await definition_store.active_keys(connection, [spec.definition_id])
        return msgspec.structs.replace(await self.get(id), hint=hint_of(spec, is_known=bool(known)))

    async def get(self, id: str) -> Schedule:
        """With its next times and its last runs; without the variables that its definition calls secret. Raises
        NotFound."""
        async with self._database.connection() as connection:
            row = await self._row(connection, id)
            runs = await store.runs(connection, [row.id], RUNS_SHOWN)
            (row,) = await self._without_secrets(connection, [row])
        return await run_long(_view, row, runs[row.id], NEXT_TIMES)

    async def _without_secrets(
        self, connection: TrioConnection, rows: builtins.list[ScheduleRow]
    ) -> builtins.list[ScheduleRow]:
        """Return the schedules without the variables that the active version of their definition calls secret."""
        keys = await definition_store.active_keys(connection, [row.definition_id for row in rows])
        secrets = {id: (await self._definitions.by_key(connection, key)).secret_variables for id, key in keys.items()}
        return [
            row._replace(variables=without(row.variables, names)) if (names := secrets.get(row.definition_id)) else row
            for row in rows
        ]

    async def list(self, cursor: str | None, limit: int | None) -> Page[Schedule]:
        """By name, each with its next time and its last run. Raises BadRequest."""
        size = min(max(LIST_DEFAULT if limit is None else limit, 1), LIST_MAX)
        async with self._database.connection() as connection:
            rows = await store.read(connection, after=cursor or "", limit=size)
            runs = await store.runs(connection, [row.id for row in rows], 1)
            rows = await self._without_secrets(connection, rows)

        def views() -> builtins.list[Schedule]:
            return [_view(row, runs[row.id], 1) for row in rows]

        return Page(items=await run_long(views), next=rows[-1].name if len(rows) == size else None)

    async def delete(self, id: str) -> None:
        """What it started goes on. Raises NotFound."""
        async with self._database.connection() as connection, connection.transaction():
            if not await store.delete(connection, _name(id)):
                raise _unknown(id)
            await self._note(connection, "SCHEDULE_DELETED", id)

    async def pause(self, id: str, note: str | None) -> Schedule:
        """Nothing is started until it is resumed; what runs goes on. Raises BadRequest, NotFound."""
        text = None if not note else check_text(note, "note", NOTE_MAX_CHARS)
        async with self._database.connection() as connection, connection.transaction():
            if not await store.pause(connection, _name(id), text):
                raise _unknown(id)
            await self._note(connection, "SCHEDULE_PAUSED", id if text is None else f"{id}: {text}")
        return await self.get(id)

    async def resume(self, id: str) -> Schedule:
        """From now on; what passed meanwhile is not caught up. Raises NotFound."""
        async with self._database.connection() as connection, connection.transaction():
            if not await store.resume(connection, _name(id)):
                raise _unknown(id)
            await self._note(connection, "SCHEDULE_RESUMED", id)
        self.scan_early()
        return await self.get(id)

    async def trigger(self, id: str, overlap: str | None) -> ScheduleRun:
        """Start a run now, also of one that is paused. What became of it: `overlap` may skip or buffer it. Raises
        BadRequest, NotFound, Unavailable."""
        wanted = None if overlap is None else _overlap(overlap, Overlap.SKIP)
        async with self._database.connection() as connection:
            row = await self._row(connection, id)
        item = FiringItem(row.id, TriggeredNow(wanted, actor()))
        self._firings.submit_nowait(item)
        fired = await item.wait_answer()
        self.scan_early()
        at, outcome, instance, reason = max(fired, key=lambda one: one[0])  # others were due, and are older
        shown = None if instance is None else ids.show_instance(instance)
        return ScheduleRun(at=at, outcome=outcome.name, instance_id=shown, reason=reason)

    async def backfill(self, id: str, since: str | None, until: str | None, overlap: str | None) -> Schedule:
        """Start its times of a span of the past, both ends counted; those of its latest runs are left out. Goes on in
        the background. Raises BadRequest, NotFound, and Conflict while another one is under way."""
        begin, end = _time(since, "from"), _time(until, "to")
        wanted = _overlap(overlap, Overlap.ALLOW)
        if wanted not in (Overlap.ALLOW, Overlap.BUFFER_ALL):
            raise BadRequest("overlap: must be ALLOW (all at once) or BUFFER_ALL (one after the other) for a backfill")
        if end < begin:
            raise BadRequest("to: must not be before `from`")
        async with self._database.connection() as connection:
            row = await self._row(connection, id)
            if end > row.now:
                raise BadRequest("to: must be in the past")
            mark = begin - datetime.resolution
            times = _rules(row).times
            found = await run_long(times.between, mark, end, BACKFILL_MAX + 1)
            if len(found) > BACKFILL_MAX:
                raise BadRequest(f"to: the period has more than {BACKFILL_MAX} times: choose a shorter one")
            if not found:
                raise BadRequest("from: the schedule has no time between `from` and `to`")
            asked = msgspec.json.encode(Backfill(mark, end, wanted))
            async with connection.transaction():
                if not await store.begin_backfill(connection, row.name, asked):
                    raise Conflict(f"a backfill of schedule '{row.name}' is under way")
                await self._note(connection, "SCHEDULE_BACKFILLED", f"{row.name}: {_shown(begin)} to {_shown(end)}")
        self.scan_early()
        many, how = len(found), "all at once" if wanted is Overlap.ALLOW else "one after the other"
        hint = f"{many} {'time' if many == 1 else 'times'}, {_shown(found[0])} to {_shown(found[-1])}, started {how}"
        return msgspec.structs.replace(await self.get(id), hint=f"{hint}; those of its latest runs are left out")

    async def preview(self, id: str, spec: ScheduleSpec, count: int | None) -> SchedulePreview:
        """The next times of what would be put under ``id``; nothing is done. Raises BadRequest."""
        most = min(max(PREVIEW_DEFAULT if count is None else count, 1), PREVIEW_MAX)
        async with self._database.connection() as connection:
            now = await activity.read_clock(connection)

        def times() -> builtins.list[ScheduleTime]:
            rules = read_rules(id, check_spec(id, spec, now).decode())
            found: builtins.list[ScheduleTime] = []
            for at in rules.times.after(now):
                if len(found) == most:
                    break
                found.append(ScheduleTime(at=at, fires_at=rules.times.due_at(id, at)))
            return found

        return SchedulePreview(times=await run_long(times))

    async def _note(self, connection: TrioConnection, kind: str, detail: str, old: str | None = None) -> None:
        if self._audit:
            await connection.fetch(*audit_store.add(None, None, kind, actor(), detail, old))

    async def _row(self, connection: TrioConnection, id: str) -> ScheduleRow:
        rows = await store.read(connection, name=_name(id))
        if not rows:
            raise _unknown(id)
        return rows[0]

    # -- timers that runs leave

    async def run_ended(self, instance: int) -> bool | None:
        """A run has ended whose schedule wants to know. None: somebody looks at that just now."""
        failure = f"its run {ids.show_instance(instance)} failed"
        async with self._database.connection(ahead=True) as connection:
            try:
                notified = await store.run_ended(connection, instance, failure)
            except LOCKED:
                return None
        self.scan_early()
        return notified

    async def cancel_overtaken(self, instance: int, timer: tuple[int, int, int]) -> bool:
        """A durable run is to end, as its schedule starts another one. The timer goes when that is done."""
        with contextlib.suppress(Conflict, NotFound):  # it has ended by itself
            await self._instances.cancel_one_of_many(instance, OVERTAKEN_REASON)
        async with self._database.connection(ahead=True) as connection:
            await connection.fetch(*timer_store.delete(*timer))
        return True

    # -- the loop

    def scan_early(self) -> None:
        """Something changed: look now."""
        self._next_at = 0.0
        self._wake.set()

    async def wait_due(self) -> None:
        """Wait until it is time to look."""
        while trio.current_time() < self._next_at:
            with trio.move_on_at(self._next_at):
                await self._wake.wait()
            self._wake = trio.Event()

    async def fire_once(self) -> int:
        """Fire what is due. How many schedules were looked at here."""
        self._next_at = trio.current_time() + SCAN_INTERVAL_MAX_S
        left_out = set(self._quarantine.waiting(SERVICE))
        async with self._database.connection(ahead=True) as connection:
            if not self._reckoned:
                await store.reckon(connection)
                self._reckoned = True
            due, next_s = await store.due(connection, DUE_MAX + len(left_out))
        if next_s is not None:
            self._next_at = min(self._next_at, trio.current_time() + next_s)
        items = [FiringItem(id) for id in due if id not in left_out]
        fired = 0
        for count, item in enumerate(items):
            try:
                self._firings.submit_nowait(item)
            except TooManyRequests:  # the others with the next look
                del items[count:]
                break
        for item in items:
            try:
                await item.wait_answer()
                fired += item.planned is not None
                self._quarantine.forget(SERVICE, item.schedule)
            except PenstockError as error:
                if isinstance(error, _BUSY) and not isinstance(error, KeyMissing):
                    continue  # the next look
                self._quarantine.quarantine_row(SERVICE, item.schedule, f"schedule {item.schedule}", error)
        if fired:
            self._next_at = trio.current_time()
        return fired


def bindings(schedules: Schedules) -> tuple[Binding, ...]:
    """What serves the operations on schedules."""
    return (
        bind(api.PUT_SCHEDULE, lambda ask: schedules.put(ask.id, needed(ask.spec, "spec"))),
        bind(api.LIST_SCHEDULES, lambda ask: schedules.list(ask.cursor, ask.limit)),
        bind(api.GET_SCHEDULE, lambda ask: schedules.get(ask.id)),
        bind(api.DELETE_SCHEDULE, lambda ask: schedules.delete(ask.id)),
        bind(api.PAUSE_SCHEDULE, lambda ask: schedules.pause(ask.id, ask.note)),
        bind(api.RESUME_SCHEDULE, lambda ask: schedules.resume(ask.id)),
        bind(api.TRIGGER_SCHEDULE, lambda ask: schedules.trigger(ask.id, ask.overlap)),
        bind(
            api.BACKFILL_SCHEDULE,
            lambda ask: schedules.backfill(ask.id, ask.from_time, ask.to_time, ask.overlap),
        ),
        bind(
            api.PREVIEW_SCHEDULE,
            lambda ask: schedules.preview(ask.id, needed(ask.spec, "spec"), ask.count),
        ),
    )


def _name(id: str) -> str:
    return check_text(id, "id", NAME_MAX_CHARS)


def _unknown(id: str) -> NotFound:
    return NotFound(f"schedule '{id[:NAME_MAX_CHARS]}' is unknown")


def _changed_names(before: str | bytes, given: bytes) -> builtins.list[str]:
    """Return the names of the variables that a change sets, and with - of those that it takes away. The audit trail has
    no values: what is secret is known of the active version of the definition only."""
    old, new = (msgspec.json.decode(text, type=dict[str, Any]) for text in (before, given))
    changed = [name for name, value in new.items() if name not in old or old[name] != value]
    return changed + [f"-{name}" for name in old if name not in new]


def _time(text: str | None, field: str) -> datetime:
    if not text:
        raise BadRequest(f"{field}: is required")
    try:
        return parse_timestamp(text)
    except TimestampError as error:
        raise BadRequest(f"{field}: {error}") from None


def _overlap(word: str | None, default: Overlap) -> Overlap:
    try:
        return read_overlap(word, default)
    except ScheduleError as error:
        raise BadRequest(str(error)) from None


def _rules(row: ScheduleRow) -> Rules:
    try:
        return read_rules(row.name, row.spec)
    except ScheduleError as error:
        raise Conflict(f"schedule '{row.name}' can't be read here: {error}") from None


def _view(row: ScheduleRow, runs: builtins.list[store.RunRow], times_max: int) -> Schedule:
    spec = read_spec(row.spec)
    times: builtins.list[datetime] = []
    overlap, catch_up = spec.overlap or Overlap.SKIP, spec.catch_up or CatchUp.LAST
    try:
        rules = read_rules(row.name, row.spec)
    except ScheduleError:
        pass  # its time zone is not known here: no times, and its looks are set aside with the reason
    else:
        times = rules.times.between(max(row.done_until, row.now), datetime.max.replace(tzinfo=UTC), times_max)
    backfill = None if row.backfill is None else msgspec.json.decode(row.backfill, type=Backfill)
    return Schedule(
        id=row.name,
        definition_id=spec.definition_id,
        definition_version=spec.definition_version,
        variables=raw(row.variables),
        business_key=spec.business_key,
        priority=spec.priority,
        flow_key=spec.flow_key,
        cron=spec.cron,
        time_zone=spec.time_zone,
        every=spec.every,
        anchor=spec.anchor,
        jitter=spec.jitter,
        start_at=spec.start_at,
        end_at=spec.end_at,
        overlap=overlap,
        catch_up=catch_up,
        catch_up_window=spec.catch_up_window or CATCH_UP_WINDOW_DEFAULT,
        pause_on_failure=spec.pause_on_failure,
        paused=row.paused,
        note=spec.note,
        pause_note=row.note,
        next_times=[_shown(at) for at in times],
        runs=[
            ScheduleRun(
                at=run.at,
                outcome=RunOutcome(run.outcome).name,
                instance_id=None if run.instance is None else ids.show_instance(run.instance),
                reason=run.reason,
            )
            for run in runs
        ],
        buffered=len(row.buffered),
        missed=row.missed,
        last_instance_id=None if row.last_instance is None else ids.show_instance(row.last_instance),
        backfill_until=None if backfill is None else _shown(backfill.until),
    )


def _shown(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
