"""The group-commit queue of schedules: what a look at them decides, and the instances that it starts, in one
transaction.

A time is started exactly once: the row of the schedule is locked, its mark moves over the time in the transaction that
makes the instance, and the key of `schedule_run` would refuse a second one. Of several engines one has the row; the
others pass it by. What can't be started is recorded, and the schedule goes on, or is paused if it says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
import trio

from penstock.core.advance.effect import AuditRow
from penstock.core.advance.event import CancellationRequested, InstanceStarted
from penstock.core.expression.work import LongWork
from penstock.core.rules.state import Instance, InstanceStatus
from penstock.core.time.schedule import Backfill, Decision, Overlap, Rules, RunOutcome, ScheduleState, decide
from penstock.core.time.schedule_times import ScheduleError
from penstock.engine.advance.advancer import Case, LongItem
from penstock.engine.advance.transaction import POSITIONS_PER_ITEM, Transaction, Transactions
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.group_commit.queue import GroupCommitQueue, halves
from penstock.engine.requests.ids import IdSource
from penstock.engine.schedules.schedule_spec import read_rules, read_spec
from penstock.errors import NotFound, PenstockError
from penstock.loop.offload import run_long
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, WrittenApart
from penstock.store.db.statements import Statement
from penstock.store.rows import audit, for_each
from penstock.store.rows import full_path as full_store
from penstock.store.rows import schedules as store
from penstock.store.rows.definitions import active_keys
from penstock.store.rows.full_path import Change, LockedInstance, NewInstance
from penstock.store.rows.schedules import LockedSchedule, Moved, NewRun, Scheduled
from penstock.telemetry.metrics import Metrics
from penstock.wire.schedule import ScheduleSpec

SCHEDULES_MAX: Final = 100
"""Of one transaction."""
STARTS_MAX: Final = 500
"""Likewise; what a schedule has beyond it comes with the next look."""
INLINE_S: Final = 60.0
"""What has been due for longer may have thousands of times to go through: away from the loop."""
VARIABLE: Final = "schedule"
"""Of the instances: `{"id": …, "at": …}`, unless they have one."""
TRIGGERS_AT_ONCE: Final = 1_000
"""Times after now that something has become of already, on a clock that stands still or was set back."""
REASON_MAX_CHARS: Final = 1_000
OVERTAKEN_REASON: Final = "a later run of its schedule took its place"

Fired = list[tuple[datetime, RunOutcome, int | None, str | None]]
"""What a look decided: time, outcome, instance, reason."""


class TriggeredNow(NamedTuple):
    """Somebody wants a run now. ``overlap`` None: as the schedule has it."""

    overlap: Overlap | None
    actor: str | None = None


class FiringItem(LongItem[Fired]):
    """A look at one schedule, which is due or triggered."""

    __slots__ = ("schedule", "trigger")

    def __init__(self, schedule: int, trigger: TriggeredNow | None = None) -> None:
        super().__init__()
        self.schedule = schedule
        self.trigger = trigger


class _FiringScan(NamedTuple):
    """What was decided about one schedule."""

    locked: LockedSchedule
    spec: ScheduleSpec
    rules: Rules
    decision: Decision
    item: FiringItem
    variables: bytes


class Firings(GroupCommitQueue[FiringItem]):
    """The group-commit queue."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        definitions: Definitions,
        id_source: IdSource,
        transactions: Transactions,
    ) -> None:
        super().__init__("schedule", database, settings, metrics, per_key=1)
        self._audit = settings.audit_log_enabled
        self._definitions = definitions
        self._ids = id_source
        self._transactions = transactions

    def key(self, item: FiringItem) -> object:
        return item.schedule

    def divide(self, items: list[FiringItem]) -> list[list[FiringItem]]:
        return _divide(items)

    async def apply(self, connection: TrioConnection, items: list[FiringItem], again: bool) -> None:
        now, xid, positions = await full_store.begin(connection, POSITIONS_PER_ITEM * len(items))
        transaction = self._transactions.begin(now, xid, positions)
        by_schedule = {item.schedule: item for item in items}
        with self.transaction(transaction):
            asked = [item.schedule for item in items if item.trigger is not None]
            locked = await store.lock(connection, [*by_schedule], asked)
            scans = await self._scan(connection, locked, by_schedule, now)
            scans, overtaken = await self._hold_overtaken(connection, scans, again)
            await self._leave(connection, items, {one.id for one in locked}, again)
            if not scans:
                await connection.rollback()
                return
            writes = await self._start(connection, transaction, scans, overtaken)
            done = [scan.item for scan in scans]
            await self.commit(connection, transaction, await transaction.writes(connection, done, writes))
        await transaction.carry_out(connection, now)
        for scan in scans:
            for _, outcome, _, _ in scan.item.planned:
                self._metrics.schedule_times[outcome.name].inc()

    async def check(self, spec: ScheduleSpec, variables: bytes) -> None:
        """Raises WrongValue where each run of a schedule would be refused, as far as that is known by now."""
        wanted = spec.definition_id, _version(spec)
        async with self._database.connection() as connection:
            loaded = (await self._load(connection, {wanted}))[wanted]
            if isinstance(loaded, PenstockError):
                return
            wrong = await self._definitions.signatures.problem_of(
                connection, loaded.code_type, variables, added=VARIABLE
            )
        if wrong is not None:
            raise wrong

    async def _leave(
        self, connection: TrioConnection, items: Sequence[FiringItem], locked: set[int], again: bool
    ) -> None:
        """Those that were not had: nothing is due of them any more, or somebody else has them just now."""
        for item in items:
            if item.schedule in locked:
                continue
            if item.trigger is None:
                item.answer([])
            elif await store.exists(connection, item.schedule):
                self.wait_for_locks([item], again)
            else:
                item.refuse(NotFound("the schedule was deleted"))

    async def _scan(
        self,
        connection: TrioConnection,
        locked: Sequence[LockedSchedule],
        items: dict[int, FiringItem],
        now: datetime,
    ) -> list[_FiringScan]:
        scans: list[_FiringScan] = []
        left = STARTS_MAX
        for one in locked:
            item = items[one.id]
            if left <= 0 and item.trigger is None:
                item.answer([])  # it is due still, for the next look
                continue
            try:
                spec, rules = read_spec(one.spec), read_rules(one.name, one.spec)
                variables = await store.open_variables(connection, one.variables)
            except ScheduleError as error:
                item.refuse(PenstockError(f"schedule '{one.name}': {error}"))
                continue
            except PenstockError as error:
                item.refuse(error)  # its key is missing here; another engine may have it
                continue
            schedule_state = _schedule_state(one)
            if item.trigger is not None:
                at = await _free_time(connection, one.id, rules, now)
                schedule_state = schedule_state._replace(trigger=(at, item.trigger.overlap or rules.overlap))
            behind = (now - one.done_until).total_seconds() > INLINE_S or schedule_state.backfill is not None
            args = (rules, schedule_state, now, left)
            decision = await run_long(decide, *args) if behind else decide(*args)
            left -= len(decision.starts)
            scans.append(_FiringScan(one, spec, rules, decision, item, variables))
            await trio.lowlevel.checkpoint()
        return scans

    async def _hold_overtaken(
        self, connection: TrioConnection, scans: Sequence[_FiringScan], again: bool
    ) -> tuple[list[_FiringScan], Mapping[int, LockedInstance]]:
        """Hold the runs that others take the place of: they end in the transaction that starts those. A look at a
        schedule whose run somebody else holds, or that its worker's own transaction has changed, comes again. A token
        is locked after a schedule here: nobody who has a token waits for a schedule."""
        olds = {scan.locked.last_instance: scan for scan in scans if scan.decision.cancels}
        wanted = sorted(old for old in olds if old is not None)
        if not wanted:
            return list(scans), {}
        held = await full_store.instances_locked_elsewhere(connection, wanted)
        free = [old for old in wanted if old not in held]
        locked: Mapping[int, LockedInstance] = {}
        if free:
            batch = await full_store.lock_and_load(connection, free, positions=1, begun=True)
            locked = batch.instances
        held |= {id for id, about in locked.items() if any(token.is_recorded for token in about.tokens)}
        put_off = [olds[id] for id in held]
        self.wait_for_locks([scan.item for scan in put_off], again)
        return [scan for scan in scans if scan not in put_off], locked

    async def _overtake(self, connection: TrioConnection, transaction: Transaction, old: LockedInstance) -> bool:
        """End a run in whose place another one was started. False for a durable run, whose code ends it: it is told."""
        loaded = await self._definitions.by_key(connection, old.definition)
        if old.instance.status is not InstanceStatus.ACTIVE:
            return True
        if loaded.code:
            return False
        id = old.instance.id
        kept = (await for_each.read(connection, [id], []))[id] if loaded.maps else old.kept
        event = CancellationRequested(OVERTAKEN_REASON)
        case = Case(loaded, old.instance, old.tokens, None, event, transaction.now, old.signals, id, kept)
        change = await self._advance(connection, transaction, case, old.business_key)
        change.effects.audit.append(AuditRow("CANCELLED", detail=OVERTAKEN_REASON))
        return True

    @staticmethod
    async def _advance(
        connection: TrioConnection,
        transaction: Transaction,
        case: Case,
        business_key: str | None,
        new: NewInstance | None = None,
    ) -> Change:
        item: LongItem[Any] = LongItem()
        try:
            return await transaction.advance(connection, item, case, new, business_key=business_key)
        except LongWork:
            item.stays = (
                True  # evaluated in a thread: only the schedules' rows, and runs that end, are locked meanwhile
            )
            return await transaction.advance(connection, item, case, new, business_key=business_key)

    async def _start(
        self,
        connection: TrioConnection,
        transaction: Transaction,
        scans: Sequence[_FiringScan],
        locked: Mapping[int, LockedInstance],
    ) -> list[Any]:
        """Start what was decided, and plan the answers; what is written beside the instances."""
        loaded = await self._load(connection, {(scan.spec.definition_id, _version(scan.spec)) for scan in scans})
        moved: list[Moved] = []
        runs: list[NewRun] = []
        scheduled: list[Scheduled] = []
        overtaken: list[int] = []
        for scan in scans:
            one, decision = scan.locked, scan.decision
            fired: Fired = [(at, outcome, None, None) for at, outcome in decision.runs]
            failure: str | None = None
            last: int | None = None
            for at in decision.starts:
                definition = loaded[scan.spec.definition_id, _version(scan.spec)]
                begun = await self._begin(connection, transaction, scan, definition, at)
                if isinstance(begun, str):
                    failure = begun
                    fired.append((at, RunOutcome.FAILED, None, begun))
                    continue
                last = begun
                fired.append((at, RunOutcome.STARTED, begun, None))
                scheduled.append(Scheduled(begun, one.name, at, _is_watched(scan)))
            old = None if one.last_instance is None else locked.get(one.last_instance)
            cancels = decision.cancels and last is not None
            if cancels and old is not None and not await self._overtake(connection, transaction, old):
                overtaken.append(old.instance.id)
                transaction.on_armed(transaction.now)
            backfill = None if decision.backfill is None else msgspec.json.encode(decision.backfill)
            pauses = None
            if failure is not None and scan.spec.pause_on_failure:
                pauses = f"a run could not be started: {failure}"
            moved.append(
                Moved(one.id, decision.done_until, None if pauses else decision.fire_at, decision.buffered, last,
                      backfill, decision.passed + _missed(fired), pauses)
            )  # fmt: skip
            runs += [NewRun(one.id, at, outcome, instance, reason) for at, outcome, instance, reason in fired]
            scan.item.planned = fired
        audited = [_audited(scan, scan.item.trigger) for scan in scans if self._audit and scan.item.trigger is not None]
        return [*store.writes(moved, runs, scheduled, overtaken), *audited]

    async def _begin(
        self,
        connection: TrioConnection,
        transaction: Transaction,
        scan: _FiringScan,
        definition: LoadedDefinition | PenstockError,
        at: datetime,
    ) -> int | str:
        """The instance, or why there is none."""
        if isinstance(definition, PenstockError):
            return definition.reason[:REASON_MAX_CHARS]
        wrong = await self._definitions.signatures.problem_of(
            connection, definition.code_type, scan.variables, added=VARIABLE
        )
        if wrong is not None:
            return wrong.reason[:REASON_MAX_CHARS]
        id = self._ids.next()
        variables = _with_schedule(scan.variables, scan.locked.name, at)
        known = variables if definition.needs_variables else None
        priority, flow_key = scan.spec.priority, scan.spec.flow_key
        instance = Instance(id, watched=_is_watched(scan), priority=priority, flow_key=flow_key)
        if flow_key is not None or definition.definition.has_flow_keys:
            await self._remember_keyed(connection, definition)
        case = Case(definition, instance, [], known, InstanceStarted(), transaction.now, {}, id)
        key = scan.spec.business_key
        new = NewInstance(id, definition.key, variables, key, started_by=f"schedule:{scan.locked.name}")
        try:
            await self._advance(connection, transaction, case, key, new)
        except PenstockError as error:
            return error.reason[:REASON_MAX_CHARS]
        return id

    async def _remember_keyed(self, connection: TrioConnection, definition: LoadedDefinition) -> None:
        """In a transaction of its own, before this one comes again: what is rolled back must not be known."""
        queues, types = self._transactions.polls.queues, definition.types_of_jobs
        if not types.keys() <= queues.keyed:
            await connection.rollback()
            await queues.remember_keyed(connection, types)
            raise WrittenApart("jobs of a schedule wait for turns from now on")

    async def _load(
        self, connection: TrioConnection, wanted: set[tuple[str, int]]
    ) -> dict[tuple[str, int], LoadedDefinition | PenstockError]:
        latest = sorted({name for name, version in wanted if not version})
        keys = await active_keys(connection, latest) if latest else {}
        found: dict[tuple[str, int], LoadedDefinition | PenstockError] = {}
        for name, version in wanted:
            loaded = None
            if version:
                loaded = await self._definitions.find(connection, name, version)
            elif name in keys:
                loaded = await self._definitions.by_key(connection, keys[name])
            found[name, version] = self._definitions.unknown(name, version) if loaded is None else loaded
        return found


