"""What a transaction of the full path does to this engine's memory, gathered while it is decided upon.

Carried out by `FullPath.committed` once the transaction is known to be committed, never before.
"""

from __future__ import annotations

from datetime import datetime

from penstock.engine.definitions import LoadedDefinition
from penstock.engine.deliveries import Delivery
from penstock.engine.variables import FOLD_MIN_DELTAS
from penstock.store.full_path import Change


class PostCommit:
    """What a transaction does to this engine's memory, once it is known to be committed."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.queued: list[str] = []
        self.armed: list[datetime] = []
        self.changes: list[tuple[Change, LoadedDefinition]] = []

    def take(self, other: PostCommit) -> None:
        """Add another's."""
        self.deliveries += other.deliveries
        self.queued += other.queued
        self.armed += other.armed
        self.changes += other.changes

    def long_runs(self) -> list[int]:
        """The instances whose variable deltas are due to be folded. Their tokens are all locked here."""
        return [
            change.effects.instance.id
            for change, _ in self.changes
            if not change.effects.ended
            and any(token.unfolded >= FOLD_MIN_DELTAS for token in (*change.effects.inserted, *change.effects.updated))
        ]
