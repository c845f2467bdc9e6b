"""How a task sleeps until others have work for it, and the queue of what goes on without a task (`taskless`).

A lot for parking costs three times as much for each time, which most batches and turns of the loop are. A leaf.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

STEPS_PER_ITERATION: Final = 64
"""Calls that go on in one turn of the loop: 2 ms."""
LAST_STEPS_PER_ITERATION: Final = 20
"""Of clients that have left, beside those: 3 ms. Of 10,000 it comes at once."""


class Sleeper:
    """One task that sleeps while there is nothing to do."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    async def sleep(self) -> None:
        """Until `wake`, which is for who sleeps then: look before whether there is work. Cancel-safe."""
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def wake(self) -> None:
        """Have it go on, if it sleeps."""
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class TasklessQueue:
    """Calls that can go on, and the task that lets them: one wake-up for all that one batch has answered."""

    def __init__(self, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None) -> None:
        """``before`` is called before calls go on, once for all of them, and ``after`` behind them."""
        self._before = before
        self._after = after
        self._ready: deque[Callable[[], None]] = deque()
        self._last: deque[Callable[[], None]] = deque()
        self._runner = Sleeper()

    def add(self, step: Callable[[], None]) -> None:
        """Have it called soon."""
        self._ready.append(step)
        self._runner.wake()

    def add_last(self, step: Callable[[], None]) -> None:
        """Have it called when there is time: nobody waits for it."""
        self._last.append(step)
        self._runner.wake()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while not (self._ready or self._last):
                await self._runner.sleep()
            if self._before is not None:
                self._before()
            for steps, most in ((self._ready, STEPS_PER_ITERATION), (self._last, LAST_STEPS_PER_ITERATION)):
                for _ in range(min(most, len(steps))):
                    steps.popleft()()
            if self._after is not None:
                self._after()
            if self._ready or self._last:  # else to sleep is a checkpoint, without a turn of the loop for nothing
                await trio.lowlevel.checkpoint()
