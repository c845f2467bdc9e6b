"""A lane: a queue of changes and what brings them into the database, together, each answered once.

Natural batching: whatever waits is taken together, whenever the flusher is idle. No timer, no added delay. Under load
the batches grow by themselves, at rest an item goes alone and at once. `Batcher` is the queue; `Lane` adds how its
batches meet the database: outages waited out, deadlocks repeated, bad items found by halving, and doubt. What an
earlier try may have done is told to ``apply`` (``again``), which looks before it answers.

No batch waits long for a row: a lock that is not had within `database.LOCK_WAIT_MS` refuses the statement. Then it is
asked whose rows other transactions hold: those items stand aside (`Batcher.set_aside`), the others go on, and a second
task tries those aside again and again. A table that is locked is as good as away; where the answer names nobody the
batch is halved. Every item is settled, stands aside or is with another queue when a batch is done; `Lane` never raises
an operating error. Must not know what the items are, nor SQL. Cancelling `submit` abandons the answer, not the item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import trio

from penstock.engine.lanes.item import Item
from penstock.errors import BadRequest, PayloadTooLarge, PenstockError, TooManyRequests, Unavailable
from penstock.log import RateLimitedLog, get_logger
from penstock.metrics import Metrics
from penstock.settings import Settings
from penstock.store.connection import TrioConnection
from penstock.store.database import (
    AWAY,
    CLASH,
    LOCKED,
    REPEATABLE,
    TOO_LARGE,
    Database,
    DatabaseError,
    DataError,
    TryAgain,
    first_line,
    is_id_taken,
    table_is_locked,
    wait_replicated,
)

ASIDE_PAUSE_S: Final = 0.05
"""Between two tries of what stands aside."""
REPEATS_MAX = 20
"""A batch rolled back this often in a row for the sake of others is halved instead."""
RETRY_FIRST_S, RETRY_MAX_S = 0.02, 0.5
"""Pauses between two tries while the database is away."""


R = TypeVar("R")
I = TypeVar("I", bound=Item[Any])  # noqa: E741 - an item with any answer
Apply = Callable[[TrioConnection, list[I], bool], Awaitable[None]]
FindHeld = Callable[[TrioConnection, list[I]], Awaitable[list[I]]]

AWAY_REASON = "the database is away"
HELD_REASON = "another transaction holds what the call needs; try again"
BUSY_REASON = "too many transactions at once on this instance; try again"

log = get_logger(__name__)
_outages = RateLimitedLog(log, interval_seconds=5)


class BatcherStatistics(NamedTuple):
    """How many items wait in the queue and beside it, and how many seconds the batch from the queue takes already that
    is being applied (None: none is)."""

    waiting: int
    aside: int
    batch_age_s: float | None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing being done."""
        return self == (0, 0, None)


