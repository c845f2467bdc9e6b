"""Notes of jobs that could not be forgotten with the jobs, as somebody held their table; they are forgotten later.

What an engine that is killed meanwhile remembered of them stays in the table, and is nobody's. Relies on
`store.db.connection`; knows no SQL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import Statement

STATEMENTS_MAX: Final = 10_000
"""What is remembered, a batch each; of those beyond it the notes stay, if there are any."""


class LeftNotes:
    """The deletions that are due when nobody holds `job_note` any more."""

    def __init__(self) -> None:
        self._due: list[Statement] = []

    def remember(self, deletions: Iterable[Statement]) -> None:
        """They are to be sent."""
        if len(self._due) < STATEMENTS_MAX:
            self._due += deletions

    async def forget(self, connection: TrioConnection, locked: Collection[str]) -> None:
        """Send them, unless their table is still among the ``locked``."""
        if self._due and "job_note" not in locked:
            due, self._due = self._due, []
            await connection.roundtrip(due)
