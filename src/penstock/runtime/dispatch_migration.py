"""What another dispatch mode left behind: queued jobs that should be in the outbox, or rows that should be jobs.

Right after a switch that is everything that waits, a million jobs maybe: they are moved in batches, oldest first, while
the engine serves. Later there is nothing, except what an engine of the old mode committed that was taken for dead and
was not; so it is looked at again from time to time. Several engines take turns.
"""

from __future__ import annotations

from typing import Final

import trio

from penstock.engine.advance.quarantine import Portion
from penstock.engine.engine import Engine
from penstock.log.log import get_logger
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import DatabaseError
from penstock.store.rows import outbox as store

BATCH_ROWS: Final = 5_000
POLL_INTERVAL_S: Final = 10.0
REFUSED: Final = -1

log = get_logger(__name__)


class DispatchMigration:
    """Moves jobs to where this engine's mode looks for them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._moved = 0
        self._portion: Portion[int] = Portion(engine.quarantine, "dispatch migration", BATCH_ROWS)

    async def step(self) -> None:
        """One round of the service loop."""
        if not await self.run_once():
            await trio.sleep(POLL_INTERVAL_S)

    async def run_once(self) -> int:
        """Move one batch; how many rows went."""
        to_outbox = self._engine.settings.through_kafka
        async with self._engine.database.connection(patient=True) as connection:
            moved = 0
            if await store.anything_left(connection, to_outbox=to_outbox):
                moved = await self._move(connection, to_outbox)
                if moved == REFUSED:
                    return moved  # go on at once with less
        self._moved += moved
        if moved:
            self._engine.events.migrated()
        elif self._moved:
            log.info("jobs of another dispatch mode were moved", jobs=self._moved, to_outbox=to_outbox)
            self._moved = 0
        return moved

    async def _move(self, connection: TrioConnection, to_outbox: bool) -> int:
        quarantine = self._portion.waiting()
        try:
            moved = await store.migrate_dispatch(connection, self._portion.rows, quarantine, to_outbox=to_outbox)
        except DatabaseError as error:
            if not self._portion.shrink(error):
                token = await store.first_leftover(connection, quarantine, to_outbox=to_outbox)
                if token is not None:
                    self._portion.quarantine_row(token, f"token {token:x}", error)
            return REFUSED
        self._portion.grow()
        return moved
