"""The group-commit queue of look-ups: what is known of jobs that this engine did not lease out itself."""

from __future__ import annotations

from penstock.engine.group_commit.item import Item
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, wait_replicated
from penstock.store.rows import jobs as store
from penstock.store.rows.jobs import ExecutionInfo, JobKey
from penstock.telemetry.metrics import Metrics


class Lookup(Item[ExecutionInfo]):
    """A question about one job."""

    __slots__ = ("job", "worker")

    def __init__(self, job: JobKey, worker: str) -> None:
        super().__init__()
        self.job = job
        self.worker = worker


class Lookups(GroupCommitQueue[Lookup]):
    """Reads, together, what is asked about jobs. Takes no locks."""

    def __init__(self, database: Database, settings: Settings, metrics: Metrics) -> None:
        super().__init__("look-up", database, settings, metrics)

    async def apply(self, connection: TrioConnection, items: list[Lookup], again: bool) -> None:
        found = await store.look_up(connection, [item.job for item in items], [item.worker for item in items])
        if any(known.execution.closed is not None for known in found):  # a repeated call is answered by that alone
            await wait_replicated(connection)
        for item, known in zip(items, found, strict=True):
            item.answer(known)
