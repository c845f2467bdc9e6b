"""How often a client may do what costs us more than it: both HTTP servers and gRPC."""

from __future__ import annotations

import trio


class Allowance:
    """A token bucket on Trio's clock: ``take()`` until it is empty, refilled with time and by ``give()``."""

    __slots__ = ("_left", "_per_s", "_since", "_size")

    def __init__(self, size: int, per_s: float) -> None:
        self._size = float(size)
        self._per_s = per_s
        self._left = float(size)
        self._since = trio.current_time()

    def take(self) -> bool:
        """Take one; False when there is none."""
        now = trio.current_time()
        self._left = min(self._size, self._left + (now - self._since) * self._per_s)
        self._since = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def give(self, count: float = 1.0) -> None:
        """Put some back."""
        self._left = min(self._size, self._left + count)

    def refill(self) -> None:
        """Fill it up."""
        self._left = self._size
