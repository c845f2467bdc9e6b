"""Makes partitions of history, journals and audit ahead of time, and ends what is older than the retention.

Without a retention (the default) nothing is ever removed. With one, instances go that ended so long ago, and history
and journals of a range of time go with the last instance that started in it: a partition is dropped in milliseconds
whatever it holds. Where rules (`retention_rules`) say another time: instances that go sooner are deleted in slices,
with their history; those that stay longer move to a partition of their own when that of their time goes. What one
engine does the others leave (an advisory lock); a lock that is not had within half a second is tried for again in the
next round, so that this never holds up those who serve jobs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio

from penstock.engine.engine import Engine
from penstock.engine.instances.retention_rules import ENDS, KeptDays, RetentionRules, shorter
from penstock.engine.queues.activity import OverdueHistory
from penstock.engine.requests.ids import show_instance
from penstock.log.log import RateLimitedLog, get_logger
from penstock.runtime import archive
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import BAD_DATA, DatabaseError
from penstock.store.rows import retention as store

SERVICE = "retention"
EARLY = "early"
"""The part of the archive that has what went before its partition."""
INTERVAL_S = 60.0
REMOVALS_MAX = 20
"""Transactions of one round; the next round goes on where this one stopped."""
PAUSE_S = 0.05
"""Between two of them: removal takes a share of the database, not all of it."""
WALK_INTERVAL_S = 600.0
"""Between two walks over what goes before its partition; and, where rules keep some, over what is left of one."""
MOVE_INTERVAL_S = 3_600.0
"""Between two looks at a partition of which too much is kept to move."""

log = get_logger(__name__)
_held = RateLimitedLog(log, interval_seconds=86_400)
_unwritten = RateLimitedLog(log, interval_seconds=3_600)


async def prepare_partitions(connection: TrioConnection, partition_days: float) -> int:
    """Make the partitions that are missing, and log it; how many were made."""
    prepared = await store.prepare(connection, partition_days)
    if prepared.made:
        log.info("partitions made", names=prepared.made)
    for reason in prepared.refused:
        log.warning("a partition could not be created: its rows stay in the default partition", reason=reason)
    return len(prepared.made)


def _exceptions(kept: Sequence[KeptDays]) -> store.Exceptions:
    every = [(each.definition, status, days) for each in kept for status, days in zip(ENDS, each.days, strict=True)]
    return store.Exceptions(*zip(*every, strict=True)) if every else store.NO_EXCEPTIONS


class Retention:
    """One engine's turn at the partitions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._removed_to: dict[str, int] = {}  # by partition: where to go on; from the start in the next process
        self._overdue: OverdueHistory | None = None
        settings = engine.settings
        self._rules = RetentionRules(settings.retention_rules, settings.retention_days)
        self._walks: deque[tuple[KeptDays, int]] = deque()  # versions to walk over, each with where to go on
        self._walk_at = 0.0
        self._move_at: dict[str, float] = {}  # by partition: not before
        self._rests: dict[str, tuple[float, OverdueHistory]] = {}  # by partition: likewise, and what keeps it

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
            kept = self._rules.of(await store.versions(connection)) if self._rules else []
            if kept:
                busy |= await self._remove_early(connection, kept)
            if settings.retention_days is not None:
                busy |= await self._end_partitions(connection, settings.retention_days, _exceptions(kept))
            if settings.audit_retention_days is not None:
                for partition in await store.over(connection, "audit", settings.audit_retention_days):
                    await self._drop(connection, partition)
        return busy

    async def _end_partitions(self, connection: TrioConnection, days: float, exceptions: store.Exceptions) -> bool:
        busy = False
        self._overdue = None
        for partition in await store.over(connection, "history", days):
            busy |= await self._end(connection, partition, days, exceptions)
        self._engine.polls.activity.overdue = self._overdue
        for partition in await store.over(connection, "journal", days):
            if (await store.left(connection, partition)).oldest is None:
                await self._drop(connection, partition)
            else:
                busy |= await store.remove_journals(connection, partition)
        return busy

    async def _remove_early(self, connection: TrioConnection, kept: Sequence[KeptDays]) -> bool:
        """Some slices of what goes before its partition does; True when there are more."""
        now = trio.current_time()
        if not self._walks and now >= self._walk_at:
            self._walks.extend((each, -1) for each in shorter(kept, self._rules.otherwise))
            self._walk_at = now + WALK_INTERVAL_S
        for _ in range(REMOVALS_MAX):
            if not self._walks:
                return False
            version, after = self._walks[0]
            due, last = await store.walk(connection, version.definition, after, version.days)
            waiting = set(self._engine.quarantine.waiting(SERVICE))
            due = [each for each in due if each.id not in waiting]
            for first in range(0, len(due), store.SLICE_MAX_ROWS):
                piece = due[first : first + store.SLICE_MAX_ROWS]
                if not await self._archive(connection, EARLY, piece):
                    self._walks.popleft()  # again with the next walk
                    return False
                if await self._remove(connection, piece, with_history=True) is None:
                    return False  # another engine is at it
                await trio.sleep(PAUSE_S)
            self._walks.popleft()
            if last is not None:
                self._walks.appendleft((version, last))
        return True

    async def _end(
        self, connection: TrioConnection, partition: store.Partition, days: float, exceptions: store.Exceptions
    ) -> bool:
        """Remove the ended instances of a partition, then the partition; True when some are left for the next round."""
        rest_until, held = self._rests.pop(partition.name, (0.0, None))
        if held is not None and trio.current_time() < rest_until:
            self._rests[partition.name] = rest_until, held
            self._overdue = self._overdue or held
            return False
        for _ in range(REMOVALS_MAX):
            after = self._removed_to.get(partition.name, -1)
            waiting = set(self._engine.quarantine.waiting(SERVICE))
            found = await store.retired(connection, partition, days, after, exceptions)
            due = [each for each in found if each.id not in waiting]
            if due and not await self._archive(connection, partition.name, due):
                break
            removed = await self._remove(connection, due, with_history=partition.moved)
            if not found or removed is None:
                break
            self._removed_to[partition.name] = found[-1].id
            log.debug("instances removed", count=removed, partition=partition.name)
            await trio.sleep(PAUSE_S)
        else:
            return True
        self._removed_to.pop(partition.name, None)
        left = await store.left(connection, partition)
        if left.oldest is None:
            await self._drop(connection, partition)
        elif exceptions.versions and not partition.moved and await self._move(connection, partition, left):
            return False
        else:
            held = OverdueHistory(left.instances, left.oldest, partition.until)
            self._overdue = self._overdue or held
            if exceptions.versions and not found:  # who is kept may be many: none of them is looked at every minute
                self._rests[partition.name] = trio.current_time() + WALK_INTERVAL_S, held
            _held.info(
                partition.name,
                "history is kept by instances that are open, or ended lately, or are kept for longer",
                partition=partition.name,
                instances=left.instances,
                oldest=show_instance(left.oldest),
            )
        return False

    async def _move(self, connection: TrioConnection, partition: store.Partition, left: store.Left) -> bool:
        """Return whether the history of those that are left is in a partition of its own now."""
        started = trio.current_time()
        if started < self._move_at.get(partition.name, started):
            return False
        moved = await store.move_kept(connection, partition, self._engine.settings.retention_moved_max_records)
        if moved is None:
            self._move_at[partition.name] = started + MOVE_INTERVAL_S
        else:
            self._move_at.pop(partition.name, None)
        if moved:
            log.info(
                "history that is kept for longer was moved to a partition of its own, the rest was deleted",
                partition=partition.name,
                instances=left.instances,
                took_s=round(trio.current_time() - started, 3),
            )
        return bool(moved)

    async def _archive(self, connection: TrioConnection, partition: str, due: Sequence[store.Selected]) -> bool:
        """Return whether they are archived, where an archive is kept; else nothing may be removed."""
        directory = archive.directory_of(self._engine.settings)
        if directory is None:
            return True
        try:
            path = await archive.write(connection, directory / partition, due, self._engine.settings.archive_format)
        except OSError as error:
            _unwritten.error(
                partition,
                "instances can't be archived; they are not removed",
                partition=partition,
                reason=str(error),
            )
            return False
        except archive.Removed:
            return False  # another engine is at it
        log.info("instances archived", count=len(due), file=str(path))
        return True

    async def _remove(
        self, connection: TrioConnection, due: Sequence[store.Selected], *, with_history: bool = False
    ) -> int | None:
        """How many instances went; None when another engine is at it. One that has changed since it was selected stays;
        one that can't be removed is set aside."""
        quarantine = self._engine.quarantine
        others_turn = False
        rows, started = 0, trio.current_time()

        async def remove(due: Sequence[store.Selected]) -> Sequence[int]:
            nonlocal others_turn, rows
            if with_history:
                whole = await store.remove_with_history(connection, due)
                removed, count = (None, 0) if whole is None else whole
                rows += count
            else:
                removed = await store.remove_instances(connection, due)
            others_turn |= removed is None
            return removed or []

        def leave(one: store.Selected, error: DatabaseError) -> None:
            quarantine.quarantine_row(SERVICE, one.id, f"instance {show_instance(one.id)}", error)

        removed: list[int] = []
        most = store.SLICE_MAX_ROWS if with_history else store.REMOVE_MAX_ROWS
        for first in range(0, len(due), most):
            removed += await quarantine.each(due[first : first + most], remove, leave)
        for id in removed:
            quarantine.forget(SERVICE, id)
        if removed and with_history:
            took_s = round(trio.current_time() - started, 3)
            log.info("instances removed by the row", count=len(removed), history_rows=rows, took_s=took_s)
        return None if others_turn else len(removed)

    async def _drop(self, connection: TrioConnection, partition: store.Partition) -> None:
        quarantine = self._engine.quarantine
        if partition.name in quarantine.waiting(SERVICE):
            return
        try:
            dropped = await store.drop(connection, partition)
        except BAD_DATA as error:
            quarantine.quarantine_row(SERVICE, partition.name, f"partition {partition.name}", error)
            return
        if dropped:
            quarantine.forget(SERVICE, partition.name)
            log.info("partition dropped", name=partition.name, since=partition.since, until=partition.until)
