"""Keeps a talkative library's log short: one line per message and interval, with how many were left out.

For aiokafka, which writes a line per attempt to connect: 1,220 errors in one outage of a minute. A leaf of the standard
library only: the engine and the Python worker both use it. Levels, formats and outputs stay whose they are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 30.0
MAX_MESSAGES: Final = 200


class ThrottledLogger(logging.Handler):
    """Stands between a library's logger (and all below it) and the root logger's handlers.

    Args:
        interval_s: of the lines with one message (before its arguments are put in), the first in so many seconds is
            passed on.
        clock: seconds, monotonic.
    """

    def __init__(self, *, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``, which holds a lock meanwhile."""
        key = (record.name, str(record.msg))
        now = self._clock()
        last, left_out = self._seen.get(key, (float("-inf"), 0))
        if now - last < self._interval_s:
            self._seen[key] = (last, left_out + 1)
            return
        if len(self._seen) >= MAX_MESSAGES:
            self._seen.clear()
        self._seen[key] = (now, 0)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more in between)", None
        logging.getLogger().handle(record)


def throttle(name: str) -> None:
    """From now on the lines of the logger ``name``, and of all loggers below it, are throttled. May be repeated."""
    logger = logging.getLogger(name)
    if not any(isinstance(handler, ThrottledLogger) for handler in logger.handlers):
        logger.addHandler(ThrottledLogger())
        logger.propagate = False
