"""What is taken out of journals: by the retry of a run that failed, and when a run continues as a new one.

One function per statement of ``queries/journal_cuts.sql``. The journal of a run is always that of its last execution:
what does not count any more is deleted at once, so that no reader has to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import PAYLOAD
from penstock.store.rows.journal import RunLease, seal

BEYOND_ALL: Final = 2**63 - 1
"""No record has this position."""


class LastExecution(NamedTuple):
    """Of a run that has ended."""

    seq: int
    attempt: int
    started_at: datetime


class FailedStep(NamedTuple):
    """The step that failed last, and the first one that was done after it."""

    path: str
    pos: int
    done_path: str | None
    done_name: str | None


class Continuation(NamedTuple):
    """A run that goes on as a new one. ``name`` tells its first record from those of earlier ones, ``kept`` are the
    positions of messages that stay."""

    run_lease: RunLease
    mail: int
    name: str
    payload: str
    kept: Sequence[int]


async def last_execution(connection: TrioConnection, instance: int) -> LastExecution:
    """Of a run that has ended."""
    [row] = await connection.fetch(SQL["last_execution"], (instance,))
    return LastExecution(*cast(Any, row))


async def find_failed(
    connection: TrioConnection, instance: int, failures: Sequence[int], done: Sequence[int]
) -> FailedStep | None:
    """Return the step that failed last, by the kinds of outcomes; None where none did."""
    rows = await connection.fetch(SQL["find_failed"], (instance, arrays.ints(failures), arrays.ints(done)))
    return FailedStep(*cast(Any, rows[0])) if rows else None


async def last_child(
    connection: TrioConnection, instance: int, child: int, done: Sequence[int]
) -> tuple[FailedStep, str] | None:
    """The end of a child that came last, as if it had failed, and its payload. Raises KeyMissing."""
    rows = cast(Any, await connection.fetch(SQL["last_child"], (instance, child, arrays.ints(done))))
    if not rows:
        return None
    [(path, pos, payload, *since)] = rows
    text = payload if connection.vault is None else connection.vault.open_value(payload, PAYLOAD)
    return FailedStep(path, pos, *since), text


async def find_path(connection: TrioConnection, instance: int, path: str, outcomes: Sequence[int]) -> int | None:
    """Return the position of the first outcome of an operation, or of one within it; None where there is none."""
    rows = await connection.fetch(SQL["find_path"], (instance, path, arrays.ints(outcomes)))
    return cast(int, rows[0][0]) if rows else None


def cut(instance: int, pos: int, path: str) -> Statement:
    """Forgets what came from a position on, for the operation with this path to be done again."""
    return SQL["cut_journal"], (instance, pos, path)


async def continue_run(connection: TrioConnection, item: Continuation) -> bool:
    """Let a run go on as a new one; False where that was refused. A transaction of its own, and idempotent."""
    payload = seal([item.payload], connection.vault)
    params = (*item.run_lease, item.mail, item.name, payload, arrays.ints(item.kept))
    *_, rows, _ = await connection.roundtrip(
        [
            (SQL["begin"], ()),
            (SQL["lock_roots"], (arrays.ints([item.run_lease.instance]),)),
            (SQL["continue_run"], params),
            (SQL["commit"], ()),
        ]
    )
    return bool(rows)
