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
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Literal, NoReturn, cast

import trio
import trio.lowlevel

from penstock.kernel.branch import PACKAGE
from penstock.kernel.errors import Blocked
from penstock.kernel.operation import Outcome

Backend = Literal["asyncio", "trio"]
BACKENDS: Final = ("asyncio", "trio")
LOOK_INTERVAL_S: Final = 0.5
BLOCKED_AFTER_S: Final = 1.0
"""A loop that does not answer for so long is logged."""

_LIBRARIES: Final = (PACKAGE, os.path.dirname(asyncio.__file__) + os.sep, "<")

log = logging.getLogger("penstock.durable")


class StepLoopEnded(Exception):
    """The loop ended before the step did: its program stops, and another one begins the step again."""


class WrongLibrary(Blocked):
    """A step used a library that its loop can't serve: no attempt can succeed until the code or ``backend`` changes."""


class _Calls:
    """Calls for another loop. It is woken once for all that come together."""

    def __init__(self, wake: Callable[[Callable[[], object]], object]) -> None:
        self._wake = wake
        self._calls: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def put(self, call: Callable[[], object]) -> None:
        """Make the call there, after those that were put before. Raises what waking raises when that loop is closed."""
        self._calls.append(call)
        if not self._is_woken:
            self._is_woken = True
            self._wake(self._make)

    def _make(self) -> None:
        self._is_woken = False  # first: what is put from now on wakes the loop again
        while self._calls:
            self._calls.popleft()()


class StepLoop(ABC):
    """One loop for async steps, made in its thread; `call` is for the app's loop."""

    library: Backend
    foreign: Backend
    refusals: tuple[str, ...]
    """How errors begin that ``foreign`` or this loop raises where the two meet."""

    def __init__(self, wake: Callable[[Callable[[], object]], object]) -> None:
        self._there = _Calls(wake)
        self._back: _Calls | None = None
        self._thread = threading.get_ident()

    def put(self, call: Callable[[], object]) -> None:
        """Make a call in the loop. Raises `StepLoopEnded`."""
        try:
            self._there.put(call)
        except RuntimeError:  # of asyncio when it is closed, and trio.RunFinishedError
            raise StepLoopEnded from None

    def put_back(self, call: Callable[[], object]) -> None:
        """Make a call in the app's loop."""
        assert self._back is not None
        with suppress(trio.RunFinishedError):
            self._back.put(call)

    async def call(self, function: Callable[[], Awaitable[Any]]) -> Outcome:
        """Await it there. A cancel is passed on once, and the end is waited for. An outcome stands, whatever was asked.
        Raises `StepLoopEnded`, and `trio.Cancelled` where the function ended by the cancel."""
        if self._back is None:
            self._back = _Calls(trio.lowlevel.current_trio_token().run_sync_soon)
        begin, cancel, outcome = self._prepared(function, ended := trio.Event())
        self.put(begin)
        try:
            await ended.wait()
        except trio.Cancelled:
            with suppress(StepLoopEnded), trio.CancelScope(shield=True):
                self.put(cancel)
                await ended.wait()
            found = outcome()
            if found is None:
                raise
            return found
        found = outcome()
        if found is None:
            raise StepLoopEnded
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

    @abstractmethod
    def _prepared(
        self, function: Callable[[], Awaitable[Any]], ended: trio.Event
    ) -> tuple[Callable[[], object], Callable[[], object], Callable[[], Outcome | None]]:
        """Calls that begin it and cancel it there, and one that gives its outcome: None if it was cancelled."""

    async def watch(self, is_used: Callable[[], bool]) -> NoReturn:
        """Log where the loop stands when a step blocks it. Run it in the app's loop."""
        while True:
            await trio.sleep(LOOK_INTERVAL_S)
            if not is_used():
                continue
            if self._back is None:
                self._back = _Calls(trio.lowlevel.current_trio_token().run_sync_soon)
            answered, asked_at = trio.Event(), trio.current_time()
            with suppress(StepLoopEnded):
                self.put(partial(self.put_back, answered.set))
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
        self._loop = asyncio.get_running_loop()
        super().__init__(self._loop.call_soon_threadsafe)

    def _prepared(
        self, function: Callable[[], Awaitable[Any]], ended: trio.Event
    ) -> tuple[Callable[[], object], Callable[[], object], Callable[[], Outcome | None]]:
        context, tasks, asked = copy_context(), list[asyncio.Task[Outcome]](), list[bool]()

        def begin() -> None:
            tasks.append(self._loop.create_task(_outcome_of(function), context=context))
            tasks[0].add_done_callback(lambda task: self.put_back(ended.set))

        def cancel() -> None:
            asked.append(tasks[0].cancel())  # it has begun: calls are made in order

        def outcome() -> Outcome | None:
            if not tasks[0].cancelled():
                return tasks[0].result()
            if asked or tasks[0].cancelling():
                return None
            return Outcome(error=asyncio.CancelledError("the step awaited something that was cancelled"))

        return begin, cancel, outcome


async def _outcome_of(function: Callable[[], Awaitable[Any]]) -> Outcome:
    try:
        return Outcome(await function())
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: a step does not end the loop
        return Outcome(error=error)


class TrioLoop(StepLoop):
    """The running loop of this thread; steps are tasks of ``nursery``."""

    library, foreign = "trio", "asyncio"
    refusals = ("no running event loop", "trio.run received unrecognized yield message")

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        super().__init__(trio.lowlevel.current_trio_token().run_sync_soon)

    def _prepared(
        self, function: Callable[[], Awaitable[Any]], ended: trio.Event
    ) -> tuple[Callable[[], object], Callable[[], object], Callable[[], Outcome | None]]:
        context, found, scope = copy_context(), list[Outcome](), trio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    found.append(Outcome(await function()))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if has_cancelled(error):  # the program's own scope
                    raise
                found.append(Outcome(error=error))
            finally:
                self.put_back(ended.set)

        def begin() -> None:
            try:
                context.run(self._nursery.start_soon, run)
            except RuntimeError:  # the nursery is closed
                self.put_back(ended.set)

        return begin, scope.cancel, lambda: found[0] if found else None


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
    """Whether a scope of Trio waits for it."""
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
