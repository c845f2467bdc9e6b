"""Timers: asleep until the next one is due, woken by whatever arms an earlier one, here or in another engine.

One read finds what is due and how long the next one has; nothing is read while nothing is due. A million armed timers
cost one index probe a look. A timer is deleted in the transaction that acts on it, never before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

import trio

from penstock.errors import PenstockError
from penstock.log import RateLimitedLog, get_logger
from penstock.store import wide as store
from penstock.store.database import Database

DUE_MAX = 500
"""Timers taken at a look."""
LOOK_INTERVAL_MAX_S = 5.0
"""So long at most between two looks: covers a lost wake-up from another engine."""

_refusals = RateLimitedLog(get_logger(__name__), interval_seconds=10)

Fire = Callable[[int, tuple[int, int, int]], Awaitable[bool]]


class Timers:
    """Finds due timers and fires them. Every engine does: who comes second finds the timer gone."""

    def __init__(self, database: Database, fire: Fire) -> None:
        self._database = database
        self._fire = fire
        self._next_at = 0.0  # trio time of the next look
        self._wake = trio.Event()
        self.on_armed: Callable[[float], None] = lambda seconds: None

    def note_armed(self, fire_at: datetime, now: datetime) -> None:
        """A transaction armed a timer; ``now`` is the database's time in it."""
        seconds = (fire_at - now).total_seconds()
        if self._bring_forward(seconds):
            self.on_armed(seconds)

    def hint(self, seconds: float) -> None:
        """Another engine armed a timer that is due in so many seconds."""
        self._bring_forward(seconds)

    def _bring_forward(self, seconds: float) -> bool:
        at = trio.current_time() + max(seconds, 0)
        if at >= self._next_at:
            return False
        self._next_at = at
        self._wake.set()
        return True

    async def wait_due(self) -> None:
        """Wait until it is time to look."""
        while True:
            with trio.move_on_at(self._next_at):
                await self._wake.wait()
            self._wake = trio.Event()
            if trio.current_time() >= self._next_at:
                return

    async def fire_once(self) -> int:
        """Fire what is due. How many fired here."""
        self._next_at = trio.current_time() + LOOK_INTERVAL_MAX_S
        async with self._database.connection() as connection:
            found = await store.due_timers(connection, DUE_MAX)
        looked_at = trio.current_time()
        due = [row for row in found if row[4] <= 0]
        fired = 0

        async def fire(instance: int, timer: tuple[int, int, int]) -> None:
            nonlocal fired
            try:
                done = await self._fire(instance, timer)
                fired += done
            except PenstockError as error:  # it stays, and comes again with the next look
                _refusals.warning(
                    error.code, "a timer could not be fired", instance=f"{instance:x}", reason=error.reason
                )

        async with trio.open_nursery() as nursery:
            for token, seq, index, instance, _ in due:
                nursery.start_soon(fire, instance, (token, seq, index))
        if len(due) == len(found) == DUE_MAX and fired:
            self._next_at = trio.current_time()
        elif len(due) < len(found):
            self._next_at = min(self._next_at, looked_at + found[len(due)][4])
        return fired
