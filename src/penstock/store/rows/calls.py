"""Calls: which instance waits for which, and what one tells the other. `store.rows.full_path` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from penstock.core.rules.state import InstanceStatus
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.rows.journal import RunLease


class CalledBy(NamedTuple):
    """The call that an instance was started by: of which instance, on which token and with which seq; the first
    instance of the tree; and how deep in it this one is. ``path``: of the operation, where code calls."""

    caller: int
    token: int
    seq: int
    root: int
    depth: int
    path: str | None = None


class CodeCall(NamedTuple):
    """A durable run that calls: under its lease, at the path of an operation."""

    run_lease: RunLease
    path: str


class CallingRun(NamedTuple):
    """A durable run whose call begins, and what is called has of it where nothing else is said."""

    by: CalledBy
    priority: int | None
    flow_key: str | None


class EndForCode(NamedTuple):
    """What a call of a durable run waits for."""

    id: int
    path: str
    status: InstanceStatus
    failure: str | None
    failure_code: str | None
    definition_id: str
    is_code: bool


class Child(NamedTuple):
    """What a call waits for."""

    id: int
    status: InstanceStatus
    failure: str | None
    failure_code: str | None
    definition_id: str


class CalledRow(NamedTuple):
    """An instance in a tree of calls. ``step``: of its caller; None when that is not known any more. ``path``: where
    code called it."""

    id: int
    caller: int
    definition: int
    caller_definition: int
    step: int | None
    status: int
    started_at: datetime
    ended_at: datetime | None
    waiting: bool
    path: str | None


async def tree(connection: TrioConnection, instance: int, most: int) -> list[CalledRow]:
    """What an instance has called, and what that has, in the order of the calls."""
    return [CalledRow(*cast(Any, row)) for row in await connection.fetch(SQL["call_tree"], (instance, most))]


async def root_of(connection: TrioConnection, instance: int) -> int:
    """The first instance of the tree that an instance is in."""
    rows = await connection.fetch(SQL["called_root"], (instance,))
    return cast(int, rows[0][0]) if rows else instance


async def earlier_child(connection: TrioConnection, token: int, entry: int) -> int | None:
    """The instance that failed and goes on, or has completed, of those that an entry of a call started before."""
    rows = await connection.fetch(SQL["earlier_child"], (token, entry))
    return cast(int, rows[0][0]) if rows else None


async def lock_notices(
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


async def take_notification(connection: TrioConnection, instance: int) -> tuple[int, bool] | None:
    """Before an instance goes on that had ended: its caller, and whether that had not heard of the end yet, and now
    never will. None: nobody called it."""
    rows = await connection.fetch(SQL["take_telling"], (instance,))
    return cast("tuple[int, bool]", rows[0]) if rows else None


def notifications(
    called: Sequence[tuple[int, CalledBy]],
    recalled: Sequence[tuple[int, int]],
    ended: Sequence[int],
    abandoned: Sequence[tuple[int, int]],
    orphaned: Sequence[int] = (),
) -> list[Statement]:
    """What a transaction writes last: the calls that it made, instances that failed and are waited for again under
    another seq, instances that ended and were called, calls that wait no more (token and seq), durable runs that
    ended."""
    ints = arrays.ints
    found: list[Statement] = []
    if called:
        *numbers, paths = zip(*[(id, *by) for id, by in called], strict=True)
        columns = (*(ints(cast("tuple[int, ...]", column)) for column in numbers), arrays.texts(paths))
        found.append((SQL["insert_called"], columns))
    if recalled:
        children, seqs = zip(*recalled, strict=True)
        found += [(SQL["recall"], (ints(children), ints(seqs))), (SQL["tell_reopen"], (ints(children),))]
    if ended:
        found.append((SQL["tell_callers"], (ints(ended),)))
    if abandoned:
        executions = tuple(ints(column) for column in zip(*sorted(abandoned), strict=True))
        found += [(SQL["forget_reopen"], executions), (SQL["tell_cancel"], executions)]
    if orphaned:
        found.append((SQL["tell_children"], (ints(orphaned),)))
    return found


async def hold_caller(connection: TrioConnection, call: CodeCall) -> CallingRun | None:
    """The call of a durable run, whose token is locked until the transaction ends; its depth is that of what is called.
    None when it is not the holder's any more."""
    caller = call.run_lease.instance
    held, turns = await connection.roundtrip([(SQL["hold_caller"], call.run_lease), (SQL["turn_of_caller"], (caller,))])
    if not held:
        return None
    [(root, depth, seq)] = cast(Any, held)
    [(priority, flow_key)] = cast(Any, turns)
    return CallingRun(CalledBy(caller, caller, seq, root, depth + 1, call.path), priority, flow_key)


async def called_by_code(connection: TrioConnection, call: CodeCall) -> tuple[bool, tuple[int, InstanceStatus] | None]:
    """Return whether the run is the holder's still; and what it has called there: the instance and its status. None:
    nothing, and nobody but the holder can. A transaction of its own."""
    params = (call.run_lease.instance, call.run_lease.seq, call.path)
    _, held, found, _ = await connection.roundtrip(
        [(SQL["begin"], ()), (SQL["hold_caller"], call.run_lease), (SQL["call_of_code"], params), (SQL["commit"], ())]
    )
    rows = cast(Any, found)
    return bool(held), (rows[0][0], InstanceStatus(rows[0][1])) if rows else None


async def called_at(connection: TrioConnection, instance: int) -> tuple[int, str | None, InstanceStatus] | None:
    """Return the caller of an instance, and at which path; its status. None: nobody called it."""
    rows = cast(Any, await connection.fetch(SQL["called_at"], (instance,)))
    return (rows[0][0], rows[0][1], InstanceStatus(rows[0][2])) if rows else None


def renew(instance: int) -> Statement:
    """What a durable run asks for again, that it had called in a former life, is of a call of this one."""
    return SQL["renew_call"], (instance,)


async def end_for_code(connection: TrioConnection, token: int, seq: int) -> EndForCode | None:
    """What a call of a durable run waits for."""
    rows = cast(Any, await connection.fetch(SQL["end_for_code"], (token, seq)))
    if not rows:
        return None
    id, path, status, *about = rows[0]
    return EndForCode(id, path, InstanceStatus(status), *about)
