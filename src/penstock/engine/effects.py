"""What a transaction of the wide lane does to this engine's memory, gathered while it is decided upon.

Carried out by `WideLane.committed` once the transaction is known to be committed, never before.
"""

from __future__ import annotations

from datetime import datetime

from penstock.engine.definitions import LoadedDefinition
from penstock.engine.poll_items import HandOver
from penstock.engine.variables import FOLD_MIN_DELTAS
from penstock.store.wide import Change


class Effects:
    """What a transaction does to this engine's memory, once it is known to be committed."""

    def __init__(self) -> None:
        self.overs: list[HandOver] = []
        self.queued: list[str] = []
        self.armed: list[datetime] = []
        self.changes: list[tuple[Change, LoadedDefinition]] = []

    def take(self, other: Effects) -> None:
        """Add another's."""
        self.overs += other.overs
        self.queued += other.queued
        self.armed += other.armed
        self.changes += other.changes

    def long_runs(self) -> list[int]:
        """The instances whose variable deltas are due to be folded. Their tokens are all locked here."""
        return [
            change.outcome.instance.id
            for change, _ in self.changes
            if not change.outcome.ended
            and any(token.unfolded >= FOLD_MIN_DELTAS for token in (*change.outcome.inserted, *change.outcome.updated))
        ]
