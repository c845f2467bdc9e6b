"""Variables of instances: read, opened where they were sealed, and the deltas of history folded into one."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any, Final, cast

from penstock.log.log import RateLimitedLog, get_logger
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import KeyMissing, Vault, offloaded, sealed

_unreadable = RateLimitedLog(get_logger("penstock.store.variables"), interval_seconds=10)


INLINE_VARIABLES_MAX_BYTES: Final = 4096
"""As PostgreSQL stores them. So many are read together with a claimed job; more of them by a statement of their own,
and only where this engine does not remember them."""
UNFOLDED_MAX = 32_000
"""Of a token: what a smallint holds. One that has it takes no completion with variables on the fast path."""


async def read(connection: TrioConnection, instances: Sequence[int]) -> dict[int, str]:
    """Return the current variables of instances, as JSON text."""
    found, _ = await read_within(connection, instances, sys.maxsize)
    return found


async def read_within(
    connection: TrioConnection, instances: Sequence[int], max_bytes: int
) -> tuple[dict[int, str], dict[int, int]]:
    """As `read`, from the lowest id on as long as they have no more than ``max_bytes`` together; and the bytes of
    the others. Those that can't be read for want of a key are in neither."""
    rows = cast(Any, await connection.fetch(SQL["variables"], (arrays.ints(instances), max_bytes)))
    connection.remember_row_size(max((size for _, size, text in rows if text is not None), default=0))
    found = {id: text for id, _, text in rows if text is not None}
    vault = connection.vault
    if vault is not None:
        clear = await offloaded(
            sum(map(len, found.values())),
            lambda: {id: opened(vault, text, id) for id, text in found.items()},
        )
        found = {id: text for id, text in clear.items() if text is not None}
    return found, {id: size for id, size, text in rows if text is None}


def opened(vault: Vault, text: str, instance: int, name: str | None = None) -> str | None:
    """Return the clear text of variables, or of a value with a name; None when it can't be read, which the log
    tells."""
    try:
        return vault.open(text) if name is None else vault.open_value(text, name)
    except KeyMissing as error:
        _unreadable.error(f"{instance:x}", "a payload can't be read", instance=f"{instance:x}", reason=error.reason)
        return None


def fold(instances: Sequence[int], max_bytes: int) -> Statement:
    """Moves the deltas of instances, whose tokens are all locked, into their overlays. Gives the ids of those that are
    left as they are, as they would have more than ``max_bytes`` of variables. `record_folded` has to follow."""
    return SQL["fold"], (arrays.ints(instances), max_bytes)


def record_folded(instances: Sequence[int], too_large: Collection[int]) -> list[Statement]:
    """Counts anew what the tokens of instances wrote. Tokens of those that are too large go through the full path."""
    folded = [id for id in instances if id not in too_large]
    counts = ((folded, 0), (sorted(too_large), UNFOLDED_MAX))
    return [(SQL["count_unfolded"], (arrays.ints(ids), count)) for ids, count in counts if ids]


async def version(connection: TrioConnection, instance: int) -> int:
    """Which variables an instance has: another number, and a greater one, once somebody has written some. It may be
    another one as well after a thousand steps that wrote none; 0 of an instance that is not there."""
    rows = await connection.fetch(SQL["variables_version"], (instance,))
    return cast(int, rows[0][0]) if rows else 0


async def edited_size(
    connection: TrioConnection, instance: int, given: bytes, removed: Collection[str], vault: Vault | None
) -> int:
    """The bytes of variables that an edit of an instance, whose tokens are all locked, would lead to."""
    rows = await connection.fetch(SQL["edited_size"], _edit(instance, given, removed, vault))
    return cast(int, rows[0][0])


async def named(connection: TrioConnection, instance: int, names: Collection[str]) -> bytes:
    """The variables that have one of the names, of an instance whose tokens are all locked; sealed ones as they are
    kept."""
    rows = cast(Any, await connection.fetch(SQL["variables_named"], (instance, arrays.texts(sorted(names)))))
    return (rows[0][0] or "{}").encode() if rows else b"{}"


async def was_edited(connection: TrioConnection, instance: int, bulk: int) -> bool:
    """Return whether a bulk operation has changed the variables of an instance."""
    return bool(await connection.fetch(SQL["was_edited"], (instance, bulk)))


def edit(
    instance: int, given: bytes, removed: Collection[str], vault: Vault | None, bulk: int | None = None
) -> Statement:
    """Sets and removes variables of an instance whose tokens are all locked; ``bulk``: for that operation."""
    return SQL["edit_variables"], (*_edit(instance, given, removed, vault), bulk)


def _edit(instance: int, given: bytes, removed: Collection[str], vault: Vault | None) -> tuple[object, ...]:
    return instance, sealed(given, vault), arrays.texts(sorted(removed))
