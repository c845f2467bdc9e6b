"""The group-commit queue of releases: leases that their holders give back, or that nobody received."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import trio

from penstock.engine.definitions.definitions import Definitions
from penstock.engine.group_commit.item import Item
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.engine.queues.held import find_jobs_locked_elsewhere
from penstock.engine.queues.lease_book import LeaseBook
from penstock.engine.requests import ids
from penstock.errors import TooManyRequests
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import jobs as store
from penstock.telemetry.metrics import Metrics
from penstock.wire.model import Job

UNREADABLE_PAUSE_S: Final = 5.0
"""A job whose variables this engine has no key for goes back after so long, or half its lease if that is less: at once,
the same poll would claim it 150 times a second, with a history row each."""
UNREADABLE_MAX_ITEMS: Final = 10_000
"""So many wait for that; more go back at once."""

RELEASE_TRIES_MAX: Final = 3
"""A release that is refused may just have met a heartbeat: it is tried so often."""


class ReleaseItem(Item[bool]):
    """A lease to give back."""

    __slots__ = ("job", "lease", "tries")

    def __init__(self, job: store.JobKey, lease: store.Lease) -> None:
        super().__init__()
        self.tries = 0
        self.job = job
        self.lease = lease


class Releases(GroupCommitQueue[ReleaseItem]):
    """Gives leases back. ``came_back`` is told type and flow key of each job that is in the queue again, ``scan_early``
    that one is whose type is not known here."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        definitions: Definitions,
        leases: LeaseBook,
        came_back: Callable[[str, str | None], None],
        scan_early: Callable[[], None],
    ) -> None:
        super().__init__("release", database, settings, metrics, per_key=1)
        self._to_outbox = settings.through_kafka
        self._definitions = definitions
        self._leases = leases
        self._came_back = came_back
        self._scan_early = scan_early
        self._unreadable: deque[tuple[float, ReleaseItem]] = deque()

    def release_jobs(self, jobs: Sequence[Job]) -> None:
        """Return jobs that nobody received to the queue, in the background."""
        for job in jobs:
            key = ids.read_job(job.id)
            self.release_nowait(key, store.Lease(key.token, key.seq, job.attempt, job.worker_id or ""))

    def release_nowait(self, job: store.JobKey, lease: store.Lease) -> None:
        """Return one in the background."""
        with suppress(TooManyRequests):  # then the end of the lease brings it back
            self.submit_nowait(ReleaseItem(job, lease))

    def release_unreadable(self, job: store.JobKey, lease: store.Lease, left_s: float) -> None:
        """Return one that this engine has no key for, though not at once. ``left_s``: to the end of its lease."""
        if len(self._unreadable) >= UNREADABLE_MAX_ITEMS:
            self.release_nowait(job, lease)
            return
        at = trio.current_time() + min(UNREADABLE_PAUSE_S, left_s / 2)
        self._unreadable.append((at, ReleaseItem(job, lease)))

    def return_unreadable(self, now: float) -> None:
        """Give back what has waited long enough by trio time ``now``."""
        for _ in range(len(self._unreadable)):
            at, item = self._unreadable.popleft()
            if at > now:
                self._unreadable.append((at, item))
            else:
                self.release_nowait(item.job, item.lease)

    def key(self, item: ReleaseItem) -> object:
        return _place(item)

    async def find_locked_elsewhere(self, connection: TrioConnection, items: list[ReleaseItem]) -> list[ReleaseItem]:
        return await find_jobs_locked_elsewhere(connection, items)

    async def apply(self, connection: TrioConnection, items: list[ReleaseItem], again: bool) -> None:
        items.sort(key=lambda item: item.job.lock_order)
        if not self._to_outbox and not self.locked.isdisjoint(store.SPARED_BY_RETURNS):
            freed = await store.release(connection, [item.lease for item in items], plain=True)
            self._answer([item for item in items if _place(item) in freed], freed, again)
            items = [item for item in items if not item.settled]
        if items:
            leases = [item.lease for item in items]
            self._answer(items, await store.release(connection, leases, to_outbox=self._to_outbox), again)

    def _answer(self, items: list[ReleaseItem], freed: Mapping[tuple[int, int], store.Released], again: bool) -> None:
        for item in items:
            row = freed.get(_place(item))
            if row is not None:
                self._leases.end(item.lease.token, item.lease.seq, row.attempt)
                name = self._definitions.job_type_name(row.job_type)
                if name is not None:
                    self._came_back(name, row.flow_key)
                else:
                    self._scan_early()
            item.tries += 1
            if row is not None or again or item.tries >= RELEASE_TRIES_MAX:  # its row may just have changed
                item.answer(row is not None or again)


def _place(item: ReleaseItem) -> tuple[int, int]:
    return item.lease.token, item.lease.seq
