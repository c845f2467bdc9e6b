"""Leases that end: this engine's own at once, those of engines that died by a scan; deadlines of dispatched jobs.

The engine keeps the leases it granted in memory (`engine.queues.lease_book`); what happens to ended ones is
`engine.jobs.leases`. The scan finds leases that nobody watches: at most every ``lease_scan_interval_seconds`` and at
once when another engine disappears. It costs a walk over all tokens, so its interval grows with what it took. Only the
scan finds the deadlines of jobs that were dispatched through Kafka: there may be a million, for half an hour each.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from penstock.engine.engine import Engine
from penstock.engine.jobs.leases import SERVICE
from penstock.engine.queues.lease_book import GrantedLease
from penstock.engine.requests.ids import show_job
from penstock.store.db.database import DatabaseError
from penstock.store.rows import definitions as definition_store
from penstock.store.rows import jobs as store
from penstock.store.rows.jobs import Expired, JobKey

TICK_S = 0.25
BATCH_MAX = 500
LOOKUPS_MAX = 3
"""A lease that is due here but not in the database (extended elsewhere, or its row is locked) is looked at so often."""
SCAN_SHARE = 50
"""The scan may take a fiftieth of the time."""


class LeaseSweeper:
    """Returns the jobs of ended leases to the queue, or dead-letters them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_scan_at = trio.current_time()
        self._dead: set[str] = set()

    def on_dead(self, tags: Sequence[str]) -> None:
        """These engines are dead: the runs that their executors hold are taken from them now."""
        self._dead.update(tags)

    def scan_soon(self) -> None:
        """Another engine is gone: look for its leases now."""
        self._next_scan_at = trio.current_time()

    async def step(self) -> None:
        """One round of the service loop."""
        if self._dead:
            await self.return_held()
        if trio.current_time() >= self._next_scan_at:
            await self.scan_once()
        self._engine.polls.releases.return_unreadable(trio.current_time())
        await self.run_once(trio.current_time())
        await trio.sleep(TICK_S)

    async def return_held(self) -> int:
        """Take the runs of executors whose engines are dead; how many were taken."""
        dead = list(self._dead)
        count = await self._engine.leases.return_held(dead)
        self._dead.difference_update(dead)
        return count

    async def run_once(self, now: float) -> int:
        """Return the jobs whose lease ended by trio time ``now``; how many were."""
        returned = 0
        while due := self._engine.polls.leases.take_due(now, BATCH_MAX):
            returned += await self._expire(due, now)
        return returned

    async def scan_once(self) -> int:
        """Watch all leases that end before the next scan and are not watched yet; how many were found."""
        interval_s = self._engine.settings.lease_scan_interval_seconds
        started = trio.current_time()
        async with self._engine.database.connection(patient=True) as connection:
            found = await store.scan_leases(connection, interval_s + 1)
            if not self._engine.definitions.has_code:  # another engine's, whose runs end here, too
                self._engine.definitions.has_code = await definition_store.any_code(connection)
        now = trio.current_time()
        book = self._engine.polls.leases
        waiting = set(self._engine.quarantine.waiting(SERVICE))
        for lease in found:
            key = JobKey(lease.instance, lease.token, lease.seq)
            if book.find(lease.token, lease.seq) is None and key not in waiting:
                ends_at = now + max(lease.left_s, 0)
                watched = GrantedLease(lease.instance, lease.token, lease.seq, lease.attempt, 0, None, "", ends_at)
                book.grant(watched, scanned=True)
        self._next_scan_at = now + max(interval_s, SCAN_SHARE * (now - started))
        return len(found)

    async def _expire(self, due: list[GrantedLease], now: float) -> int:
        engine = self._engine
        book, leases = engine.polls.leases, engine.leases
        bad: list[GrantedLease] = []

        def leave(lease: GrantedLease, error: DatabaseError) -> None:
            key = JobKey(lease.instance, lease.token, lease.seq)
            lease.ends_at = now + engine.quarantine.quarantine_row(SERVICE, key, f"job {show_job(*key)}", error)
            bad.append(lease)

        async def end(part: Sequence[GrantedLease]) -> list[Expired]:
            return await leases.end([(lease.token, lease.seq, lease.attempt) for lease in part])

        try:
            rows = await engine.quarantine.each(due, end, leave)
        except BaseException:
            for lease in due:  # still ours to watch
                book.put_back(lease)
            raise
        for lease in bad:
            book.put_back(lease)
        settled = {(row.token, row.seq) for row in rows} | {(lease.token, lease.seq) for lease in bad}
        for lease in due:
            if (lease.token, lease.seq) not in settled and lease.lookups < LOOKUPS_MAX:
                lease.lookups += 1
                lease.ends_at = now + 2 * TICK_S * lease.lookups
                book.put_back(lease)
        await leases.dead_letter(rows)
        return len(rows)
