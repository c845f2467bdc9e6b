"""Chores: old idempotency keys and messages go, the depth of the queues and the lag of the loop are measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import trio

from penstock.engine.engine import Engine
from penstock.engine.queues.lease_book import LeaseBook
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import activity as activity_store
from penstock.store.rows import batches as batch_store
from penstock.store.rows import idempotency
from penstock.store.rows import jobs as job_store
from penstock.store.rows import outbox as outbox_store
from penstock.store.rows import queues as queue_store
from penstock.store.rows import starts as start_store
from penstock.telemetry.metrics.registry import MAX_QUEUES

INTERVAL_S = 10.0
LAG_INTERVAL_S = 1.0
PURGE_MAX_ROWS = 1_000
"""Old keys that one transaction forgets: some ten milliseconds."""
ROLL_UP_ROUNDS = 6
"""Samples of the console are summed up once a minute."""
LEASES_AT_ONCE = 2_000
"""Leases that are counted before others have their turn: a millisecond."""
SLOTS_MAX_ROWS = 10_000
"""Of limits' counters that one round looks at."""
WAITING_COUNTED_MAX = 10_000
"""Jobs of a queue that are counted for the metrics: a millisecond."""
PURGE_MAX_BATCHES, PURGE_MAX_ITEMS = 100, 10_000
"""That one transaction forgets; of the last batch all items."""
PURGES_MAX = 200
"""Such transactions of one round: far more keys than an engine can take meanwhile."""
PURGE_MAX_S = 5.0
"""So long a round purges batches at most."""


class Housekeeping:
    """One engine's chores."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._round = 0
        self._workers_after = ""
        self._slots_after = (0, "")

    async def step(self) -> None:
        """One round of the service loop."""
        await self.run_once()
        await trio.sleep(INTERVAL_S)

    async def run_once(self) -> int:
        """Purge and measure; how many job types have a queue."""
        engine = self._engine
        async with engine.database.connection(patient=True) as connection:
            hours = engine.settings.idempotency_retention_hours
            for _ in range(PURGES_MAX):
                if await idempotency.purge(connection, hours, PURGE_MAX_ROWS) < PURGE_MAX_ROWS:
                    break
            for _ in range(PURGES_MAX):
                if await start_store.purge_windows(connection, PURGE_MAX_ROWS) < PURGE_MAX_ROWS:
                    break
            if engine.settings.retention_days is not None:
                await self._purge_batches(connection, engine.settings.retention_days)
            await engine.messages.chores(connection)
            await engine.sql_requests.chores(connection)
            await engine.inbox.fill()
            await engine.failures.fill()
            await self._purge_slots(connection)
            depth_of = outbox_store.depth if engine.settings.through_kafka else job_store.queue_depth
            depths = await depth_of(connection)
            flow = await queue_store.measure(connection, MAX_QUEUES, WAITING_COUNTED_MAX)
            await self._write_activity(connection, [(name, count, age_s or 0.0) for name, count, age_s in depths])
        engine.metrics.set_queue([(name, count, age_s or 0.0) for name, count, age_s in depths])
        engine.metrics.set_flow(flow)
        if engine.settings.through_kafka:
            engine.metrics.outbox_backlog.set(sum(count for _, count, _ in depths))
        return len(depths)

    async def _purge_batches(self, connection: TrioConnection, days: float) -> None:
        """All that are old, as far as there is time: their number goes by what users start."""
        ends = trio.current_time() + PURGE_MAX_S
        while trio.current_time() < ends:
            if not await batch_store.purge(connection, days, PURGE_MAX_BATCHES, PURGE_MAX_ITEMS):
                return

    async def _purge_slots(self, connection: TrioConnection) -> None:
        """A piece of the table each round; and jobs with keys of types that are not known for it come to be found."""
        await self._engine.queues.remember_keyed(connection, await queue_store.unmarked_types(connection))
        found = await queue_store.purge_slots(connection, self._slots_after, SLOTS_MAX_ROWS)
        self._slots_after = (0, "") if found is None else found[0]

    async def _write_activity(self, connection: TrioConnection, depths: Sequence[tuple[str, int, float]]) -> None:
        """What the console shows of the last rounds; an engine without work and workers writes nothing."""
        engine, activity = self._engine, self._engine.polls.activity
        activity.observe_depths(depths)
        by_type, by_worker = await _leased(engine.polls.leases)
        counts, workers, seen = activity.take_counts(), activity.workers(), activity.take_workers(by_worker)
        queues = activity.take_queues(by_type)
        if counts or workers or queues:
            await activity_store.write_sample(connection, engine.ids.number, counts, workers, queues)
        if seen:
            await activity_store.write_workers(connection, engine.ids.number, seen)
        self._round += 1
        if self._round % ROLL_UP_ROUNDS == 0:
            await activity_store.roll_up(connection)
            self._workers_after = await activity_store.purge_workers(connection, self._workers_after)

    async def measure_lag(self) -> None:
        """How late a task wakes that slept: what blocks the loop shows here."""
        due = trio.current_time() + LAG_INTERVAL_S
        await trio.sleep_until(due)
        late_s = max(0.0, trio.current_time() - due)
        self._engine.metrics.loop_lag_seconds.observe(late_s)
        self._engine.polls.activity.observe_lag(late_s)
        self._engine.metrics.parked_polls.set(len(self._engine.polls.waiters))


async def _leased(leases: LeaseBook) -> tuple[Counter[str], Counter[str]]:
    """Jobs under lease by job type and by worker, as this engine knows of them."""
    by_type: Counter[str] = Counter()
    by_worker: Counter[str] = Counter()
    now = trio.current_time()
    for number, lease in enumerate(leases.all(), 1):
        if number % LEASES_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        if lease.ends_at <= now:
            continue
        by_worker[lease.worker] += 1
        if lease.loaded is not None:
            by_type[lease.loaded.definition.steps[lease.step].job_type or ""] += 1
    return by_type, by_worker
