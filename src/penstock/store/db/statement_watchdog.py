"""How long statements are waited for: one task that sleeps until the first of them has waited for too long.

A cancel scope for each statement cost as much as two jobs of its batch. Here one is a number in a set, and the task
looks when the time of the first one that it knew is over: mostly others wait by then. It runs while anything waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import trio

AGAIN_S: Final = 0.05
"""Who is not woken by it (an answer had just come, and was not all of it) is woken again after so long."""


class AnswerWait:
    """For the answer to one statement. ``wake`` ends it, and may be called more than once."""

    __slots__ = ("deadline", "is_over", "wake")

    def __init__(self, deadline: float, wake: Callable[[], None]) -> None:
        """``deadline``: trio time."""
        self.deadline = deadline
        self.wake = wake
        self.is_over = False


class StatementWatchdog:
    """Of one run of the loop; see `statement_watchdog`."""

    __slots__ = ("_next", "_runs", "_scope", "_waits")

    def __init__(self) -> None:
        self._waits: set[AnswerWait] = set()
        self._runs = False
        self._next = math.inf  # when it looks
        self._scope: trio.CancelScope | None = None  # in which it sleeps

    def begin(self, within_s: float, wake: Callable[[], None]) -> AnswerWait:
        """Call ``wake`` in so many seconds, unless `end` was called before."""
        wait = AnswerWait(trio.current_time() + within_s, wake)
        self._waits.add(wait)
        if not self._runs:
            self._runs = True
            trio.lowlevel.spawn_system_task(self._run)
        elif wait.deadline < self._next and self._scope is not None:
            self._next = self._scope.deadline = wait.deadline
        return wait

    def end(self, wait: AnswerWait) -> None:
        """There is an answer, or nobody waits for it any more."""
        self._waits.discard(wait)

    async def _run(self) -> None:
        try:
            while self._waits:
                self._next = min([wait.deadline for wait in self._waits])
                with trio.CancelScope(deadline=self._next) as self._scope:
                    await trio.sleep_forever()
                now = trio.current_time()
                for wait in list(self._waits):
                    if wait.deadline <= now:
                        wait.is_over, wait.deadline = True, now + AGAIN_S
                        wait.wake()
        finally:
            self._runs, self._next, self._scope = False, math.inf, None


_of_run: Final = trio.lowlevel.RunVar[StatementWatchdog]("penstock_patience")


def statement_watchdog() -> StatementWatchdog:
    """That of the run of the loop which calls."""
    try:
        return _of_run.get()
    except LookupError:
        found = StatementWatchdog()
        _of_run.set(found)
        return found
