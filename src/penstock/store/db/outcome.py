"""What became of statements that were sent: proved to be rolled back, or in doubt. Decided here and nowhere else.

The server has undone a transaction when it says ERROR, with an SQLSTATE, for a statement before COMMIT was answered or
as the answer to COMMIT. That is the only proof. FATAL and PANIC end the session, maybe in the middle of a COMMIT that
took effect: `pg_ctl restart -m fast` and `pg_terminate_backend` let a COMMIT finish, answer it, and then say FATAL. The
CommandComplete of a statement in autocommit mode precedes its commit, so it proves nothing either. A COMMIT that no
longer waits for its standby is done on this server only: a failover undoes it.

So every error that leaves a `TrioConnection` after something was sent is either such an ERROR, raised as psycopg's
class for its SQLSTATE, or `InDoubt`. Who may have committed looks what became of it before answering anyone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg

if TYPE_CHECKING:
    from psycopg.errors import Diagnostic
    from psycopg.rows import TupleRow

_SYNC_WAIT: Final = "SyncRepWaitForLSN"
"""The function of the server that warns of a standby that is no longer waited for, whatever the language."""


class InDoubt(psycopg.OperationalError):
    """What was sent may have been committed, or not; its cause says why that is unknown.

    ``rows`` are those that a single statement had returned before: true if it was committed.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.rows: list[TupleRow] = []


def is_rolled_back(error: psycopg.Error) -> bool:
    """Return whether this answer of the server proves that the transaction was undone. Not for errors after a
    COMMIT."""
    return error.sqlstate is not None and error.diag.severity_nonlocalized == "ERROR"


def is_unreplicated(notice: Diagnostic) -> bool:
    """Return whether the server says that a commit has not been waited for until it reached the standby."""
    return notice.source_function == _SYNC_WAIT
