"""What is printed for people: everything by `echo`, so that no stored text commands the terminal or forges a line.

Imports next to nothing, as it is needed before anything else. JSON is not printed by it: that stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from penstock.plain import escaped

__all__ = ["echo", "echo_lines", "escaped"]


def echo(text: str = "", *, err: bool = False) -> None:
    """Print one line, ``err``: on standard error."""
    print(escaped(text), file=sys.stderr if err else sys.stdout, flush=True)


def echo_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print several."""
    for line in lines:
        echo(line, err=err)
