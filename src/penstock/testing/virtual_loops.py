"""Async steps of a test in a loop of their own, asyncio's or Trio's, whose clock jumps to what is due next.

A step that sleeps for an hour takes no time. Must run nothing but steps: `testing.durable` has the clock of the run.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from math import inf
from typing import Any, Final, TypeVar, TypeVarTuple

import trio
import trio.testing

from penstock.durable.step_loop import BACKENDS, AsyncioLoop, Backend, StepLoop, TrioLoop
from penstock.kernel.errors import TooSlow
from penstock.kernel.operation import Outcome

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SOCKET_QUIET_S: Final = 1.0
"""The clock stands still for so long while a connection is open, as an answer may be on its way."""
WORK_QUIET_S: Final = 30.0
"""The same while a thread or a process of the step is at work."""


class _Selector(selectors.DefaultSelector):
    """Waits for what is real, then lets the loop's clock jump."""

    def __init__(self, loop: _VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready. If that is nothing, ``timeout`` seconds have passed on the loop's clock."""
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        quiet_s = WORK_QUIET_S if self._loop.is_at_work else SOCKET_QUIET_S if len(self.get_map()) > 1 else 0.0
        found = super().select(quiet_s)
        if not found:
            self._loop.jump(timeout)
        return found


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while code runs."""

    def __init__(self) -> None:
        self._now = 0.0
        self._threads = 0
        self._processes: list[asyncio.SubprocessTransport] = []
        super().__init__(_Selector(self))

    @property
    def is_at_work(self) -> bool:
        """Return whether a thread or a process of the step has not ended."""
        return self._threads > 0 or any(each.get_returncode() is None for each in self._processes)

    def time(self) -> float:
        """Of the virtual clock, in seconds."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let so much time pass."""
        self._now += seconds

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """As any loop, counting."""

        def ended(_: object) -> None:
            self._threads -= 1

        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(ended)
        return future

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        """As any loop, remembering the process."""
        return self._remember(await super().subprocess_exec(*args, **kwargs))

    async def subprocess_shell(self, *args: Any, **kwargs: Any) -> Any:
        """As any loop, remembering the process."""
        return self._remember(await super().subprocess_shell(*args, **kwargs))

    async def shutdown_default_executor(self, *args: Any) -> None:
        """As any loop; it has a time limit."""
        self._threads += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._threads -= 1

    def _remember(self, made: tuple[asyncio.SubprocessTransport, Any]) -> tuple[asyncio.SubprocessTransport, Any]:
        self._processes.append(made[0])
        return made


def checked_backend(given: Backend | None) -> Backend:
    """Return what was given, else what an App has that is entered here. Raises ValueError."""
    if given is None:
        return "trio" if trio.lowlevel.in_trio_run() else "asyncio"
    if given not in BACKENDS:
        raise ValueError(f"backend is 'asyncio' or 'trio', not {given!r}")
    return given


def run_step(coroutine: Awaitable[Any], name: str, backend: Backend, limit_s: float | None) -> Any:
    """Run an async step to its end, in a thread if a loop runs in this one. Return what it gives.

    Args:
        coroutine: the step.
        name: its name, for errors.
        backend: the loop that it gets.
        limit_s: its time limit, None for none.

    Raises:
        TooSlow: it took longer on the loop's clock.
        WrongLibrary: it awaited another library than the loop's.
    """
    run = _in_asyncio if backend == "asyncio" else _in_trio
    loop: type[StepLoop] = AsyncioLoop if backend == "asyncio" else TrioLoop

    def alone() -> Any:
        try:
            return run(coroutine, name, limit_s)
        except Exception as error:
            loop.check_library(error, name, "run_workflow")
            raise

    return alone() if not _loop_runs() else _in_thread(alone)


def _in_trio(coroutine: Awaitable[Any], name: str, limit_s: float | None) -> Any:
    async def run() -> Any:
        with trio.move_on_after(inf if limit_s is None else limit_s):
            return await coroutine
        raise _too_slow(name, limit_s)

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def _in_asyncio(coroutine: Awaitable[Any], name: str, limit_s: float | None) -> Any:
    ended: list[Outcome] = []

    async def run() -> None:
        # The task must not hold the outcome: `Runner` asks Python for its signal handler, whose `repr` shows the task
        # with what it gave. A value whose `__repr__` fails would leave the handler behind, and fail each later loop.
        try:
            async with asyncio.timeout(limit_s):
                try:
                    ended.append(Outcome(await coroutine))
                except (asyncio.CancelledError, KeyboardInterrupt):
                    raise
                except BaseException as error:  # its outcome stands, even if its time is over
                    ended.append(Outcome(error=error))
        except TimeoutError:
            ended.append(Outcome(error=_too_slow(name, limit_s)))

    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        runner.run(run())
    outcome = ended[-1]
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def _too_slow(name: str, limit_s: float | None) -> TooSlow:
    return TooSlow(f"{name} took longer than {limit_s:g} s")


def _loop_runs() -> bool:
    if trio.lowlevel.in_trio_run():
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(function: Callable[[], Any]) -> Any:
    ended: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            ended.append(function())
        except BaseException as error:  # raised again by who waits for the thread
            failed.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="penstock step")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return ended[0]
