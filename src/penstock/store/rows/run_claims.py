"""What executors are given with the runs that they take: what the jobs don't tell, and how the journals begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL
from penstock.store.db.vault import KeyMissing, Vault, offloaded
from penstock.store.rows.journal import OF_OTHERS, JournalRow, read_record, with_rules

BEGINNING_MAX_ROWS: Final = 50
BEGINNING_MAX_BYTES: Final = 40_000
"""Of each run: what 100 have is about a page."""


class ClaimedRow(NamedTuple):
    """``mail``: how many of its records others wrote. ``key``: the id that it was started with, where one was given.
    ``began_at``: when its time began, in seconds since 1970; None: with its job. ``blocked``: no code could go on with
    it so far. ``records``: its first ones, and whether there are ``more``; None where they can't be read here."""

    mail: int
    expiries: int
    key: str | None
    began_at: float | None
    blocked: bool
    records: list[JournalRow] | None
    more: bool


class RunClaim(NamedTuple):
    """An attempt at a run. ``at`` is in seconds since 1970."""

    attempt: int
    at: float


async def last_run_claim(connection: TrioConnection, instance: int) -> RunClaim | None:
    """That of who has a run, or had it at its end; None while nobody has it."""
    rows = await connection.fetch(SQL["run_taken"], (instance,))
    return RunClaim(*cast(Any, rows[0])) if rows else None


async def began_at(connection: TrioConnection, instance: int) -> float | None:
    """When the time of a run began: at its start, where it had to wait in a queue with its first turn. In seconds since
    1970; None where it ended before."""
    rows = await connection.fetch(SQL["run_began"], (instance,))
    return cast(float, rows[0][0]) if rows else None


async def taken_runs(connection: TrioConnection, instances: Sequence[int]) -> dict[int, ClaimedRow]:
    """By instance, of those that have not ended."""
    # the mail first, as in `journal.read`: it may then tell of fewer records than are read, never of more
    marks, rows = cast(
        Any,
        await connection.roundtrip(
            [
                (SQL["taken_runs"], (arrays.ints(instances),)),
                (SQL["read_beginnings"], (arrays.ints(instances), BEGINNING_MAX_ROWS + 1, BEGINNING_MAX_BYTES)),
            ]
        ),
    )
    sizes = [len(row[7]) for row in rows if row[7] is not None]
    connection.remember_row_size(max(sizes, default=0))
    vault = connection.vault
    read = await offloaded(0 if vault is None else sum(sizes), lambda: _beginnings(rows, vault))
    return {
        id: ClaimedRow(mail, expiries, key, began_at, blocked, *read.get(id, (None, False)))
        for id, mail, expiries, key, began_at, blocked in marks
    }


def _beginnings(rows: Sequence[Any], vault: Vault | None) -> dict[int, tuple[list[JournalRow] | None, bool]]:
    """By instance; a run of which a key is missing keeps none of the others from being taken."""
    found: dict[int, tuple[list[JournalRow] | None, bool]] = {}
    for id, read_count, *columns in rows:
        records, _ = found.get(id, ([], False))
        if records is not None and columns[0] is not None and len(records) < BEGINNING_MAX_ROWS:
            try:
                records.append(read_record(columns, vault))
            except KeyMissing:
                records = None
        found[id] = (records, records is not None and read_count > len(records))
    return {id: (_of_known_rules(records, more=more), more) for id, (records, more) in found.items()}


def _of_known_rules(records: list[JournalRow] | None, *, more: bool) -> list[JournalRow] | None:
    """Without the last ones that others wrote, where more follow: these tell by which rules they were delivered."""
    while more and records and records[-1].kind in OF_OTHERS:
        records.pop()
    return None if records is None else with_rules(records, None)
