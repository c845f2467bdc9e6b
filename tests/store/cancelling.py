"""Cancel a piece of code at each of its waits in turn, or at a certain time."""

from __future__ import annotations

import time
from types import TracebackType

import trio


class CancelAtStep(trio.abc.Instrument):
    """A cancel scope that is cancelled when its task has been scheduled ``step`` times; 0: before it begins.

    With every step from 0 on until the scope is no longer needed, the code is cancelled at each of its waits.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self._scope = trio.CancelScope()

    def __enter__(self) -> trio.CancelScope:
        self._task = trio.lowlevel.current_task()
        trio.lowlevel.add_instrument(self)
        self._scope.__enter__()
        if self._step == 0:
            self._scope.cancel()
        return self._scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._step -= 1
            if self._step == 0:
                self._scope.cancel()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        trio.lowlevel.remove_instrument(self)
        return self._scope.__exit__(exc_type, exc, tb)


async def cancel_after(scope: trio.CancelScope, seconds: float) -> None:
    """Cancel with microseconds' precision: a deadline is checked by epoll, in milliseconds."""
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        await trio.lowlevel.checkpoint()
    scope.cancel()
