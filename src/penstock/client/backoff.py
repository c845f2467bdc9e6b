"""Growing, jittered pauses between attempts, so that many clients do not come back at the same instant."""

from __future__ import annotations

import random

from penstock.client.errors import Unavailable

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0
MAX_RETRY_AFTER_S = 60.0


class RetryPauses:
    """Pauses that double from ``first_s`` up to ``max_s``, each shortened by a random part of up to half."""

    def __init__(self, first_s: float = FIRST_PAUSE_S, max_s: float = MAX_PAUSE_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    def next_pause_s(self, error: Unavailable | None = None) -> float:
        """Return the length of the next pause in seconds; not less than what the error asks for (up to a minute)."""
        pause_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._max_s)
        if error is None or error.retry_after_s is None:
            return pause_s
        # Spread upwards: all who were turned away together were told the same.
        return max(pause_s, min(error.retry_after_s, MAX_RETRY_AFTER_S) * random.uniform(1.0, 1.25))

    def reset(self) -> None:
        """Begin again with the shortest pause: something succeeded."""
        self._next_s = self._first_s
