"""How a run failed, for people: what was raised, and where in the user's code."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Sequence

from penstock.kernel.branch import PACKAGE
from penstock.log.masking import mask_text
from penstock.user_text import said, text_of, with_short_tracebacks

MAX_CHARS = 4_000
TRACEBACK_MAX_CHARS = 16_000
"""In a log; of a longer one the end, which has the error."""
MAX_LEAVES = 10
_PYTHON = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_LOOPS = ("trio", "outcome")
"""Between a step and us."""
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})


def describe(error: BaseException) -> str:
    """Return one line for each error that ended the run: ``Declined: no money (order.py:41)``."""
    leaves = _leaves(error)
    lines = [_line(leaf) for leaf in leaves[:MAX_LEAVES]]
    if len(leaves) > MAX_LEAVES:
        lines.append(f"and {len(leaves) - MAX_LEAVES} more")
    return "; ".join(lines)[:MAX_CHARS]


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    found: list[BaseException] = []
    for each in error.exceptions:  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] - of any type
        found.extend(_leaves(each))  # pyright: ignore[reportUnknownArgumentType] - as above
    return found


def _line(error: BaseException) -> str:
    name, message = type(error).__name__, text_of(error, MAX_CHARS)
    frame = user_frame(traceback.extract_tb(error.__traceback__))
    place = f" ({os.path.basename(frame.filename)}:{frame.lineno})" if frame is not None else ""
    return f"{name}: {message}{place}" if message else f"{name}{place}"


def user_frame(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    """Return the innermost frame of the user's code: not ours, Python's, or a library's that the user's code has
    called.

    Code that is installed among the libraries, as a service is in a container, is the user's if the outermost frame is
    of the same package.
    """
    own = [frame for frame in frames if not _is_foreign(frame.filename)]
    if not own:
        return None
    package = _package(own[0].filename)
    return next(frame for frame in reversed(own) if _package(frame.filename) in (package, None))


def traceback_of(error: BaseException) -> str:
    """Return the traceback for a log, without the frames of ours and of Trio's. Never fails."""

    def format_error() -> str:
        formatted = traceback.TracebackException.from_exception(with_short_tracebacks(error))
        todo, seen = [formatted], set[int]()
        while todo:
            each = todo.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            kept = [
                frame
                for frame in each.stack
                if not frame.filename.startswith(PACKAGE) and _package(frame.filename) not in _LOOPS
            ]
            each.stack = traceback.StackSummary.from_list(kept)
            todo += [other for other in (each.__cause__, each.__context__) if other is not None]
            todo += each.exceptions or ()
        return "".join(formatted.format())

    return mask_text(said(format_error))[-TRACEBACK_MAX_CHARS:].rstrip()


def _is_foreign(filename: str) -> bool:
    if filename.startswith(("<frozen", PACKAGE)):
        return True
    package = _package(filename)
    return package in _LOOPS or (package is None and filename.startswith(_PYTHON))


def _package(filename: str) -> str | None:
    """Of a file among the installed libraries: which one it is of."""
    for folder in _LIBRARIES:
        if filename.startswith(folder):
            return filename[len(folder) :].split(os.sep, maxsplit=1)[0]
    return None
