"""Batches: starts that were asked for together, their items, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import offloaded

BEYOND_ALL: Final = 2**63 - 1
AT_THE_END: Final = -1
"""The place of what is started when all have ended."""


class BatchPlace(NamedTuple):
    """Where a start stands in a batch."""

    batch: int
    place: int


class NewBatch(NamedTuple):
    """What is asked for."""

    key: str | None
    digest: bytes
    total: int
    on_complete: str | None
    note: str | None
    actor: str | None


class BatchRequest(NamedTuple):
    """An item that is to be started; ``request`` is JSON, without variables."""

    place: int
    request: bytes
    variables: bytes


class BatchWork(NamedTuple):
    """What an engine has to know to go on with one."""

    id: int
    total: int
    begun: int
    ended: int
    cancelled: int | None
    reason: str | None
    on_complete: str | None

    @property
    def is_through(self) -> bool:
        """Return whether all is started, or all is cancelled."""
        return (self.begun if self.cancelled is None else self.cancelled) >= self.total


class BatchRow(NamedTuple):
    """One as people see it; the last three are of what is started at its end."""

    id: int
    total: int
    begun: int
    is_cancelled: bool
    reason: str | None
    on_complete: str | None
    note: str | None
    actor: str | None
    created_at: datetime
    ended_at: datetime | None
    completion: int | None
    completion_error: str | None
    completion_reason: str | None


class ItemRow(NamedTuple):
    """What became of an item."""

    place: int
    state: str
    instance: int | None
    error: str | None
    reason: str | None


async def count_open(connection: TrioConnection, most: int) -> int:
    """Return how many have not ended, ``most`` at most."""
    return cast(int, (await connection.fetch(SQL["open_batches"], (most,)))[0][0])


async def create(connection: TrioConnection, new: NewBatch, requests: Sequence[BatchRequest]) -> int | None:
    """Its id; None: its key is taken. Within a transaction."""
    rows = await connection.fetch(SQL["create_batch"], tuple(new))
    if not rows:
        return None
    id = cast(int, rows[0][0])
    places, texts, variables = zip(*requests, strict=True)
    columns = arrays.ints(places), arrays.documents(texts), arrays.sealed(variables, connection.vault)
    await connection.fetch(SQL["insert_batch_items"], (id, *columns))
    return id


async def with_key(connection: TrioConnection, key: str) -> tuple[int, bytes] | None:
    """The batch that has a key, and what was asked for."""
    rows = await connection.fetch(SQL["batch_with_key"], (key,))
    return None if not rows else cast("tuple[int, bytes]", rows[0])


async def claim(connection: TrioConnection, lease_s: float) -> BatchWork | None:
    """What is due longest; nobody else takes it within ``lease_s``, but when something happens to it."""
    rows = await connection.fetch(SQL["claim_batch"], (lease_s,))
    return BatchWork(*cast(Any, rows[0])) if rows else None


async def work_of(connection: TrioConnection, batch: int) -> BatchWork | None:
    """What is known of one that has not ended."""
    rows = await connection.fetch(SQL["work_of_batch"], (batch,))
    return BatchWork(*cast(Any, rows[0])) if rows else None


async def due_in(connection: TrioConnection) -> float | None:
    """In how many seconds the next one is due."""
    rows = await connection.fetch(SQL["next_batch"])
    return cast(float, rows[0][0]) if rows else None


async def requests(connection: TrioConnection, batch: int, since: int, limit: int) -> list[BatchRequest]:
    """What is still to be started of so many places. Raises KeyMissing."""
    rows = cast(Any, await connection.fetch(SQL["batch_requests"], (batch, since, limit)))
    vault = connection.vault
    size_bytes = sum(len(variables) for _, _, variables in rows)

    def opened() -> list[BatchRequest]:
        return [
            BatchRequest(place, request.encode(), (variables if vault is None else vault.open(variables)).encode())
            for place, request, variables in rows
        ]

    return await offloaded(size_bytes, opened) if vault is not None else opened()


async def hold_items(connection: TrioConnection, places: Sequence[BatchPlace]) -> set[BatchPlace]:
    """Lock those that are to be started still, until the transaction's end; which they are."""
    batches, numbers = zip(*sorted(places), strict=True)
    rows = await connection.fetch(SQL["hold_batch_items"], (arrays.ints(batches), arrays.ints(numbers)))
    return {BatchPlace(*cast(Any, row)) for row in rows}


