"""Idempotency keys: the first answer of a call, kept to be given again."""

from __future__ import annotations

from typing import Any, cast

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import ANSWER, Sealing, offloaded


async def claim(connection: TrioConnection, scope: str, key: str, request_hash: bytes, instance: int) -> bool:
    """Take an idempotency key; waits for a transaction that holds it. False when it was used before."""
    return bool(await connection.fetch(SQL["claim_idempotency"], (scope, key, request_hash, instance)))


async def find(connection: TrioConnection, scope: str, key: str) -> tuple[bytes, int, bytes | None] | None:
    """(request hash, instance, first answer) of a used idempotency key. Raises KeyMissing."""
    rows = cast(Any, await connection.fetch(SQL["find_idempotency"], (scope, key)))
    if not rows or connection.vault is None or rows[0][2] is None:
        return rows[0] if rows else None
    request_hash, instance, answer = rows[0]
    text, vault = bytes(answer), connection.vault
    clear = await offloaded(len(text), lambda: vault.open_value(text.decode(), ANSWER).encode())
    return request_hash, instance, clear


def use(scope: str, key: str, request_hash: bytes, instance: int) -> Statement:
    """Takes an idempotency key, in a transaction that knows that it is free."""
    return SQL["claim_idempotency"], (scope, key, request_hash, instance)


def keep_answer(connection: TrioConnection, scope: str, key: str, answer: bytes) -> Statement:
    """Keeps the first answer of an idempotency key."""
    vault = connection.vault
    kept = answer if vault is None else Sealing(len(answer), lambda: vault.seal_value(answer, ANSWER))
    return SQL["answer_idempotency"], (scope, key, kept)


async def purge(connection: TrioConnection, older_than_hours: float, limit: int) -> int:
    """Forget up to ``limit`` idempotency keys that are old enough; how many went."""
    return cast(int, (await connection.fetch(SQL["purge_idempotency"], (older_than_hours, limit)))[0][0])
