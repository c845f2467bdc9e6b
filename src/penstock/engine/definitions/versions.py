"""With which version of its definition each row of an instance is read: of a migrated one it is not always the last.

What is open, and has no position yet, is of the version that the instance has now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.graph.definition import Step
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition
from penstock.store.db.connection import TrioConnection
from penstock.store.rows.instances import DefinitionOf


class _Version(NamedTuple):
    from_position: int
    loaded: LoadedDefinition
    steps: Sequence[int] | None


class Versions:
    """The versions of one instance. ``current``: the one that it has now."""

    def __init__(self, current: LoadedDefinition, known: Sequence[_Version] = ()) -> None:
        self.current = current
        self._known = known

    def step(self, index: int, position: int | None) -> Step:
        """Return the step of a row at a position; None: of what is open."""
        at = None if position is None else self._at(position)
        return (self.current if at is None else self._known[at].loaded).definition.steps[index]

    def became(self, index: int, position: int | None) -> int | None:
        """Return the same step's number in the current version; None where that has none."""
        at = None if position is None else self._at(position)
        steps = None if at is None else self._known[at].steps
        if steps is None:
            return index
        return steps[index] if steps[index] >= 0 else None

    def _at(self, position: int) -> int | None:
        return next((i for i in reversed(range(len(self._known))) if self._known[i].from_position <= position), None)


async def versions_of(connection: TrioConnection, definitions: Definitions, found: DefinitionOf) -> Versions:
    """The versions of an instance, whose definitions may have to be loaded."""
    known = [
        _Version(position, await definitions.by_key(connection, key), steps) for position, key, steps in found.versions
    ]
    return Versions(await definitions.by_key(connection, found.key), known)
