"""Cancels code at every single point where that is possible, one after another, and looks what was left behind.

Trio runs one task at a time, from one checkpoint to the next: a *step*. A cancel that comes from outside takes effect
at a step's edges: after it, while the task waits, or before it, when what it waited for has come but the task has not
run yet. Both edges of every step, of any task of the run, are the *points* here: for a database statement that is
before it is sent, while it is under way, and when its result is there. `cancel_everywhere` goes through all of them::

    async def prepare() -> Operation[Receipt]:
        order = await new_order()
        return lambda: charge(order)


    async def check(attempt: Attempt[Receipt]) -> None:
        assert await charged_times(order) in (0, 1)


    points = await cancel_everywhere(prepare, check)

Which point is which depends on the timing of sockets; going through all of them is what makes the test dense, not the
number itself. Cancellation is a level in Trio: clean-up runs cancelled, too, unless it is shielded, so all of its
points are met as well. For tests only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

import trio

R = TypeVar("R")
Operation = Callable[[], Awaitable[R]]

POINTS_MAX = 5_000
"""An operation with more than these is taken for one that never ends."""
SETTLE_TIMEOUT_S = 5.0
"""How long what an operation leaves behind may take to go away by itself (threads, tasks that are ending)."""
POLL_INTERVAL_S = 0.005
_FILES = "/proc/self/fd"
_OWN_FILES = ("anon_inode:", "/dev/", "/proc/")


class CancelAtStep(trio.abc.Instrument):
    """Cancels ``scope`` at the n-th point (from 1) after the instrument was added. ``fired`` tells whether it came.

    A point is behind each step of a task, and before the first one that follows a look at sockets and clocks: before
    the others nothing has happened since the point behind the one before. With ``task`` only that task's steps have
    points, before and behind.
    """

    def __init__(self, scope: trio.CancelScope, step: int, *, task: trio.lowlevel.Task | None = None) -> None:
        self._scope = scope
        self._left = step
        self._task = task
        self._batch_begins = False
        self.fired = False

    def after_io_wait(self, timeout: float) -> None:
        """Called by Trio."""
        self._batch_begins = True

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by Trio."""
        if self._task is not None or self._batch_begins:
            self._count(task)
        self._batch_begins = False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by Trio."""
        self._count(task)

    def _count(self, task: trio.lowlevel.Task) -> None:
        if self._task is not None and task is not self._task:
            return
        self._left -= 1
        if self._left == 0:
            self.fired = True
            self._scope.cancel()


class CancelledAttempt(Generic[R]):
    """What became of one run. ``results`` holds the operation's result unless it was cancelled."""

    def __init__(self) -> None:
        self.results: list[R] = []
        self.fired = False

    @property
    def cancelled(self) -> bool:
        """Return whether the caller never heard of the result."""
        return not self.results


async def cancel_at_step(step: int, operation: Operation[R], *, own_task_only: bool = False) -> CancelledAttempt[R]:
    """Run ``operation`` and cancel it at its n-th point. It may end all the same if it is past its last checkpoint.

    ``own_task_only`` counts the steps of the calling task and of no other one: fewer points, where the others are of no
    interest. Raises what the operation raises.
    """
    attempt: CancelledAttempt[R] = CancelledAttempt()
    task = trio.lowlevel.current_task() if own_task_only else None
    with trio.CancelScope() as scope:
        instrument = CancelAtStep(scope, step, task=task)
        trio.lowlevel.add_instrument(instrument)
        try:
            attempt.results.append(await operation())
        finally:
            trio.lowlevel.remove_instrument(instrument)
            attempt.fired = instrument.fired
    return attempt


class Holdings(NamedTuple):
    """What this process holds: living tasks, threads, and open files and sockets (Linux; elsewhere none are seen)."""

    tasks: int
    threads: int
    files: int

    @classmethod
    def now(cls) -> Holdings:
        """Return a snapshot; call it in Trio. The threads that Trio keeps for later are not counted."""
        threads = [each for each in threading.enumerate() if not each.name.startswith("Trio thread")]
        return cls(trio.lowlevel.current_statistics().tasks_living, len(threads), len(_open_files()))


NOTHING = Holdings(0, 0, 0)


def _open_files() -> list[str]:
    """What the open descriptors refer to, but for devices and the event loop's own."""
    found: list[str] = []
    with suppress(FileNotFoundError):
        for name in os.listdir(_FILES):
            with suppress(OSError):  # the listing's own descriptor
                target = os.readlink(f"{_FILES}/{name}")
                if not target.startswith(_OWN_FILES):
                    found.append(target)
    return found


class Points(NamedTuple):
    """How many points there were, and at how many of them the caller never heard of a result."""

    points: int
    cancelled: int


class LeftBehind(AssertionError):
    """A cancelled operation left tasks, threads, files or sockets behind."""


async def cancel_everywhere(
    prepare: Callable[[], Awaitable[Operation[R]]],
    check: Callable[[CancelledAttempt[R]], Awaitable[None]] | None = None,
    *,
    own_task_only: bool = False,
    first: int = 1,
    stride: int = 1,
    may_grow: Holdings = NOTHING,
    points_max: int = POINTS_MAX,
) -> Points:
    """Run an operation once per point and cancel it there, until a run ends before its point comes.

    ``prepare`` makes each run's own operation, undisturbed; ``check`` looks at what became of it. After each run the
    process has to hold what it held before it, at once or within seconds; or what it held before the first run and
    ``may_grow``, for what is kept on purpose (the connections of a pool). ``first`` and ``stride`` take every n-th
    point only, for operations that are too long to try all in one run. Raises LeftBehind, and what operation and check
    raise, with the number of the point as a note.
    """
    cancelled = count = 0
    at_first = Holdings.now()
    allowed = Holdings(*(held + more for held, more in zip(at_first, may_grow, strict=True)))
    for point in range(first, points_max + 1, stride):
        operation = await prepare()
        held = Holdings(*map(max, Holdings.now(), allowed))
        try:
            attempt = await cancel_at_step(point, operation, own_task_only=own_task_only)
            if check is not None:
                await check(attempt)
            await _wait_given_back(held)
        except Exception as error:
            error.add_note(f"cancelled at point {point}")
            raise
        cancelled += attempt.cancelled
        count += attempt.fired
        if not attempt.fired:
            return Points(count, cancelled)
    raise AssertionError(f"no end within {points_max} points")


async def _wait_given_back(held: Holdings) -> None:
    deadline = trio.current_time() + SETTLE_TIMEOUT_S
    while any(now > before for now, before in zip(Holdings.now(), held, strict=True)):
        if trio.current_time() > deadline:
            raise LeftBehind(f"held before: {held}, after: {Holdings.now()}")
        await trio.sleep(POLL_INTERVAL_S)
