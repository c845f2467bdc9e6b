"""Signals: those that are kept for a WAIT, and the ids by which repeats are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from penstock.core.advance.recorder import SIGNALS_PER_ADVANCE_MAX
from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import KeyMissing, Vault, offloaded, sealed

READ_COUNT = SIGNALS_PER_ADVANCE_MAX + 1
"""Kept signals read of an instance, or of each WAIT of one that has many: an advance sees that there are more."""


class KeptSignals:
    """Those of one instance: the oldest by the index of their WAIT, and how many and how large all are."""

    def __init__(self) -> None:
        self.signals: dict[int, list[tuple[int, bytes]]] = {}
        self.count = self.bytes = 0
        self.unreadable: KeyMissing | None = None

    def add(self, id: int, step: int, output: str, vault: Vault | None) -> None:
        self.count += 1
        self.bytes += len(output.encode())
        try:
            clear = output if vault is None else vault.open(output)
        except KeyMissing as error:
            self.unreadable = error
        else:
            self.signals.setdefault(step, []).append((id, clear.encode()))


async def kept(connection: TrioConnection, rows: Sequence[Any]) -> defaultdict[int, KeptSignals]:
    """Of each instance, from what `read_signals` gave. Those that have more are looked at again."""
    kept: defaultdict[int, KeptSignals] = defaultdict(KeptSignals)
    vault = connection.vault

    async def add(rows: Sequence[Any]) -> None:
        def note() -> None:
            for id, instance, step, output, *_ in rows:
                kept[instance].add(id, step, output, vault)

        await offloaded(0 if vault is None else sum(len(row[3]) for row in rows), note)

    await add(rows)
    many = [instance for instance, about in kept.items() if about.count == READ_COUNT]
    if many:
        for instance in many:
            del kept[instance]
        found = await connection.fetch(SQL["read_many_signals"], (arrays.ints(many), READ_COUNT))
        counts: dict[int, tuple[int, int]] = {}
        await add(found)
        for _, instance, _, _, count, size in cast(Any, found):
            counts[instance] = count, int(size)
        for instance, (count, size) in counts.items():
            kept[instance].count, kept[instance].bytes = count, size
    return kept


async def find_id(connection: TrioConnection, instance: int, id: str) -> bytes | None:
    """Return the hash of the signal that came to the instance with this id."""
    rows = await connection.fetch(SQL["find_signal_id"], (instance, id))
    return bytes(cast(bytes, rows[0][0])) if rows else None


async def of_instance(connection: TrioConnection, instance: int) -> list[tuple[int, int, datetime, str]]:
    """(id, step, received at, variables) of kept signals, oldest first. Raises KeyMissing."""
    rows = cast(Any, await connection.fetch(SQL["signals_of"], (instance,)))
    vault = connection.vault
    if vault is None:
        return list(rows)
    return await offloaded(
        sum(len(row[-1]) for row in rows),
        lambda: [(id, step, at, vault.open(text)) for id, step, at, text in rows],
    )


def keep(
    instance: int,
    step: int,
    output: bytes,
    vault: Vault | None,
    *,
    audit: bool,
    actor: str | None,
    id: str | None,
) -> Statement:
    """Keeps a signal for a wait that is not open yet."""
    return SQL["insert_signal"], (instance, step, sealed(output, vault), audit, actor, id)


def record_signal_id(instance: int, id: str, request_hash: bytes) -> Statement:
    """Remembers that the signal with this id came."""
    return SQL["note_signal_id"], (instance, id, request_hash)
