"""What all commands have in common; `commands` and `engine.instances.tasks` have them."""

from __future__ import annotations

from typing import Any, Self

from penstock.core.advance.effect import Effects
from penstock.core.advance.event import Event
from penstock.engine.advance.advancer import LongItem
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.errors import Conflict
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import Statement
from penstock.store.rows.full_path import LockedInstance
from penstock.store.rows.jobs import ExecutionInfo, JobKey


class AlreadyAnswered(Exception):
    """Nothing is to be changed: the item has this answer."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer


class WritesOnly(Exception):
    """The item has no event: its `statements` are all it does."""


class IsCode(Conflict):
    """The instance is a durable run: what was asked for is told to its journal instead."""

    def __init__(self) -> None:
        super().__init__("the instance is a run of a durable workflow")


class Command(LongItem[Any]):
    """Something to do with one instance. ``bulk``: for which bulk operation."""

    __slots__ = ("for_bulk", "instance", "job", "timer", "worker")

    prepares = False
    """Whether `prepare` writes."""
    folds = False
    """Whether it is there to fold the instance's variable deltas."""
    beside = False
    """Whether nobody submitted it: it is decided for the sake of others of its instance."""
    output: bytes | None = None
    """The variables that it brings."""

    @property
    def arms(self) -> bool:
        """Return whether its `statements` write timers that are due at once."""
        return False

    def __init__(
        self,
        instance: int,
        *,
        job: JobKey | None = None,
        worker: str = "",
        timer: tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__()
        self.instance = instance
        self.job = job
        self.worker = worker
        self.timer = timer
        self.for_bulk: int | None = None

    def of(self, bulk: int | None) -> Self:
        """This one, for a bulk operation if it is of one: its transaction counts it."""
        self.for_bulk = bulk
        return self

    @property
    def token(self) -> int | None:
        """The token whose execution it is about; None: it is about the instance."""
        if self.job is not None:
            return self.job.token
        return None if self.timer is None else self.timer[0]

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        """What has to be read, or taken, first, under the instance's lock. Raises as `event`."""

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        """Return the event to advance with. Raises Settled or a PenstockError when there is nothing to do."""
        raise WritesOnly

    def after(self, effects: Effects, loaded: LoadedDefinition) -> object:
        """The answer once the outcome is committed."""
        return None

    def statements(self) -> list[Statement]:
        """Further writes of the same transaction."""
        return []
