"""What a body calls that would be different at replay, or happen twice: told at its line, and the run is blocked.

Python's audit events tell of files, sockets and processes, everywhere. Clocks and chance have none: in tests
(`penstock.testing.run_workflow`) a profile function sees the calls.
"""

from __future__ import annotations

import _thread
import asyncio
import asyncio.events
import asyncio.tasks
import datetime as dt
import functools
import gc
import os
import random
import sys
import sysconfig
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType, GeneratorType, TracebackType
from typing import Any, cast

from penstock.kernel.branch import PACKAGE
from penstock.kernel.errors import ForeignAwait

_EVENTS = frozenset(
    {
        "_thread.start_new_thread", "builtins.input", "glob.glob", "mmap.__new__", "open", "pathlib.Path.glob",
        "pathlib.Path.rglob", "sqlite3.connect", "time.sleep", "urllib.Request", "webbrowser.open",
        *(
            f"os.{name}" for name in (
                "chdir", "chmod", "chown", "exec", "fork", "forkpty", "kill", "link", "listdir", "listxattr", "mkdir",
                "posix_spawn", "putenv", "remove", "rename", "rmdir", "scandir", "spawn", "startfile", "symlink",
                "system", "truncate", "unsetenv", "utime", "walk",
            )
        ),
    }
)  # fmt: skip
_FAMILIES = (
    "ftplib.",
    "http.client.",
    "imaplib.",
    "poplib.",
    "shutil.",
    "smtplib.",
    "socket.",
    "subprocess.",
    "tempfile.",
)
_CALLS = {
    call: name
    for name, call in (
        *((f"time.{name}", getattr(time, name)) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "sleep")),
        ("time.perf_counter", time.perf_counter),
        *((f"datetime.{name}", getattr(dt.datetime, name)) for name in ("now", "utcnow", "today")),
        ("date.today", dt.date.today),
        ("random", random.random),
        ("random", random.getrandbits),
        ("os.urandom", os.urandom),
        ("_thread.start_new_thread", _thread.start_new_thread),
    )
}
_CODES = {os.environ.__class__.__getitem__.__code__: "os.environ", os.environ.__class__.__iter__.__code__: "os.environ"}
_OURS = {"time.sleep": "sleep", "random": "rng", "os.urandom": "uuid4 or rng"}
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"
_MAY = ("<frozen importlib", "<frozen zipimport", *(
    _LIBRARY + name for name in (
        "bdb.py", "importlib" + os.sep, "linecache.py", "logging" + os.sep, "pdb.py", "tokenize.py", "traceback.py",
        "warnings.py", "zoneinfo" + os.sep,
    )
))  # fmt: skip
"""What Python itself does for a body: lazy imports, log records, warnings, time zones. It changes nothing."""
_DEBUGGERS = ("pydevd", "_pydevd_")
"""How the modules of editors' debuggers are called: what a person evaluates at a stop is none of the body's doing."""
_ASSERTIONS = f"{os.sep}_pytest{os.sep}assertion{os.sep}"
"""What pytest does to explain an `assert` that failed."""
_TIME_ZONES = f"{os.sep}zoneinfo{os.sep}"
_FINALIZE = cast(Any, weakref.finalize).__call__.__code__
_ASYNCIO = os.path.dirname(asyncio.__file__) + os.sep
_TRIO = f"{_INSTALLED}trio{os.sep}"
_LOOPS = (_ASYNCIO, f"{os.sep}anyio{os.sep}", f"{os.sep}sniffio{os.sep}", _TRIO)
_INSTEAD = {
    "TaskGroup": "open_nursery", "create_task": "open_nursery", "ensure_future": "open_nursery",
    "gather": "open_nursery or each", "sleep": "sleep", "timeout": "fail_after", "timeout_at": "fail_after",
    "wait": "first", "wait_for": "fail_after", "as_completed": "open_nursery or each", "Queue": "open_memory_channel",
    "Event": "Event", "Lock": "Semaphore", "Semaphore": "Semaphore", "BoundedSemaphore": "Semaphore",
}  # fmt: skip
"""Of asyncio, and of ours."""
FILES_MAX = 100
"""Of one traceback that are looked at."""
_DRIVE = PACKAGE + os.path.join("kernel", "drive.py")


class _Here(threading.local):
    is_body = False
    checks_calls = False
    collecting = 0  # the garbage collector is at work
    shown: frozenset[str] = frozenset()  # files whose lines Python shows, of an error that nobody could raise
    broken: ForeignAwait | None = None
    profile_before: Any = None


_here = _Here()


def enter_body() -> None:
    """From now on this thread runs a body."""
    _here.is_body, _here.broken, _here.shown = True, None, frozenset()
    if _here.checks_calls and sys.getprofile() is None:
        sys.setprofile(_profile)


def leave_body() -> ForeignAwait | None:
    """It does no more. What it did that it must not, if anything: the first one."""
    if _here.checks_calls and sys.getprofile() is _profile:
        sys.setprofile(None)
    _here.is_body, broken, _here.broken = False, _here.broken, None
    return broken


