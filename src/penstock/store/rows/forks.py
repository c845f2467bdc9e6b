"""What a durable run that is forked from another one has of its journal. One function per statement of
``queries/forks.sql``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple, cast

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import PAYLOAD
from penstock.store.rows.journal import seal


class Forked(NamedTuple):
    """The run that is forked. ``kind``, ``name``, ``payload`` and ``at`` are of its first record, and ``last`` is the
    position of its last one; None where its journal is empty."""

    began_at: datetime
    kind: int | None
    name: str | None
    payload: str | None
    at: datetime | None
    last: int | None


async def lock_forked(connection: TrioConnection, instance: int) -> Forked | None:
    """Keep a run as it is until the transaction ends; None where it is not there. Raises KeyMissing."""
    tokens, instances, executions, records = await connection.roundtrip(
        [
            (SQL["lock_forked_token"], (instance,)),
            (SQL["lock_forked_instance"], (instance,)),
            (SQL["forked_execution"], (instance,)),
            (SQL["first_and_last"], (instance,)),
        ]
    )
    if not instances:
        return None
    [(began_at,)] = cast(Any, tokens or executions[:1] or instances)
    [(kind, name, payload, at, last)] = cast(Any, records or [(None,) * 5])
    if payload is not None and connection.vault is not None:
        payload = connection.vault.open_value(payload, PAYLOAD)
    return Forked(began_at, kind, name, payload, at, last)


async def arguments(connection: TrioConnection, instance: int) -> str | None:
    """Return what a run was started with; None where it is not there. Raises KeyMissing."""
    rows = await connection.fetch(SQL["forked_arguments"], (instance,))
    if not rows:
        return None
    text = cast("str", rows[0][0])
    connection.remember_row_size(len(text))
    return text if connection.vault is None else connection.vault.open(text)


async def begun_with(connection: TrioConnection, instance: int, begun: int) -> str | None:
    """Return the payload of a run's first record, if that is of the kind ``begun``. Raises KeyMissing."""
    rows = await connection.fetch(SQL["begun_with"], (instance, begun))
    payload = cast("str | None", rows[0][0]) if rows else None
    vault = connection.vault
    return payload if payload is None or vault is None else vault.open_value(payload, PAYLOAD)


def copy(
    connection: TrioConnection,
    new: int,
    instance: int,
    before: int,
    path: str,
    *,
    later_messages: bool,
    name: str,
    payload: str,
    at: datetime,
) -> Statement:
    """Return the statement that copies a part of a journal to a new run, see there."""
    sealed = seal([payload], connection.vault)
    return SQL["fork_journal"], (new, instance, before, path, later_messages, name, sealed, at)
