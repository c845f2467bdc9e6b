"""Where async steps run: an asyncio or Trio loop in a thread beside the app's, which runs no step.

A step that blocks its loop delays other steps. It delays no heartbeat, so the run keeps its lease. `StepLoop.watch`
logs where such a loop stands.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, Literal, NoReturn, Protocol, cast

import trio
import trio.lowlevel
from trio._core import _parking_lot as trio_parking_lot  # pyright: ignore[reportPrivateUsage] - nothing public tells it

from penstock.kernel.branch import PACKAGE
from penstock.kernel.errors import Blocked
from penstock.kernel.operation import Outcome

Backend = Literal["asyncio", "trio"]
BACKENDS: Final = ("asyncio", "trio")
POLL_INTERVAL_S: Final = 0.5
HELD_BACK_S: Final = 0.002
"""Calls into another loop wait so long at most for others to go with them."""
BLOCKED_AFTER_S: Final = 1.0
"""A loop that does not answer for so long is logged."""
IDLE_MAX_TASKS: Final = 100
"""Tasks of Trio that wait for another step; 4 kB each."""

_lock_holders = trio_parking_lot.GLOBAL_PARKING_LOT_BREAKER
"""Trio's own: whose end breaks a lock that is held then."""
_LIBRARIES: Final = (PACKAGE, os.path.dirname(asyncio.__file__) + os.sep, "<")

log = logging.getLogger("penstock.durable")


class StepLoopEnded(Exception):
    """The loop ended before the step did: its program stops, and another one begins the step again."""


class WrongLibrary(Blocked):
    """A step used a library that its loop can't serve: no attempt can succeed until the code or ``backend`` changes."""


