"""A transaction of whole instances: what `core.advance` decided of them, their rows, and what hangs on its COMMIT.

Its items are answered, and this engine's memory is changed (leases, parked polls, timers, metrics), once it is known to
be committed and never before: `GroupCommitQueue.commit` sees to that, also where the answer to the COMMIT was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import structs

from penstock.core.advance.effect import JobRef
from penstock.core.advance.merging import merged
from penstock.core.rules.state import TAKEN_KINDS, HistoryKind, InstanceStatus, Token, Trigger, move
from penstock.engine.advance.advancer import Advancer, Case, LongItem
from penstock.engine.advance.failed import FailedInstances
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.engine.queues.deliveries import Delivery
from penstock.engine.queues.ends import Ends
from penstock.engine.queues.losses import Loss
from penstock.engine.queues.polls import Polls
from penstock.engine.queues.traces import Traces
from penstock.engine.queues.variables import FOLD_MIN_DELTAS
from penstock.engine.queues.waiters import Waiter
from penstock.engine.requests.ids import IdSource, age_s
from penstock.log.log import get_logger
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.statements import Statement
from penstock.store.rows import full_path as store
from penstock.store.rows import messages
from penstock.store.rows.full_path import Change, NewInstance
from penstock.store.rows.in_doubt import InDoubtCommit
from penstock.telemetry.metrics import Metrics

POSITIONS_PER_ITEM: Final = 12
POSITIONS_PER_FURTHER_ITEM: Final = 4
"""Of the same instance. An item of a forEach takes two; each 32 that are drawn are 99 B of WAL."""

log = get_logger("penstock.engine.group_commit.transaction")


class Transactions:
    """Begins them, and has what they change when they are committed."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        definitions: Definitions,
        polls: Polls,
        ids: IdSource,
        timer_armed: Callable[[datetime, datetime], None],
        ends: Ends,
        traces: Traces | None = None,
    ) -> None:
        self.traces = traces
        self.settings = settings
        self.metrics = metrics
        self.polls = polls
        self.timer_armed = timer_armed
        self.ends = ends
        self.failed = FailedInstances()
        self.advancer = Advancer(database, settings, definitions, ids)

    def begin(self, now: datetime, xid: str, positions: deque[int]) -> Transaction:
        """One that has begun in the database, with its time and id; ``positions`` are drawn for it."""
        return Transaction(self, now, xid, positions)


def _key_of(change: Change) -> str | None:
    return None if change.created is None else change.created.business_key


