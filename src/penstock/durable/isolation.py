"""What surrounds a body while it runs: it sees no loop, may be silent, and may not run for ever.

A body is driven by the kernel inside of one of the executor's Trio tasks. Trio's scopes and nurseries don't yield when
they are opened, so they would attach themselves to that task: while a body runs, Trio's current task and runner are
stand-ins that raise at the body's line. Which attributes these are is Trio's own business: tests/durable/
test_isolation.py checks it with the Trio that is installed.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn

import trio

from penstock.durable.forbidden import enter_body, leave_body, refuse
from penstock.kernel.branch import PACKAGE
from penstock.kernel.errors import Endless, ForeignAwait, Overrun

WARN_AFTER_S = 1.0
END_AFTER_S = 10.0
POLL_INTERVAL_S = 0.25

_MARK = "__penstock_mutes__"
_TRIO = os.path.dirname(trio.__file__) + os.sep
_SAME_NAMES = frozenset({"sleep", "open_nursery", "move_on_after", "fail_after", "CancelScope", "open_memory_channel"})
_OURS = {
    "NurseryManager": "open_nursery",
    "Nursery": "open_nursery",
    "current_time": "now",
    "TaskGroup": "open_nursery",
}

log = logging.getLogger("penstock.durable")


def _run_context() -> Any:
    """Where Trio keeps the current task of a thread."""
    from trio import _core  # pyright: ignore[reportPrivateUsage] - there is no public way to hide a task

    return _core._run.GLOBAL_RUN_CONTEXT  # pyright: ignore[reportPrivateUsage] - as above


class _Here(threading.local):
    watch: LoopWatch | None = None
    muted = False


_here = _Here()


class _Hidden:
    """In place of Trio's task and runner while a body runs."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _refused(inspect.currentframe())


_HIDDEN = _Hidden()


def _refused(frame: FrameType | None) -> ForeignAwait:
    """For a body that uses something of Trio's or anyio's: with its file and line, and the name of ours."""
    used, module, owner = "something of the loop", "trio", ""
    while frame is not None:
        file = frame.f_code.co_filename
        is_library = file.startswith((_TRIO, PACKAGE)) or f"{os.sep}anyio{os.sep}" in file or "contextlib" in file
        if not is_library:
            break
        if not file.startswith(PACKAGE) and "contextlib" not in file:
            used, owner = frame.f_code.co_name, frame.f_code.co_qualname if sys.version_info >= (3, 11) else ""
            module = "anyio" if f"{os.sep}anyio{os.sep}" in file else "trio"
        frame = frame.f_back
    place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} " if frame is not None else ""
    class_, _, method = owner.rpartition(".")
    name = class_ if method.startswith("__") and class_ else (class_ if method == "start_soon" else used)
    ours = name if name in _SAME_NAMES else _OURS.get(name)
    if name == "CancelScope":
        ours = "move_on_after, fail_after or CancelScope"
    hint = f"Use penstock.durable.{ours}, or move it into a step." if ours else "Move it into a step."
    return refuse(ForeignAwait(f"{place}uses {module}.{name} in a workflow function. {hint}"))


class body_runs:  # noqa: N801 - reads as what it is: `with body_runs():`
    """Around every call into the kernel that runs a body. ``left`` is told of asynchronous generators that nobody goes
    on with (`close_left`). ``muted``: what it logs was logged before. ``ending``: the kernel is given up, and nothing
    that the body does is of interest.

    Raises `ForeignAwait` for a body that used what it must not, even if it caught that; `Endless` for one that ran too
    long without an await, where this thread has a `LoopWatch`.
    """

    __slots__ = ("_before", "_ending", "_hooks", "_left", "_muted", "_watch")

    def __init__(self, left: Callable[[Any], None] | None = None, *, muted: bool = False, ending: bool = False) -> None:
        self._left, self._muted, self._ending = left, muted, ending

    def __enter__(self) -> None:
        context = _CONTEXT.__dict__
        self._before = (context.get("task"), context.get("runner"), _here.muted)
        self._hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, self._left)  # Trio would end a body's asynchronous generators in tasks of its own
        context["task"] = context["runner"] = _HIDDEN
        _here.muted = self._muted
        self._watch = _here.watch
        if self._watch is not None:
            self._watch.begin()
        enter_body()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        overran: str | None = None
        broken: ForeignAwait | None = None
        while True:
            try:
                broken = broken or leave_body()
                if self._watch is not None:
                    overran = self._watch.end() or overran
                break
            except Overrun:  # it came just now; none comes after the end
                overran = "it"
        context = _CONTEXT.__dict__
        task, runner, _here.muted = self._before
        _put(context, "task", task)
        _put(context, "runner", runner)
        sys.set_asyncgen_hooks(*self._hooks)
        if overran is not None or kind is Overrun:
            text = f"{overran or 'it'} ran for more than {END_AFTER_S:g} s without an await. Move the work into a step"
            raise Endless(text) from None
        if broken is not None and not self._ending:
            raise broken from None