def refuse(error: ForeignAwait) -> ForeignAwait:
    """To be raised at the body's line; the run is blocked, whatever the body makes of it."""
    if not _is_of_others(sys._getframe(1)):  # pyright: ignore[reportPrivateUsage] - documented
        _here.broken = _here.broken or error
    return error


def _is_of_others(frame: FrameType | None) -> bool:
    """Return whether it happens while a body runs, and is none of its doing: the garbage collector's, a finalizer's, or
    the hook's that is told what a finalizer raised."""
    if _here.collecting:
        return True
    theirs = {getattr(callback, "__code__", None) for callback in (*gc.callbacks, sys.unraisablehook)}
    while frame is not None and frame.f_code.co_filename != _DRIVE:
        code = frame.f_code
        if code in theirs or code is _FINALIZE or code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _on_collection(phase: str, info: dict[str, int], here: _Here = _here) -> None:
    """Finalizers of anybody's garbage run between the two."""
    here.collecting = 1 if phase == "start" else 0


@contextmanager
def calls_checked() -> Generator[None]:
    """Within the block bodies in this thread may not ask for the time or chance either."""
    before, _here.checks_calls = _here.checks_calls, True
    try:
        yield
    finally:
        _here.checks_calls = before


@functools.cache
def watch_bodies() -> None:
    """From now on bodies in this process are told of files, sockets and processes. Idempotent."""
    gc.callbacks.append(_on_collection)
    sys.addaudithook(_audit)
    setattr(threading.Condition, "wait", _refusing_to_wait(threading.Condition.wait))  # noqa: B010 - mypy
    for module, names in (
        (asyncio.events, ("_get_event_loop", "_get_running_loop", "get_event_loop", "get_running_loop")),
        (asyncio.tasks, ("current_task",)),
        (asyncio, ("current_task", "get_event_loop", "get_running_loop")),
    ):
        for name in names:
            if (function := getattr(module, name, None)) is not None:
                setattr(module, name, _refusing(function, f"asyncio.{name.lstrip('_')}"))
    # Futures and tasks ask this class in C. Which of its errors they get depends on what the thread did before.
    for name in ("BaseDefaultEventLoopPolicy", "_BaseDefaultEventLoopPolicy"):  # the latter from Python 3.14 on
        if (policy := getattr(asyncio.events, name, None)) is not None:
            policy.get_event_loop = _refusing(policy.get_event_loop, "asyncio's event loop")
            break
    # what `trio.run`, its guest mode and `trio.from_thread` come to, by whatever name a body has them
    for place, name in (("trio._core._run", "setup_runner"), ("trio._threads", "_send_message_to_trio")):
        if (function := getattr(sys.modules.get(place), name, None)) is not None:
            setattr(sys.modules[place], name, _refusing(function, "trio"))


def _audit(event: str, arguments: tuple[Any, ...], here: _Here = _here) -> None:
    """``here`` is held by it: at the end of the process the module's names are gone before the hook is."""
    if not here.is_body:
        return
    if event == "sys.unraisablehook":
        here.shown = _files_of(arguments[1])
    elif event in _EVENTS or event.startswith(_FAMILIES):
        # read in C, without a frame of zoneinfo's, or of what shows a traceback
        if event == "open" and (_TIME_ZONES in str(arguments[0]) or os.path.basename(str(arguments[0])) in here.shown):
            return
        _check(event, sys._getframe(1))  # pyright: ignore[reportPrivateUsage] - documented


def _refusing(function: Callable[..., Any], asked_for: str) -> Callable[..., Any]:
    """What asks for a loop: in a body there is none, and the error that tells so would end the run for good."""

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if _here.is_body:
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - documented
            file = frame.f_code.co_filename
            # a library that only asks whether there is a loop goes on without one
            is_asked = file.startswith(_ASYNCIO) or _TRIO in file or not _is_library(file)
            if is_asked and not _is_of_others(frame):
                stack = [each for each, _ in traceback.walk_stack(frame)][::-1]
                raise refuse(_foreign_loop(stack, asked_for))
        return function(*args, **kwargs)

    return asked


def _refusing_to_wait(wait: Callable[..., bool]) -> Callable[..., bool]:
    """Return the ``wait`` of a condition that refuses to block a workflow function's thread.

    Events, queues, semaphores, barriers and futures of threads wait by it. Nobody could end such a wait: it would hold
    up each run of this process.
    """

    @functools.wraps(wait)
    def waiting(condition: threading.Condition, timeout: float | None = None) -> bool:
        if _here.is_body:
            _check("threading.Condition.wait", sys._getframe(1))  # pyright: ignore[reportPrivateUsage] - documented
        return wait(condition, timeout)

    return waiting


