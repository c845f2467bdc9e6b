"""Whether a transaction was committed whose COMMIT nobody answered.

Its id alone does not tell: a server that crashed forgets the ids of transactions of which nothing had reached the disk,
and gives them to others; "committed" is then true of somebody else. So a commit is believed when the id says so *and*
a row is there that only this transaction wrote: its *proof*. Relies on history rows that nobody updates, and on
instance ids that are never given twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from psycopg import errors as pg_errors

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.rows.full_path import Change

NOTE_SCOPE = "commit"
"""Of the rows in `idempotency` that only prove a commit; they go with the old keys."""


class InDoubtCommit:
    """A transaction on its way: its id, and what proves it (None: it may be repeated without harm)."""

    __slots__ = ("proof", "writes", "xid")

    def __init__(self, xid: str, changes: Sequence[Change], *, repeatable: bool) -> None:
        self.xid = xid
        self.proof = None if repeatable else _written_anyway(changes)
        self.writes: list[Statement] = []
        """What has to be written for the sake of the proof: nothing, as a rule."""
        if not repeatable and self.proof is None:
            key = uuid.uuid4().hex
            self.writes = [(SQL["claim_idempotency"], (NOTE_SCOPE, key, b"", 0))]
            self.proof = (SQL["find_idempotency"], (NOTE_SCOPE, key))

    async def committed(self, connection: TrioConnection) -> bool | None:
        """What became of it. None: the id is that of a transaction that still runs."""
        try:
            status = (await connection.fetch(SQL["transaction_status"], (self.xid,)))[0][0]
        except pg_errors.InvalidParameterValue:  # in the future: the server crashed and has not reached the id again
            return False
        if status == "in progress":
            return None
        return status == "committed" and self.proof is not None and bool(await connection.fetch(*self.proof))


def _written_anyway(changes: Sequence[Change]) -> Statement | None:
    for change in changes:
        if change.created is not None:
            return SQL["instance_exists"], (change.created.id,)
        for row in change.effects.history:
            about = (change.effects.instance.id, row.position, row.token_id, row.seq, row.ended_at)
            return SQL["history_written"], about
    return None
