"""The fast path: completions that touch their own token only, hundreds in one statement.

The fence is in the statement's WHERE: an item that does not come back was refused, nothing of it was written, and its
neighbours are committed. Refused items are looked up (`ExecutionState`) and decided on; that answers late and repeated
calls. The next job is leased to a parked poll in the same statement when there is one (direct dispatch).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from time import perf_counter

from penstock.core.graph.fast_path import FastPlan
from penstock.core.rules.fencing import FenceDecision, FenceRequest, decide_fence
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.engine.group_commit.item import Item
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.engine.queues.deliveries import Delivery
from penstock.engine.queues.ends import Ends
from penstock.engine.queues.held import find_jobs_locked_elsewhere
from penstock.engine.queues.left_notes import LeftNotes
from penstock.engine.queues.polls import Polls
from penstock.engine.queues.variables import FOLD_MIN_DELTAS, VariablesCache, merged
from penstock.engine.queues.waiters import Waiter
from penstock.engine.requests.ids import age_s
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, wait_replicated
from penstock.store.rows import flow as flow_store
from penstock.store.rows import jobs as store
from penstock.store.rows.jobs import AppliedCompletion, FastItem, JobKey
from penstock.telemetry.metrics import Metrics

TRIES_MAX = 3
"""Refused, yet decided to be applicable (the row changed under the statement): so often, then the full path takes
it."""


class FastCompletion(Item[FenceDecision]):
    """A completion with its plan. The answer APPLY means: not applied here, take the full path."""

    __slots__ = ("business_key", "call", "flow", "job", "loaded", "output", "plan", "step", "tries", "waiter")

    def __init__(
        self,
        job: JobKey,
        call: FenceRequest,
        output: bytes | None,
        loaded: LoadedDefinition,
        step: int,
        plan: FastPlan,
        business_key: str | None,
    ) -> None:
        super().__init__()
        self.job = job
        self.call = call
        self.output = output
        self.loaded = loaded
        self.step = step
        self.plan = plan
        self.business_key = business_key
        self.tries = 0
        self.flow = False  # it has a flow key, or holds slots
        self.waiter: Waiter | None = None


class FastPath(GroupCommitQueue[FastCompletion]):
    """The group-commit queue of completions of the fast path."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        polls: Polls,
        cache: VariablesCache,
        fold: Callable[[int], None],
        ends: Ends,
    ) -> None:
        super().__init__("complete", database, settings, metrics, per_key=1, label="fast_path", gathers=True)
        self._seconds = metrics.db_transaction_seconds["complete"].distribution
        self._tasks, self._ended = metrics.steps_executed["SERVICE_TASK"].number, metrics.steps_executed["END"].number
        self._to_outbox = settings.through_kafka
        self._polls = polls
        self._cache = cache
        self._fold = fold
        self._ends = ends
        self._notes = LeftNotes()

    def key(self, item: FastCompletion) -> object:
        return item.job.token

    async def find_locked_elsewhere(
        self, connection: TrioConnection, items: list[FastCompletion]
    ) -> list[FastCompletion]:
        return await find_jobs_locked_elsewhere(connection, items)

    def roll_back(self, items: list[FastCompletion]) -> None:
        self._give_up(items)

    def finish(self, items: list[FastCompletion]) -> None:
        self._give_up([item for item in items if item.batch is items])  # not those that stand aside, or did

    async def apply(self, connection: TrioConnection, items: list[FastCompletion], again: bool) -> None:
        items.sort(key=lambda item: item.job.lock_order)
        if self.locked:
            items = await self._leave_keyed(connection, items, again)
        await self._notes.forget(connection, self.locked)
        await self._complete(connection, items, again)
        self._give_up(items)

    async def _leave_keyed(
        self, connection: TrioConnection, items: list[FastCompletion], again: bool
    ) -> list[FastCompletion]:
        """Without those whose end needs a table that somebody holds."""
        ending = [item.job.instance for item in items if item.plan.ends]
        if not ending or "instance_key" not in self.locked:
            return items
        keyed = await store.keyed_instances(connection, ending)
        self.wait_for_locks([item for item in items if item.plan.ends and item.job.instance in keyed], again)
        return [item for item in items if not (item.settled or item.lock_waiting)]

    async def _complete(self, connection: TrioConnection, items: list[FastCompletion], again: bool) -> None:
        moved = await self._send(connection, items)
        rows = {(row.token, row.seq): row for row in moved}
        refused: list[FastCompletion] = []
        deliveries: list[Delivery] = []
        known: dict[int, bytes] = {}
        for item in items:
            row = rows.get((item.job.token, item.job.seq))
            if row is None:
                refused.append(item)
            else:
                self._moved(item, row, deliveries, known)
        # before anything else that can fail: only here is it known who is to get these jobs
        if deliveries:
            await self._polls.deliveries.deliver_all(connection, deliveries, known)
        if refused and again:  # the earlier try may have been committed just now: ours waited for its row locks
            await self.find_earlier(connection, refused)
            refused = [item for item in refused if not item.settled]
        if refused:
            await self._decide(connection, refused)

    def _give_up(self, items: list[FastCompletion]) -> None:
        for item in items:
            waiter, item.waiter = item.waiter, None
            if waiter is not None:
                self._polls.waiters.give_up(waiter)

    async def _send(self, connection: TrioConnection, items: list[FastCompletion]) -> list[AppliedCompletion]:
        rows: list[FastItem] = []
        keyed = self._polls.queues.keyed
        flow = False  # whether the statement for all has to be asked; what the plain one refuses for this comes again
        for item in items:
            plan = item.plan
            flow = flow or item.flow or plan.job_type in keyed or plan.next_job_type in keyed
            if not plan.ends and item.waiter is None:
                item.waiter = self._polls.waiters.reserve(plan.next_job_type)
            waiter = item.waiter
            rows.append(
                FastItem(
                    token=item.job.token,
                    seq=item.job.seq,
                    attempt=item.call.attempt,
                    worker=item.call.worker,
                    ends=plan.ends,
                    next_step=plan.next_step,
                    next_type=item.loaded.job_types[plan.next_step],
                    direct_to=None if waiter is None else waiter.worker,
                    lease_s=None if waiter is None else waiter.lease_s,
                    output=item.output,
                )
            )
        began = perf_counter()
        try:
            if not flow and any(row.ends for row in rows) and not self.locked.isdisjoint(store.SPARED_BY_ENDS):
                moved = await store.complete_spared(connection, rows, to_outbox=self._to_outbox)
                self._notes.remember([store.forget_notes([row.token for row in moved if row.new_seq is None])])
                await self._notes.forget(connection, self.locked)
                return moved
            if not flow:
                return await store.complete_fast(connection, rows, to_outbox=self._to_outbox)
            waits = [self._polls.queues.waits(item.plan.next_job_type) for item in items]
            moved_by_flow = await flow_store.complete(connection, rows, waits, to_outbox=self._to_outbox)
        finally:
            self._seconds.observe(perf_counter() - began)
        keys = {row.moved.token: (row.flow_key, row.next_key) for row in moved_by_flow}
        held = {row.moved.token for row in moved_by_flow if row.held is not None}
        for item in items:
            key, next_key = keys.get(item.job.token, (None, None))
            self._polls.hint_key(item.plan.job_type, key)
            if not item.plan.ends:
                self._polls.hint_key(item.plan.next_job_type, next_key)
        self._polls.freed(*{item.plan.job_type for item in items if item.job.token in held})
        return [row.moved for row in moved_by_flow]

    def _moved(
        self, item: FastCompletion, row: AppliedCompletion, deliveries: list[Delivery], known: dict[int, bytes]
    ) -> None:
        """An applied completion: what this engine remembers of it, and the job it gave birth to."""
        job, definition = item.job, item.loaded.definition
        self._polls.leases.forget(job.token, job.seq)
        self._polls.activity.observe_report(item.call.worker, item.plan.job_type, failed=False)
        cached = self._cache.take(job.token, job.seq)
        self._tasks.value += 1.0
        if row.new_seq is None:
            self._ended.value += 1.0
            self._metrics.on_end(definition.id, "COMPLETED", age_s(job.instance))
            if self._ends.calls:
                self._ends.notify(job.instance)
        else:
            variables = None if cached is None or row.came_back else merged(cached, item.output)
            waiter, item.waiter = item.waiter, None
            if waiter is not None:
                assert row.entered_at is not None
                assert row.lease_until is not None
                deliveries.append(_hand_over(item, waiter, row.new_seq, row.entered_at, row.lease_until))
                if variables is not None:
                    known[job.token] = variables
            else:
                if variables is not None and definition.single_token:
                    self._cache.put(job.token, row.new_seq, variables)
                self._polls.queued(item.plan.next_job_type)
            if row.unfolded >= FOLD_MIN_DELTAS:
                self._fold(job.instance)
        item.answer(FenceDecision.DONE)

    async def _decide(self, connection: TrioConnection, refused: list[FastCompletion]) -> None:
        found = await store.look_up(connection, [item.job for item in refused], [item.call.worker for item in refused])
        await wait_replicated(connection)
        for item, about in zip(refused, found, strict=True):
            decision = decide_fence(item.call, about.execution)
            if about.execution.state is None:  # closed, through another engine maybe
                self._polls.leases.forget(item.job.token, item.job.seq)
            item.tries += 1
            item.flow = True
            if decision is not FenceDecision.APPLY or item.tries >= TRIES_MAX:
                item.answer(decision)

    async def find_earlier(self, connection: TrioConnection, items: list[FastCompletion]) -> None:
        """An earlier try may have been committed: jobs that it dispatched directly are found under their new execution.

        That execution has to follow from this very completion. Another attempt may have come in between, and the worker
        that our poll is of may have got the job elsewhere.

        Completions it applied need nothing here: sent again they are refused, and the judgement finds them closed.
        """
        handed = {item.job.token: item for item in items if item.waiter is not None and not item.settled}
        if not handed:
            return
        tried = [(item.job.token, item.job.seq, item.call.worker, item.call.attempt) for item in handed.values()]
        deliveries: list[Delivery] = []
        known: dict[int, bytes] = {}
        for token, seq, worker, entered_at, lease_until in await store.fresh_leases(connection, tried):
            item = handed[token]
            waiter = item.waiter
            if waiter is not None and seq > item.job.seq and worker == waiter.worker:
                row = AppliedCompletion(token, item.job.seq, seq, entered_at, lease_until, 0, came_back=True)
                self._moved(item, row, deliveries, known)
        if deliveries:
            await self._polls.deliveries.deliver_all(connection, deliveries, known)


def _hand_over(item: FastCompletion, waiter: Waiter, seq: int, entered_at: datetime, lease_until: datetime) -> Delivery:
    return Delivery(
        waiter=waiter,
        loaded=item.loaded,
        instance=item.job.instance,
        token=item.job.token,
        seq=seq,
        entry=seq,
        step=item.plan.next_step,
        attempt=1,
        failures=0,
        entered_at=entered_at,
        claimed_at=entered_at,
        lease_until=lease_until,
        business_key=item.business_key,
    )