def place_items(placed: Sequence[tuple[BatchPlace, int]]) -> Statement:
    """Writes which instance each item is."""
    batches, numbers, instances = zip(*((place.batch, place.place, id) for place, id in placed), strict=True)
    return SQL["place_batch_items"], (arrays.ints(batches), arrays.ints(numbers), arrays.ints(instances))


async def record_begun(
    connection: TrioConnection, batch: int, until: int, refused: Sequence[tuple[int, str, str]]
) -> None:
    """The items before the place ``until`` are started, or ``refused`` (place, code, reason). Within a transaction."""
    if refused:
        await refuse(connection, batch, refused)
    await connection.fetch(SQL["batch_begun"], (batch, until))


async def refuse(connection: TrioConnection, batch: int, refused: Sequence[tuple[int, str, str]]) -> None:
    """Items that can't be started: place, code and reason."""
    places, codes, reasons = zip(*refused, strict=True)
    params = batch, arrays.ints(places), arrays.texts(codes), arrays.texts(reasons)
    await connection.fetch(SQL["refuse_batch_items"], params)


async def first_open(connection: TrioConnection, batch: int, since: int, limit: int) -> tuple[int, int] | None:
    """The first item whose instance is open, of so many: its place, and the instance."""
    rows = await connection.fetch(SQL["first_open_of_batch"], (batch, since, limit))
    return cast("tuple[int, int]", rows[0]) if rows else None


async def record_ended(
    connection: TrioConnection, batch: int, until: int, poll_within_s: tuple[float, float] | None = None
) -> None:
    """All before that place have ended; with ``poll_within_s`` the next look comes within these seconds."""
    least_s, most_s = poll_within_s or (0.0, 0.0)
    await connection.fetch(SQL["batch_ended_until"], (batch, until, poll_within_s is not None, least_s, most_s))


async def end(connection: TrioConnection, batch: int) -> None:
    """It has ended."""
    await connection.fetch(SQL["end_batch"], (batch,))


async def cancel(connection: TrioConnection, batch: int, reason: str | None) -> bool:
    """Nothing of it is started any more. False: it has ended, or is cancelled."""
    return bool(await connection.fetch(SQL["cancel_batch"], (batch, reason)))


async def open_instances(connection: TrioConnection, batch: int, since: int, limit: int) -> list[int]:
    """Of so many of its places."""
    rows = await connection.fetch(SQL["instances_of_batch"], (batch, since, limit))
    return [cast(int, row[0]) for row in rows]


async def record_cancelled(connection: TrioConnection, batch: int, until: int) -> None:
    """The items before that place are cancelled."""
    await connection.fetch(SQL["batch_cancelled_until"], (batch, until))


async def read(
    connection: TrioConnection, *, before: int = BEYOND_ALL, limit: int = 1, id: int | None = None
) -> list[BatchRow]:
    """Newest first, or the one."""
    return [BatchRow(*cast(Any, row)) for row in await connection.fetch(SQL["list_batches"], (before, limit, id))]


async def count(connection: TrioConnection, batch: int) -> dict[str, int]:
    """Items by state."""
    return dict(cast("list[tuple[str, int]]", await connection.fetch(SQL["count_batch"], (batch,))))


async def results(connection: TrioConnection, batch: int, since: int, limit: int, state: str | None) -> list[ItemRow]:
    """What became of its items, from that place on."""
    rows = await connection.fetch(SQL["results_of_batch"], (batch, since, limit, state))
    return [ItemRow(*cast(Any, row)) for row in rows]


async def purge(connection: TrioConnection, days: float, limit: int, items: int) -> int:
    """Forget some that ended so many days ago, up to ``limit`` and about ``items`` of their items; how many went."""
    return cast(int, (await connection.fetch(SQL["purge_batches"], (days, limit, items)))[0][0])
