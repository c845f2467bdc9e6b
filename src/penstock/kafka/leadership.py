"""Which of the engines on a database publishes: the one whose session holds an advisory lock.

The lock lives on a connection of its own, whose session the server ends when it hears nothing of it for
`IDLE_TIMEOUT_S`. The leader speaks every `PING_INTERVAL_S` and trusts its lock only until `TRUST_S` after it *sent*
what the server answered last: the server hears that later than it was sent, so while the trust lasts the lock is held,
and nobody else leads. A leader that is stopped, starved or cut off thus ends its own trust first, then loses its
session, and another one takes over after `IDLE_TIMEOUT_S` + `TRY_INTERVAL_S` at most; after one that dies, whose
connection closes, within `TRY_INTERVAL_S`. Clocks are not compared.

A hint where it matters most: a leader can be stopped between the look at its trust and the sending. `relay.py` says why
that is harmless. Must not know what leaders do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from penstock.log.log import get_logger
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, TryAgain
from penstock.store.rows import outbox as store

IDLE_TIMEOUT_S: Final = 6.0
TRUST_S: Final = 5.0
PING_INTERVAL_S: Final = 1.0
TRY_INTERVAL_S: Final = 0.5

log = get_logger(__name__)


class Leadership:
    """One engine's candidacy. ``step`` is the service; everything else only looks."""

    def __init__(self, database: Database, on_change: Callable[[bool], None] = lambda leads: None) -> None:
        self._database = database
        self._on_change = on_change
        self._trusted_until = float("-inf")
        self._elected = trio.Event()

    def leads(self) -> bool:
        """Return whether this engine is surely the only one that leads, now."""
        return trio.current_time() < self._trusted_until

    async def wait_leading(self) -> None:
        """Wait until this engine leads."""
        while not self.leads():
            await self._elected.wait()
            if not self.leads():  # elected, but not heard of for long: the next answer tells
                await trio.sleep(TRY_INTERVAL_S)

    async def step(self) -> None:
        """Wait for the lock, then keep it until the session is lost; then raises."""
        connection = await TrioConnection.connect(self._database.dsn)
        try:
            await self._win(connection)
            log.info("this engine publishes the outbox to Kafka from now on")
            self._on_change(True)
            while True:
                await trio.sleep(PING_INTERVAL_S)
                await self._check_answered(connection)
        finally:
            if self._elected.is_set():
                self._elected = trio.Event()
                self._trusted_until = float("-inf")
                self._on_change(False)
                log.info("this engine no longer publishes the outbox to Kafka")
            connection.close_nowait()  # the server ends the session, and with it the lock

    async def _win(self, connection: TrioConnection) -> None:
        await store.end_when_idle(connection, IDLE_TIMEOUT_S)
        while True:
            sent_at = trio.current_time()
            with trio.move_on_after(TRUST_S):
                if await store.lead(connection):
                    self._trusted_until = sent_at + TRUST_S
                    self._elected.set()
                    return
                await trio.sleep(TRY_INTERVAL_S)
                continue
            raise TryAgain("the server does not answer on the connection that elects the relay")

    async def _check_answered(self, connection: TrioConnection) -> None:
        sent_at = trio.current_time()
        with trio.move_on_after(TRUST_S):
            await store.still_leading(connection)
            self._trusted_until = sent_at + TRUST_S
            return
        raise TryAgain("the server does not answer on the connection that elects the relay")
