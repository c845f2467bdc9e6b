"""Waiting, in threads and processes, for what nothing announces."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
WAIT_TIMEOUT_S = 90.0
POLL_INTERVAL_S = 0.02


def wait_until(condition: Callable[[], T], timeout_s: float = WAIT_TIMEOUT_S) -> T:
    """The first true value of ``condition``; fails after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(POLL_INTERVAL_S)
    return value
