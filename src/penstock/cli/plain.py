"""What is printed for people: everything by `echo`, so that no stored text commands the terminal or forges a line.

Imports next to nothing, as it is needed before anything else. JSON is not printed by it: that stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType

from penstock.plain import escaped, escaped_lines

__all__ = ["echo", "echo_lines", "escape_tracebacks", "escaped"]


def echo(text: str = "", *, err: bool = False) -> None:
    """Print one line, ``err``: on standard error."""
    print(escaped(text), file=sys.stderr if err else sys.stdout, flush=True)


def echo_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print several."""
    for line in lines:
        echo(line, err=err)


def escape_tracebacks() -> None:
    """A mistake of ours that ends a command may tell what somebody stored: show it escaped, too."""
    sys.excepthook = _show_traceback


def _show_traceback(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    import traceback

    print(escaped_lines("".join(traceback.format_exception(kind, error, where))), end="", file=sys.stderr, flush=True)