def _divide(items: list[FiringItem]) -> list[list[FiringItem]]:
    if len(items) <= SCHEDULES_MAX:
        return [items]
    return [part for half in halves(items) for part in _divide([*half])]


def _version(spec: ScheduleSpec) -> int:
    return spec.definition_version or 0


def _schedule_state(one: LockedSchedule) -> ScheduleState:
    backfill = None if one.backfill is None else msgspec.json.decode(one.backfill, type=Backfill)
    return ScheduleState(one.done_until, one.buffered, one.is_open, backfill, None, one.paused, one.started)


async def _free_time(connection: TrioConnection, schedule: int, rules: Rules, now: datetime) -> datetime:
    """The time of a run that somebody asks for: now, or just after what has that time, on a clock that stands still."""
    taken, step = await store.times_from(connection, schedule, now, TRIGGERS_AT_ONCE), datetime.resolution
    at = now
    while at in taken or rules.times.between(at - step, at, 1):
        at += step
    return at


def _audited(scan: _FiringScan, trigger: TriggeredNow) -> Statement:
    """That somebody asked for a run, and what became of it: others that were due are older."""
    _, outcome, _, _ = max(scan.item.planned, key=lambda one: one[0])
    return audit.add(None, None, "SCHEDULE_TRIGGERED", trigger.actor, f"{scan.locked.name}: {outcome.name}")


def _is_watched(scan: _FiringScan) -> bool:
    """Return whether the schedule is to hear of the end of what it starts."""
    waits = scan.rules.overlap in (Overlap.BUFFER_ONE, Overlap.BUFFER_ALL)
    return waits or scan.spec.pause_on_failure or bool(scan.decision.buffered) or scan.decision.backfill is not None


def _with_schedule(variables: bytes, name: str, at: datetime) -> bytes:
    given = msgspec.json.decode(variables, type=dict[str, msgspec.Raw])
    if VARIABLE in given:
        return variables
    about = {"id": name, "at": at.astimezone(UTC)}
    return msgspec.json.encode({**given, VARIABLE: about})


def _missed(fired: Fired) -> int:
    return sum(outcome is RunOutcome.MISSED for _, outcome, _, _ in fired)
