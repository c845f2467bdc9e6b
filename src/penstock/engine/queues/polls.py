"""Polls: a look into the queue (`queues.claims`), and parking when there is nothing in it.

A poll that may wait parks in `Waiters`. Three things end its wait: a job that came to be in this engine (direct
dispatch, done by the group-commit queues), the probe of the queue (`probe_once`, one statement for all parked polls,
every 200 ms and at every wake-up), and its own deadline.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import trio

from penstock.engine.definitions.definitions import Definitions
from penstock.engine.queues.activity import Activity
from penstock.engine.queues.claims import ClaimItem, Claims
from penstock.engine.queues.deliveries import Deliveries
from penstock.engine.queues.events import Events
from penstock.engine.queues.job_sizes import JobSizes
from penstock.engine.queues.lease_book import LeaseBook
from penstock.engine.queues.losses import Loss, Losses
from penstock.engine.queues.queue_counts import QueueCounts
from penstock.engine.queues.queues import Queues, freed
from penstock.engine.queues.releases import Releases
from penstock.engine.queues.traces import Traces
from penstock.engine.queues.variables import VariablesCache
from penstock.engine.queues.waiters import Waiter, Waiters
from penstock.engine.requests.answers import AnswerMemory
from penstock.errors import Overloaded
from penstock.loop.taskless import need_task
from penstock.settings import Settings
from penstock.store.db.database import Database
from penstock.telemetry.metrics import Metrics
from penstock.wire.model import Job

MANY_TYPES = 100
"""Polls that name more job types go one after the other: a millisecond each, and a thousand may come at once."""


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
        queues: Queues,
        traces: Traces | None = None,
    ) -> None:
        self._database = database
        self.cache = cache
        self.queues = queues
        queues.on_change = self.hint
        self._settings = settings
        self._memory = memory
        self._events = events
        self._sizes = JobSizes(memory)
        self.waiters = Waiters(memory, settings.poll_parked_max_bytes, queues.limited)
        self.leases = LeaseBook(settings.leases_watched_max_items)
        self.losses = Losses(settings.poll_max_parked, events.lost)
        self.activity = Activity(metrics, self.waiters, trio.current_time)
        self.queue = QueueCounts(trio.current_time, settings.ready_probe_interval_seconds)
        self.releases = Releases(
            database, settings, metrics, definitions, self.leases, self.came_back, self._scan_early
        )
        self.deliveries = Deliveries(
            metrics, settings, cache, memory, self.waiters, self.leases, self._sizes, self.releases, traces
        )
        self.claims = Claims(
            database,
            settings,
            metrics,
            definitions,
            cache,
            memory,
            self._sizes,
            self.waiters,
            self.queue,
            self.deliveries,
            self.releases,
            queues,
        )
        self.draining = False
        self._wake = trio.Event()
        self._pending = trio.Event()

    # -- the poll itself

    async def wait_jobs(self, waiter: Waiter, wait_s: float) -> list[Job]:
        """Jobs for ``waiter``, waiting up to ``wait_s`` seconds. Cancelled or refused, what it was given goes back."""
        deadline = trio.current_time() + wait_s
        self.activity.observe_poll(waiter.worker, waiter.types)
        if not self.may_scan(waiter.types):
            raise Overloaded("too many large answers are being sent; poll again later")
        try:
            if wait_s <= 0 or not self.queue.known_empty(waiter.types):
                await self._scan(waiter)
            if waiter.jobs or wait_s <= 0 or self.draining or self._is_full_for(waiter):
                waiter.closed = True
                return waiter.jobs
            self._park(waiter)
            try:
                await need_task()
                with trio.CancelScope(deadline=deadline):
                    while (waiter.reserved or not waiter.jobs) and not self.draining:
                        await waiter.wait()
                waiter.ending = True
                while waiter.reserved:  # a statement that fills a slot is under way: its answer is near
                    await waiter.wait()
            finally:
                self.waiters.leave(waiter)
                self.activity.observe_answered(waiter.worker)
        except BaseException:
            waiter.closed = True
            self.releases.release_jobs(waiter.jobs)
            raise
        return waiter.jobs

    def may_scan(self, types: Sequence[str]) -> bool:
        """Return whether there is room for a job of these types."""
        return self._memory.fits(self._sizes.largest(types))

    def park_if_free(self, waiter: Waiter) -> bool:
        """Park a poll that has a caller without a task; False where there is no room."""
        if self._is_full_for(waiter):
            return False
        self._park(waiter)
        return True

    def _park(self, waiter: Waiter) -> None:
        self.park(waiter)
        self._wake_if_stale(waiter.types)

    def _is_full_for(self, waiter: Waiter) -> bool:
        """Return whether there is no room to park it."""
        return len(self.waiters) >= self._settings.poll_max_parked or not self.waiters.fits(waiter)

    async def _scan(self, waiter: Waiter) -> None:
        """Claim from the queue; once more when this engine queued a job of the type meanwhile."""
        while True:
            versions = self.queue.versions(waiter.types)
            await self.claims.submit(ClaimItem(waiter))
            if waiter.jobs or versions == self.queue.versions(waiter.types):
                return

    def park(self, waiter: Waiter) -> None:
        """Let direct dispatch and the probe find the waiter."""
        self.waiters.park(waiter)
        self._pending.set()

    def _wake_if_stale(self, types: Sequence[str]) -> None:
        if not self.queue.known_empty(types):
            self._wake.set()

    # -- the probe

    def _scan_early(self) -> None:
        self._wake.set()

    def queued(self, job_type: str) -> None:
        """A job of that type was committed to the queue by this engine."""
        self.queue.remember_queued(job_type)
        if job_type in self.queues.keyed:
            self.claims.fairness_order.open((job_type,))
        self._events.queued(job_type)
        if self.waiters.idle_for(job_type):
            self._wake.set()

    def freed(self, *job_types: str) -> None:
        """Attempts at jobs of these types have ended: what their queues kept back may begin."""
        for name in freed(self.queues, job_types):
            self.queued(name)

    def came_back(self, job_type: str, flow_key: str | None) -> None:
        """An attempt has ended: the job may wait again, and others may begin."""
        self.hint_key(job_type, flow_key)
        self.freed(job_type)

    def hint_key(self, job_type: str, flow_key: str | None) -> None:
        """To be told before `queued` and `freed`: of which flow key jobs may begin. Jobs without wait as one key."""
        if job_type in self.queues.keyed:
            types = self.queues.mates(job_type) or (job_type,)
            if flow_key and any(map(self.claims.fairness_order.may_be_crowded, types)):
                self._events.key_opened(job_type, flow_key)
            self.on_key_freed(job_type, flow_key or "")

    def on_key_freed(self, job_type: str, flow_key: str) -> None:
        """As `hint_key`, from wherever."""
        self.claims.fairness_order.hint(self.queues.mates(job_type) or (job_type,), flow_key)

    def came_to_queue(self, job_type: str, flow_key: str | None) -> None:
        """A durable run waits to be taken."""
        self.hint_key(job_type, flow_key)
        self.queued(job_type)

    def hint(self, job_types: Collection[str]) -> None:
        """Another engine says that it queued jobs of these types, or ended some, or their queues have changed."""
        self.claims.fairness_order.open(job_types)
        known = self.queue.waiting(job_types)
        for name in job_types:
            if name not in known:  # else more of what there is enough of: a count that is thrown away costs a probe
                self.queue.forget(name)
                if self.waiters.is_wanted(name):
                    self._wake.set()

    def on_losses(self, losses: Sequence[Loss]) -> None:
        """Another engine says that it took these jobs from their workers."""
        for loss in losses:
            self.leases.forget(loss.token, loss.seq)
            self.losses.receive(loss)

    async def wait_probe(self) -> None:
        """Wait until `probe_once` has something to do."""
        while not len(self.waiters):
            await self._pending.wait()
            self._pending = trio.Event()
        interval_ends = trio.current_time() + self._settings.ready_probe_interval_seconds
        with trio.move_on_at(min(interval_ends, self.claims.fairness_order.next_opening(self.waiters.types()))):
            await self._wake.wait()
        self._wake = trio.Event()

    async def probe_once(self) -> int:
        """Look for jobs that parked polls wait for, and claim them. How many polls were sent to claim."""
        types = self.waiters.types()
        if not types:
            return 0
        async with self._database.connection() as connection:
            counts = await self.claims.probe(connection, types)
        sent: list[ClaimItem] = []
        for name, count in counts.items():
            for waiter in self.waiters.idle_for(name):
                if count <= 0:
                    break
                if waiter.free_slots > 0:
                    count -= waiter.free_slots
                    sent.append(ClaimItem(waiter))
        for item in sent:
            self.claims.submit_nowait(item, within_s=0)
        for item in sent:
            await item.wait_answer()
        return len(sent)
