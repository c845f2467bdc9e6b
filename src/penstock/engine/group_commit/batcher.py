"""A queue of items and the task that applies them: natural batching.

Whatever waits is taken together, whenever the flusher is idle. Under load the batches grow by themselves, at rest an
item goes alone and at once. A queue that gathers waits a moment for as many as went together before (`GATHER_SHARE`):
whom a batch has answered comes back one by one, and the first would go alone. Items whose rows other transactions hold
stand aside, beside the queue, and a second task tries them again and again. Must not know what the items are, nor the
database.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import trio

from penstock.engine.group_commit.item import Item
from penstock.errors import TooManyRequests
from penstock.loop.waking import Sleeper

LOCK_WAIT_PAUSE_S: Final = 0.05
"""Between two tries of what stands aside."""

GATHER_MIN_ITEMS: Final = 3
"""After a smaller batch, or a pause of `GATHER_WITHIN_S`, nothing is waited for: a lone call never waits."""
GATHER_SHARE: Final = 0.9
"""A batch waits until it has so much of the last one's size, for as long as that took and `GATHER_MAX_S` at most."""
GATHER_ENOUGH_ITEMS: Final = 16
"""No batch that has so many waits for more: what a batch costs by itself is shared by enough then."""
GATHER_MAX_S: Final = 0.002
GATHER_WITHIN_S: Final = 0.1

R = TypeVar("R")
I = TypeVar("I", bound=Item[Any])  # noqa: E741 - an item with any answer


