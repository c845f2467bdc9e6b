"""Calls that a workflow function has made and not awaited yet. One that it drops without an `await` has done nothing.

Only the kernel drives what is inside. Must not raise where the call is dropped: nobody would see it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial, wraps
from types import CodeType, FrameType
from typing import Any, NoReturn, ParamSpec, TypeVar

from penstock.kernel.branch import PACKAGE, Branch
from penstock.kernel.current import running
from penstock.kernel.errors import NotAwaited

P = ParamSpec("P")
R = TypeVar("R")
_TAKEN = "taken"
_DRIVE = PACKAGE + os.path.join("kernel", "drive.py")


class Unawaited(Coroutine[Any, Any, R]):
    """A call of a step or verb. It warns its kernel if the branch that made it drops it, unless that was cancelled."""

    __slots__ = ("_begin", "_branch", "_coroutine", "_name", "_place", "_scope")

    def __init__(self, branch: Branch, name: str, begin: Callable[[], Coroutine[Any, Any, R]]) -> None:
        """``begin`` makes the coroutine: one that was made and never awaited would make Python warn, too."""
        self._branch, self._scope, self._name, self._begin = branch, branch.scope, name, begin
        self._coroutine: Coroutine[Any, Any, R] | None = None
        self._place: str | None = None
        self._place = _place(sys._getframe(2)) if _kept.places else None  # pyright: ignore[reportPrivateUsage] - documented

    def __await__(self) -> Generator[Any, Any, R]:
        return self.taken().__await__()

    def taken(self) -> Coroutine[Any, Any, R]:
        """Return the coroutine, for whoever awaits or closes it."""
        if self._coroutine is None:
            self._coroutine = self._begin()
        return self._coroutine

    def send(self, value: Any) -> Any:
        """As of any coroutine."""
        return self.taken().send(value)

    def throw(self, *args: Any) -> Any:
        """As of any coroutine."""
        return self.taken().throw(*args)

    def close(self) -> None:
        """As of any coroutine."""
        self.taken().close()

    def why(self) -> str:
        """Say that it is no value, where it is taken for one."""
        return self._text(sys._getframe(1))  # pyright: ignore[reportPrivateUsage] - documented

    def __getattr__(self, name: str) -> NoReturn:
        if name in Unawaited.__slots__:  # it was not made: the stack was full
            raise AttributeError(name)
        text = self._text(sys._getframe(1))  # pyright: ignore[reportPrivateUsage] - documented
        if not name.startswith("__"):
            self._warn(text)
        raise AttributeError(f"{name!r} is not an attribute of a call: {text}")

    def __del__(self) -> None:
        if getattr(self, "_coroutine", self) is None:
            self._warn(self._text(sys._getframe().f_back))  # pyright: ignore[reportPrivateUsage] - documented

    def _warn(self, text: str) -> None:
        branch, scope = self._branch, self._scope
        if scope.cancel_called or scope.effective or branch.scope.effective:
            return  # what should await it was not reached
        kernel = branch.kernel
        if running.branch is branch and not kernel.discarded and kernel.warn is not None:
            kernel.warn(NotAwaited(text))

    def _text(self, frame: FrameType | None) -> str:
        """``frame`` drops it: that of the user's line, ours where it was kept to the end of the function, or none."""
        place = self._place
        if place is None and frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            place = _place(frame)
        if place is None:
            code: CodeType | None = getattr(self._branch.coroutine, "cr_code", None)
            where = "" if code is None else f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
            place = ("a workflow function" if code is None else code.co_name) + where
        return f"{place} calls {self._name}() without await, so it has not been done. Write `await` before it"


class _Kept:
    places = False


_kept = _Kept()


@contextmanager
def places_kept() -> Generator[None]:
    """For the block each call knows its line, also where it is dropped on another one. That takes memory: 200 bytes for
    each coroutine that waits, for the frame object which it then has."""
    before, _kept.places = _kept.places, True
    try:
        yield
    finally:
        _kept.places = before


@contextmanager
def calls_watched(asked: Callable[[Branch, FrameType | None], None]) -> Generator[None]:
    """For the block ``asked`` is called before each call of a step or verb begins: with its branch, and with the
    innermost frame outside of Penstock, None where no line of the user's awaits it. For debuggers: other blocks pay
    nothing for it."""
    plain: Callable[[Any], Coroutine[Any, Any, Any]] = vars(Unawaited)[_TAKEN]

    def taken(self: Any) -> Coroutine[Any, Any, Any]:
        branch = running.branch
        if self._coroutine is None and branch is not None and not branch.kernel.discarded:
            asked(branch, _user_frame(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage] - documented
        return plain(self)

    setattr(Unawaited, _TAKEN, taken)
    try:
        yield
    finally:
        setattr(Unawaited, _TAKEN, plain)


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not ours; none where that which drives the branch comes first, or where a nursery
    takes the call for a branch of its own."""
    while frame is not None and frame.f_code.co_filename != _DRIVE:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return frame
        frame = frame.f_back
    return None


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def awaited(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return a verb of workflow functions; a call that is not awaited is told of."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        branch = running.branch
        if branch is None:
            return function(*args, **kwargs)
        return Unawaited(branch, function.__name__, partial(function, *args, **kwargs))

    return call
