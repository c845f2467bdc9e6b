"""Polls: claiming what is in the queue, parking when there is nothing, handing over what is born meanwhile.

A poll that may wait parks in `Waiters`. Three things end its wait: a job born in this engine (direct dispatch, done
by the lanes), the probe of the queue (`probe_once`, one statement for all parked polls, every 200 ms and at every
wake-up), and its own deadline. Claims of concurrent polls are batched into one statement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import trio

from penstock.engine import ids
from penstock.engine.activity import Activity
from penstock.engine.answers import COPIES, AnswerMemory
from penstock.engine.definitions import Definitions, LoadedDefinition
from penstock.engine.events import Events
from penstock.engine.job_sizes import JobSizes
from penstock.engine.lanes.lane import Lane
from penstock.engine.lease_book import GrantedLease, LeaseBook
from penstock.engine.losses import Loss, Losses
from penstock.engine.poll_items import ClaimItem, ClaimPlan, Delivery, ReleaseItem, groups_by_types
from penstock.engine.queue_counts import QueueCounts
from penstock.engine.queue_floors import QueueFloors
from penstock.engine.variables import VariablesCache
from penstock.engine.waiters import Waiter, Waiters
from penstock.errors import Overloaded, TooManyRequests
from penstock.metrics import Metrics
from penstock.settings import Settings
from penstock.store import jobs as store
from penstock.store.connection import TrioConnection
from penstock.store.database import Database
from penstock.store.outcome import InDoubt
from penstock.store.variables import INLINE_VARIABLES_MAX_BYTES
from penstock.wire.model import Job

UNREADABLE_PAUSE_S = 5.0
"""A job whose variables this engine has no key for goes back after so long, or half its lease if that is less: at once,
the same poll would claim it 150 times a second, with a history row each."""
UNREADABLE_MAX_ITEMS = 10_000
"""So many wait for that; more go back at once."""

RELEASE_TRIES_MAX = 3
"""A release that is refused may just have met a heartbeat: it is tried so often."""

MANY_TYPES = 100
"""Polls that name more job types go one after the other: a millisecond each, and a thousand may come at once."""

COPIED_AT_ONCE_BYTES = 262_144
"""Variables that are made into bytes without a turn of the loop between."""


class Polls:
    """Everything about getting jobs to workers."""

    def __init__(
        self,
        database: Database,
        definitions: Definitions,
        settings: Settings,
        metrics: Metrics,
        cache: VariablesCache,
        memory: AnswerMemory,
        events: Events,
    ) -> None:
        self._database = database
        self._definitions = definitions
        self._settings = settings
        self._metrics = metrics
        self._cache = cache
        self._memory = memory
        self._sizes = JobSizes(memory)
        self.waiters = Waiters(memory, settings.poll_parked_max_bytes)
        self.leases = LeaseBook(settings.leases_watched_max_items)
        self.losses = Losses(settings.poll_max_parked, events.lost)
        self.draining = False
        self._unreadable: deque[tuple[float, ReleaseItem]] = deque()
        self._events = events
        self.activity = Activity(metrics, self.waiters, trio.current_time)
        self.queue = QueueCounts(trio.current_time, settings.ready_probe_interval_seconds)
        self.floors = QueueFloors(trio.current_time)
        self._wake = trio.Event()
        self._parked = trio.Event()
        self._turn = 0
        self.claims: Lane[ClaimItem] = Lane(
            "poll", database, settings, metrics, self._claim_batch, divide=groups_by_types, label="claim"
        )
        self.releases: Lane[ReleaseItem] = Lane(
            "release",
            database,
            settings,
            metrics,
            self._release_batch,
            find_held=self._find_held,
            key=lambda item: (item.lease.token, item.lease.seq),
        )

    # -- the poll itself

    async def wait_jobs(self, waiter: Waiter, wait_s: float) -> list[Job]:
        """Jobs for ``waiter``, waiting up to ``wait_s`` seconds. Cancelled or refused, what it was given goes back."""
        deadline = trio.current_time() + wait_s
        self.activity.note_poll(waiter.worker, waiter.types)
        if not self._memory.fits(self._sizes.largest(waiter.types)):
            raise Overloaded("too many large answers at once; poll again later")
        try:
            if wait_s <= 0 or not self.queue.known_empty(waiter.types):
                await self._look(waiter)
            if waiter.jobs or wait_s <= 0 or self.draining or self._is_full_for(waiter):
                waiter.closed = True
                return waiter.jobs
            self.park(waiter)
            self._wake_if_stale(waiter.types)
            try:
                with trio.CancelScope(deadline=deadline):
                    while (waiter.reserved or not waiter.jobs) and not self.draining:
                        await waiter.wait()
                waiter.max_jobs = waiter.reserved + len(waiter.jobs)  # no further reservations
                while waiter.reserved:  # a statement that fills a slot is under way: its answer is near
                    await waiter.wait()
            finally:
                self.waiters.leave(waiter)
                self.activity.note_answered(waiter.worker)
        except BaseException:
            waiter.closed = True
            self.give_back(waiter.jobs)
            raise
        return waiter.jobs

    def _is_full_for(self, waiter: Waiter) -> bool:
        """Whether there is no room to park it."""
        return len(self.waiters) >= self._settings.poll_max_parked or not self.waiters.fits(waiter)

    async def _look(self, waiter: Waiter) -> None:
        """Claim from the queue; once more when this engine queued a job of the type meanwhile."""
        while True:
            versions = [self.queue.version(name) for name in waiter.types]
            await self.claims.submit(ClaimItem(waiter))
            if waiter.jobs or versions == [self.queue.version(name) for name in waiter.types]:
                return

    def park(self, waiter: Waiter) -> None:
        """Let direct dispatch and the probe find the waiter."""
        self.waiters.park(waiter)
        self._parked.set()

    def _wake_if_stale(self, types: Sequence[str]) -> None:
        if not self.queue.known_empty(types):
            self._wake.set()

    def give_back(self, jobs: Sequence[Job]) -> None:
        """Return jobs that nobody received to the queue, in the background."""
        for job in jobs:
            key = ids.read_job(job.id)
            self.release_nowait(key, store.Lease(key.token, key.seq, job.attempt, job.worker_id or ""))

    def release_nowait(self, job: store.JobKey, lease: store.Lease) -> None:
        with suppress(TooManyRequests):  # then the end of the lease brings it back
            self.releases.submit_nowait(ReleaseItem(job, lease))

    # -- the probe

    def queued(self, job_type: str) -> None:
        """A job of that type was committed to the queue by this engine."""
        self.queue.note_queued(job_type)
        self._events.queued(job_type)
        if self.waiters.idle_for(job_type):
            self._wake.set()

    def hint(self, job_types: Sequence[str]) -> None:
        """Another engine says that it queued jobs of these types."""
        known = self.queue.waiting(job_types)
        for name in job_types:
            if name not in known:  # else more of what there is enough of: a count that is thrown away costs a probe
                self.queue.forget(name)
                if self.waiters.is_wanted(name):
                    self._wake.set()

    def hear_losses(self, losses: Sequence[Loss]) -> None:
        """Another engine says that it took these jobs from their workers."""
        for loss in losses:
            self.leases.forget(loss.token, loss.seq)
            self.losses.hear(loss)

    async def wait_probe(self) -> None:
        """Wait until `probe_once` has something to do."""
        while not len(self.waiters):
            await self._parked.wait()
            self._parked = trio.Event()
        with trio.move_on_after(self._settings.ready_probe_interval_seconds):
            await self._wake.wait()
        self._wake = trio.Event()

    async def probe_once(self) -> int:
        """Look for jobs that parked polls wait for, and claim them. How many polls were sent to claim."""
        types = self.waiters.types()
        if not types:
            return 0
        async with self._database.connection() as connection:
            counts = await self._probe(connection, types)
        sent: list[ClaimItem] = []
        for name, count in counts.items():
            for waiter in self.waiters.idle_for(name):
                if count <= 0:
                    break
                if waiter.room > 0:
                    count -= waiter.room
                    sent.append(ClaimItem(waiter))
        for item in sent:
            self.claims.submit_nowait(item, within_s=0)
        for item in sent:
            await item.wait_answer()
        return len(sent)

    async def _probe(self, connection: TrioConnection, types: Sequence[str]) -> dict[str, int]:
        versions = {name: self.queue.version(name) for name in types}
        await self._definitions.resolve_job_types(connection, list(types))
        names = {self._definitions.job_type_ids[name]: name for name in types if name in self._definitions.job_type_ids}
        whole, started = self.floors.drop_if_due(), trio.current_time()
        floors, _ = self.floors.current()
        limit = self._settings.batch_max_items
        found = await store.probe_ready(connection, list(names), limit, floors) if names else {}
        if whole:
            self.floors.note_whole(trio.current_time() - started)
        counts = {names[id]: count for id, count in found.items()}
        self.queue.note_probed(versions, counts)
        return counts

    # -- batches

    async def _claim_batch(self, connection: TrioConnection, items: list[ClaimItem], again: bool) -> None:
        waiters = [item.waiter for item in items]
        types = list(dict.fromkeys(name for waiter in waiters for name in waiter.types))
        if not await self._claim_for(connection, waiters, types, self.queue.waiting(types)):
            await self._claim_for(connection, [waiter for waiter in waiters if not waiter.jobs], types, {})
        for item in items:
            item.answer(None)

    async def _claim_for(
        self, connection: TrioConnection, waiters: Sequence[Waiter], types: Sequence[str], counts: dict[str, int]
    ) -> bool:
        """Claim for polls, after a probe unless ``counts`` is enough for all of them. False: what was counted is gone,
        and somebody got nothing."""
        plan = ClaimPlan(self._memory.room_bytes)
        try:
            for waiter in waiters:
                self._reserve(waiter, counts, plan)
            probed = any(waiter.room > 0 for waiter in waiters)
            if probed:
                counts = await self._probe(connection, types)
                for name, number in plan.reserved.items():
                    counts[name] = counts.get(name, 0) - number
                for waiter in waiters:
                    self._reserve(waiter, counts, plan)
            if plan.slots:
                floors, dropped = self.floors.current()
                try:
                    with self._metrics.db_transaction_seconds["claim"].time():
                        claimed = await store.claim(connection, plan.slots, floors)
                except InDoubt as doubt:
                    self._return_doubtful(doubt, plan)
                    raise
                self.floors.note_taken(dropped, claimed)
                for name, number in plan.reserved.items():
                    self.queue.note_claimed(name, number)
                await self._deliver_claimed(connection, plan, claimed)
        finally:
            for waiter in plan.holders.values():
                self.waiters.give_up(waiter)
        return probed or all(waiter.jobs for waiter in waiters)

    def _return_doubtful(self, doubt: InDoubt, plan: ClaimPlan) -> None:
        """Give back what a claim may have leased, as nobody will get it. Of a claim whose answer did not come at all
        nothing is known: its jobs come back with the end of their leases."""
        self._return_claimed(store.doubtful(doubt), plan)

    def _return_claimed(self, rows: Sequence[store.Claimed], plan: ClaimPlan) -> None:
        for row in rows:
            worker = plan.holders[row.job_type, row.ordinal].worker
            lease = store.Lease(row.token, row.seq, row.attempt, worker, row.claimed_at)
            self.release_nowait(store.JobKey(row.instance, row.token, row.seq), lease)

    def _reserve(self, waiter: Waiter, counts: dict[str, int], plan: ClaimPlan) -> None:
        # from another type each time: with one that never runs dry the others would starve
        first = self._turn % len(waiter.types)
        self._turn += 1
        for name in (*waiter.types[first:], *waiter.types[:first]):
            id = self._definitions.job_type_ids.get(name)
            wanted = min(waiter.room, counts.get(name, 0))
            if id is None or wanted <= 0:
                continue
            job_bytes = self._sizes.job_bytes(name)
            if wanted * job_bytes > plan.room_bytes:
                alone = not plan.slots and self._memory.fits(job_bytes)
                wanted = max(plan.room_bytes // job_bytes, int(alone))
                if wanted <= 0:
                    continue
            plan.room_bytes -= wanted * job_bytes
            counts[name] -= wanted
            before = plan.reserved.get(name, 0)
            for ordinal in range(before + 1, before + wanted + 1):
                plan.slots.append(store.Slot(id, ordinal, waiter.worker, waiter.lease_s))
                plan.holders[id, ordinal] = waiter
            plan.reserved[name] = before + wanted
            waiter.reserved += wanted

    async def _deliver_claimed(
        self, connection: TrioConnection, plan: ClaimPlan, claimed: Sequence[store.Claimed]
    ) -> None:
        deliveries: list[Delivery] = []
        known: dict[int, bytes] = {}
        checkpoints: dict[tuple[int, int], str] = {}
        loaded_by_key: dict[int, LoadedDefinition] = {}
        try:
            for key in {row.definition for row in claimed}:
                loaded_by_key[key] = await self._definitions.by_key(connection, key)
        except BaseException:  # committed, but nobody can be given them: back to the queue
            self._return_claimed(claimed, plan)
            raise
        for row in claimed:
            waiter, loaded = plan.holders[row.job_type, row.ordinal], loaded_by_key[row.definition]
            deliveries.append(
                Delivery(
                    waiter,
                    loaded,
                    row.instance,
                    row.token,
                    row.seq,
                    row.entry,
                    row.step,
                    row.attempt,
                    row.failures,
                    row.entered_at,
                    row.claimed_at,
                    row.lease_until,
                )
            )
            found = self._cache.find(row.token, row.seq) if row.variables is None else row.variables.encode()
            if found is not None:
                known[row.token] = found
            if row.checkpoint is not None:
                checkpoints[row.token, row.seq] = row.checkpoint
        for row in claimed:  # from here on `deliver_all` answers for them
            del plan.holders[row.job_type, row.ordinal]
        await self.deliver_all(connection, deliveries, known, checkpoints)

    def deliver(self, over: Delivery, variables: bytes, checkpoint: str | None = None) -> None:
        """Give a committed job to the waiter it was leased to, or back to the queue if the caller went away."""
        waited_s = (over.claimed_at - over.entered_at).total_seconds()
        self._metrics.job_pickup_seconds.observe(waited_s)
        if over.attempt == 1:
            self._metrics.first_lock_seconds.observe(waited_s)
        job = over.job(variables, checkpoint)
        self._sizes.note(job.job_type, len(variables))
        if over.loaded.definition.single_token:
            self._cache.put(over.token, over.seq, variables)
        left_s = (over.lease_until - over.claimed_at).total_seconds()
        self.leases.grant(
            GrantedLease(
                over.instance,
                over.token,
                over.seq,
                over.attempt,
                over.step,
                over.loaded,
                over.waiter.worker,
                trio.current_time() + left_s,
            )
        )
        if not self.waiters.deliver(over.waiter, job):
            self.give_back([job])

    async def deliver_all(
        self,
        connection: TrioConnection,
        deliveries: Sequence[Delivery],
        known: dict[int, bytes],
        checkpoints: dict[tuple[int, int], str] | None = None,
    ) -> None:
        """Deliver committed jobs; variables not in ``known`` (by token) and ``checkpoints`` (None) are read."""
        missing = sorted({over.instance for over in deliveries if over.token not in known})
        retried = [over.token for over in deliveries if over.attempt > 1] if checkpoints is None else []
        try:
            if checkpoints is None:
                checkpoints = await store.checkpoints(connection, retried) if retried else {}
            read, left_out = await self._sizes.read(connection, missing) if missing else ({}, {})
        except BaseException:  # committed, but nobody can be given them: back to the queue
            for over in deliveries:
                self._return(over)
            raise
        copied_bytes = 0
        for over in deliveries:
            if copied_bytes > COPIED_AT_ONCE_BYTES:
                copied_bytes = 0
                await trio.lowlevel.cancel_shielded_checkpoint()
            variables = known.get(over.token)
            if variables is None and (text := read.get(over.instance)) is not None:
                variables = text.encode()
                copied_bytes += len(variables)
            size_bytes = left_out.get(over.instance, 0) if variables is None else len(variables)
            if variables is None and not left_out:
                self._return_later(over)
            elif variables is None or (
                size_bytes > INLINE_VARIABLES_MAX_BYTES and not self._memory.fits(COPIES * size_bytes)
            ):  # no room for them: back to the queue, and the next claim knows better
                self._sizes.note(over.loaded.definition.steps[over.step].job_type or "", size_bytes)
                self._return(over)
            else:
                self.deliver(over, variables, checkpoints.get((over.token, over.seq)))

    def _return(self, over: Delivery) -> None:
        """The job goes back to the queue, and its slot with it."""
        self.waiters.give_up(over.waiter)
        lease = store.Lease(over.token, over.seq, over.attempt, over.waiter.worker)
        self.release_nowait(store.JobKey(over.instance, over.token, over.seq), lease)

    def _return_later(self, over: Delivery) -> None:
        """The job can't be read here. Others may have the key, so it goes back, though not at once."""
        if len(self._unreadable) >= UNREADABLE_MAX_ITEMS:
            self._return(over)
            return
        self.waiters.give_up(over.waiter)
        left_s = (over.lease_until - over.claimed_at).total_seconds()
        lease = store.Lease(over.token, over.seq, over.attempt, over.waiter.worker)
        item = ReleaseItem(store.JobKey(over.instance, over.token, over.seq), lease)
        self._unreadable.append((trio.current_time() + min(UNREADABLE_PAUSE_S, left_s / 2), item))

    def return_unreadable(self, now: float) -> None:
        """Give back what has waited long enough by trio time ``now``."""
        for _ in range(len(self._unreadable)):
            at, item = self._unreadable.popleft()
            if at > now:
                self._unreadable.append((at, item))
            else:
                self.release_nowait(item.job, item.lease)

    async def _find_held(self, connection: TrioConnection, items: list[ReleaseItem]) -> list[ReleaseItem]:
        held = await store.held_tokens(connection, [item.job.token for item in items])
        return [item for item in items if item.job.token in held]

    async def _release_batch(self, connection: TrioConnection, items: list[ReleaseItem], again: bool) -> None:
        items.sort(key=lambda item: item.job.lock_order)
        leases = [item.lease for item in items]
        freed = await store.give_back(connection, leases, to_outbox=self._settings.through_kafka)
        for item in items:
            row = freed.get((item.lease.token, item.lease.seq))
            if row is not None:
                self.leases.end(item.lease.token, item.lease.seq, row.attempt)
                name = self._definitions.job_type_name(row.job_type)
                if name is not None:
                    self.queued(name)
                else:
                    self._wake.set()
            item.tries += 1
            if row is not None or again or item.tries >= RELEASE_TRIES_MAX:  # its row may just have changed
                item.answer(row is not None or again)