def _foreign_loop(frames: list[FrameType], asked: str = "asyncio") -> ForeignAwait:
    """``frames``: outermost first, up to what needs a loop of another kind. The line is the user's. ``asked``: what it
    called itself, where that has no frame."""
    started = next((i for i in range(len(frames) - 1, -1, -1) if frames[i].f_code.co_filename == _DRIVE), -1)
    inside = [each for each in frames[started + 1 :] if not each.f_code.co_filename.startswith((PACKAGE, "<"))]
    own = [i for i, each in enumerate(inside) if not _is_library(each.f_code.co_filename)]
    user = inside[own[-1]]
    place = f"{os.path.basename(user.f_code.co_filename)}:{user.f_lineno}"
    what = _written(inside[own[-1] + 1]) if own[-1] + 1 < len(inside) else asked
    module, _, name = what.partition(".")
    ours = _INSTEAD.get(name.partition(".")[0]) if module == "asyncio" else None
    hint = f"Use penstock.durable.{ours}, or move it into a step." if ours else "Move it into a step."
    return ForeignAwait(f"{place} uses {what} in a workflow function. {hint}")


def _written(called: FrameType) -> str:
    """What the user's line calls, as it is written there: ``asyncio.Queue.get``, ``asyncio.Lock``, ``httpx.get``."""
    names, code = called.f_locals, called.f_code
    owner = names.get(code.co_varnames[0]) if code.co_argcount and code.co_varnames[0] in ("self", "cls") else None
    made = vars(owner).get("gen") if type(owner).__module__ == "contextlib" else None
    if isinstance(made, GeneratorType) and made.gi_frame is not None:  # a context manager that is a generator
        called, code, owner = made.gi_frame, made.gi_code, None
    module = str(called.f_globals.get("__name__", "")) or "a library"
    package = module.partition(".")[0]
    if owner is None:
        is_named = package == "asyncio" or code.co_name in vars(sys.modules.get(package, sys))
        return f"{package if is_named else module}.{code.co_name}"
    kind = owner if isinstance(owner, type) else type(owner)
    class_ = next((each for each in kind.__mro__ if each.__module__.partition(".")[0] == package), kind)
    if class_.__module__.startswith("concurrent.futures."):  # a package within one
        package = "concurrent.futures"
    return f"{package}.{class_.__name__}" + ("" if code.co_name.startswith("_") else f".{code.co_name}")


def foreign_end(error: BaseException | None) -> ForeignAwait | None:
    """For a body that ended as an event loop of another kind is not there: it is blocked instead."""
    if isinstance(error, BaseExceptionGroup):
        found = map(foreign_end, cast("BaseExceptionGroup[BaseException]", error).exceptions)
        return next((each for each in found if each is not None), None)
    if not isinstance(error, RuntimeError):
        return None
    frames = [each for each, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or not any(each in frames[-1].f_code.co_filename for each in _LOOPS):
        return None
    return _foreign_loop(frames) if any(not _is_library(each.f_code.co_filename) for each in frames) else None


def _files_of(unraisable: Any) -> frozenset[str]:
    """Whose lines are shown with an error that nobody could raise."""
    names: set[str] = set()
    at: TracebackType | None = unraisable.exc_traceback
    while at is not None and len(names) < FILES_MAX:
        names.add(os.path.basename(at.tb_frame.f_code.co_filename))
        at = at.tb_next
    return frozenset(names)


def _profile(frame: FrameType, event: str, argument: Any) -> None:
    if event == "c_call":
        try:
            name = _CALLS.get(argument)
        except TypeError:  # a method of something without a hash
            return
    else:
        name = _CODES.get(frame.f_code) if event == "call" else None
    if name is not None and _here.is_body:
        _check(name, frame)


def _check(used: str, frame: FrameType | None) -> None:
    """Raises for a call of the body, or of what it calls."""
    frames: list[FrameType] = []
    if _is_of_others(frame):
        return
    while frame is not None and frame.f_code.co_filename != _DRIVE:
        if frame.f_code.co_filename.startswith(_MAY) or _ASSERTIONS in frame.f_code.co_filename:
            return
        if str(frame.f_globals.get("__name__", "")).startswith(_DEBUGGERS):
            return
        frames.append(frame)
        frame = frame.f_back
    own = [each for each in frames if not each.f_code.co_filename.startswith((PACKAGE, "<"))]
    if frame is None or not own:
        return
    theirs = [each for each in own if not _is_library(each.f_code.co_filename)] or own[-1:]
    by = own[: own.index(theirs[0])]  # what the user's line called, innermost first
    on_loop = any(at in each.f_code.co_filename for each in by for at in _LOOPS)
    if on_loop and not _is_library(theirs[0].f_code.co_filename):
        raise refuse(_foreign_loop(frames[::-1]))
    if by and _INSTALLED in by[-1].f_code.co_filename:
        used = f"{used} ({_written(by[-1])})"
    elif by and used == "threading.Condition.wait":
        used = _written(by[-1])
    place = f"{os.path.basename(theirs[0].f_code.co_filename)}:{theirs[0].f_lineno}"
    ours = _OURS.get(used, "now" if used.startswith(("time.", "date")) else None)
    hint = f"Use penstock.durable.{ours}, or move it into a step." if ours else "Move it into a step."
    raise refuse(ForeignAwait(f"{place} uses {used} in a workflow function. {hint}"))


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARY) or _INSTALLED in file
