"""The queues of the journal: appends, tells, what lets go of a run (park, wake, block), and ends. A statement each.

The fence is in the statement: an item that it does not return was refused, nothing of it was written, and its
neighbours are committed. Refused ones are looked up (`store.rows.journal.run_states`). After a COMMIT in doubt nobody
is answered before it is known what became of it: parking, blocking and ending are refused the second time and seen in
the token; what is told has a key; an append is looked for in the journal, once the session that was to write it is
gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar

import trio

from penstock.core.rules.state import InstanceStatus, TokenState
from penstock.engine.advance.timers import Timers
from penstock.engine.definitions.json_schema import WrongValue
from penstock.engine.group_commit.item import Item
from penstock.engine.group_commit.queue import BUSY_REASON, GroupCommitQueue
from penstock.engine.queues.journal_items import AppendAnswer, MailboxNotice, NewRecord, RecordKind, RunLease
from penstock.engine.queues.lease_book import LeaseBook
from penstock.engine.queues.left_notes import LeftNotes
from penstock.engine.requests.ids import age_s
from penstock.engine.runs.mailbox import NOT_KNOWN, problem_of
from penstock.engine.runs.subscriptions import RunSubscriptions
from penstock.errors import Conflict, IdempotencyConflict, LeaseLost, MailboxFull, NotFound, Unavailable
from penstock.loop.offload import run_sized
from penstock.settings import Settings
from penstock.store.db import backends
from penstock.store.db.backends import ServerProcess
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, TryAgain, wait_replicated
from penstock.store.db.outcome import InDoubt
from penstock.store.rows import jobs as job_store
from penstock.store.rows import journal as store
from penstock.store.rows import journal_cuts as cuts
from penstock.store.rows import signals
from penstock.store.rows.journal import RunReleased, RunState
from penstock.store.rows.timers import Timer
from penstock.telemetry.metrics import Metrics

TRIES_MAX: Final = 3
"""Refused, though the run is still the caller's and there is no mail: its row had just changed."""
APPEND_MAX_BYTES: Final = 4 * 1024 * 1024
"""Payloads that one statement writes, if they are not one append's."""
DOUBTS_MAX: Final = 10_000
"""Runs whose appends are in doubt; of more the oldest are forgotten. Then a record might stand twice, and bodies are
given the first one only."""
END_STEP: Final = 1
"""Of a generated definition: the index of its END."""

LOST = "another executor has the run, or it has ended"


class RunItem(Item[Any]):
    """Something that the holder of a run wants."""

    __slots__ = ("run_lease", "tries")

    def __init__(self, run_lease: RunLease) -> None:
        super().__init__()
        self.run_lease = run_lease
        self.tries = 0

    @property
    def instance(self) -> int:
        return self.run_lease.instance


class AppendItem(RunItem):
    """Records for the journal. Answers an AppendAnswer."""

    __slots__ = ("after", "doubtful", "lease_s", "mail", "records", "size_bytes")

    def __init__(
        self, run_lease: RunLease, records: Sequence[NewRecord], *, after: int, mail: int, lease_s: float | None
    ) -> None:
        super().__init__(run_lease)
        self.records = records
        self.after = after
        self.mail = mail
        self.lease_s = lease_s
        self.doubtful = False
        self.size_bytes = 200 * len(records)
        for record in records:
            self.size_bytes += len(record.payload or "")


class NotifyItem(Item[None]):
    """A record that somebody else has for a run."""

    __slots__ = ("notice", "timer")

    def __init__(self, notice: store.RunNotice, timer: Timer | None = None) -> None:
        super().__init__()
        self.notice = notice
        self.timer = timer

    @property
    def instance(self) -> int:
        return self.notice.instance

    @property
    def is_checked(self) -> bool:
        """Return whether it is a message that the run has to accept."""
        return self.notice.kind in (RecordKind.MESSAGE, RecordKind.DROPPED) and not self.notice.forced


