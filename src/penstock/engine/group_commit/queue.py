"""A group-commit queue: changes, and what brings them into the database together, each answered once.

`Batcher` is the queue; `GroupCommitQueue` adds how its batches meet the database: outages waited out, deadlocks
repeated, bad items found by halving, and doubt. Before a batch is tried again that may have been committed, the
group-commit queue looks what became of it: of the transactions that it committed (`commit`) by their ids, of single
statements by `GroupCommitQueue.find_earlier`.

No batch waits long for a row: a lock that is not had within `database.LOCK_WAIT_MS` refuses the statement. Then it is
asked whose rows other transactions hold: those items stand aside (`Batcher.let_wait_for_locks`), the others go on, and
a second task tries those aside again and again. Where the answer names nobody the batch is halved. A table that is
locked and that everybody needs is as good as away; while another one is (`GroupCommitQueue.locked`), a group-commit
queue does without it what it can. A statement that hangs is given up by its connection
(`TrioConnection.answer_within_s`): then it is in doubt; who has waited long enough behind it is refused before. Every
item is settled, stands aside or is with another queue when a batch is done; `GroupCommitQueue` never raises an
operating error. Must not know what the items are, nor SQL. Cancelling `submit` abandons the answer, not the item.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

import trio

from penstock.engine.group_commit.batcher import Batcher
from penstock.engine.group_commit.item import Item
from penstock.errors import BadRequest, PayloadTooLarge, PenstockError, Unavailable
from penstock.log.log import RateLimitedLog, get_logger
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import (
    AWAY,
    AWAY_REASON,
    CLASH,
    LATE_REASON,
    LOCKED,
    REPEATABLE,
    TOO_LARGE,
    Database,
    DatabaseError,
    DataError,
    TryAgain,
    away_reason,
    first_line,
    is_id_taken,
    locked_tables,
    wait_replicated,
)
from penstock.store.db.outcome import InDoubt
from penstock.store.db.pool_errors import PoolClosed
from penstock.store.db.statements import SQL, Statement
from penstock.telemetry.metrics import Metrics

REPEATS_MAX = 20
"""A batch rolled back this often in a row for the sake of others is halved instead."""
HANGING_S: Final = 2.0
"""A batch that takes so long holds up those behind it: their deadlines are looked at beside it."""
LATE_SCAN_S: Final = 0.5
RETRY_FIRST_S, RETRY_MAX_S = 0.02, 0.5
"""Pauses between two tries while the database is away."""
NEEDED_BY_ALL: Final = ("token", "instance", "ready", "history")
"""Tables (the last with its partitions) without which nothing can be done."""


I = TypeVar("I", bound=Item[Any])  # noqa: E741 - an item with any answer

STOPPING_REASON = "the engine is shutting down"
LOCKED_ELSEWHERE_REASON = "another transaction holds what the call needs; try again"
BUSY_REASON = "too many transactions at once on this instance; try again"

log = get_logger(__name__)
_outages = RateLimitedLog(log, interval_seconds=5)


class Committable(Protocol):
    """A transaction that a group-commit queue commits, and what hangs on it."""

    @property
    def items(self) -> Sequence[Item[Any]]:
        """Whom it answers."""
        ...

    @property
    def proof_writes(self) -> Sequence[Statement]:
        """What has to be written so that `was_committed` can tell."""
        ...

    async def was_committed(self, connection: TrioConnection) -> bool | None:
        """What became of it, asked on another connection. None: it still runs."""
        ...

    def answer(self) -> None:
        """It is committed: answer its items."""
        ...

    async def carry_out(self, connection: TrioConnection, now: datetime | None = None) -> None:
        """It is committed: what follows in this engine's memory. ``now``: its time, where that is just now."""
        ...

    def give_up(self) -> None:
        """It was rolled back: what it reserved is free again."""
        ...


