"""`penstock requeue`: jobs that were handed to Kafka come back at once, instead of at their deadlines.

Each is returned under its token's lock: one that is completed, failed or held at this moment is left alone, and a
message that is still consumed afterwards is told `lease-lost`. In batches, each a transaction of its own: interrupted,
it is run again. Where they go stands in the database: to the queue, or in Kafka mode to the outbox again.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import NotFound
from penstock.runtime.operator import operator, with_database
from penstock.settings import DispatchMode, Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import definitions as definition_store
from penstock.store.rows import outbox as store

BATCH_ROWS = 5_000


def requeue(settings: Settings, job_types: Sequence[str]) -> tuple[int, str]:
    """How many came back, and the dispatch mode under which they go on. No ``job_types``: of all.

    Raises NotFound for a job type that never was, and what the database raises.
    """

    async def act(connection: TrioConnection) -> tuple[int, str]:
        mode = await store.mode(connection) or DispatchMode.POLLING.value
        returned = await bring_back(
            connection,
            job_types,
            to_outbox=mode == DispatchMode.KAFKA_OUTBOX.value,
            by=operator(),
            audit=settings.audit_log_enabled,
        )
        return returned, mode

    return with_database(settings, act)


async def bring_back(
    connection: TrioConnection, job_types: Sequence[str], *, to_outbox: bool, by: str, audit: bool
) -> int:
    """Return all dispatched jobs of these types; how many. Raises NotFound."""
    ids: list[int] | None = None
    if job_types:
        known = await definition_store.job_type_ids(connection, job_types)
        missing = sorted(set(job_types) - known.keys())
        if missing:
            raise NotFound(f"there is no job type {missing[0]!r} in this database")
        ids = sorted(known.values())
    total, came, after = 0, 0, 0
    while True:
        count, last = await store.requeue_dispatched(
            connection, ids, after=after, limit=BATCH_ROWS, to_outbox=to_outbox, by=by, audit=audit
        )
        came += count
        if last is not None:
            after = last
            continue
        total += came
        if to_outbox or not came:  # while a relay publishes them again, there would always be some
            return total
        came, after = 0, 0  # once more for those that somebody held for a moment
