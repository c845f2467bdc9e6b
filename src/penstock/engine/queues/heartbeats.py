"""The group-commit queue of heartbeats: leases that their holders extend, together in one statement."""

from __future__ import annotations

from typing import Final

import trio

from penstock.core.rules.fencing import FenceDecision, FenceRequest, decide_fence
from penstock.engine.group_commit.item import Item
from penstock.engine.group_commit.queue import GroupCommitQueue
from penstock.engine.queues.held import find_jobs_locked_elsewhere
from penstock.engine.queues.lease_book import GrantedLease, LeaseBook
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import jobs as store
from penstock.store.rows.jobs import JobKey
from penstock.telemetry.metrics import Metrics
from penstock.wire.model import Lease

BEAT_TRIES_MAX: Final = 20
"""A heartbeat that is refused each time as the row has just changed (another heartbeat, say) is tried so often."""


class HeartbeatCall(Item["FenceDecision | Lease"]):
    """A heartbeat. Applied, ``row`` tells more than the answer."""

    __slots__ = ("call", "extension", "job", "row", "tries")

    def __init__(self, job: JobKey, call: FenceRequest, extension: store.Extension) -> None:
        super().__init__()
        self.job = job
        self.call = call
        self.extension = extension
        self.row: store.Extended | None = None
        self.tries = 0


class Heartbeats(GroupCommitQueue[HeartbeatCall]):
    """Extends leases, and keeps what their holders know of them in the lease book."""

    def __init__(self, database: Database, settings: Settings, metrics: Metrics, leases: LeaseBook) -> None:
        super().__init__("heartbeat", database, settings, metrics, per_key=1, label="heartbeat")
        self._leases = leases

    def key(self, item: HeartbeatCall) -> object:
        return item.job.token

    async def find_locked_elsewhere(
        self, connection: TrioConnection, items: list[HeartbeatCall]
    ) -> list[HeartbeatCall]:
        return await find_jobs_locked_elsewhere(connection, items)

    def _watch(self, row: store.Extended, ends_at: float) -> None:
        """Also leases that another engine granted, or that had ended here: who extended it last watches it."""
        if self._leases.find(row.token, row.seq) is None:
            lease = GrantedLease(row.instance, row.token, row.seq, row.attempt, row.step, None, "", ends_at)
            self._leases.grant(lease)
        else:
            self._leases.extend(row.token, row.seq, row.attempt, ends_at)

    async def apply(self, connection: TrioConnection, items: list[HeartbeatCall], again: bool) -> None:
        items.sort(key=lambda item: item.job.lock_order)
        if not self.locked.isdisjoint(store.TABLES_OF_EXTEND):  # before those are refused that need one of them
            await self._extend_leased(
                connection, [item for item in items if self.locked.isdisjoint(item.extension.tables)]
            )
            items = [item for item in items if not item.settled]
        refused = self._answer(
            items, await store.extend(connection, [item.extension for item in items]) if items else []
        )
        if refused:
            await self._refuse(connection, refused)

    async def _extend_leased(self, connection: TrioConnection, items: list[HeartbeatCall]) -> None:
        if items:
            self._answer(items, await store.extend_leased(connection, [item.extension for item in items]))

    def _answer(self, items: list[HeartbeatCall], rows: list[store.Extended]) -> list[HeartbeatCall]:
        """Answer those that were applied; the others."""
        extended = {(row.token, row.seq): row for row in rows}
        refused: list[HeartbeatCall] = []
        for item in items:
            row = extended.get((item.job.token, item.job.seq))
            if row is None:
                refused.append(item)
                continue
            self._watch(row, trio.current_time() + row.left_s)
            if row.took is not None:
                self._metrics.flow_overruns.inc()
            item.row = row
            item.answer(Lease(lock_expires_at=row.lease_until))
        return refused

    async def _refuse(self, connection: TrioConnection, items: list[HeartbeatCall]) -> None:
        found = await store.look_up(connection, [item.job for item in items], [item.call.worker for item in items])
        for item, known in zip(items, found, strict=True):
            decision = decide_fence(item.call, known.execution)
            if known.execution.state is None:  # closed, through another engine maybe
                self._leases.forget(item.job.token, item.job.seq)
            item.tries += 1
            if decision is not FenceDecision.APPLY:
                item.answer(decision)
            elif item.tries > BEAT_TRIES_MAX:
                item.answer(FenceDecision.LEASE_LOST)