class ParkItem(RunItem):
    """A run that waits. Answers False when there is mail."""

    __slots__ = ("park",)

    def __init__(self, park: store.UnloadedRun) -> None:
        super().__init__(park.run_lease)
        self.park = park


class BlockItem(RunItem):
    """A run that stands back. Answers for how many seconds. ``listed``: it is shown as blocked."""

    __slots__ = ("listed", "reason")

    def __init__(self, run_lease: RunLease, reason: str, *, listed: bool) -> None:
        super().__init__(run_lease)
        self.reason = reason
        self.listed = listed


class WakeItem(Item[bool]):
    """A due wake-up. Answers whether it was dealt with."""

    __slots__ = ("instance", "seq")

    def __init__(self, instance: int, seq: int) -> None:
        super().__init__()
        self.instance = instance
        self.seq = seq


class FinishItem(RunItem):
    """A run that ends. Answers False when there is mail."""

    __slots__ = ("finish",)

    def __init__(self, finish: store.Finish) -> None:
        super().__init__(finish.run_lease)
        self.finish = finish


class ContinueItem(RunItem):
    """A run that goes on as a new one. Answers False when there is mail."""

    __slots__ = ("continuation",)

    def __init__(self, continuation: cuts.Continuation) -> None:
        super().__init__(continuation.run_lease)
        self.continuation = continuation


R = TypeVar("R", bound="RunItem | NotifyItem | WakeItem")