def close_left(generator: Any, *, is_mine: bool) -> None:
    """An asynchronous generator that a body has left by `break`, or that the garbage collector found: it is closed at
    once, and what its clean-up awaits can't be. ``is_mine``: the body that runs now had it, and is told."""
    frame: FrameType | None = generator.ag_frame
    closing = generator.aclose()
    try:
        closing.send(None)
    except BaseException:  # it is closed; what it raised nobody can be told
        return
    if is_mine and frame is not None:
        name = generator.ag_code.co_name
        place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        refuse(
            ForeignAwait(
                f"{place} awaits in the clean-up of {name}(), which was left before its end: nobody waits there. "
                f"Write `async with aclosing({name}(…)) as items:` around the loop"
            )
        )
    with suppress(BaseException):
        closing.close()


def _put(context: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        context.pop(name, None)
    else:
        context[name] = value


_CONTEXT = _run_context()


class LoopWatch:
    """Of one executor's thread: warns of a body that runs long without an await, and ends one that does not stop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives seconds, in any thread: see `cpu_clock`."""
        self._clock = clock
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._began: float | None = None
        self._warned = self._fired = False
        self._place = ""
        self._before: LoopWatch | None = None
        self._closed = threading.Event()

    def __enter__(self) -> LoopWatch:
        self._before, _here.watch = _here.watch, self
        threading.Thread(target=self._watch_loop, daemon=True, name="penstock watchdog").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _here.watch = self._before
        self._closed.set()

    def begin(self) -> None:
        """A body begins to run in this thread."""
        self._began, self._warned = self._clock(), False

    def end(self) -> str | None:
        """It waits. Where it was, if it had to be ended."""
        with self._lock:
            self._began = None
            if not self._fired:
                return None
            self._fired = False
            self._take()
            return self._place

    def _take(self) -> None:
        """Sees to it that none comes later, whether it has come or not. Taken back by None instead, CPython 3.11 would
        go on looking for it, and hang in the first call under a profile function or a debugger."""
        with suppress(Overrun):
            self._throw()
            while True:
                pass

    def _throw(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Overrun))

    def _watch_loop(self) -> None:
        while not self._closed.wait(POLL_INTERVAL_S):
            with self._lock:
                began = self._began
                if began is None:
                    continue
                ran_s = self._clock() - began
                if ran_s >= WARN_AFTER_S and not self._warned:
                    self._warned = True
                    log.warning(
                        "%s has run for %.0f s without an await; the process waits for it", self._where(), ran_s
                    )
                if ran_s >= END_AFTER_S:
                    self._place = self._place if self._fired else self._where()
                    self._fired = True
                    self._throw()

    def _where(self) -> str:
        """Return the innermost line outside of our package: what it runs, in a library or not."""
        frame = sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage] - documented
        while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else "a body"


def cpu_clock() -> Callable[[], float]:
    """The seconds that this thread has computed, for a test: neither a debugger's prompt nor a busy machine counts."""
    if sys.platform in ("win32", "darwin"):
        return time.monotonic  # they have no clock of another thread
    return functools.partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


def mute_replayed_logs() -> None:
    """From now on what bodies log while they are replayed is dropped: it was logged when it happened. Idempotent."""
    handle = logging.Logger.handle
    if hasattr(handle, _MARK):
        return

    @functools.wraps(handle)
    def handle_unless_replayed(self: logging.Logger, record: logging.LogRecord) -> None:
        if not _here.muted:
            handle(self, record)

    setattr(handle_unless_replayed, _MARK, True)
    logging.Logger.handle = handle_unless_replayed  # type: ignore[method-assign]  # the one place all records pass
