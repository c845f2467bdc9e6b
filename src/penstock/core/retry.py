"""When a failed job is tried again."""

from __future__ import annotations

from penstock.core.definition import Backoff


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
