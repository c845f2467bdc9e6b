"""How a batch meets the database: outages waited out, deadlocks repeated, bad items found by halving.

Relies on `store.database` for what an error means. Every item is settled when `apply_safely` returns; it never raises
an operating error. Must not know what the items are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio

from penstock.errors import BadRequest, PayloadTooLarge, PenstockError, Unavailable
from penstock.log import RateLimitedLog, get_logger
from penstock.metrics import Metrics
from penstock.store.batch import Item, halves
from penstock.store.connection import TrioConnection
from penstock.store.database import (
    AWAY,
    CLASH,
    REPEATABLE,
    TOO_LARGE,
    Database,
    DatabaseError,
    DataError,
    first_line,
    is_id_taken,
)

REPEATS_MAX = 20
"""A batch rolled back this often in a row for the sake of others is halved instead."""
RETRY_FIRST_S, RETRY_MAX_S = 0.02, 0.5
"""Pauses between two tries while the database is away."""

I = TypeVar("I", bound=Item[Any])  # noqa: E741 - an item
Apply = Callable[[TrioConnection, list[I], bool], Awaitable[None]]

log = get_logger(__name__)
_outages = RateLimitedLog(log, interval_seconds=5)


async def apply_safely(
    database: Database, metrics: Metrics, name: str, items: Sequence[I], apply: Apply[I], *, again: bool = False
) -> None:
    """Call ``apply(connection, items, again)`` until every item is settled.

    ``again`` tells that an earlier try may have been committed: ``apply`` then looks before it answers. An item whose
    ``deadline`` passes while the database is away gets Unavailable.
    """
    pause_s, repeats = RETRY_FIRST_S, 0
    while pending := [item for item in items if not item.settled]:
        try:
            async with database.connection() as connection:
                await apply(connection, pending, again)
        except (*REPEATABLE, CLASH) as error:
            metrics.db_retries[error.sqlstate or "unknown"].inc()
            repeats += 1
            if repeats > REPEATS_MAX or not (isinstance(error, REPEATABLE) or is_id_taken(error)):
                await _divide(database, metrics, name, pending, apply, error, again)
        except TOO_LARGE as error:
            await _divide(database, metrics, name, pending, apply, error, again)
        except AWAY as error:
            again = True
            _outages.warning(name, "the database is away", lane=name, error=first_line(error), waiting=len(pending))
            now = trio.current_time()
            for item in pending:
                if item.deadline <= now:
                    item.refuse(Unavailable("the database is away"))
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)
        except DatabaseError as error:
            await _divide(database, metrics, name, pending, apply, error, again)


async def _divide(
    database: Database,
    metrics: Metrics,
    name: str,
    items: Sequence[I],
    apply: Apply[I],
    error: DatabaseError,
    again: bool,
) -> None:
    if len(items) == 1:
        items[0].refuse(_refusal(name, error))
        return
    for half in halves(items):
        await apply_safely(database, metrics, name, half, apply, again=again)


def _refusal(name: str, error: DatabaseError) -> PenstockError:
    if isinstance(error, REPEATABLE):
        return Unavailable("too many transactions at once on this instance; try again")
    if isinstance(error, TOO_LARGE):
        log.warning("a value is too large for the database", lane=name, error=first_line(error))
        return PayloadTooLarge("variables: more of them than PostgreSQL can hold in one instance")
    if isinstance(error, DataError):
        log.warning("the database refused a value", lane=name, error=first_line(error))
        return BadRequest("a value can't be stored: PostgreSQL's jsonb or text can't hold it")
    log.error("a statement failed", lane=name, error=first_line(error), sqlstate=error.sqlstate)
    return PenstockError("the request could not be carried out; the engine's log has the reason")
