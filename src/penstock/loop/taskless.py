"""Calls that begin without a task: run at once up to their first wait for a batch, and on when it has been applied.

Waking a task of Trio's three times for each request costs as much as the work that most requests are. A call here is a
coroutine that is driven by hand. It may wait for what `pause` and `resume_soon` are made for (a group-commit queue's
item, `engine/group_commit/item`); before it uses anything of Trio's it says `await need_task()`, and goes on in the
task that its owner keeps for that. In a task that does nothing. A leaf: knows neither requests nor items.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from types import coroutine
from typing import Any, Final

from penstock.loop.waking import TasklessQueue

_PAUSE: Final = object()
_NEED_TASK: Final = object()
_driven: Final[ContextVar[TasklessCall | None]] = ContextVar("penstock_eager_call", default=None)


def current_call() -> TasklessCall | None:
    """The call that is driven by hand now; None in a task."""
    return _driven.get()


async def need_task() -> None:
    """Before anything that waits by Trio's means, or enters a scope or a nursery."""
    if _driven.get() is not None:
        await _trap()


@coroutine
def pause() -> Generator[object, None, None]:
    """Wait, in a call that is driven by hand, for `resume_soon`."""
    yield _PAUSE


@coroutine
def _trap() -> Generator[object, None, None]:
    yield _NEED_TASK


class TasklessCall:
    """One coroutine. ``on_end`` hears that it has ended, and by what error if by one; ``on_task`` that it needs a task,
    which then calls `finish`. ``context`` is that of the task, so that both see the same variables."""

    __slots__ = ("_context", "_coroutine", "_on_end", "_on_task", "_over", "_queue")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, None],
        context: Context,
        queue: TasklessQueue,
        on_end: Callable[[Exception | None], None],
        on_task: Callable[[], None],
    ) -> None:
        self._coroutine = coroutine
        self._context = context
        self._queue = queue
        self._on_end = on_end
        self._on_task = on_task
        self._over = False  # or a task drives it

    def step(self) -> None:
        """Run it as far as it goes."""
        if self._over:
            return
        error: Exception | None = None
        trap: object = None
        try:
            trap = self._context.run(self._send)
        except Exception as raised:
            error = raised
        if trap is _PAUSE:
            return
        self._over = True
        if trap is None:
            self._on_end(error)
        else:
            self._on_task()

    def _send(self) -> object:
        """What it waits for; None when it has ended."""
        token = _driven.set(self)
        try:
            trap: object = self._coroutine.send(None)
            while trap is not _PAUSE and trap is not _NEED_TASK:  # it waits by Trio's means, without a word before
                trap = self._coroutine.throw(RuntimeError("a call without a task must ask for one (need_task)"))
        except StopIteration:
            return None
        finally:
            _driven.reset(token)
        return trap

    def resume_soon(self) -> None:
        """What it paused for is there."""
        self._queue.add(self.step)

    def abandon(self) -> None:
        """End it as a cancelled task is ended: nobody waits for it any more. Called in its task. Idempotent."""
        if not self._over:
            self._over = True
            self._coroutine.close()

    @coroutine
    def finish(self) -> Generator[Any, Any, None]:
        """Go on in this task, to the end."""
        call = self._coroutine
        try:
            trap = call.send(None)
            while True:
                try:
                    answer = yield trap
                except BaseException as error:
                    trap = call.throw(error)
                else:
                    trap = call.send(answer)
        except StopIteration:
            return
