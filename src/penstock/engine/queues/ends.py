"""Who waits for instances to end. What ends in this engine is told at once; for the others one statement asks for all
of them, five times a second, while anybody waits.

A parked call costs nothing else. What an engine says at its stop: as if the time were over.
"""

from __future__ import annotations

from typing import Final

import trio

from penstock.errors import TooManyRequests
from penstock.store.db.database import Database
from penstock.store.rows import instances as store

POLL_INTERVAL_S: Final = 0.2
SCAN_MAX_INSTANCES: Final = 1_000
"""One statement asks for so many."""
WAITING_MAX: Final = 10_000
"""Calls that wait at once in one engine."""


class Ends:
    """Those who wait, by instance."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[int, set[trio.Event]] = {}
        self.calls = 0
        """That are parked."""
        self._somebody = trio.Event()
        self._draining = False

    async def wait(self, instance: int, wait_s: float) -> None:
        """Until the instance has ended, or is not there, or the time is over. Raises TooManyRequests."""
        if self.calls >= WAITING_MAX:
            raise TooManyRequests(f"{WAITING_MAX} calls wait for instances to end")
        async with self._database.connection() as connection:
            if await store.find_ended(connection, [instance]):
                return
        await self._park(instance, wait_s)

    async def wait_started(self, instance: int, wait_s: float) -> None:
        """As `wait`, of one that was started just now: where too many wait, it is not waited for."""
        if self.calls < WAITING_MAX:
            await self._park(instance, wait_s)

    async def _park(self, instance: int, wait_s: float) -> None:
        if self._draining:
            return
        ended = trio.Event()
        self.calls += 1
        self._waiting.setdefault(instance, set()).add(ended)
        self._somebody.set()
        try:
            with trio.move_on_after(wait_s):
                await ended.wait()
        finally:
            self.calls -= 1
            others = self._waiting.get(instance, set())
            others.discard(ended)
            if not others:
                self._waiting.pop(instance, None)

    async def step(self) -> None:
        """One round of the service loop."""
        await self._somebody.wait()
        await trio.sleep(POLL_INTERVAL_S)
        await self.scan_once()

    async def scan_once(self) -> int:
        """Answer those whose instances have ended; how many instances."""
        asked = list(self._waiting)
        if not asked:
            self._somebody = trio.Event()
        found = 0
        for begin in range(0, len(asked), SCAN_MAX_INSTANCES):
            async with self._database.connection(ahead=True) as connection:
                ended = await store.find_ended(connection, asked[begin : begin + SCAN_MAX_INSTANCES])
            for instance in ended:
                self.notify(instance)
            found += len(ended)
        return found

    def drain(self) -> None:
        """Answer all who wait, and new ones at once."""
        self._draining = True
        for instance in list(self._waiting):
            self.notify(instance)

    def notify(self, instance: int) -> None:
        """It has ended."""
        for event in self._waiting.get(instance, ()):
            event.set()
