"""Bulk operations as rows: made once, worked on by one engine at a time under a lease, kept for people to look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import msgspec

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import PAYLOAD, Sealing, offloaded

BEYOND_ALL: Final = 2**63 - 1
KEPT_MAX: Final = 1_000
OUTCOMES_KEPT_MAX: Final = 100
"""Of so many operations it is kept to whom they were done."""


class NewBulk(NamedTuple):
    """What is to be done."""

    action: str
    filter: bytes
    step: str | None
    output: bytes | None
    note: str | None
    actor: str | None
    per_second: float | None
    total: int
    total_exact: bool
    details: bytes | None = None


class BulkWork(NamedTuple):
    """What an engine has to know to go on with one."""

    id: int
    action: str
    filter: bytes
    step: str | None
    output: bytes | None
    note: str | None
    actor: str | None
    per_second: float | None
    created_at: datetime
    below: int
    details: str | None = None


class BulkPage:
    """What became of the instances of a page: who is done, or had nothing to do, how many failed, and why."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.skipped: list[int] = []
        self.failed = 0
        self.errors: list[str] = []


class BulkRow(NamedTuple):
    """One as people see it."""

    id: int
    action: str
    filter: str
    step: str | None
    note: str | None
    actor: str | None
    per_second: float | None
    total: int
    total_exact: bool
    done: int
    skipped: int
    failed: int
    errors: str
    stage: str
    created_at: datetime
    ended_at: datetime | None
    details: str | None = None


async def create(connection: TrioConnection, new: NewBulk) -> int:
    """Its id."""
    output, vault = new.output, connection.vault
    text: str | Sealing | None = None if output is None else output.decode()
    if output is not None and vault is not None:
        text = Sealing(len(output), lambda: vault.seal_value(output, PAYLOAD).decode())
    params = (
        new.action,
        new.filter.decode(),
        new.step,
        text,
        *new[4:9],
        None if new.details is None else new.details.decode(),
    )
    return cast(int, (await connection.fetch(SQL["create_bulk"], params))[0][0])


async def claim(connection: TrioConnection, engine: int, lease_s: float, dead: Sequence[str] = ()) -> BulkWork | None:
    """The oldest one that no other engine works on, or one that is ``dead`` (by its tag)."""
    rows = cast(Any, await connection.fetch(SQL["claim_bulk"], (engine, lease_s, arrays.texts(dead))))
    if not rows:
        return None
    vault, (id, action, chosen, step, output, *rest) = connection.vault, rows[0]
    if output is not None and vault is not None:
        output = await offloaded(len(output), lambda: vault.open_value(output, PAYLOAD))
    return BulkWork(id, action, chosen.encode(), step, None if output is None else output.encode(), *rest)


def counts(done: Iterable[tuple[int | None, int]]) -> list[Statement]:
    """These instances are done, (operation, instance) each, but for those of none: the last writes of the transaction
    that does it. One after the other, as each operation is a row that others wait for."""
    by_id: dict[int, list[int]] = {}
    for id, instance in done:
        if id is not None:
            by_id.setdefault(id, []).append(instance)
    return [(SQL["count_bulk"], (id, arrays.ints(by_id[id]))) for id in sorted(by_id)]


async def advance(
    connection: TrioConnection,
    id: int,
    engine: int,
    *,
    below: int,
    page: BulkPage,
    last: bool,
    lease_s: float,
    kept_max: int,
) -> bool:
    """A page is done; it is kept to whom, of ``kept_max`` and a page. False when it was stopped or taken over."""
    errors_json = msgspec.json.encode(page.errors).decode()
    done, skipped = arrays.ints(page.done), arrays.ints(page.skipped)
    params = (id, engine, below, done, skipped, page.failed, errors_json, last, lease_s, kept_max)
    return bool(await connection.fetch(SQL["advance_bulk"], params))


async def hold(connection: TrioConnection, id: int, engine: int, lease_s: float) -> bool:
    """A page is still to come. False when it was stopped or taken over."""
    return bool(await connection.fetch(SQL["hold_bulk"], (id, engine, lease_s)))


async def stop(connection: TrioConnection, id: int) -> None:
    """No more pages; that under way is finished."""
    await connection.fetch(SQL["stop_bulk"], (id,))


async def read(
    connection: TrioConnection, *, before: int = BEYOND_ALL, limit: int = 1, id: int | None = None
) -> list[BulkRow]:
    """Newest first, or the one."""
    return [BulkRow(*cast(Any, row)) for row in await connection.fetch(SQL["list_bulk"], (before, limit, id))]


class InstanceCounts(NamedTuple):
    """How the instances stand that an operation was done to."""

    running: int
    completed: int
    failed: int
    cancelled: int


async def outcome(connection: TrioConnection, id: int) -> InstanceCounts:
    """How the instances stand now that an operation was done to, as far as that is kept."""
    return InstanceCounts(*cast(Any, (await connection.fetch(SQL["bulk_outcome"], (id,)))[0]))


async def purge(connection: TrioConnection) -> None:
    """Forget ended ones beyond the newest `KEPT_MAX`, and to whom those were done beyond `OUTCOMES_KEPT_MAX`."""
    await connection.fetch(SQL["purge_bulk"], (KEPT_MAX,))
    await connection.fetch(SQL["purge_bulk_done"], (OUTCOMES_KEPT_MAX,))
