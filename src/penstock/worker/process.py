"""What runs inside a worker process: one call of a handler.

Started by anyio's process pool, which talks to its processes through pipes and pickles function, arguments and
result. Imports as little as possible: every process pays for it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any


class HandlerEnded(Exception):
    """The handler tried to end its process; raised in the parent in place of that."""


def call(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Call the function. SIGINT and SIGTERM go to whole process groups: the worker decides what ends, and kills."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        return function(*arguments)
    except SystemExit as error:
        raise HandlerEnded(f"SystemExit: {error}") from error
