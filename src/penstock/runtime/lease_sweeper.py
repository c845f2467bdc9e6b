"""Leases that end: this engine's own at once, those of engines that died by a scan; deadlines of dispatched jobs.

The engine keeps the leases it granted in memory (`engine.lease_book`) and returns the jobs of ended ones. The scan finds
leases that nobody watches: at most every ``lease_scan_interval_seconds`` and at once when another engine disappears.
The scan costs a walk over all tokens, so its interval grows with what it took.

Jobs that were dispatched through Kafka have a deadline instead; only the scan finds those (there may be a million, for
half an hour each). Past it they are dispatched anew, or queued when the mode was switched. In Kafka mode a lease that a
heartbeat began ends the same way. None of this counts towards dead-lettering.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from penstock.engine.engine import Engine
from penstock.engine.ids import show_job
from penstock.engine.items import DeadLetterItem
from penstock.engine.lease_book import GrantedLease
from penstock.errors import PenstockError, TooManyRequests, Unavailable
from penstock.log import get_logger
from penstock.store import jobs as store
from penstock.store import outbox as outbox_store
from penstock.store.database import DatabaseError
from penstock.store.jobs import JobKey

SERVICE = "lease sweeper"
TICK_S = 0.25
BATCH_MAX = 500
LOOKS_MAX = 3
"""A lease that is due here but not in the database (extended elsewhere, or its row is locked) is looked at so often."""
SCAN_SHARE = 50
"""The scan may take a fiftieth of the time."""

log = get_logger(__name__)


class LeaseSweeper:
    """Returns the jobs of ended leases to the queue, or dead-letters them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_scan_at = trio.current_time()

    def scan_soon(self) -> None:
        """Another engine is gone: look for its leases now."""
        self._next_scan_at = trio.current_time()

    async def step(self) -> None:
        """One round of the service loop."""
        if trio.current_time() >= self._next_scan_at:
            await self.scan_once()
        self._engine.polls.return_unreadable(trio.current_time())
        await self.run_once(trio.current_time())
        await trio.sleep(TICK_S)

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
        async with self._engine.database.connection() as connection:
            found = await store.scan_leases(connection, interval_s + 1)
        now = trio.current_time()
        book = self._engine.polls.leases
        waiting = set(self._engine.aside.waiting(SERVICE))
        for lease in found:
            key = JobKey(lease.instance, lease.token, lease.seq)
            if book.find(lease.token, lease.seq) is None and key not in waiting:
                ends_at = now + max(lease.left_s, 0)
                watched = GrantedLease(lease.instance, lease.token, lease.seq, lease.attempt, 0, None, "", ends_at)
                watched.dispatched = lease.dispatched
                book.grant(watched, scanned=True)
        self._next_scan_at = now + max(interval_s, SCAN_SHARE * (now - started))
        return len(found)

    async def _expire(self, due: list[GrantedLease], now: float) -> int:
        engine = self._engine
        limit = engine.settings.lease_expiry_limit
        bad: list[GrantedLease] = []

        def leave(lease: GrantedLease, error: DatabaseError) -> None:
            key = JobKey(lease.instance, lease.token, lease.seq)
            lease.ends_at = now + engine.aside.set_aside(SERVICE, key, f"job {show_job(*key)}", error)
            bad.append(lease)

        try:
            rows = await engine.aside.each(due, lambda leases: self._end(leases, limit), leave)
        except BaseException:
            for lease in due:  # still ours to watch
                engine.polls.leases.put_back(lease)
            raise
        for lease in bad:
            engine.polls.leases.put_back(lease)
        settled = {(row.token, row.seq) for row in rows} | {(lease.token, lease.seq) for lease in bad}
        for row in rows:
            engine.metrics.job_timeouts.inc()
            if not row.dead:
                engine.aside.forget(SERVICE, JobKey(row.instance, row.token, row.seq))
            if not row.dead and (name := engine.definitions.job_type_name(row.job_type)) is not None:
                engine.polls.queued(name)
        for lease in due:
            if (lease.token, lease.seq) not in settled and lease.looks < LOOKS_MAX:
                lease.looks += 1
                lease.ends_at = now + 2 * TICK_S * lease.looks
                engine.polls.leases.put_back(lease)
        await self._dead_letter([row for row in rows if row.dead], limit)
        return len(rows)

    async def _end(self, due: Sequence[GrantedLease], limit: int) -> list[store.Expired]:
        to_outbox = self._engine.settings.through_kafka
        dispatches = [lease for lease in due if lease.dispatched or to_outbox]
        leases = [lease for lease in due if not (lease.dispatched or to_outbox)]
        rows: list[store.Expired] = []
        async with self._engine.database.connection() as connection:
            if dispatches:
                rows += await outbox_store.end_dispatches(connection, _keys(dispatches), to_outbox=to_outbox)
            if leases:
                rows += await store.expire(connection, _keys(leases), limit)
        return rows

    async def _dead_letter(self, rows: list[store.Expired], expiries: int) -> None:
        """All at once: one after another they would hold up the leases that end meanwhile, as would one whose instance
        somebody holds. What is refused in an outage is found again by the scan."""
        aside = self._engine.aside
        later: PenstockError | None = None
        items: list[DeadLetterItem] = []
        for row in rows:
            key = JobKey(row.instance, row.token, row.seq)
            log.warning("job dead-lettered", job=show_job(*key), expiries=expiries)
            items.append(DeadLetterItem(key, row.attempt, expiries))
            self._engine.wide.submit_nowait(items[-1])
        for item in items:
            try:
                if await item.wait_tried():
                    await item.wait_answer()
                    aside.forget(SERVICE, item.key)
            except (Unavailable, TooManyRequests) as error:
                later = error
            except PenstockError as error:
                aside.set_aside(SERVICE, item.key, f"job {show_job(*item.key)}", error)
        if later is not None:
            raise later


def _keys(leases: list[GrantedLease]) -> list[tuple[int, int, int]]:
    return [(lease.token, lease.seq, lease.attempt) for lease in leases]
