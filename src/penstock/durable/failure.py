"""How a run failed, for people: what was raised, and where in the user's code."""

from __future__ import annotations

import os
import traceback

from penstock.kernel.branch import PACKAGE
from penstock.user_text import text_of

MAX_CHARS = 4_000
MAX_LEAVES = 10


def describe(error: BaseException) -> str:
    """One line for each error that ended the run: ``Declined: no money (order.py:41)``."""
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
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(PACKAGE)]
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{name}: {message}{place}" if message else f"{name}{place}"