class _RunQueue(GroupCommitQueue[R]):
    """One of the four, with the method of `JournalQueues` that applies its batches."""

    def __init__(
        self,
        name: str,
        apply: Callable[[TrioConnection, list[R], bool], Awaitable[None]],
        database: Database,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        super().__init__(name, database, settings, metrics, per_key=1, label=name)
        self._apply = apply

    def key(self, item: R) -> object:
        return (item.instance, item.notice.dedup) if isinstance(item, NotifyItem) else item.instance

    async def find_locked_elsewhere(self, connection: TrioConnection, items: list[R]) -> list[R]:
        run_lease = await job_store.tokens_locked_elsewhere(connection, sorted({item.instance for item in items}))
        return [item for item in items if item.instance in run_lease]

    async def apply(self, connection: TrioConnection, items: list[R], again: bool) -> None:
        await self._apply(connection, items, again)


class JournalQueues:
    """The four queues and what applies them."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        leases: LeaseBook,
        timers: Timers,
        *,
        queued: Callable[[str, str | None], None],
        freed: Callable[[str, str | None], None],
        mailed: Callable[[MailboxNotice], None],
        subscribers: RunSubscriptions,
    ) -> None:
        """``queued`` hears of job type and flow key of every run that came to the queue, ``freed`` of those of every
        run that gave something back to a queue, ``mailed`` of mail for leased runs, ``news`` of answers and ends."""
        self._subscribers = subscribers
        self._settings = settings
        self._metrics = metrics
        self._leases = leases
        self._timers = timers
        self._queued = queued
        self._freed = freed
        self._mailed = mailed
        self._doubts: OrderedDict[int, set[ServerProcess]] = OrderedDict()
        shared = database, settings, metrics
        self.append = _RunQueue[AppendItem]("append", self._append, *shared)
        self.notice = _RunQueue[NotifyItem]("tell", self._notify, *shared)
        self.park = _RunQueue[ParkItem | BlockItem | WakeItem]("park", self._park, *shared)
        self.finish = _RunQueue[FinishItem | ContinueItem]("finish", self._finish, *shared)
        self._notes = LeftNotes()

    def batchers(self) -> list[GroupCommitQueue[Any]]:
        """Return the flushers to run."""
        return [self.append, self.notice, self.park, self.finish]

    # -- append

    async def _append(self, connection: TrioConnection, items: list[AppendItem], again: bool) -> None:
        items.sort(key=_instance)
        for part in _parts(items):
            await self._resolve(connection, [item for item in part if item.instance in self._doubts])
            pending = [item for item in part if not item.settled]
            if pending:
                await self._append_part(connection, pending)

    async def _append_part(self, connection: TrioConnection, items: list[AppendItem]) -> None:
        backend = await backends.backend_of(connection)
        try:
            with self._metrics.db_transaction_seconds["append"].time():
                done = await store.append(
                    connection,
                    [store.Append(item.run_lease, item.mail, item.lease_s, item.records) for item in items],
                    refusals_max=self._settings.refused_calls_max_items,
                )
        except InDoubt:
            for item in items:
                self._doubt(item.instance).add(backend)
            raise
        refused: list[AppendItem] = []
        for item in items:
            found = done.get(item.instance)
            if found is None:
                refused.append(item)
                continue
            if found.lease_left_s is not None:
                self._extended(item.run_lease, found.lease_left_s)
            placed = [] if item.doubtful else found.placed
            if item.settled:  # refused meanwhile, as it took too long: the caller will ask for the same again
                self._doubt(item.instance)
            item.answer(AppendAnswer(placed, found.mail, item.doubtful, found.lease_left_s))
            self._subscribers.notify_written(item.instance)
        if refused:
            self._refuse(refused, await store.run_states(connection, [item.run_lease for item in refused]))

    def _doubt(self, instance: int) -> set[ServerProcess]:
        """Return the next append for the run looks first. The sessions of those that may still be at work."""
        sessions = self._doubts.setdefault(instance, set())
        while len(self._doubts) > DOUBTS_MAX:
            self._doubts.popitem(last=False)
        return sessions

    async def _resolve(self, connection: TrioConnection, items: list[AppendItem]) -> None:
        """Look what became of earlier appends for these runs; answers those that were written."""
        if not items:
            return
        for backend in {backend for item in items for backend in self._doubts[item.instance]}:
            if await backends.end_backend(connection, backend):
                raise TryAgain("the session of an append in doubt has not ended yet")
        await wait_replicated(connection)
        states = await store.run_states(connection, [item.run_lease for item in items])
        found = await store.appended(connection, [(item.instance, item.records[0], item.after) for item in items])
        for item, state in zip(items, states, strict=True):
            del self._doubts[item.instance]
            item.doubtful = True
            if not is_held(state, item.run_lease):
                item.refuse(LeaseLost(LOST))
            elif item.instance in found:
                item.answer(AppendAnswer([], state.mail or 0, True, None))

    def _extended(self, run_lease: RunLease, left_s: float) -> None:
        self._leases.extend(run_lease.instance, run_lease.seq, run_lease.attempt, trio.current_time() + left_s)

    def _refuse(self, items: Sequence[RunItem], states: Sequence[RunState]) -> None:
        """Those whose lease is lost; the others stay in the batch."""
        for item, state in zip(items, states, strict=True):
            item.tries += 1
            if not is_held(state, item.run_lease):
                self._end_lease(item.run_lease, state)
                item.refuse(LeaseLost(LOST))
            elif item.tries >= TRIES_MAX:
                item.refuse(Unavailable(BUSY_REASON))

    def _end_lease(self, run_lease: RunLease, how: RunReleased | RunState) -> None:
        self._on_freed(run_lease, how)
        self._leases.end(run_lease.instance, run_lease.seq, run_lease.attempt)

    def _on_freed(self, run_lease: RunLease, how: RunReleased | RunState) -> None:
        """What others may have: as its statement says, or, when that was an earlier one, as this engine knows."""
        job_type = how.freed if isinstance(how, RunReleased) else None
        lease = self._leases.find(run_lease.instance, run_lease.seq)
        if isinstance(how, RunState) and lease is not None and lease.loaded is not None:
            job_type = lease.loaded.definition.steps[lease.step].job_type
        if job_type is not None:
            self._freed(job_type, how.flow_key)

    # -- tell

    async def _notify(self, connection: TrioConnection, items: list[NotifyItem], again: bool) -> None:
        if not again:  # else a message may be there by now, and its receive be over
            items = await self._acceptable(connection, items)
        limit = self._settings.messages_unread_max_items
        if not items:
            return
        with self._metrics.db_transaction_seconds["tell"].time():
            rows = await store.send_notices(
                connection,
                [item.notice for item in items],
                [item.timer for item in items],
                unread_max=limit,
                message=RecordKind.MESSAGE,
                cancel=RecordKind.CANCEL,
                dropped=RecordKind.DROPPED,
            )
        if not all(row.is_new for row in rows):
            await wait_replicated(connection)
        for item, row in zip(items, rows, strict=True):
            notice = item.notice
            if row.is_new or row.used_hash == notice.hash:  # or an earlier try, whose news may have been lost
                self._on_notified(notice.instance, row)
                item.answer(None)
            elif row.used_hash is not None:
                is_call = notice.kind == RecordKind.ASKED
                used = (
                    "id: another call was made with it"
                    if is_call
                    else "dedup: something else was sent to the run with it"
                )
                item.refuse(IdempotencyConflict(used))
            elif row.status is None:
                item.refuse(NotFound("the instance is unknown"))
            elif not row.is_code:
                item.refuse(Conflict("the instance is not a durable run: it takes signals, no messages"))
            elif row.is_full:
                item.refuse(MailboxFull(f"the run has {limit:,} unread messages"))
            elif row.status == InstanceStatus.ACTIVE:
                stale = "the notification is out of date: what it says of the run no longer holds"
                item.refuse(Conflict(stale if notice.as_of is None else NOT_KNOWN))
            else:
                item.refuse(Conflict(f"the run has ended: it is {InstanceStatus(row.status).name}"))

    async def _acceptable(self, connection: TrioConnection, items: list[NotifyItem]) -> list[NotifyItem]:
        """Without the messages that do not fit what their runs say that they wait for: those are refused. A run that is
        unloaded may have said so before a deploy: it is asked again, so that the next one goes by what holds now."""
        asked = [item for item in items if item.is_checked]
        if not asked:
            return items
        found = await store.waits(connection, sorted({item.notice.instance for item in asked}), RecordKind.DROPPED)
        refused: dict[int, list[tuple[NotifyItem, WrongValue]]] = {}
        for item in asked:
            notice, waits = item.notice, found.get(item.notice.instance)
            if waits is None or notice.payload is None:
                continue
            check = partial(problem_of, waits.branches, waits.last, notice.name or "", notice.payload)
            if (problem := await run_sized(len(waits.branches) + len(notice.payload), check)) is None:
                continue
            if await signals.find_id(connection, notice.instance, notice.dedup) is None:  # else it came, and is over
                refused.setdefault(notice.instance, []).append((item, problem))
        if refused and await store.ask_again(connection, sorted(refused)):
            self._timers.on_due_in(0)
        for item, problem in chain.from_iterable(refused.values()):
            item.refuse(problem)
        return [item for item in items if not item.settled]

    def _on_notified(self, instance: int, row: store.NoticeOutcome) -> None:
        if row.state == TokenState.LOCKED and row.holder is not None:
            self._mailed(MailboxNotice(row.holder, instance, row.mail))
        elif row.state in (TokenState.PARKED, TokenState.READY) and row.job_type is not None:
            self._queued(row.job_type, row.flow_key)

    # -- park, block, wake

    async def _park(
        self, connection: TrioConnection, items: list[ParkItem | BlockItem | WakeItem], again: bool
    ) -> None:
        items.sort(key=_instance)
        with self._metrics.db_transaction_seconds["park"].time():
            await self._park_them(connection, [item for item in items if isinstance(item, ParkItem)], again)
            await self._block(connection, [item for item in items if isinstance(item, BlockItem)], again)
            await self._wake(connection, [item for item in items if isinstance(item, WakeItem)])

    async def _park_them(self, connection: TrioConnection, items: list[ParkItem], again: bool) -> None:
        if not items:
            return
        done = await store.park(connection, [item.park for item in items])
        refused: list[ParkItem] = []
        for item in items:
            if item.instance not in done:
                refused.append(item)
                continue
            released = done[item.instance]
            self._end_lease(item.run_lease, released)
            if released.result is not None:
                self._timers.on_due_in(released.result)
            item.answer(True)
            self._subscribers.notify_written(item.instance)
        if not refused:
            return
        left: list[tuple[ParkItem, RunState]] = []
        states = await store.run_states(connection, [item.run_lease for item in refused])
        for item, state in zip(refused, states, strict=True):
            if is_held(state, item.run_lease) and state.mail != item.park.mail:
                item.answer(False)
            elif again and state.state is not None and state.attempt == item.run_lease.attempt and state.holder is None:
                self._end_lease(item.run_lease, state)  # an earlier try did it; due when the next look finds it
                item.answer(True)
            else:
                left.append((item, state))
        self._refuse([item for item, _ in left], [state for _, state in left])

    async def _block(self, connection: TrioConnection, items: list[BlockItem], again: bool) -> None:
        if not items:
            return
        listed = all(item.listed for item in items)
        done = await store.block(connection, [(item.run_lease, item.reason) for item in items], listed=listed)
        refused: list[BlockItem] = []
        for item in items:
            released = done.get(item.instance)
            if released is None:
                refused.append(item)
                continue
            self._end_lease(item.run_lease, released)
            self._timers.on_due_in(released.result)
            self._metrics.runs_blocked.inc()
            item.answer(released.result)
        if not refused:
            return
        left: list[tuple[BlockItem, RunState]] = []
        states = await store.run_states(connection, [item.run_lease for item in refused])
        for item, state in zip(refused, states, strict=True):
            if again and state.attempt == item.run_lease.attempt and state.state == TokenState.BACKOFF:
                self._end_lease(item.run_lease, state)
                item.answer(0.0)
            else:
                left.append((item, state))
        self._refuse([item for item, _ in left], [state for _, state in left])

    async def _wake(self, connection: TrioConnection, items: list[WakeItem]) -> None:
        if not items:
            return
        found = {
            (row.token, row.seq): row for row in await store.wake(connection, [(i.instance, i.seq) for i in items])
        }
        for item in items:
            row = found.get((item.instance, item.seq))
            if row is not None and row.job_type is not None:
                self._queued(row.job_type, row.flow_key)
            item.answer(row is not None)

    # -- finish

    async def _finish(self, connection: TrioConnection, items: list[FinishItem | ContinueItem], again: bool) -> None:
        items.sort(key=_instance)
        ends = [item for item in items if isinstance(item, FinishItem)]
        if ends:
            await self._end(connection, ends)
        await self._continue(connection, [item for item in items if isinstance(item, ContinueItem)])

    async def _continue(self, connection: TrioConnection, items: list[ContinueItem]) -> None:
        """One by one: each deletes a whole journal."""
        for item in items:
            with self._metrics.db_transaction_seconds["finish"].time():
                done = await cuts.continue_run(connection, item.continuation)
            if done:
                item.answer(True)
                continue
            [state] = await store.run_states(connection, [item.run_lease])
            if is_held(state, item.run_lease) and state.mail != item.continuation.mail:
                item.answer(False)
            else:
                self._refuse([item], [state])

    async def _end(self, connection: TrioConnection, items: list[FinishItem]) -> None:
        await self._notes.forget(connection, self.finish.locked)
        if not self.finish.locked.isdisjoint(store.SPARED_BY_FINISH):
            items = await self._end_spared(connection, items)
        if items:
            await self._end_any(connection, items)

    async def _end_spared(self, connection: TrioConnection, items: list[FinishItem]) -> list[FinishItem]:
        """End those that need no table that somebody holds; they are answered before the others, which it gives, are
        refused for it."""
        keyed = set[int]()
        if "instance_key" in self.finish.locked:
            keyed = await job_store.keyed_instances(connection, [item.instance for item in items])
        found = {item.instance: item for item in items if item.instance not in keyed}
        done = await self._finish_in(connection, list(found.values()), spared=True) if found else {}
        for instance, released in done.items():
            self._ended(found[instance], released)
        self._notes.remember([job_store.forget_notes(list(done))] if done else [])
        await self._notes.forget(connection, self.finish.locked)
        left = [item for item in items if not item.settled]
        states = await store.run_states(connection, [item.run_lease for item in left]) if left else []
        pairs = list(zip(left, states, strict=True))
        needing = [item for item, state in pairs if is_held(state, item.run_lease) and state.mail == item.finish.mail]
        refused = [item for item in left if item not in needing]
        if refused:
            await self._not_ended(connection, refused)
        return needing

    async def _finish_in(
        self, connection: TrioConnection, items: list[FinishItem], *, spared: bool = False
    ) -> dict[int, RunReleased]:
        kinds = {"view": RecordKind.VIEW, "error": RecordKind.ERROR}
        with self._metrics.db_transaction_seconds["finish"].time():
            return await store.finish(connection, [item.finish for item in items], **kinds, spared=spared)

    async def _end_any(self, connection: TrioConnection, items: list[FinishItem]) -> None:
        done = await self._finish_in(connection, items)
        refused: list[FinishItem] = []
        for item in items:
            if item.instance in done:
                self._ended(item, done[item.instance])
            else:
                refused.append(item)
        if any(released.result for released in done.values()):  # callers, or what it called, are told by timers
            self._timers.on_due_in(0)
        if refused:
            await self._not_ended(connection, refused)

    async def _not_ended(self, connection: TrioConnection, refused: list[FinishItem]) -> None:
        """Those that a statement did not end: why not, or whether an earlier one did."""
        left: list[tuple[FinishItem, RunState]] = []
        await wait_replicated(connection)
        states = await store.run_states(connection, [item.run_lease for item in refused])
        for item, state in zip(refused, states, strict=True):
            if is_held(state, item.run_lease) and state.mail != item.finish.mail:
                item.answer(False)
            elif (state.closed_attempt, state.closed_by) == (item.run_lease.attempt, item.run_lease.holder):
                self._ended(item, state)
            else:
                left.append((item, state))
        self._refuse([item for item, _ in left], [state for _, state in left])

    def _ended(self, item: FinishItem, how: RunReleased | RunState) -> None:
        run_lease, status = item.run_lease, InstanceStatus(item.finish.status)
        lease = self._leases.find(run_lease.instance, run_lease.seq)
        self._on_freed(run_lease, how)
        self._leases.forget(run_lease.instance, run_lease.seq)
        self._metrics.steps_executed["SERVICE_TASK"].inc()
        if lease is not None and lease.loaded is not None:
            self._metrics.on_end(lease.loaded.definition.id, status.name, age_s(run_lease.instance))
        item.answer(True)
        self._subscribers.notify_written(item.instance)


def is_held(state: RunState, run_lease: RunLease) -> bool:
    """Return whether the run is still under this very lease."""
    return (state.state, state.attempt, state.holder) == (TokenState.LOCKED, run_lease.attempt, run_lease.holder)


def _instance(item: RunItem | NotifyItem | WakeItem) -> int:
    return item.instance


def _parts(items: Sequence[AppendItem]) -> Iterator[list[AppendItem]]:
    """So many at once as have `APPEND_MAX_BYTES` together, but one."""
    part: list[AppendItem] = []
    size_bytes = 0
    for item in items:
        if part and size_bytes + item.size_bytes > APPEND_MAX_BYTES:
            yield part
            part, size_bytes = [], 0
        part.append(item)
        size_bytes += item.size_bytes
    if part:
        yield part
