"""How a batch meets the database: outages waited out, deadlocks repeated, bad items found by halving.

No batch waits long for a row: a lock that is not had within `database.LOCK_WAIT_MS` refuses the statement. Then it is
asked whose rows other transactions hold: those items stand aside (`Batcher.set_aside`), the others go on. A table that
is locked is as good as away; where the answer names nobody the batch is halved. Relies on `store.database` for what an
error means. Every item is settled or stands aside when `apply_safely` returns; it never raises an operating error. Must
not know what the items are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import trio

from penstock.engine.lanes.lane import Batcher, Item, halves
from penstock.errors import BadRequest, PayloadTooLarge, PenstockError, Unavailable
from penstock.log import RateLimitedLog, get_logger
from penstock.metrics import Metrics
from penstock.store.connection import TrioConnection
from penstock.store.database import (
    AWAY,
    CLASH,
    LOCKED,
    REPEATABLE,
    TOO_LARGE,
    Database,
    DatabaseError,
    DataError,
    TryAgain,
    first_line,
    is_id_taken,
    table_is_locked,
    wait_replicated,
)

REPEATS_MAX = 20
"""A batch rolled back this often in a row for the sake of others is halved instead."""
RETRY_FIRST_S, RETRY_MAX_S = 0.02, 0.5
"""Pauses between two tries while the database is away."""

I = TypeVar("I", bound=Item[Any])  # noqa: E741 - an item
Apply = Callable[[TrioConnection, list[I], bool], Awaitable[None]]
FindHeld = Callable[[TrioConnection, list[I]], Awaitable[list[I]]]

AWAY_REASON = "the database is away"
HELD_REASON = "another transaction holds what the call needs; try again"
BUSY_REASON = "too many transactions at once on this instance; try again"

log = get_logger(__name__)
_outages = RateLimitedLog(log, interval_seconds=5)


class Flush(Generic[I]):
    """How the batches of one queue are applied.

    ``apply(connection, items, again)`` settles items; ``again`` tells that an earlier try may have been committed: then
    it looks before it answers, and what it sees is on the standby, too. ``find_held(connection, items)`` gives those
    whose rows other transactions hold now.
    """

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        batcher: Batcher[I],
        apply: Apply[I],
        *,
        find_held: FindHeld[I] | None = None,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._batcher = batcher
        self._apply = apply
        self._find_held = find_held

    async def apply_safely(self, items: Sequence[I]) -> None:
        """Call ``apply`` until every item is settled, stands aside, or is with another queue.

        An item whose ``deadline`` passes while the database is away, or while others hold its row, gets Unavailable.
        """
        batch = items[0].batch if items else None
        ask = again = False
        for item in items:
            ask |= item.was_aside
            again |= item.unheard
        await self._try(items, batch, again=again, ask=ask)

    async def _try(
        self, items: Sequence[I], batch: object, *, again: bool, ask: bool = False, part: bool = False
    ) -> None:
        """``batch``: of which the items have to be. ``ask``: who is held up, before all else. ``part``: of a batch that
        is being halved for a lock."""
        pause_s, repeats, refused = RETRY_FIRST_S, 0, part
        while pending := _pending(items, batch):
            try:
                await self._once(pending, again=again, ask=ask)
            except LOCKED as error:
                self._count(error)
                _refuse_overdue(_pending(pending, batch), HELD_REASON)
                if refused:
                    await self._divide(pending, batch, error, again)
                ask = refused = True
            except (*REPEATABLE, CLASH) as error:
                self._count(error)
                repeats += 1
                if repeats > 1:
                    _refuse_overdue(_pending(pending, batch), BUSY_REASON)
                if repeats > REPEATS_MAX or not (isinstance(error, REPEATABLE) or is_id_taken(error)):
                    await self._divide(pending, batch, error, again)
            except TOO_LARGE as error:
                await self._divide(pending, batch, error, again)
            except AWAY as error:
                again = True
                lane = self._batcher.name
                _outages.warning(lane, AWAY_REASON, lane=lane, error=first_line(error), waiting=len(pending))
                _refuse_overdue(_pending(pending, batch), AWAY_REASON)
                await trio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_MAX_S)
            except DatabaseError as error:
                await self._divide(pending, batch, error, again)

    async def _once(self, items: list[I], *, again: bool, ask: bool) -> None:
        async with self._database.connection() as connection:
            if again:
                await wait_replicated(connection)
            if ask:
                items = await self._leave_held(connection, items, again)
            if items:
                await self._apply(connection, items, again)

    async def _leave_held(self, connection: TrioConnection, items: list[I], again: bool) -> list[I]:
        """Let those stand aside whose rows others hold; the rest."""
        await self.find_locked_table(connection)
        if self._find_held is None:
            return items
        self.stand_aside(await self._find_held(connection, items), again)
        return [item for item in items if not (item.settled or item.aside)]

    async def find_locked_table(self, connection: TrioConnection) -> None:
        """Raises TryAgain while a table is locked: then no row is the cause."""
        if await table_is_locked(connection):
            raise TryAgain("another transaction has locked a table")

    def stand_aside(self, items: Sequence[I], again: bool) -> None:
        """Let items wait, or refuse those that have waited long enough: others hold what they need."""
        _refuse_overdue(items, HELD_REASON)
        self._batcher.set_aside([item for item in items if not item.settled], unheard=again)

    async def _divide(self, items: Sequence[I], batch: object, error: DatabaseError, again: bool) -> None:
        items = _pending(items, batch)
        locked = isinstance(error, LOCKED)
        if len(items) > 1:
            for half in halves(items):
                await self._try(half, batch, again=again, part=locked)
        elif locked:
            self.stand_aside(items, again)
        elif items:
            items[0].refuse(_refusal(self._batcher.name, error))

    def _count(self, error: DatabaseError) -> None:
        self._metrics.db_retries[error.sqlstate or "unknown"].inc()


def _pending(items: Iterable[I], batch: object) -> list[I]:
    """Those that are still the batch's: what stood aside, or moved, may be under way elsewhere already."""
    return [item for item in items if item.batch is batch and not (item.settled or item.aside or item.moved)]


def _refuse_overdue(items: Iterable[Item[Any]], reason: str) -> None:
    now = trio.current_time()
    for item in items:
        if item.deadline <= now:
            item.refuse(Unavailable(reason))


def _refusal(name: str, error: DatabaseError) -> PenstockError:
    if isinstance(error, REPEATABLE):
        return Unavailable(BUSY_REASON)
    if isinstance(error, TOO_LARGE):
        log.warning("a value is too large for the database", lane=name, error=first_line(error))
        return PayloadTooLarge("variables: more of them than PostgreSQL can hold in one instance")
    if isinstance(error, DataError):
        log.warning("the database refused a value", lane=name, error=first_line(error))
        return BadRequest("a value can't be stored: PostgreSQL's jsonb or text can't hold it")
    log.error("a statement failed", lane=name, error=first_line(error), sqlstate=error.sqlstate)
    return PenstockError("the request could not be carried out; the engine's log has the reason")
