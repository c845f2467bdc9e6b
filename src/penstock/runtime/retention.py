"""Makes partitions of history, journals and audit ahead of time, and ends what is older than the retention.

Without a retention (the default) nothing is ever removed. With one, instances go that ended so long ago, and history
and journals of a range of time go with the last instance that started in it: a partition is dropped in milliseconds
whatever it holds. What one engine does the others leave (an advisory lock); a lock that is not had within half a second
is tried for again in the next round, so that this never holds up those who serve jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from penstock.engine.activity import Held
from penstock.engine.engine import Engine
from penstock.engine.ids import show_instance
from penstock.log import RateLimitedLog, get_logger
from penstock.runtime import archive
from penstock.store import retention as store
from penstock.store.connection import TrioConnection
from penstock.store.database import BAD_DATA, DatabaseError

SERVICE = "retention"
INTERVAL_S = 60.0
REMOVALS_MAX = 20
"""Transactions of one round; the next round goes on where this one stopped."""
PAUSE_S = 0.05
"""Between two of them: removal takes a share of the database, not all of it."""

log = get_logger(__name__)
_held = RateLimitedLog(log, interval_seconds=86_400)
_unwritten = RateLimitedLog(log, interval_seconds=3_600)


async def prepare_partitions(connection: TrioConnection, partition_days: float) -> int:
    """Make the partitions that are missing, and log it; how many were made."""
    prepared = await store.prepare(connection, partition_days)
    if prepared.made:
        log.info("partitions made", names=prepared.made)
    for reason in prepared.refused:
        log.warning("a partition could not be made; its rows go to the default one and stay", reason=reason)
    return len(prepared.made)


class Retention:
    """One engine's turn at the partitions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._removed_to: dict[str, int] = {}  # by partition: where to go on; from the start in the next process
        self._oldest_held: Held | None = None

    async def step(self) -> None:
        """One round of the service loop."""
        busy = await self.run_once()
        await trio.sleep(PAUSE_S if busy else INTERVAL_S)

    async def run_once(self) -> bool:
        """Prepare, remove, drop; True when there is more to remove at once."""
        settings = self._engine.settings
        busy = False
        async with self._engine.database.connection(patient=True) as connection:
            await prepare_partitions(connection, settings.partition_days)
            if settings.retention_days is not None:
                self._oldest_held = None
                for partition in await store.over(connection, "history", settings.retention_days):
                    busy |= await self._end(connection, partition, settings.retention_days)
                self._engine.polls.activity.held = self._oldest_held
                for partition in await store.over(connection, "journal", settings.retention_days):
                    if (await store.left(connection, partition)).oldest is None:
                        await self._drop(connection, partition)
                    else:
                        busy |= await store.remove_journals(connection, partition)
            if settings.audit_retention_days is not None:
                for partition in await store.over(connection, "audit", settings.audit_retention_days):
                    await self._drop(connection, partition)
        return busy

    async def _end(self, connection: TrioConnection, partition: store.Partition, days: float) -> bool:
        """Remove the ended instances of a partition, then the partition; True when some are left for the next round."""
        for _ in range(REMOVALS_MAX):
            after = self._removed_to.get(partition.name, -1)
            waiting = set(self._engine.aside.waiting(SERVICE))
            found = await store.retired(connection, partition, days, after)
            due = [id for id in found if id not in waiting]
            if due and not await self._archive(connection, partition, due):
                break
            removed = await self._remove(connection, due)
            if not found or removed is None:
                break
            self._removed_to[partition.name] = found[-1]
            log.debug("instances removed", count=removed, partition=partition.name)
            await trio.sleep(PAUSE_S)
        else:
            return True
        self._removed_to.pop(partition.name, None)
        left = await store.left(connection, partition)
        if left.oldest is None:
            await self._drop(connection, partition)
        else:
            if self._oldest_held is None:
                self._oldest_held = Held(left.instances, left.oldest, partition.until)
            _held.info(
                partition.name,
                "history is kept by instances that are open, or ended lately",
                partition=partition.name,
                instances=left.instances,
                oldest=show_instance(left.oldest),
            )
        return False

    async def _archive(self, connection: TrioConnection, partition: store.Partition, ids: Sequence[int]) -> bool:
        """Whether they are archived, where an archive is kept; else nothing may be removed."""
        directory = archive.directory_of(self._engine.settings)
        if directory is None:
            return True
        try:
            path = await archive.write(connection, directory / partition.name, ids)
        except OSError as error:
            _unwritten.error(
                partition.name,
                "instances can't be archived; they are not removed",
                partition=partition.name,
                reason=str(error),
            )
            return False
        log.info("instances archived", count=len(ids), file=str(path))
        return True

    async def _remove(self, connection: TrioConnection, ids: list[int]) -> int | None:
        """How many instances went; None when another engine is at it. One that can't be removed is set aside."""
        aside = self._engine.aside
        others_turn = False

        async def remove(ids: Sequence[int]) -> Sequence[int]:
            nonlocal others_turn
            removed = await store.remove_instances(connection, ids) if ids else []
            others_turn |= removed is None
            return removed or []

        def leave(id: int, error: DatabaseError) -> None:
            aside.set_aside(SERVICE, id, f"instance {show_instance(id)}", error)

        removed = await aside.each(ids, remove, leave)
        for id in removed:
            aside.forget(SERVICE, id)
        return None if others_turn else len(removed)

    async def _drop(self, connection: TrioConnection, partition: store.Partition) -> None:
        aside = self._engine.aside
        if partition.name in aside.waiting(SERVICE):
            return
        try:
            dropped = await store.drop(connection, partition)
        except BAD_DATA as error:
            aside.set_aside(SERVICE, partition.name, f"partition {partition.name}", error)
            return
        if dropped:
            aside.forget(SERVICE, partition.name)
            log.info("partition dropped", name=partition.name, since=partition.since, until=partition.until)