class _Idle(trio.abc.Instrument):
    """Makes calls when a Trio loop is about to wait, or has been busy for `HELD_BACK_S`."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []
        self._since = 0.0

    def later(self, call: Callable[[], object]) -> None:
        """Make it then. It must not raise."""
        if not self._calls:
            self._since = time.monotonic()
        self._calls.append(call)

    def before_io_wait(self, timeout: float) -> None:
        if self._calls and (timeout > 0 or time.monotonic() - self._since >= HELD_BACK_S):
            calls, self._calls = self._calls, []
            for call in calls:
                call()


_idle: trio.lowlevel.RunVar[_Idle] = trio.lowlevel.RunVar("_idle")


def _when_idle() -> Callable[[Callable[[], object]], object]:
    """What makes a call when the Trio loop that runs here is about to wait."""
    try:
        return _idle.get().later
    except LookupError:
        _idle.set(found := _Idle())
        trio.lowlevel.add_instrument(found)
        return found.later


def _nothing() -> None:
    """Do nothing."""


class Passed(Protocol):
    """What one loop gives to another."""

    def make(self) -> None:
        """Do it there."""
        ...

    def lose(self) -> None:
        """Hear, in the loop that gave it, that the other one is closed."""
        ...


class _PlainCall:
    __slots__ = ("_call", "_lost")

    def __init__(self, call: Callable[[], object], lost: Callable[[], object]) -> None:
        self._call, self._lost = call, lost

    def make(self) -> None:
        self._call()

    def lose(self) -> None:
        self._lost()


class Calls:
    """Calls from one loop into another. That one is woken once for all that come together, as threads that take turns
    cost more than the calls do: with 64 runs and one wake for each call a step cost 1.6 times the CPU."""

    def __init__(
        self,
        wake: Callable[[Callable[[], object]], object],
        later: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        """``wake`` makes a call there, from any thread. ``later`` makes one here, when this loop has done what there is
        to do; without it the calls come from the Trio loop that runs here."""
        self._wake, self._later = wake, later or _when_idle()
        self._calls: deque[Passed] = deque()
        self._is_woken = False

    def put(self, call: Callable[[], object], lost: Callable[[], object] = _nothing) -> None:
        """Make the call there, after those that were put before. ``lost`` is called here instead if that loop is
        closed."""
        self.put_passed(_PlainCall(call, lost))

    def put_passed(self, passed: Passed) -> None:
        """Do as `put` does."""
        self._calls.append(passed)
        if not self._is_woken:
            self._is_woken = True
            self._later(self._send)

    def _send(self) -> None:
        try:
            self._wake(self._make)
        except RuntimeError:  # of asyncio when it is closed, and trio.RunFinishedError
            while self._calls:
                self._calls.popleft().lose()
            self._is_woken = False

    def _make(self) -> None:
        self._is_woken = False  # first: what is put from now on wakes the loop again
        while self._calls:
            self._calls.popleft().make()


class LoopCall(ABC):
    """A call of an async function in a loop for steps. `StepLoop.begin` makes it. Few objects of Python's lead to one
    another here: 64 calls wait at a time, and each of their objects brings the next collection of garbage closer."""

    __slots__ = (
        "_args", "_context", "_function", "_has_ended", "_kwargs", "_loop", "_on_end", "about", "cancel_called"
    )  # fmt: skip

    def __init__(
        self,
        loop: StepLoop,
        function: Callable[..., Awaitable[Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        context: Context,
        on_end: Callable[[LoopCall], object],
    ) -> None:
        self._loop, self._function, self._context, self._on_end = loop, function, context, on_end
        self._args, self._kwargs = args, kwargs
        self.cancel_called = self._has_ended = False
        self.about: Any = None
        """Whatever ``on_end`` wants to know of it."""

    def awaited(self) -> Awaitable[Any]:
        """Call the function."""
        return self._function(*self._args, **self._kwargs)

    def cancel(self) -> None:
        """Pass a cancel on to the function, once. Call it in the app's loop."""
        if not self.cancel_called:
            self.cancel_called = True
            self._loop.put(self.cancel_there)  # lost: then it has ended

    def outcome(self) -> Outcome | None:
        """What it gave or raised. None: it ended by the cancel. Raises `StepLoopEnded`."""
        found = self.found()
        if found is None and not self.cancel_called:
            raise StepLoopEnded
        return found

    def make(self) -> None:
        """Begin it, in the loop for steps; when it has ended, say so in the app's loop."""
        if self._has_ended:
            self._on_end(self)
        else:
            self.begin_there()

    def lose(self) -> None:
        """Hear that the loop for steps is closed: it has ended. Where the app's is closed, nobody waits for it."""
        if not self._has_ended:
            self._has_ended = True
            self._on_end(self)

    def notify_end(self) -> None:
        """Let the app's loop know that it has ended."""
        self._has_ended = True
        self._loop.pass_back(self)

    @abstractmethod
    def begin_there(self) -> None:
        """Begin it, in the loop for steps."""

    @abstractmethod
    def cancel_there(self) -> None:
        """Cancel it, in the loop for steps."""

    @abstractmethod
    def found(self) -> Outcome | None:
        """What it gave or raised; None if it was cancelled, or its loop has ended."""