class BatcherStatistics(NamedTuple):
    """How many items wait in the queue and beside it, and how many seconds the batch from the queue takes already that
    is being applied (None: none is)."""

    waiting: int
    lock_waiting: int
    batch_age_s: float | None

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do and nothing being done."""
        return self == (0, 0, None)


class Batcher(Generic[I]):
    """A queue of items and the task that applies them.

    Subclass it with what is done to a batch. ``per_key``: so many items of one `key` may be in a batch; a further one
    waits for the next batch, and stands aside when the first one does. 0: as many as there are. ``gathers``: see
    `GATHER_SHARE`.
    """

    def __init__(
        self,
        name: str,
        *,
        max_items: int,
        max_queue_items: int,
        per_key: int = 0,
        on_batch: Callable[[int], None] | None = None,
        within_s: float = 0.0,
        gathers: bool = False,
    ) -> None:
        self.name = name
        self._max_items = max_items
        self._max_queue_items = max_queue_items
        self._per_key = per_key
        self._within_s = within_s
        self._on_batch = on_batch
        self._gathers = gathers
        self._last_items = 0  # of the last batch from the queue
        self._last_s = 0.0  # how long that took
        self._last_ended_at = 0.0
        self._wanted = 0  # so many items end the wait for more
        self._queue: deque[I] = deque()
        self._lock_waiting: deque[I] = deque()
        self._flusher = Sleeper()
        self._lock_waiting_lot = trio.lowlevel.ParkingLot()
        self._idle = trio.lowlevel.ParkingLot()
        self._begun = Sleeper()  # who looks at batches that take long
        self._begun_at: float | None = None  # of the batch from the queue that is being applied
        self._applying: list[I] = []  # that batch
        self._retried_at: float | None = None  # of the batch of those aside that is being applied
        self._retrying: list[I] = []  # that batch

    @abstractmethod
    async def apply_batch(self, items: list[I]) -> None:
        """Settle every item, set it aside, or give it to another queue. What it raises ends the process (all operating
        errors are answers)."""

    def key(self, item: I) -> object:
        """What may occur only ``per_key`` times in a batch (the token, the instance)."""
        return id(item)

    def submit_nowait(self, item: I, *, within_s: float | None = None, now: float | None = None) -> None:
        """Queue an item. ``within_s``: for so long an outage or a row is waited for, if not as long as in general;
        ``now``: trio time, if it is known.

        Raises TooManyRequests when the queue is full; the item is refused then.
        """
        queue = self._queue
        if len(queue) + len(self._lock_waiting) >= self._max_queue_items:
            raise TooManyRequests(f"{self._max_queue_items} {self.name} calls are waiting already")
        item.deadline = (trio.current_time() if now is None else now) + (
            self._within_s if within_s is None else within_s
        )
        queue.append(item)
        if len(queue) in (1, self._wanted):  # else the flusher does not sleep, or waits for more
            self._flusher.wake()

    async def submit(self, item: Item[R]) -> R:
        """Queue an item and wait for its answer."""
        self.submit_nowait(item)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - I is such an Item
        return await item.wait_answer()

    def let_wait_for_locks(self, items: Iterable[I], *, in_doubt: bool = False) -> None:
        """Let items wait beside the queue, as other transactions hold their rows. ``in_doubt``: an earlier try may have
        been committed."""
        for item in items:
            item.wait_for_locks(in_doubt=in_doubt)
            self._lock_waiting.append(item)
        self._lock_waiting_lot.unpark()

    def statistics(self) -> BatcherStatistics:
        """Return a snapshot. Cheap."""
        age_s = None if self._begun_at is None else trio.current_time() - self._begun_at
        return BatcherStatistics(len(self._queue), len(self._lock_waiting) + len(self._retrying), age_s)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Apply batches until cancelled. A batch that is being applied is finished first (its bound is
        that of `apply_batch`)."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_lock_waiting)
            task_status.started()
            with trio.CancelScope() as scope:
                while True:
                    while not self._queue:
                        self._notify_idle()
                        await self._flusher.sleep()
                    scope.shield = True  # a scope of its own for each batch would cost as much as two jobs in it
                    if self._gathers:
                        await self._gather()
                    if batch := self._take():
                        await self._flush(batch)
                    scope.shield = False
                    if self._queue:  # whom the batch has answered may come along with the next one
                        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _gather(self) -> None:
        """Wait for those who are likely to come in a moment."""
        if self._last_items < GATHER_MIN_ITEMS:
            return
        wanted = min(math.ceil(GATHER_SHARE * self._last_items), GATHER_ENOUGH_ITEMS)
        now = trio.current_time()
        if len(self._queue) >= wanted or now - self._last_ended_at > GATHER_WITHIN_S:
            return
        self._wanted = wanted
        with trio.CancelScope(deadline=now + min(self._last_s, GATHER_MAX_S)):
            await self._flusher.sleep()
        self._wanted = 0

    async def _flush(self, batch: list[I]) -> None:
        self._begun_at = began_at = trio.current_time()
        self._applying = batch
        self._begun.wake()
        if self._on_batch is not None:
            self._on_batch(len(batch))
        try:
            await self._apply_together(batch)
        finally:
            self._begun_at, self._applying = None, []
            self._last_items, self._last_ended_at = len(batch), trio.current_time()
            self._last_s = self._last_ended_at - began_at

    async def _apply_together(self, batch: list[I]) -> None:
        for item in batch:
            item.batch = batch
        await self.apply_batch(batch)
        for item in batch:
            if item.batch is batch:
                item.batch = None  # each knows the other: garbage that only the collector would find

    async def _run_lock_waiting(self) -> None:
        while True:
            while not self._lock_waiting:
                self._notify_idle()
                await self._lock_waiting_lot.park()
            await trio.sleep(LOCK_WAIT_PAUSE_S)
            self._retried_at, self._retrying = trio.current_time(), self._take_lock_waiting()
            self._begun.wake()
            try:
                with trio.CancelScope(shield=True):
                    await self._apply_together(self._retrying)
            finally:
                self._retried_at, self._retrying = None, []

    @property
    def begun_at(self) -> float:
        """When the oldest batch began that is being applied; `math.inf` when none is."""
        return min((at for at in (self._begun_at, self._retried_at) if at is not None), default=math.inf)

    async def _wait_begun(self) -> None:
        """Wait until there is something to do."""
        if self.statistics().idle:
            await self._begun.sleep()

    def _take_late(self, since: float) -> list[I]:
        """Who waits in a batch that began before ``since``, or behind it; without those that were refused."""
        late: list[I] = []
        if self._begun_at is not None and self._begun_at <= since:
            self._queue = deque(item for item in self._queue if not item.settled)
            late += (*self._applying, *self._queue)
        if self._retried_at is not None and self._retried_at <= since:
            late += (*self._retrying, *self._lock_waiting)
        return late

    def _notify_idle(self) -> None:
        if self._idle:
            self._idle.unpark_all()

    async def wait_flushed(self) -> None:
        """Wait until nothing waits and nothing is being applied."""
        while not self.statistics().idle:
            await self._idle.park()

    def _take(self) -> list[I]:
        queue = self._queue
        if not self._per_key:
            return [queue.popleft() for _ in range(min(len(queue), self._max_items))]
        taken: list[I] = []
        times: dict[object, int] = {}
        later: list[I] = []
        lock_waiting = (*self._lock_waiting, *self._retrying)
        held = {self.key(item) for item in lock_waiting} if lock_waiting else ()
        while queue and len(taken) < self._max_items:
            item = queue.popleft()
            key = self.key(item)
            if key in held:
                self.let_wait_for_locks([item])
            elif (before := times.get(key, 0)) == self._per_key:
                later.append(item)
            else:
                taken.append(item)
                times[key] = before + 1
        queue.extendleft(reversed(later))
        return taken

    def _take_lock_waiting(self) -> list[I]:
        """Return the oldest ones; of those with one key the first."""
        taken: dict[object, I] = {}
        for _ in range(len(self._lock_waiting)):
            item = self._lock_waiting.popleft()
            key = self.key(item)
            if len(taken) == self._max_items or taken.setdefault(key, item) is not item:
                self._lock_waiting.append(item)
        for item in taken.values():
            item.lock_waiting = False
        return list(taken.values())