class Transaction:
    """One transaction; used by one batch of a group-commit queue, and by the tries after it while it is in doubt."""

    def __init__(self, parts: Transactions, now: datetime, xid: str, positions: deque[int]) -> None:
        self._parts = parts
        self.now = now
        self._xid = xid
        self._positions = positions
        self.items: Sequence[LongItem[Any]] = ()
        self._decided: Sequence[LongItem[Any]] = ()
        self._changes: list[tuple[Change, LoadedDefinition]] = []
        self._deliveries: list[Delivery] = []
        self._queued: list[tuple[str, str | None]] = []  # job types, and flow keys
        self._business_keys: dict[int, str] = {}
        self._armed: list[datetime] = []
        self._sent: InDoubtCommit | None = None

    async def advance(
        self,
        connection: TrioConnection,
        item: LongItem[Any],
        case: Case,
        created: NewInstance | None = None,
        *,
        business_key: str | None,
    ) -> Change:
        """Advance one instance, which has this business key, start what it chains into, and take all that in.

        Raises PenstockError for an advance that failed, LongWork for one that takes long; takes nothing then.
        """
        changes = await self._parts.advancer.run(connection, item, case, self._positions, created)
        for change, loaded in changes:
            self._add(change, loaded, business_key if change is changes[0][0] else _key_of(change))
        return changes[0][0]

    def _add(self, change: Change, loaded: LoadedDefinition, business_key: str | None) -> None:
        out = change.effects
        self._changes.append((change, loaded))
        if business_key is not None:
            self._business_keys[out.instance.id] = business_key
        self._armed.extend(timer.fire_at for timer in out.armed)
        notifies = out.ended and (out.instance.depth or out.instance.watched or loaded.code)
        if change.recalled or out.abandoned or notifies:
            self._armed.append(self.now)  # what other instances, or schedules, are told

    def on_armed(self, at: datetime) -> None:
        """What it writes beside its changes lets a timer be due at that time."""
        self._armed.append(at)

    def _merge(self) -> list[Change]:
        """Return one change per instance; jobs that somebody waits for are dispatched directly."""
        by_instance: dict[int, list[tuple[Change, LoadedDefinition]]] = {}
        for change, loaded in self._changes:
            by_instance.setdefault(change.effects.instance.id, []).append((change, loaded))
        changes: list[Change] = []
        for parts in by_instance.values():
            change, loaded = parts[0]
            if len(parts) > 1:
                recalled = [child for part, _ in parts for child in part.recalled]
                effects = merged([part.effects for part, _ in parts])
                change = change._replace(effects=effects, recalled=recalled)
            changes.append(change)
            self._dispatch(change, loaded)
        return changes

    def _dispatch(self, change: Change, loaded: LoadedDefinition) -> None:
        out = change.effects
        business_key = self._business_keys.get(out.instance.id)
        placed = {token.id: token for token in (*out.inserted, *out.updated)}
        kept: list[JobRef] = []
        queues = self._parts.polls.queues
        for job in out.queued:
            token = placed[job.token_id]
            token.flow_key = queues.place_key(job.job_type, token.flow_key)
            waiter = self._parts.polls.waiters.reserve(job.job_type)
            if waiter is None:
                kept.append(structs.replace(job, flow_key=token.flow_key))
                self._queued.append((job.job_type, token.flow_key))
            else:
                self._lease(token, waiter, out.instance.id, loaded, business_key)
        out.queued = kept

    def _lease(
        self, token: Token, waiter: Waiter, instance: int, loaded: LoadedDefinition, business_key: str | None
    ) -> None:
        move(token, Trigger.CLAIM)
        token.attempt += 1
        token.claimed_by, token.claimed_at = waiter.worker, self.now
        token.lease_until = self.now + timedelta(seconds=min(waiter.lease_s, token.timeout_s or waiter.lease_s))
        self._deliveries.append(
            Delivery(
                waiter=waiter,
                loaded=loaded,
                instance=instance,
                token=token.id,
                seq=token.seq,
                entry=token.entry_id,
                step=token.step,
                attempt=token.attempt,
                failures=token.failures,
                entered_at=token.entered_at,
                claimed_at=self.now,
                lease_until=token.lease_until,
                business_key=business_key,
            )
        )

    async def writes(
        self,
        connection: TrioConnection,
        items: Sequence[LongItem[Any]],
        extra: Sequence[Statement],
        asking: Sequence[LongItem[Any]] | None = None,
    ) -> list[Statement]:
        """What it writes with its COMMIT, for ``items`` together; where waits for messages come or go, the rest is sent
        here. ``asking``: the items whose next try looks what became of it, where they are others."""
        settings = self._parts.settings
        changes = self._merge()
        self._decided, self.items = items, items if asking is None else asking
        self._sent = InDoubtCommit(self._xid, changes, repeatable=all(item.repeatable for item in items))
        if self._parts.traces is not None:
            extra = [*extra, *self._parts.traces.inherited(changes)]
        writes = store.statements(
            changes,
            self.now,
            audit=settings.audit_log_enabled,
            to_outbox=settings.through_kafka,
            extra=list(extra),
            vault=connection.vault,
        )
        writes, given = await messages.settle(connection, changes, writes)
        if given:
            self._armed.append(self.now)
        return writes

    def long_runs(self) -> list[int]:
        """The instances whose variable deltas are due to be folded. Their tokens are all locked here."""
        ended = {change.effects.instance.id for change, _ in self._changes if change.effects.ended}
        long = {
            change.effects.instance.id
            for change, _ in self._changes
            if any(token.unfolded >= FOLD_MIN_DELTAS for token in (*change.effects.inserted, *change.effects.updated))
        }
        return sorted(long - ended)

    # -- what hangs on its COMMIT

    @property
    def proof_writes(self) -> Sequence[Statement]:
        """What has to be written for `was_committed`: nothing, as a rule."""
        assert self._sent is not None
        return self._sent.writes

    async def was_committed(self, connection: TrioConnection) -> bool | None:
        """What became of it (`store.rows.in_doubt`)."""
        assert self._sent is not None
        return await self._sent.committed(connection)

    def answer(self) -> None:
        """Answer its items."""
        for item in self._decided:
            item.answer(item.planned)

    def give_up(self) -> None:
        """It did not happen: give up what it reserved."""
        for delivery in self._deliveries:
            self._parts.polls.waiters.give_up(delivery.waiter)
        self._deliveries.clear()

    async def carry_out(self, connection: TrioConnection, now: datetime | None = None) -> None:
        """Carry it into this engine's memory: leases, wake-ups, metrics, direct dispatch.

        ``now`` is the database's time in it; None when it was committed some time ago.
        """
        for change, loaded in self._changes:
            self._note(change, loaded)
        for job_type, flow_key in self._queued:
            self._parts.polls.hint_key(job_type, flow_key)
        for job_type in {job_type for job_type, _ in self._queued}:
            self._parts.polls.queued(job_type)
        if self._armed:
            first = min(self._armed)
            self._parts.timer_armed(first, now or first)  # how long it has is not known then: looked up at once
        deliveries, self._deliveries = self._deliveries, []
        if deliveries:
            await self._parts.polls.deliveries.deliver_all(connection, deliveries, {})

    def _note(self, change: Change, loaded: LoadedDefinition) -> None:
        out, metrics, polls = change.effects, self._parts.metrics, self._parts.polls
        for slots in out.released:
            polls.hint_key(slots.job_type, slots.flow_key)
        polls.freed(*{slots.job_type for slots in out.released})
        steps = loaded.definition.steps
        for row in out.history:
            if row.kind < 10:
                polls.leases.forget(row.token_id, row.seq)
                if row.kind in TAKEN_KINDS and row.worker is not None:
                    loss = Loss(row.worker, out.instance.id, row.token_id, row.seq, row.attempt)
                    polls.losses.notify(loss)
                metrics.steps_executed[steps[row.step].type.value].inc()
            else:
                polls.leases.end(row.token_id, row.seq, row.attempt)
                if row.kind is HistoryKind.ATTEMPT_FAILED:
                    metrics.job_retries.inc()
        if change.created is not None:
            metrics.instances_started.inc()
        if out.dead_end:
            metrics.dead_ends.inc()
            log.warning(
                "instance has no open step and did not reach END",
                instance=f"{out.instance.id:x}",
                definition=loaded.definition.id,
            )
        if out.instance.status is InstanceStatus.FAILED:
            self._parts.failed.notify(out.instance.id, loaded.definition.id, out.instance.failure or "")
        if out.ended:
            status = InstanceStatus(out.instance.status).name
            metrics.on_end(loaded.definition.id, status, age_s(out.instance.id))
            self._parts.ends.notify(out.instance.id)
