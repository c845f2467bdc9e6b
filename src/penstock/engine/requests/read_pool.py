"""The connections of people who look: two at a time in an engine, whatever they open, so that they starve nobody; and
of lists. Both go to a replica where there is one that is fit."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import trio

from penstock.errors import Unavailable
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.db.replica import Replica

READS_AT_ONCE: Final = 2
TURN_WAIT_S: Final = 2.0


class ReadPool:
    """One engine's."""

    def __init__(self, database: Database, replica: Replica | None = None) -> None:
        self._database = database
        self._replica = replica
        self._turns = trio.Semaphore(READS_AT_ONCE)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[TrioConnection]:
        """Raises Unavailable when others are still at it after `TURN_WAIT_S`."""
        with trio.move_on_after(TURN_WAIT_S) as scope:
            await self._turns.acquire()
        if scope.cancelled_caught:
            raise Unavailable("the engine is busy with other lists: try again")
        try:
            async with self.list_connection() as connection:
                yield connection
        finally:
            self._turns.release()

    @asynccontextmanager
    async def list_connection(self) -> AsyncGenerator[TrioConnection]:
        """For a list, which takes no turn. What was written a moment ago may be missing."""
        replica = self._replica
        database = replica.database if replica is not None and await replica.is_fit() else self._database
        async with database.connection() as connection:
            yield connection
