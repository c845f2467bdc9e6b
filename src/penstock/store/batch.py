"""Natural batching: whatever waits is taken together, whenever the flusher is idle. No timer, no added delay.

One `Batcher` is one queue and one flusher task. Under load the batches grow by themselves, at rest an item goes alone
and at once. Must not know SQL; `apply` is given by the engine. Cancelling `submit` abandons the answer, not the item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import trio

from penstock.errors import PenstockError, TooManyRequests

R = TypeVar("R")


class Item(Generic[R]):
    """Something to apply, and the place for its answer. Subclass it with the item's data."""

    __slots__ = ("_answer", "_error", "_settled", "_task", "deadline")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._settled = False
        self._answer: R | None = None
        self._error: BaseException | None = None
        self.deadline = 0.0  # trio time: how long a database that is away is waited for; set by the batcher

    @property
    def settled(self) -> bool:
        """Whether `answer` or `refuse` was called."""
        return self._settled

    def answer(self, answer: R) -> None:
        """Give the result, once; later calls are ignored (a batch that is applied again after an outage)."""
        if not self._settled:
            self._settled, self._answer = True, answer
            self._wake()

    def refuse(self, error: PenstockError) -> None:
        """Give an error instead."""
        if not self._settled:
            self._settled, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def wait_answer(self) -> R:
        """Wait for the result; raises what `refuse` was given. One waiter at most. Cancel-safe."""
        if not self._settled:
            self._task = trio.lowlevel.current_task()

            def abort(_: object) -> trio.lowlevel.Abort:
                self._task = None
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        if self._error is not None:
            raise self._error
        return cast(R, self._answer)  # settled without an error: the answer is an R


I = TypeVar("I", bound=Item[Any])  # noqa: E741 - an item with any answer


class Batcher(Generic[I]):
    """A queue of items and the task that applies them.

    ``apply(items)`` settles every item or raises; what it raises ends the process (all operating errors are answers).
    ``key`` gives what may occur only once in a batch (the token, the instance); a second one waits for the next batch.
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
    ) -> None:
        self.name = name
        self._apply = apply
        self._max_items = max_items
        self._max_queue_items = max_queue_items
        self._key = key
        self._on_batch = on_batch
        self._queue: deque[I] = deque()
        self._lot = trio.lowlevel.ParkingLot()
        self._idle = trio.lowlevel.ParkingLot()
        self._busy = False

    def submit_nowait(self, item: I, *, within_s: float = 0.0) -> None:
        """Queue an item. Raises TooManyRequests when the queue is full; the item is refused then."""
        if len(self._queue) >= self._max_queue_items:
            raise TooManyRequests(f"{self._max_queue_items} {self.name} calls are waiting already")
        item.deadline = trio.current_time() + within_s
        self._queue.append(item)
        self._lot.unpark()

    async def submit(self, item: Item[R], *, within_s: float = 0.0) -> R:
        """Queue an item and wait for its answer. ``within_s``: how long an outage of the database is waited out."""
        self.submit_nowait(item, within_s=within_s)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - I is such an Item
        return await item.wait_answer()

    def statistics(self) -> tuple[int, bool]:
        """Items that wait, and whether a batch is being applied."""
        return len(self._queue), self._busy

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Apply batches until cancelled. A batch that is being applied is finished first (its bound is `apply`'s)."""
        task_status.started()
        while True:
            while not self._queue:
                self._idle.unpark_all()
                await self._lot.park()
            batch = self._take()
            self._busy = True
            if self._on_batch is not None:
                self._on_batch(len(batch))
            try:
                with trio.CancelScope(shield=True):
                    await self._apply(batch)
            finally:
                self._busy = False

    async def wait_flushed(self) -> None:
        """Wait until the queue is empty and nothing is being applied."""
        while self._queue or self._busy:
            await self._idle.park()

    def _take(self) -> list[I]:
        queue = self._queue
        if self._key is None:
            return [queue.popleft() for _ in range(min(len(queue), self._max_items))]
        taken: dict[object, I] = {}
        later: list[I] = []
        while queue and len(taken) < self._max_items:
            item = queue.popleft()
            key = self._key(item)
            if key in taken:
                later.append(item)
            else:
                taken[key] = item
        queue.extendleft(reversed(later))
        return list(taken.values())


def halves(items: Sequence[I]) -> tuple[list[I], list[I]]:
    """Two halves, to find the bad item of a batch that the database refused as a whole."""
    middle = len(items) // 2
    return list(items[:middle]), list(items[middle:])