class StepLoop:
    """One loop for async steps, made in its thread; `begin`, `call` and `watch` are for the app's loop."""

    library: Backend
    foreign: Backend
    call_class: type[LoopCall]
    refusals: tuple[str, ...]
    """How errors begin that ``foreign`` or this loop raises where the two meet."""

    def __init__(
        self,
        wake: Callable[[Callable[[], object]], object],
        later: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        """``wake`` and ``later``: see `Calls`; of this loop."""
        self._wake, self._later = wake, later
        self._there: Calls | None = None
        self._back: Calls
        self._thread = threading.get_ident()

    def put(self, call: Callable[[], object], lost: Callable[[], object] = _nothing) -> None:
        """Make a call in the loop, or ``lost`` here if it has ended."""
        self._put(_PlainCall(call, lost))

    def _put(self, passed: Passed) -> None:
        if self._there is None:
            self._back = Calls(trio.lowlevel.current_trio_token().run_sync_soon, self._later)
            self._there = Calls(self._wake)
        self._there.put_passed(passed)

    def put_back(self, call: Callable[[], object]) -> None:
        """Make a call in the app's loop."""
        self._back.put(call)

    def pass_back(self, passed: Passed) -> None:
        """Do as `put_back` does."""
        self._back.put_passed(passed)

    def begin(
        self,
        function: Callable[..., Awaitable[Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        context: Context,
        on_end: Callable[[LoopCall], object],
    ) -> LoopCall:
        """Begin to await it there, in this context. ``on_end`` is called here when it has ended, and must not raise."""
        call = self.call_class(self, function, args, kwargs, context, on_end)
        self._put(call)
        return call

    async def call(self, function: Callable[[], Awaitable[Any]]) -> Outcome:
        """Await it there. A cancel is passed on once, and the end is waited for. An outcome stands, whatever was asked.
        Raises `StepLoopEnded`, and `trio.Cancelled` where the function ended by the cancel."""
        ended = trio.Event()
        call = self.begin(function, (), {}, copy_context(), lambda _: ended.set())
        try:
            await ended.wait()
        except trio.Cancelled:
            call.cancel()
            with trio.CancelScope(shield=True):
                await ended.wait()
            found = call.outcome()
            if found is None:
                raise
            return found
        found = call.outcome()
        assert found is not None, "nobody has cancelled it"
        return found

    @classmethod
    def check_library(cls, error: BaseException, name: str, call: str = "App") -> None:
        """Raise `WrongLibrary` if a step failed because it used the other library. ``call`` has the ``backend``."""
        for leaf in leaves_of(error):
            cause: BaseException | None = leaf
            while cause is not None:
                if isinstance(cause, RuntimeError | TypeError | AttributeError) and str(cause).startswith(cls.refusals):
                    owner = "App" if call == "App" else "test"
                    raise WrongLibrary(
                        f"{name} uses {cls.foreign} at {_users_line(cause) or 'its first line'}, and async steps of"
                        f" this {owner} run in {cls.library}. Use a library for {cls.library} or anyio there, or write"
                        f" {call}(…, backend={cls.foreign!r})"
                    )
                cause = cause.__cause__

    async def watch(self, is_used: Callable[[], bool]) -> NoReturn:
        """Log where the loop stands when a step blocks it. Run it in the app's loop."""
        while True:
            await trio.sleep(POLL_INTERVAL_S)
            if not is_used():
                continue
            answered, asked_at = trio.Event(), trio.current_time()
            self.put(partial(self.put_back, answered.set), answered.set)
            with trio.move_on_after(BLOCKED_AFTER_S):
                await answered.wait()
                continue
            log.warning(
                "a step blocks the loop of async steps for more than %g s; other async steps wait for it. Make it a"
                " plain def, which runs in a thread, or move the slow call into asyncio.to_thread or"
                " trio.to_thread.run_sync. It is here:\n%s",
                BLOCKED_AFTER_S, self._stack(),
            )  # fmt: skip
            await answered.wait()
            log.info("the loop of async steps goes on after %.0f s", trio.current_time() - asked_at)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage] - documented
        return "".join(traceback.format_stack(frame)).rstrip()


class AsyncioLoop(StepLoop):
    """The running loop of this thread."""

    library, foreign = "asyncio", "trio"
    refusals = ("must be called from async context", "Task got bad yield: ", "'RunContext' object has no attribute")

    def __init__(self) -> None:
        self.running = asyncio.get_running_loop()
        super().__init__(self.running.call_soon_threadsafe, self.running.call_soon)


class _AsyncioCall(LoopCall):
    """A task of asyncio."""

    __slots__ = ("_found", "_task")
    _loop: AsyncioLoop

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._task: asyncio.Task[None] | None = None
        self._found: Outcome | None = None

    def begin_there(self) -> None:
        task = self._task = self._loop.running.create_task(self._run(), context=self._context)
        task.add_done_callback(lambda task: self.notify_end())

    async def _run(self) -> None:
        # the task must not hold the outcome: its `repr` shows it, and that of the user's value may fail
        try:
            self._found = Outcome(await self.awaited())
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit too: a step does not end the loop
            self._found = Outcome(error=error)

    def cancel_there(self) -> None:
        assert self._task is not None, "calls are made in order"
        self._task.cancel()

    def found(self) -> Outcome | None:
        if self._task is None or self._found is not None:
            return self._found
        if not self._task.cancelled():
            self._task.result()  # raises KeyboardInterrupt
        if self.cancel_called or self._task.cancelling():
            return None
        return Outcome(error=asyncio.CancelledError("the step awaited something that was cancelled"))


class TrioLoop(StepLoop):
    """The running loop of this thread; steps are tasks of ``nursery``."""

    library, foreign = "trio", "asyncio"
    refusals = ("no running event loop", "trio.run received unrecognized yield message")

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.idle: list[_TrioTask] = []
        self.no_context = Context()
        super().__init__(trio.lowlevel.current_trio_token().run_sync_soon, _when_idle())


class _TrioCall(LoopCall):
    """Awaited in a task of Trio, which may have awaited others before."""

    __slots__ = ("_found", "_task")
    _loop: TrioLoop

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._found: Outcome | None = None
        self._task: _TrioTask | None = None

    @property
    def context(self) -> Context:
        """Return its variables."""
        return self._context

    def begin_there(self) -> None:
        idle = self._loop.idle
        task = self._task = idle.pop() if idle else _TrioTask(self._loop)
        try:
            task.begin(self)
        except RuntimeError:  # the nursery is closed
            self.notify_end()

    def cancel_there(self) -> None:
        if self._task is not None:  # else it has ended
            self._task.scope.cancel()

    def end_there(self, found: Outcome | None) -> None:
        """It has ended, with this; None: by a cancel."""
        self._found, self._task = found, None
        self.notify_end()

    def found(self) -> Outcome | None:
        return self._found


class _TrioTask:
    """A task for steps, one after the other, each in a context of its own: to start a task and to open a scope for each
    cost 8 us of the 100 that a step took. One that was cancelled, or whose step raised or left something of Trio's
    open, ends with it, as if it had been that step's own."""

    def __init__(self, loop: TrioLoop) -> None:
        self._loop = loop
        self.scope = trio.CancelScope()
        self._call: _TrioCall | None = None
        self._task: trio.lowlevel.Task | None = None
        self._abort = self._abort_wait

    def begin(self, call: _TrioCall) -> None:
        """Await it. Raises RuntimeError where the nursery takes no more tasks."""
        self._call = call
        if self._task is None:
            call.context.run(self._loop.nursery.start_soon, self._run)
        else:
            self._task.context = call.context
            trio.lowlevel.reschedule(self._task)

    async def _run(self) -> None:
        task = self._task = trio.lowlevel.current_task()
        found: Outcome | None = None
        try:
            with self.scope:
                clean = cancel_status_of(task)
                while self._call is not None:
                    found = Outcome(await self._call.awaited())
                    if self.scope.cancel_called or leaves_something(task, clean):
                        break
                    self._end(found)
                    found = None
                    if len(self._loop.idle) < IDLE_MAX_TASKS:
                        self._loop.idle.append(self)
                        task.context = self._loop.no_context  # that of the step leads to its run
                        await trio.lowlevel.wait_task_rescheduled(self._abort)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if has_cancelled(error):  # the program's own scope
                raise
            found = Outcome(error=error)
        finally:
            close_left(task)
            if self in self._loop.idle:  # Ctrl-C came on the way there
                self._loop.idle.remove(self)
            self._end(found)

    def _end(self, found: Outcome | None) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.end_there(found)

    def _abort_wait(self, _: object) -> trio.lowlevel.Abort:
        self._loop.idle.remove(self)
        return trio.lowlevel.Abort.SUCCEEDED


def cancel_status_of(task: trio.lowlevel.Task) -> object:
    """Return what tells whether a task is in the scope that it was in before."""
    return task._cancel_status  # pyright: ignore[reportPrivateUsage] - nothing public tells it


def close_left(task: trio.lowlevel.Task) -> None:
    """Cancel and close the nurseries that a step has left open. Trio does so at the end of their task, too, but raises
    an error then, which ends the nursery of all steps."""
    for nursery in reversed(task.child_nurseries):
        nursery.cancel_scope.cancel()
        nursery._closed = True  # pyright: ignore[reportPrivateUsage] - as Trio does
    task._child_nurseries.clear()  # pyright: ignore[reportPrivateUsage] - likewise


def leaves_something(task: trio.lowlevel.Task, clean: object) -> bool:
    """Return whether a task has left a scope or a nursery open, or holds a lock. The tokens of a
    `trio.CapacityLimiter`, and what programs keep by task, can't be seen: the next step finds them."""
    return bool(cancel_status_of(task) is not clean or task.child_nurseries or task in _lock_holders)


AsyncioLoop.call_class = _AsyncioCall
TrioLoop.call_class = _TrioCall


def leaves_of(error: BaseException) -> list[BaseException]:
    """Return the errors in a group, or the error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for each in group.exceptions for leaf in leaves_of(each)]


def _users_line(error: BaseException) -> str | None:
    """File and line of the innermost frame that belongs to no library."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_LIBRARIES) and "site-packages" not in frame.filename
    ]
    return f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else None


def has_cancelled(error: BaseException) -> bool:
    """Return whether a scope of Trio waits for it."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None  # pyright: ignore[reportUnknownMemberType] - of anything
    return isinstance(error, trio.Cancelled)


# -- loops of our own


def run_loop(backend: Backend, begin: Callable[[StepLoop], None], ended: Future[None]) -> None:
    """Run a loop for steps in this thread until ``ended`` is done. ``begin`` is called when it runs."""
    if backend == "asyncio":
        asyncio.run(_hold_asyncio(begin, ended))
    else:
        trio.run(_hold_trio, begin, ended, strict_exception_groups=True)


async def _hold_asyncio(begin: Callable[[StepLoop], None], ended: Future[None]) -> None:
    begin(AsyncioLoop())
    await asyncio.wrap_future(ended)


async def _hold_trio(begin: Callable[[StepLoop], None], ended: Future[None]) -> None:
    token, done = trio.lowlevel.current_trio_token(), trio.Event()
    async with trio.open_nursery() as nursery:
        begin(TrioLoop(nursery))
        ended.add_done_callback(lambda _: token.run_sync_soon(done.set))
        await done.wait()
        nursery.cancel_scope.cancel()


@contextmanager
def loop_in_thread(backend: Backend) -> Generator[StepLoop]:
    """A loop in a thread of its own, for the block."""
    begun: Future[StepLoop] = Future()
    ended: Future[None] = Future()
    run: Callable[[], None] = lambda: run_loop(backend, begun.set_result, ended)  # noqa: E731 - one line
    thread = threading.Thread(target=run, name="penstock steps", daemon=True)
    thread.start()
    try:
        yield begun.result()
    finally:
        ended.set_result(None)
        thread.join()


Serve = Callable[[StepLoop], Coroutine[Any, Any, Any]]


def run_beside(backend: Backend, serve: Serve) -> Any:
    """Run ``serve`` with Trio in a thread of its own, and async steps in this one. Return what it gives."""
    result: Future[Any] = Future()
    ended: Future[None] = Future()

    def run(loop: StepLoop) -> None:
        try:
            result.set_result(trio.run(serve, loop, strict_exception_groups=True))
        except BaseException as error:
            result.set_exception(error)
        finally:
            ended.set_result(None)

    def begin(loop: StepLoop) -> None:
        threading.Thread(target=copy_context().run, args=(run, loop), name="penstock app", daemon=True).start()

    run_loop(backend, begin, ended)
    return result.result()