class Batcher(Generic[I]):
    """A queue of items and the task that applies them.

    ``apply(items)`` settles every item, sets it aside, gives it to another queue, or raises; what it raises ends the
    process (all operating errors are answers). ``key`` gives what may occur only once in a batch (the token, the
    instance); a second one waits for the next batch, and stands aside when the first one does.
    """

    def __init__(
        self,
        name: str,
        apply: Callable[[list[I]], Awaitable[None]],
        *,
        max_items: int,
        max_queue_items: int,
        key: Callable[[I], object] | None = None,
        on_batch: Callable[[int], None] | None = None,
        within_s: float = 0.0,
    ) -> None:
        self.name = name
        self._apply = apply
        self._max_items = max_items
        self._max_queue_items = max_queue_items
        self._key = key
        self._within_s = within_s
        self._on_batch = on_batch
        self._queue: deque[I] = deque()
        self._aside: deque[I] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._aside_lot = trio.lowlevel.ParkingLot()
        self._idle = trio.lowlevel.ParkingLot()
        self._begun_at: float | None = None  # of the batch from the queue that is being applied
        self._retrying: list[I] = []  # the batch of those aside that is being applied

    def submit_nowait(self, item: I, *, within_s: float | None = None) -> None:
        """Queue an item. ``within_s``: for so long an outage or a row is waited for, if not as long as in general.

        Raises TooManyRequests when the queue is full; the item is refused then.
        """
        if len(self._queue) + len(self._aside) >= self._max_queue_items:
            raise TooManyRequests(f"{self._max_queue_items} {self.name} calls are waiting already")
        item.deadline = trio.current_time() + (self._within_s if within_s is None else within_s)
        self._queue.append(item)
        self._lot.unpark()

    async def submit(self, item: Item[R]) -> R:
        """Queue an item and wait for its answer."""
        self.submit_nowait(item)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - I is such an Item
        return await item.wait_answer()

    def set_aside(self, items: Iterable[I], *, in_doubt: bool = False) -> None:
        """Let items wait beside the queue, as other transactions hold their rows. ``in_doubt``: an earlier try may have
        been committed."""
        for item in items:
            item.stand_aside(in_doubt=in_doubt)
            self._aside.append(item)
        self._aside_lot.unpark()

    def statistics(self) -> BatcherStatistics:
        """A snapshot. Cheap."""
        age_s = None if self._begun_at is None else trio.current_time() - self._begun_at
        return BatcherStatistics(len(self._queue), len(self._aside) + len(self._retrying), age_s)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Apply batches until cancelled. A batch that is being applied is finished first (its bound is `apply`'s)."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_aside)
            task_status.started()
            while True:
                while not self._queue:
                    self._idle.unpark_all()
                    await self._lot.park()
                if batch := self._take():
                    await self._flush(batch)

    async def _flush(self, batch: list[I]) -> None:
        self._begun_at = trio.current_time()
        if self._on_batch is not None:
            self._on_batch(len(batch))
        try:
            await self._apply_shielded(batch)
        finally:
            self._begun_at = None

    async def _apply_shielded(self, batch: list[I]) -> None:
        for item in batch:
            item.batch = batch
        with trio.CancelScope(shield=True):
            await self._apply(batch)

    async def _run_aside(self) -> None:
        while True:
            while not self._aside:
                self._idle.unpark_all()
                await self._aside_lot.park()
            await trio.sleep(ASIDE_PAUSE_S)
            self._retrying = self._take_aside()
            try:
                await self._apply_shielded(self._retrying)
            finally:
                self._retrying = []

    async def wait_flushed(self) -> None:
        """Wait until nothing waits and nothing is being applied."""
        while not self.statistics().idle:
            await self._idle.park()

    def _take(self) -> list[I]:
        queue = self._queue
        if self._key is None:
            return [queue.popleft() for _ in range(min(len(queue), self._max_items))]
        taken: dict[object, I] = {}
        later: list[I] = []
        aside = (*self._aside, *self._retrying)
        held = {self._key(item) for item in aside} if aside else ()
        while queue and len(taken) < self._max_items:
            item = queue.popleft()
            key = self._key(item)
            if key in held:
                self.set_aside([item])
            elif key in taken:
                later.append(item)
            else:
                taken[key] = item
        queue.extendleft(reversed(later))
        return list(taken.values())

    def _take_aside(self) -> list[I]:
        """The oldest ones; of those with one key the first."""
        taken: dict[object, I] = {}
        for _ in range(len(self._aside)):
            item = self._aside.popleft()
            key = id(item) if self._key is None else self._key(item)
            if len(taken) == self._max_items or taken.setdefault(key, item) is not item:
                self._aside.append(item)
        for item in taken.values():
            item.aside = False
        return list(taken.values())


class Lane(Batcher[I]):
    """A queue whose batches are applied in the database.

    ``apply(connection, items, again)`` settles items; ``again`` tells that an earlier try may have been committed: then
    it looks before it answers, and what it sees is on the standby, too. ``find_held(connection, items)`` gives those
    whose rows other transactions hold now. ``divide`` makes several batches of one; ``finish`` hears of each batch that
    is over, however it went. ``label`` is that of the metric of batches.
    """

    def __init__(
        self,
        name: str,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        apply: Apply[I],
        *,
        find_held: FindHeld[I] | None = None,
        key: Callable[[I], object] | None = None,
        label: str | None = None,
        divide: Callable[[list[I]], list[list[I]]] | None = None,
        finish: Callable[[list[I]], None] | None = None,
    ) -> None:
        super().__init__(
            name,
            self.apply_batch,
            max_items=settings.batch_max_items,
            max_queue_items=settings.batch_queue_max_items,
            key=key,
            on_batch=None if label is None else metrics.batch_items[label].observe,
            within_s=settings.outage_wait_seconds,
        )
        self._database = database
        self._metrics = metrics
        self._apply_in = apply
        self._find_held = find_held
        self._divide_batch = divide
        self._finish = finish

    async def apply_batch(self, items: list[I]) -> None:
        """Apply a batch; every item is settled then, stands aside or is with another queue."""
        try:
            for part in [items] if self._divide_batch is None else self._divide_batch(items):
                await self.apply_safely(part)
        finally:
            if self._finish is not None:
                self._finish(items)

    async def apply_safely(self, items: Sequence[I]) -> None:
        """Call ``apply`` until every item is settled, stands aside, or is with another queue.

        An item whose ``deadline`` passes while the database is away, or while others hold its row, gets Unavailable.
        """
        batch = items[0].batch if items else None
        ask = again = False
        for item in items:
            ask |= item.was_aside
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
                _refuse_overdue(_pending(pending, batch), HELD_REASON)
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
            except AWAY as error:
                again = True
                lane = self.name
                _outages.warning(lane, AWAY_REASON, lane=lane, error=first_line(error), waiting=len(pending))
                _refuse_overdue(_pending(pending, batch), AWAY_REASON)
                await trio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_MAX_S)
            except DatabaseError as error:
                await self._divide(pending, batch, error, again)

    async def _once(self, items: list[I], *, again: bool, ask: bool) -> None:
        async with self._database.connection() as connection:
            if again:
                await wait_replicated(connection)
            if ask:
                items = await self._leave_held(connection, items, again)
            if items:
                await self._apply_in(connection, items, again)

    async def _leave_held(self, connection: TrioConnection, items: list[I], again: bool) -> list[I]:
        """Let those stand aside whose rows others hold; the rest."""
        await self.find_locked_table(connection)
        if self._find_held is None:
            return items
        self.stand_aside(await self._find_held(connection, items), again)
        return [item for item in items if not (item.settled or item.aside)]

    async def find_locked_table(self, connection: TrioConnection) -> None:
        """Raises TryAgain while a table is locked: then no row is the cause."""
        if await table_is_locked(connection):
            raise TryAgain("another transaction has locked a table")

    def stand_aside(self, items: Sequence[I], again: bool) -> None:
        """Let items wait, or refuse those that have waited long enough: others hold what they need."""
        _refuse_overdue(items, HELD_REASON)
        self.set_aside([item for item in items if not item.settled], in_doubt=again)

    async def _divide(self, items: Sequence[I], batch: object, error: DatabaseError, again: bool) -> None:
        items = _pending(items, batch)
        locked = isinstance(error, LOCKED)
        if len(items) > 1:
            for half in halves(items):
                await self._try(half, batch, again=again, part=locked)
        elif locked:
            self.stand_aside(items, again)
        elif items:
            items[0].refuse(_refusal(self.name, error))

    def _count(self, error: DatabaseError) -> None:
        self._metrics.db_retries[error.sqlstate or "unknown"].inc()