class GroupCommitQueue(Batcher[I]):
    """A queue whose batches are applied in the database. Subclass it with how. ``label`` is that of the metric of
    batches, the rest is `Batcher`'s."""

    def __init__(
        self,
        name: str,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        *,
        per_key: int = 0,
        label: str | None = None,
        gathers: bool = False,
    ) -> None:
        super().__init__(
            name,
            max_items=settings.batch_max_items,
            max_queue_items=settings.batch_queue_max_items,
            per_key=per_key,
            on_batch=None if label is None else metrics.batch_items[label].observe,
            within_s=settings.outage_wait_seconds,
            gathers=gathers,
        )
        self._database = database
        self._metrics = metrics
        self._in_doubt: list[Committable] = []
        self._late = metrics.calls_late[name]
        self.locked: frozenset[str] = frozenset()
        """Tables that others hold against writers, as a batch that was refused for a lock saw it. As long as there are
        any each batch looks again. What needs none of them does without; the rest stands aside."""
        self._away_at = -math.inf  # when a statement failed last, as the database is away

    # -- what a subclass says

    @abstractmethod
    async def apply(self, connection: TrioConnection, items: list[I], again: bool) -> None:
        """Settle items. ``again`` tells that an earlier try may have been committed."""

    async def find_locked_elsewhere(self, connection: TrioConnection, items: list[I]) -> list[I]:
        """Return those whose rows other transactions hold now."""
        return []

    async def find_earlier(self, connection: TrioConnection, items: list[I]) -> None:
        """Answer those of which is seen that an earlier try applied them; what is seen is on the standby, too."""

    def roll_back(self, items: list[I]) -> None:
        """Give up what a try reserved that was surely rolled back."""

    def divide(self, items: list[I]) -> list[list[I]]:
        """Several batches of one, which are applied one after the other."""
        return [items]

    def finish(self, items: list[I]) -> None:
        """A batch is over, however it went."""

    # -- batches

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """As `Batcher.run`; who waits in or behind a batch that takes long is answered by its deadline."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._refuse_late)
            await super().run(task_status)

    async def _refuse_late(self) -> None:
        while True:
            await self._wait_begun()
            await trio.sleep(LATE_SCAN_S)
            late = self._take_late(trio.current_time() - HANGING_S)
            if late and self._away_at < self.begun_at:
                self._late.inc(_refuse_overdue(late, LATE_REASON))
            else:
                _refuse_overdue(late, AWAY_REASON)

    async def apply_batch(self, items: list[I]) -> None:
        """Apply a batch; every item is settled then, stands aside or is with another queue."""
        try:
            for part in self.divide(items):
                await self.apply_safely(part)
        finally:
            self.finish(items)
            if self._in_doubt:
                self._abandon(items)

    async def apply_safely(self, items: Sequence[I]) -> None:
        """Call `apply` until every item is settled, stands aside, or is with another queue.

        An item whose ``deadline`` passes while the database is away, or while others hold its row, gets Unavailable.
        """
        batch = items[0].batch if items else None
        ask, again = bool(self.locked), False
        for item in items:
            ask |= item.was_lock_waiting
            again |= item.in_doubt
        await self._try(items, batch, again=again, ask=ask)

    async def _try(
        self, items: Sequence[I], batch: object, *, again: bool, ask: bool = False, part: bool = False
    ) -> None:
        """``batch``: of which the items have to be. ``ask``: who is held up, before all else. ``part``: of a batch that
        is being halved for a lock."""
        pause_s, repeats, refused = RETRY_FIRST_S, 0, part
        while pending := _pending(items, batch):
            try:
                await self._once(pending, again=again, ask=ask)
            except LOCKED as error:
                self._count(error)
                _refuse_overdue(_pending(pending, batch), LOCKED_ELSEWHERE_REASON)
                if refused:
                    await self._divide(pending, batch, error, again)
                ask = refused = True
            except (*REPEATABLE, CLASH) as error:
                self._count(error)
                repeats += 1
                if repeats > 1:
                    _refuse_overdue(_pending(pending, batch), BUSY_REASON)
                if repeats > REPEATS_MAX or not (isinstance(error, REPEATABLE) or is_id_taken(error)):
                    await self._divide(pending, batch, error, again)
            except TOO_LARGE as error:
                await self._divide(pending, batch, error, again)
            except PoolClosed:
                for item in _pending(pending, batch):
                    item.refuse(Unavailable(STOPPING_REASON))
            except AWAY as error:
                again = True
                self._refuse_away(_pending(pending, batch), error)
                await trio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_MAX_S)
            except DatabaseError as error:
                await self._divide(pending, batch, error, again)

    def _refuse_away(self, items: Sequence[I], error: BaseException) -> None:
        reason = away_reason(error)
        _outages.warning(self.name, reason, commit_queue=self.name, error=first_line(error), waiting=len(items))
        refused = _refuse_overdue(items, reason)
        if reason == LATE_REASON:
            self._late.inc(refused)
        else:
            self._away_at = trio.current_time()

    async def _once(self, items: list[I], *, again: bool, ask: bool) -> None:
        async with self._database.connection(ahead=True) as connection:
            if again:
                await wait_replicated(connection)
            if ask:
                items = await self._leave_locked_elsewhere(connection, items, again)
            if again and items:
                await self._resolve(connection, items)
                items = [item for item in items if not item.settled]
            if items:
                await self._apply_or_roll_back(connection, items, again)

    async def _apply_or_roll_back(self, connection: TrioConnection, items: list[I], again: bool) -> None:
        try:
            await self.apply(connection, items, again)
        except BaseException as error:
            # in doubt, reservations are kept: whether their jobs were leased is looked up at the next try
            if not isinstance(error, AWAY) or (isinstance(error, LOCKED) and not again):
                self.roll_back(items)
            raise

    # -- its transactions, and doubt

    @contextmanager
    def transaction(self, transaction: Committable) -> Generator[None]:
        """What fails within gives up what the transaction reserved, unless its COMMIT is in doubt."""
        try:
            yield
        except BaseException:
            if transaction not in self._in_doubt:
                transaction.give_up()
            raise

    async def commit(self, connection: TrioConnection, transaction: Committable, writes: Sequence[Statement]) -> None:
        """Send the last writes of a transaction with its COMMIT, and answer its items. In doubt, the next try of one of
        its items looks what became of it."""
        self._in_doubt.append(transaction)
        try:
            await connection.roundtrip([*writes, *transaction.proof_writes, (SQL["commit"], ())])
        except DatabaseError as error:
            if not isinstance(error, InDoubt):  # surely rolled back
                self._in_doubt.remove(transaction)
            raise
        self._in_doubt.remove(transaction)
        transaction.answer()  # first of all: what follows may fail, and must not let them be decided again

    async def _resolve(self, connection: TrioConnection, items: list[I]) -> None:
        """Look what an earlier try has done, and answer the items that it answers."""
        asking = set(items)  # another batch has its own under way
        for transaction in [each for each in self._in_doubt if not asking.isdisjoint(each.items)]:
            committed = await transaction.was_committed(connection)
            if committed is None:
                raise TryAgain("a transaction in doubt has not ended yet")
            if transaction not in self._in_doubt:
                continue  # others of its items, which stood aside, have looked meanwhile
            self._in_doubt.remove(transaction)
            if committed:
                transaction.answer()  # also those that stand aside meanwhile
                await transaction.carry_out(connection)
            else:
                transaction.give_up()
        await self.find_earlier(connection, items)

    def _abandon(self, items: list[I]) -> None:
        """Nobody asks any more what became of the transactions of these items, unless others of theirs stand aside."""
        over = set(items)
        for transaction in [each for each in self._in_doubt if not over.isdisjoint(each.items)]:
            if all(item.settled for item in transaction.items):
                self._in_doubt.remove(transaction)
                transaction.give_up()

    # -- others' locks

    async def _leave_locked_elsewhere(self, connection: TrioConnection, items: list[I], again: bool) -> list[I]:
        """Let those stand aside whose rows others hold; the rest."""
        await self.find_locked_table(connection)
        self.wait_for_locks(await self.find_locked_elsewhere(connection, items), again)
        return [item for item in items if not (item.settled or item.lock_waiting)]

    async def find_locked_table(self, connection: TrioConnection) -> None:
        """Look which tables are `locked`. Raises TryAgain while everybody needs one of them: no row is the cause."""
        self.locked = await locked_tables(connection)
        if any(name in NEEDED_BY_ALL or name.startswith("history_") for name in self.locked):
            raise TryAgain("another transaction has locked a table")

    def wait_for_locks(self, items: Sequence[I], again: bool) -> None:
        """Let items wait, or refuse those that have waited long enough: others hold what they need."""
        _refuse_overdue(items, LOCKED_ELSEWHERE_REASON)
        self.let_wait_for_locks([item for item in items if not item.settled], in_doubt=again)

    async def _divide(self, items: Sequence[I], batch: object, error: DatabaseError, again: bool) -> None:
        items = _pending(items, batch)
        locked = isinstance(error, LOCKED)
        if len(items) > 1:
            for half in halves(items):
                await self._try(half, batch, again=again, part=locked)
        elif locked:
            self.wait_for_locks(items, again)
        elif items:
            items[0].refuse(_refusal(self.name, error))

    def _count(self, error: DatabaseError) -> None:
        self._metrics.db_retries[error.sqlstate or "unknown"].inc()


def _pending(items: Iterable[I], batch: object) -> list[I]:
    """Those that are still the batch's: what stood aside, or moved, may be under way elsewhere already."""
    items = [item for item in items if not item.settled]  # mostly none
    return [item for item in items if item.batch is batch and not (item.lock_waiting or item.moved)]


def _refuse_overdue(items: Iterable[Item[Any]], reason: str) -> int:
    """Gives how many."""
    now = trio.current_time()
    overdue = [item for item in items if item.deadline <= now and not item.settled]
    for item in overdue:
        item.refuse(Unavailable(reason))
    return len(overdue)


def _refusal(name: str, error: DatabaseError) -> PenstockError:
    if isinstance(error, REPEATABLE):
        return Unavailable(BUSY_REASON)
    if isinstance(error, TOO_LARGE):
        log.warning("a value is too large for the database", commit_queue=name, error=first_line(error))
        return PayloadTooLarge("variables: more of them than PostgreSQL can hold in one instance")
    if isinstance(error, DataError):
        log.warning("the database refused a value", commit_queue=name, error=first_line(error))
        return BadRequest("a value can't be stored: PostgreSQL's jsonb or text can't hold it")
    log.error("a statement failed", commit_queue=name, error=first_line(error), sqlstate=error.sqlstate)
    return PenstockError("the request could not be carried out; the engine's log has the reason")


def halves(items: Sequence[I]) -> tuple[list[I], list[I]]:
    """Two halves, to find the bad item of a batch that the database refused as a whole."""
    middle = len(items) // 2
    return list(items[:middle]), list(items[middle:])
