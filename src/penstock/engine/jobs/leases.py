"""Leases that ended: their jobs go back to the queue, or are dead-lettered. One verb, `Leases.expire`.

Jobs that were dispatched through Kafka have a deadline instead; past it they are dispatched anew, or queued when the
mode was switched. In Kafka mode a lease that a heartbeat began ends the same way. None of this counts towards
dead-lettering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from penstock.core.rules.state import TokenState
from penstock.engine.advance.commands import DeadLetterCommand
from penstock.engine.advance.full_path import FullPath
from penstock.engine.advance.quarantine import Quarantine
from penstock.engine.definitions.definitions import Definitions
from penstock.engine.requests.ids import show_instance, show_job
from penstock.errors import PenstockError, TooManyRequests, Unavailable
from penstock.log.log import get_logger
from penstock.settings import Settings
from penstock.store.db.database import LOCKED, Database, locked_tables
from penstock.store.rows import jobs as store
from penstock.store.rows import journal as journal_store
from penstock.store.rows.jobs import Expired, JobKey
from penstock.store.rows.journal import EndedLease
from penstock.telemetry.metrics import Metrics

SERVICE = "lease sweeper"
"""What puts jobs aside that can't be dead-lettered."""

STANDS_BACK_MIN_S = 5.0
"""Before a run that ended several executors is given to another one; longer each time (`expire_runs`)."""

log = get_logger("penstock.engine.leases")

LeaseKey = tuple[int, int, int]
"""Token, seq and attempt."""


class Leases:
    """Ends leases. Any engine may end any lease: the database's own time decides whether it is over."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        definitions: Definitions,
        full_path: FullPath,
        quarantine: Quarantine,
        came_back: Callable[[str, str | None], None],
        armed: Callable[[float], None],
    ) -> None:
        self._database = database
        self._to_outbox = settings.through_kafka
        self.expiry_limit = settings.lease_expiry_limit
        """A job whose lease ends so often is dead-lettered."""
        self._metrics = metrics
        self._definitions = definitions
        self._full_path = full_path
        self._quarantine = quarantine
        self._came_back = came_back
        self._armed = armed

    async def expire(self, leases: Sequence[LeaseKey]) -> list[Expired]:
        """End those of the leases that are over, and dead-letter jobs whose leases ended too often.

        Those not in the answer are not over (a heartbeat came), closed, or held by another transaction.
        """
        rows = await self.end(leases)
        await self.dead_letter(rows)
        return rows

    async def end(self, leases: Sequence[LeaseKey]) -> list[Expired]:
        """One statement, and one for durable runs. ``dead`` ones are left as they are, for `dead_letter`. While
        somebody holds a table that few of them need, those that do are left to the scan."""
        async with self._database.connection(ahead=True) as connection:
            try:
                runs = await journal_store.expire(connection, leases) if self._definitions.has_code else []
                rows = await store.expire(connection, leases, self.expiry_limit, to_outbox=self._to_outbox)
            except LOCKED:
                if self._to_outbox or store.SPARED_BY_RETURNS.isdisjoint(await locked_tables(connection)):
                    raise
                code = self._definitions.code_types()
                runs = await journal_store.expire(connection, leases, plain_of=code)
                rows = await store.expire(connection, leases, self.expiry_limit, plain_beside=code)
        self._on_runs(runs)
        for row in rows:
            self._metrics.job_timeouts.inc()
            if row.dead:
                continue
            self._quarantine.forget(SERVICE, JobKey(row.instance, row.token, row.seq))
            name = self._definitions.job_type_name(row.job_type)
            if name is not None:
                self._came_back(name, row.flow_key)
        return [*rows, *(Expired(run.token, run.seq, run.attempt, 0, run.token, dead=False) for run in runs)]

    async def return_held(self, tags: Sequence[str]) -> int:
        """Take all runs from the executors of engines that are dead, by their tags. How many were taken."""
        after, count = -1, 0
        while True:
            async with self._database.connection(ahead=True) as connection:
                held = await journal_store.held_by(connection, tags, after)
                if not held:
                    return count
                keys = [(run.instance, run.seq, run.attempt) for run in held]
                ended = await journal_store.expire(connection, keys, [run.holder for run in held])
            self._on_runs(ended)
            after, count = held[-1].instance, count + len(ended)

    def _on_runs(self, rows: Sequence[EndedLease]) -> None:
        for row in rows:
            self._metrics.run_takeovers.inc()
            self._came_back(row.job_type, row.flow_key)
            if row.state != TokenState.READY:
                self._armed(STANDS_BACK_MIN_S)
            if row.expiries >= self.expiry_limit:
                log.error(
                    "a run has ended its executors several times",
                    instance=show_instance(row.token),
                    workflow=row.job_type,
                    executors=row.expiries,
                )

    async def dead_letter(self, rows: Sequence[Expired]) -> None:
        """Fail the ``dead`` ones of these, and their instances.

        All at once: one after another they would hold up the leases that end meanwhile, as would one whose instance
        somebody holds. What is refused in an outage is found again by the scan.
        """
        later: PenstockError | None = None
        items: list[DeadLetterCommand] = []
        expiries = self.expiry_limit
        for row in rows:
            if row.dead:
                key = JobKey(row.instance, row.token, row.seq)
                log.warning("job dead-lettered", job=show_job(*key), expiries=expiries)
                items.append(DeadLetterCommand(key, row.attempt, expiries))
                self._full_path.submit_nowait(items[-1])
        for item in items:
            try:
                if await item.wait_tried():
                    await item.wait_answer()
                    self._on_dead(item.key, None)
                else:
                    item.on_end = partial(self._on_dead, item.key)
            except (Unavailable, TooManyRequests) as error:
                later = error
            except PenstockError as error:
                self._on_dead(item.key, error)
        if later is not None:
            raise later

    def _on_dead(self, key: JobKey, error: PenstockError | None) -> None:
        """What became of a dead letter. One that was refused for a while only is found again by the scan."""
        if error is None:
            self._quarantine.forget(SERVICE, key)
        elif not isinstance(error, Unavailable | TooManyRequests):
            self._quarantine.quarantine_row(SERVICE, key, f"job {show_job(*key)}", error)
