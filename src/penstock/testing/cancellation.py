"""Cancels an operation at its n-th scheduling step, for n from 1 until it ends before: every point there is.

A step is the moment when any task of the run gives control back to Trio, so the points also cover what the engine's
flushers and loops do while the operation waits for them. Which step is which depends on the timing of sockets; going
through all of them is what makes the test dense, not the number itself. For tests only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

R = TypeVar("R")


class CancelAtStep(trio.abc.Instrument):
    """Cancels ``scope`` at the n-th step after the instrument was added. ``fired`` tells whether it came to that."""

    def __init__(self, scope: trio.CancelScope, step: int) -> None:
        self._scope = scope
        self._left = step
        self.fired = False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by Trio."""
        self._left -= 1
        if self._left == 0:
            self.fired = True
            self._scope.cancel()


class Attempt(Generic[R]):
    """What became of one run. ``results`` holds the operation's result unless it was cancelled."""

    def __init__(self) -> None:
        self.results: list[R] = []
        self.fired = False

    @property
    def cancelled(self) -> bool:
        """Whether the caller never heard of the result."""
        return not self.results


async def cancel_at_step(step: int, operation: Callable[[], Awaitable[R]]) -> Attempt[R]:
    """Run ``operation`` and cancel it at its n-th step. It may end all the same if it is past its last checkpoint."""
    attempt: Attempt[R] = Attempt()
    with trio.CancelScope() as scope:
        instrument = CancelAtStep(scope, step)
        trio.lowlevel.add_instrument(instrument)
        try:
            attempt.results.append(await operation())
        finally:
            trio.lowlevel.remove_instrument(instrument)
            attempt.fired = instrument.fired
    return attempt