def _pending(items: Iterable[I], batch: object) -> list[I]:
    """Those that are still the batch's: what stood aside, or moved, may be under way elsewhere already."""
    return [item for item in items if item.batch is batch and not (item.settled or item.aside or item.moved)]


def _refuse_overdue(items: Iterable[Item[Any]], reason: str) -> None:
    now = trio.current_time()
    for item in items:
        if item.deadline <= now:
            item.refuse(Unavailable(reason))


def _refusal(name: str, error: DatabaseError) -> PenstockError:
    if isinstance(error, REPEATABLE):
        return Unavailable(BUSY_REASON)
    if isinstance(error, TOO_LARGE):
        log.warning("a value is too large for the database", lane=name, error=first_line(error))
        return PayloadTooLarge("variables: more of them than PostgreSQL can hold in one instance")
    if isinstance(error, DataError):
        log.warning("the database refused a value", lane=name, error=first_line(error))
        return BadRequest("a value can't be stored: PostgreSQL's jsonb or text can't hold it")
    log.error("a statement failed", lane=name, error=first_line(error), sqlstate=error.sqlstate)
    return PenstockError("the request could not be carried out; the engine's log has the reason")


def halves(items: Sequence[I]) -> tuple[list[I], list[I]]:
    """Two halves, to find the bad item of a batch that the database refused as a whole."""
    middle = len(items) // 2
    return list(items[:middle]), list(items[middle:])
