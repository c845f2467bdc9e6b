"""Messages and who waits for them: what `core.rules.correlation` decides upon, under its locks, and what it decides.

A transaction that changes which message is for whom does so last, in two round trips: `settle` sends all else that it
writes, takes the locks and reads; what it returns goes with the COMMIT.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import msgspec

from penstock.core.advance.effect import MessageWait
from penstock.core.rules.correlation import Address, Closing, Correlation, Wait, correlate
from penstock.core.rules.state import MESSAGE_TIMER
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import offloaded
from penstock.store.rows.full_path import Change

OWN_DELIVERY_S: Final = 5.0
"""Whoever publishes a message takes it to its waits itself. After so long the timer does, if that engine died."""


class NewMessage(NamedTuple):
    """A message that is published."""

    id: int
    name: str
    key: str
    for_all: bool
    ttl_s: float
    body: bytes
    sender: str | None
    message_id: str | None


class GivenMessage(NamedTuple):
    """The message that is for a wait."""

    id: int
    name: str
    sender: str | None
    body: bytes


class Used(NamedTuple):
    """What came with an id before."""

    request_hash: bytes
    receivers: list[tuple[int, int, int]]
    """Instance, definition, step."""
    there: bool
    """Whether nobody has received it yet."""


class LockedWaits(NamedTuple):
    """What a transaction that publishes sees, under its locks."""

    xid: str
    used: dict[str, Used]
    """Of the ids that came before."""
    waits: dict[Address, list[Wait]]


class PendingMessageRow(NamedTuple):
    """A message that nobody has received yet. ``taken``: it is on its way to a wait."""

    id: int
    name: str
    key: str
    message_id: str | None
    published_at: datetime
    expires_at: datetime
    size_bytes: int
    taken: bool


async def settle(
    connection: TrioConnection, changes: Sequence[Change], writes: Sequence[Statement]
) -> tuple[list[Statement], bool]:
    """The last statements of a transaction with these changes, which has written nothing yet; and whether a wait has
    got a message. Without waits for messages they are ``writes`` as they are."""
    gone = [execution for change in changes for execution in change.effects.unsubscribed]
    come = [(change.effects.instance.id, one) for change in changes for one in change.effects.subscribed]
    if not gone and not come:
        return list(writes), False
    received = [id for change in changes for id in change.effects.received]
    asked: defaultdict[Address, int] = defaultdict(int)
    for _, one in come:
        asked[one.name, one.key] += 1
    names, keys, most = _columns(asked)
    closing_columns = _executions(gone)
    _, closing_rows, wait_rows, kept_rows = (
        await connection.roundtrip(
            [
                *writes,
                (SQL["lock_addresses"], (names, keys, *closing_columns)),
                (SQL["closing_waits"], closing_columns),
                (SQL["open_waits"], (names, keys, most, *closing_columns, len(gone) + 1)),
                (SQL["kept_messages"], (names, keys, most)),
            ]
        )
    )[-4:]
    closing = [
        Closing(token, seq, (name, key), message, for_all, expired)
        for token, seq, name, key, message, for_all, expired in cast(Any, closing_rows)
    ]
    waits = _waits(wait_rows)
    for instance, one in come:
        waits[one.name, one.key].append(Wait(one.seq, one.token_id, instance))
    kept: defaultdict[Address, list[int]] = defaultdict(list)
    for name, key, id in cast(Any, kept_rows):
        kept[name, key].append(id)
    decided = correlate(waits, kept, closing, received)
    return _written(decided, come, gone), bool(decided.given)


def _waits(rows: Iterable[Any]) -> defaultdict[Address, list[Wait]]:
    waits: defaultdict[Address, list[Wait]] = defaultdict(list)
    for name, key, seq, token, instance in rows:
        waits[name, key].append(Wait(seq, token, instance))
    return waits


def _columns(asked: dict[Address, int]) -> tuple[str, str, str]:
    return arrays.texts(name for name, _ in asked), arrays.texts(key for _, key in asked), arrays.ints(asked.values())


def _executions(executions: Sequence[tuple[int, int]]) -> tuple[str, str]:
    return arrays.ints(token for token, _ in executions), arrays.ints(seq for _, seq in executions)


def _written(
    decided: Correlation, come: Sequence[tuple[int, MessageWait]], gone: Sequence[tuple[int, int]]
) -> list[Statement]:
    ints = arrays.ints
    writes: list[Statement] = []
    if gone:
        columns = _executions(sorted(gone))
        timers = ints([MESSAGE_TIMER] * len(gone))
        # a publisher may have armed one that this transaction did not see when it closed the step
        writes += [(SQL["unsubscribe"], columns), (SQL["delete_fired"], (*columns, timers))]
    if come:
        given = {(wait.token_id, wait.seq): message for wait, message in decided.given.items()}
        rows = [
            (one.token_id, one.seq, instance, one.name, one.key, given.get((one.token_id, one.seq)))
            for instance, one in come
        ]
        kinds = (ints, ints, ints, arrays.texts, arrays.texts, ints)
        columns = tuple(kind(column) for kind, column in zip(kinds, zip(*rows, strict=True), strict=True))  # type: ignore[operator]  # each kind is of its column
        writes.append((SQL["subscribe"], columns))
    fresh = {(one.token_id, one.seq) for _, one in come}
    writes += _give({w: m for w, m in decided.given.items() if (w.token_id, w.seq) not in fresh})
    writes += _arm(decided.given, 0.0)
    if decided.taken or decided.kept:
        writes.append((SQL["take_messages"], (ints(decided.taken), ints(decided.kept))))
    if decided.done or decided.perhaps_done:
        writes.append((SQL["drop_messages"], (ints(decided.done), ints(decided.perhaps_done))))
    return writes


def _give(given: dict[Wait, int]) -> list[Statement]:
    if not given:
        return []
    columns = _executions([(wait.token_id, wait.seq) for wait in given])
    return [(SQL["give_messages"], (*columns, arrays.ints(given.values())))]


def _arm(waits: Iterable[Wait], within_s: float) -> list[Statement]:
    rows = [(wait.token_id, wait.seq, wait.instance_id) for wait in waits]
    if not rows:
        return []
    return [(SQL["arm_messages"], (*map(arrays.ints, zip(*rows, strict=True)), within_s))]


async def message_for(connection: TrioConnection, token: int, seq: int) -> GivenMessage | None:
    """What is for a wait, under the lock of its instance. Raises KeyMissing."""
    rows = cast(Any, await connection.fetch(SQL["message_for"], (token, seq)))
    if not rows:
        return None
    id, name, sender, text = rows[0]
    vault = connection.vault
    if vault is not None:
        text = await offloaded(len(text), lambda: vault.open(text))
    return GivenMessage(id, name, sender, text.encode())


# -- publishing


async def open_publishing(
    connection: TrioConnection,
    ids: Sequence[tuple[str, bytes, int, float]],
    asked: dict[Address, int],
) -> LockedWaits:
    """Begin a transaction that publishes: takes ids (id, hash, message, seconds to remember), locks the addresses and
    looks who waits there, so many of each at most. Leaves the transaction open."""
    names, keys, most = _columns(asked)
    texts, floats, ints = arrays.texts, arrays.floats, arrays.ints
    rows = list(zip(*sorted(ids), strict=True)) or [(), (), (), ()]
    claim = (texts(rows[0]), texts(f"\\x{digest.hex()}" for digest in rows[1]), ints(rows[2]), floats(rows[3]))
    nobody = ("{}", "{}")
    _, claimed, _, wait_rows, about = await connection.roundtrip(
        [
            (SQL["begin"], ()),
            (SQL["claim_message_ids"], claim),
            (SQL["lock_addresses"], (names, keys, *nobody)),
            (SQL["open_waits"], (names, keys, most, *nobody, 0)),
            (SQL["transaction_id"], ()),
        ]
    )
    taken = {id for id, *_ in ids} - {cast(str, row[0]) for row in claimed}
    used = await find_ids(connection, taken) if taken else {}
    return LockedWaits(cast(str, about[0][0]), used, _waits(wait_rows))


async def find_ids(connection: TrioConnection, ids: Iterable[str]) -> dict[str, Used]:
    """What came with these ids."""
    rows = cast(Any, await connection.fetch(SQL["find_message_ids"], (arrays.texts(sorted(ids)),)))
    return {
        id: Used(
            bytes(digest),
            [] if receivers is None else msgspec.json.decode(receivers, type=list[tuple[int, int, int]]),
            there,
        )
        for id, digest, receivers, there in rows
    }


async def stand(connection: TrioConnection, waits: Sequence[Wait]) -> list[tuple[Wait, int, int]]:
    """Of each wait that is open its definition and step."""
    columns = _executions([(wait.token_id, wait.seq) for wait in waits])
    rows = cast(Any, await connection.fetch(SQL["receivers_of"], columns))
    found = {(token, seq): (definition, step) for token, seq, definition, step in rows}
    return [(w, *found[w.token_id, w.seq]) for w in waits if (w.token_id, w.seq) in found]


def publish(
    connection: TrioConnection,
    messages: Sequence[NewMessage],
    given: dict[Wait, int],
    receivers: dict[str, list[tuple[int, int, int]]],
) -> list[Statement]:
    """Writes messages, and whom they are for; ``receivers`` by the ids of their senders."""
    writes: list[Statement] = []
    if messages:
        taken = set(given.values())
        ints, texts, bools = arrays.ints, arrays.texts, arrays.bools
        columns = (
            ints(m.id for m in messages),
            texts(m.name for m in messages),
            texts(m.key for m in messages),
            bools(m.for_all for m in messages),
            bools(m.id in taken for m in messages),
            arrays.floats(m.ttl_s for m in messages),
            ints(len(m.body) for m in messages),
            arrays.sealed((m.body for m in messages), connection.vault),
            texts(m.sender for m in messages),
            texts(m.message_id for m in messages),
        )
        writes.append((SQL["insert_messages"], columns))
    writes += [*_give(given), *_arm(given, OWN_DELIVERY_S)]
    if receivers:
        documents = arrays.documents(msgspec.json.encode(rows) for rows in receivers.values())
        writes.append((SQL["note_receivers"], (arrays.texts(receivers), documents)))
    return writes


async def there(connection: TrioConnection, messages: Iterable[int]) -> set[int]:
    """Which of the messages nobody has received yet."""
    rows = await connection.fetch(SQL["messages_there"], (arrays.ints(messages),))
    return {cast(int, row[0]) for row in rows}


async def listing(
    connection: TrioConnection, name: str | None, key: str | None, after: int, limit: int
) -> list[PendingMessageRow]:
    """Messages that nobody has received yet, oldest first."""
    rows = await connection.fetch(SQL["list_messages"], (name, key, after, limit))
    return [PendingMessageRow(*cast(Any, row)) for row in rows]


# -- chores


async def purge(connection: TrioConnection, limit: int) -> int:
    """Forget up to ``limit`` messages that have expired; how many went."""
    return cast(int, (await connection.fetch(SQL["purge_messages"], (limit,)))[0][0])


async def purge_ids(connection: TrioConnection, limit: int) -> int:
    """Forget up to ``limit`` ids whose time is over; how many went."""
    return cast(int, (await connection.fetch(SQL["purge_message_ids"], (limit,)))[0][0])


async def count(connection: TrioConnection, most: int) -> tuple[int, int]:
    """How many messages there are, and their bytes; looks at ``most`` at most."""
    return cast("tuple[int, int]", (await connection.fetch(SQL["count_messages"], (most,)))[0])
