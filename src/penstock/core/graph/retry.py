"""When a failed job is tried again."""

from __future__ import annotations

import math
from typing import Final

from penstock.core.graph.definition import Backoff
from penstock.core.time.duration import DURATION_MAX_DAYS

BACKOFF_DEFAULT_MAX_S: Final = 3_600.0
DELAY_MAX_S: Final = 86_400.0 * DURATION_MAX_DAYS
"""Of a delay that a worker wishes."""


def wished_s(seconds: float | None) -> float | None:
    """A worker's wish as a pause that can be kept: gRPC also brings NaN and the infinities, JSON whole numbers beyond
    any float."""
    if seconds is None:
        return None
    pause_s = float(min(max(seconds, 0.0), DELAY_MAX_S))
    return None if math.isnan(pause_s) else pause_s


def longest_s(initial_s: float, given_s: float | None) -> float:
    """The longest pause of a back-off, where ``given_s`` is said of it."""
    return max(BACKOFF_DEFAULT_MAX_S, initial_s) if given_s is None else given_s


def backoff_s(backoff: Backoff | None, failures: int, jitter: float) -> float:
    """Seconds to wait after the ``failures``-th failure (1, 2, …); 0 without a back-off.

    The delay is ``initial * multiplier ** (failures - 1)``, at most ``max``, less a random part: ``jitter`` in [0, 1)
    scales how much of the step's own ``jitter`` share is taken off.
    """
    if backoff is None:
        return 0.0
    try:
        delay_s = backoff.initial_s * backoff.multiplier ** (failures - 1)
    except OverflowError:
        delay_s = backoff.max_s
    delay_s = min(delay_s, backoff.max_s)
    return delay_s * (1.0 - backoff.jitter * jitter)
