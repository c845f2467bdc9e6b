"""Calls: which instance waits for which, and what one tells the other. `store.full_path` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from penstock.core.state import InstanceStatus
from penstock.store import arrays
from penstock.store.connection import TrioConnection
from penstock.store.statements import SQL, Statement


class CalledBy(NamedTuple):
    """The call that an instance was started by: of which instance, on which token and with which seq; the first
    instance of the tree; and how deep in it this one is."""

    caller: int
    token: int
    seq: int
    root: int
    depth: int


class Child(NamedTuple):
    """What a call waits for."""

    id: int
    status: InstanceStatus
    failure: str | None
    failure_code: str | None
    definition_id: str


class CalledRow(NamedTuple):
    """An instance in a tree of calls. ``step``: of its caller; None when that is not known any more."""

    id: int
    caller: int
    definition: int
    caller_definition: int
    step: int | None
    status: int
    started_at: datetime
    ended_at: datetime | None
    waiting: bool


async def tree(connection: TrioConnection, instance: int, most: int) -> list[CalledRow]:
    """What an instance has called, and what that has, in the order of the calls."""
    return [CalledRow(*cast(Any, row)) for row in await connection.fetch(SQL["call_tree"], (instance, most))]


async def root_of(connection: TrioConnection, instance: int) -> int:
    """The first instance of the tree that an instance is in."""
    rows = await connection.fetch(SQL["called_root"], (instance,))
    return cast(int, rows[0][0]) if rows else instance


async def failed_child(connection: TrioConnection, token: int, entry: int) -> int | None:
    """The instance that failed, of those that an entry of a call started."""
    rows = await connection.fetch(SQL["failed_child"], (token, entry))
    return cast(int, rows[0][0]) if rows else None


async def hold_told(
    connection: TrioConnection, timers: Sequence[tuple[int, int, int]], waiting: Sequence[tuple[int, int]]
) -> tuple[set[tuple[int, int, int]], dict[tuple[int, int], Child]]:
    """Those of the timers that nobody else has acted on, held until this transaction ends; and what calls (token and
    seq) wait for."""
    held = tuple(arrays.ints(column) for column in zip(*timers, strict=True))
    calls = tuple(arrays.ints(column) for column in zip(*waiting, strict=True)) or ("{}", "{}")
    timer_rows, child_rows = await connection.roundtrip([(SQL["hold_told"], held), (SQL["children_of_calls"], calls)])
    children = {
        (token, seq): Child(id, InstanceStatus(status), *about)
        for token, seq, id, status, *about in cast(Any, child_rows)
    }
    return set(cast(Any, timer_rows)), children


async def take_telling(connection: TrioConnection, instance: int) -> tuple[int, bool] | None:
    """Before an instance goes on that had ended: its caller, and whether that had not heard of the end yet, and now
    never will. None: nobody called it."""
    rows = await connection.fetch(SQL["take_telling"], (instance,))
    return cast("tuple[int, bool]", rows[0]) if rows else None


def tell(
    called: Sequence[tuple[int, CalledBy]],
    recalled: Sequence[tuple[int, int]],
    ended: Sequence[int],
    abandoned: Sequence[tuple[int, int]],
) -> list[Statement]:
    """What a transaction writes last: the calls that it made, instances that failed and are waited for again under
    another seq, instances that ended and were called, calls that wait no more (token and seq)."""
    ints = arrays.ints
    found: list[Statement] = []
    if called:
        rows = zip(*[(id, *by) for id, by in called], strict=True)
        found.append((SQL["insert_called"], tuple(ints(column) for column in rows)))
    if recalled:
        children, seqs = zip(*recalled, strict=True)
        found += [(SQL["recall"], (ints(children), ints(seqs))), (SQL["tell_reopen"], (ints(children),))]
    if ended:
        found.append((SQL["tell_callers"], (ints(ended),)))
    if abandoned:
        columns = tuple(ints(column) for column in zip(*sorted(abandoned), strict=True))
        found += [(SQL["forget_reopen"], columns), (SQL["tell_cancel"], columns)]
    return found
