"""A pooler between us and PostgreSQL that gives the server to others between two transactions: refused at the start.

The engine prepares statements, sets parameters of its sessions, listens, and holds locks by sessions that show that it
lives; behind such a pooler all of that lands in somebody else's session, some of it unnoticed. Poolers do not say what
they are, so it is seen by what they do: two connections meet the same server, or one meets two.
"""

from __future__ import annotations

from typing import cast

from penstock.errors import PenstockError
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL


class TransactionPooling(PenstockError):
    """The DSN leads through a pooler in transaction or statement mode."""


async def refuse_transaction_pooling(connection: TrioConnection, dsn: str) -> None:
    """Raises TransactionPooling. ``connection`` is one to ``dsn``, outside a transaction."""
    mine = await _server(connection)
    async with await TrioConnection.connect(dsn) as other, other.transaction():
        # a pooler has our server back by now, and gives it away first
        theirs = await _server(other)
        if theirs != mine and await _server(connection) == mine:
            return
    raise TransactionPooling(
        "between the engine and PostgreSQL is a pooler (PgBouncer) in transaction or statement mode: it gives the"
        " engine's sessions to others. Connect directly, or through a pool with pool_mode = session."
    )


async def _server(connection: TrioConnection) -> int:
    """Return the process of the server that this connection meets now."""
    async with connection.cursor() as cursor:
        await cursor.execute(SQL["server_process"], prepare=False)  # one that was prepared would be elsewhere
        return cast("tuple[int]", await cursor.fetchone())[0]
