"""Kafka mode: jobs that wait for turns come into the outbox, as many as their queues let begin.

The leader's relay does it before each look into the outbox. Two at once do no harm: what begins is counted in the
statement that takes it.
"""

from __future__ import annotations

import trio

from penstock.engine.definitions.definitions import CODE_PREFIX
from penstock.engine.engine import Engine
from penstock.engine.queues.claims import REASSIGN_MAX_ROWS
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import flow as store


class Admission:
    """Of one engine's relay."""

    def __init__(self, engine: Engine) -> None:
        self._queues = engine.queues
        self._definitions = engine.definitions
        self._settings = engine.settings
        self._fairness_order = engine.polls.claims.fairness_order

    async def run_once(self, connection: TrioConnection) -> list[int]:
        """Admit jobs of all types whose queues may have room; the types that have rows in the outbox now."""
        names = [name for name in self._types() if self._fairness_order.is_open(name)]
        if not names:
            return []
        await self._definitions.resolve_job_types(connection, names)
        known = self._definitions.job_type_ids
        types = {name: known[name] for name in names if name in known}
        due = self._fairness_order.to_reassign(types)
        if (
            due
            and await store.reassign(connection, [types[name] for name in due], REASSIGN_MAX_ROWS) >= REASSIGN_MAX_ROWS
        ):
            self._fairness_order.reassign_again(due)
        return [id for name, id in types.items() if await self._admit(connection, name, id)]

    def next_at(self) -> float:
        """When there may be something again, without a hint; trio time."""
        return self._fairness_order.next_open_at(self._types())

    def _types(self) -> list[str]:
        """Without those of durable runs, which executors claim in every mode."""
        return [name for name in self._queues.keyed if not name.startswith(CODE_PREFIX)]

    async def _admit(self, connection: TrioConnection, name: str, job_type: int) -> int:
        """Go on with the round, then look at keys of which something was heard, as claims do; how many began."""
        started, keys_max = trio.current_time(), self._settings.flow_keys_per_claim
        wanted, deadline_s = self._settings.outbox_batch_size, self._settings.dispatch_timeout_seconds
        cursor, after = self._fairness_order.cursor(name), self._fairness_order.after(name)
        scan, count = await store.admit(connection, job_type, wanted, cursor, keys_max, deadline_s, after)
        self._fairness_order.note(name, scan, count, keys_max=keys_max, took_s=trio.current_time() - started)
        left = wanted - count
        keys = self._fairness_order.take_hints(name, keys_max) if left > 0 and scan.visited >= keys_max else []
        if not keys:
            return count
        scan, hinted = await store.admit_hinted(connection, job_type, left, keys, deadline_s)
        self._fairness_order.keep(name, scan.unserved(keys))
        if hinted:
            self._fairness_order.open((name,))
        return count + hinted
