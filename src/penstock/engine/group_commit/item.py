"""What waits in a group-commit queue: something to apply, and the place for its answer."""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar, cast

import trio

from penstock.errors import PenstockError
from penstock.loop.taskless import current_call, pause

R = TypeVar("R")
_Task: Final = trio.lowlevel.Task


class ItemWaiter(Protocol):
    """Whoever waits for an item without a task."""

    def resume_soon(self) -> None:
        """The item has an answer, or was moved."""
        ...


class Item(Generic[R]):
    """Something to apply, and the place for its answer. Subclass it with the item's data."""

    __slots__ = (
        "_answer",
        "_error",
        "_waiting",
        "batch",
        "deadline",
        "in_doubt",
        "lock_waiting",
        "moved",
        "settled",
        "was_lock_waiting",
    )

    def __init__(self) -> None:
        self._waiting: trio.lowlevel.Task | ItemWaiter | None = None
        self.settled = False  # `answer` or `refuse` was called
        self._answer: R | None = None
        self._error: BaseException | None = None
        self.deadline = 0.0  # trio time: how long the database or a row is waited for; set by the batcher
        self.lock_waiting = False  # waits beside the queue, as another transaction holds its row
        self.was_lock_waiting = False
        self.batch: object = None  # the one that is being applied with it; no other may touch it
        self.moved = False  # another queue has it
        self.in_doubt = False  # an earlier try may have been committed

    def answer(self, answer: R) -> None:
        """Give the result, once; later calls are ignored (a batch that is applied again after an outage)."""
        if not self.settled:
            self.settled, self._answer = True, answer
            if self._waiting is not None:
                self._wake()

    def refuse(self, error: PenstockError) -> None:
        """Give an error instead."""
        if not self.settled:
            self.settled, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        if isinstance(waiting, _Task):
            trio.lowlevel.reschedule(waiting)
        else:
            waiting.resume_soon()

    def resumes(self, waiting: ItemWaiter | None) -> None:
        """Have whoever waits without a task resumed once: by the answer, or when it is moved or stands aside."""
        self._waiting = waiting

    def given_answer(self) -> R:
        """What `wait_answer` gives, or raises, of a settled item."""
        if self._error is not None:
            raise self._error
        return cast(R, self._answer)

    async def wait_answer(self) -> R:
        """Wait for the result; raises what `refuse` was given. One waiter at most. Cancel-safe."""
        while not self.settled:
            if (call := current_call()) is None:
                await self._wait()
                continue
            self._waiting = call
            try:
                await pause()
            except BaseException:  # the call was abandoned
                self._waiting = None
                raise
        if self._error is not None:
            raise self._error
        return cast(R, self._answer)  # settled without an error: the answer is an R

    async def wait_tried(self) -> bool:
        """Wait until it has an answer (True, and `wait_answer` gives it at once) or stands aside, or is with another
        queue (False). For loops that must not wait for one row. One waiter at most. Cancel-safe."""
        while not (self.settled or self.lock_waiting or self.moved):
            await self._wait()
        return self.settled

    async def _wait(self) -> None:
        call = current_call()
        if call is None:
            self._waiting = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
            return
        self._waiting = call
        try:
            await pause()
        except BaseException:  # the call was abandoned
            self._waiting = None
            raise

    def wait_for_locks(self, *, in_doubt: bool) -> None:
        """Another transaction holds its row. Called by `Batcher.let_wait_for_locks`."""
        self.lock_waiting = self.was_lock_waiting = True
        self.batch = None
        self.in_doubt |= in_doubt
        self._wake()

    def move(self) -> None:
        """Another queue has it now."""
        self.moved = True
        self.batch = None
        self._wake()

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED
