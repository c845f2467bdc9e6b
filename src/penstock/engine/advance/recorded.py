"""Jobs that their workers' own transactions completed (SQL function `complete`): they are taken up as completions.

The token says that there is one; its timer is what finds it. Whatever else an instance is told comes behind: the full
path takes up what stands recorded in the same batch, before all other items of the instance. One that is refused (a
key is missing, the instance would have too many variables) holds up no others: its timer tries it again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from penstock.core.advance.event import Event, JobCompleted
from penstock.core.rules.state import RECORDED_TIMER, Token
from penstock.engine.advance.command import AlreadyAnswered, Command, WritesOnly
from penstock.engine.advance.commands import TimerCommand, TimerKey, ignore_refusal
from penstock.engine.definitions.definitions import LoadedDefinition
from penstock.errors import PenstockError
from penstock.store.db.connection import TrioConnection
from penstock.store.rows import recorded as store
from penstock.store.rows.full_path import LockedInstance
from penstock.store.rows.jobs import ExecutionInfo

BESIDE_MAX = 100
"""Taken up in one transaction for the sake of others: each is an advance. What comes behind more of them waits."""
REFUSED_MAX = 10_000
"""So many that were refused are left to their timers; more are tried with each batch, and nothing waits for them."""


class RecordedCommand(TimerCommand):
    """Take up one. Answers whether it was there. Never gives up: what was committed stays completed."""

    __slots__ = ("output",)

    def __init__(
        self,
        instance: int,
        timer: TimerKey,
        give_up: str | None = None,
        on_refused: Callable[[int, TimerKey, PenstockError], object] = ignore_refusal,
    ) -> None:
        super().__init__(instance, timer, None, on_refused)
        self.output: bytes | None = None

    async def prepare(self, connection: TrioConnection, locked: LockedInstance, loaded: LoadedDefinition) -> None:
        token = self._recorded(locked)
        if token is not None:
            self.output = await store.read(connection, self.instance, token.id, token.seq)

    def event(
        self, locked: LockedInstance, loaded: LoadedDefinition, known: ExecutionInfo | None, armed: bool
    ) -> Event:
        token = self._recorded(locked)
        if token is None:
            if not armed:
                raise AlreadyAnswered(False)
            self._void, self.planned = True, False
            raise WritesOnly
        assert token.claimed_by is not None
        return JobCompleted(token.id, token.claimed_by, self.output)

    def _recorded(self, locked: LockedInstance) -> Token | None:
        assert self.timer is not None
        key = self.timer[:2]
        return next((token for token in locked.tokens if token.is_recorded and (token.id, token.seq) == key), None)


class _Beside(RecordedCommand):
    """One that nobody asked for: an item of its instance met it. Refused, it is left to its timer."""

    __slots__ = ("_refused",)

    beside = True

    def __init__(self, instance: int, timer: TimerKey, refused: set[TimerKey]) -> None:
        super().__init__(instance, timer)
        self._refused = refused
        self.stays = True  # evaluated now, also where it takes long: what comes behind it waits

    def refuse(self, error: PenstockError) -> None:
        assert self.timer is not None
        if len(self._refused) < REFUSED_MAX:
            self._refused.add(self.timer)
        super().refuse(error)


class Recorded:
    """Finds what stands recorded in the instances of a batch."""

    def __init__(self) -> None:
        self._refused: set[TimerKey] = set()

    def first(
        self, items: Sequence[Command], instances: dict[int, LockedInstance], code: Collection[int]
    ) -> list[Command]:
        """The items, and before those of an instance what is to be taken up there; without those that come behind more
        than `BESIDE_MAX`: the next transaction has them. ``code``: durable runs, which complete nothing so."""
        found = {
            (token.id, token.seq, RECORDED_TIMER): instance
            for instance, locked in instances.items()
            for token in locked.tokens
            if token.is_recorded and instance not in code
        }
        if not found:
            return list(items)
        own = {item.timer: item for item in items if isinstance(item, RecordedCommand) and item.timer in found}
        self._refused.difference_update(own)
        left = [timer for timer in found if timer not in own and timer not in self._refused]
        beside = [_Beside(found[timer], timer, self._refused) for timer in left[:BESIDE_MAX]]
        full = len(self._refused) >= REFUSED_MAX
        later = set[int]() if full else {found[timer] for timer in left[BESIDE_MAX:]}
        asked = [item for item in items if item.timer in own]
        return [*beside, *asked, *(item for item in items if item.timer not in own and item.instance not in later)]


def with_recorded(instances: dict[int, LockedInstance]) -> list[int]:
    """Those of the instances that have something to take up."""
    return [instance for instance, locked in instances.items() if any(token.is_recorded for token in locked.tokens)]
