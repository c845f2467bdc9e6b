"""Cursors of `TrioConnection`: PostgreSQL's own placeholders (``$1``), and the queue of one round trip.

Relies on psycopg's private methods, as `connection.py` does. Must not wait: that is the connection's part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import trio
from psycopg import generators, pq
from psycopg.rows import TupleRow

from penstock.store.db.wait import CLEANUP_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import LiteralString

    from psycopg._queries import PostgresQuery
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGresult

    Sql = LiteralString | bytes
    """bytes saves an encode and is what text read from a file has to be: psycopg wants SQL in str to be literal."""

    Statement = tuple[Sql, Sequence[object]]
    """SQL with $1, $2 … and its parameters."""


class TrioCursor(psycopg.AsyncRawCursor[TupleRow]):
    """psycopg's raw cursor; the parts of its `execute` can be had singly, for a round trip."""

    __slots__ = ("_converted",)

    _converted: PostgresQuery

    def convert_gen(self, statement: Statement) -> PQGen[None]:
        """Convert a statement; raises what is wrong with its parameters. Sends nothing in autocommit mode."""
        sql, params = statement
        yield from self._start_query(sql)
        self._converted = self._convert_query(sql, params)

    def enqueue_gen(self) -> PQGen[None]:
        """Put the converted statement into the connection's pipeline, preparing it if due. Sends nothing."""
        yield from self._maybe_prepare_gen(self._converted)

    def committed(self) -> bool:
        """Return whether it was a COMMIT that the server answered with COMMIT."""
        return self.statusmessage == "COMMIT"

    def _check_results(self, results: list[PGresult]) -> None:
        try:
            super()._check_results(results)
        except psycopg.Error:  # the session ended; what it had said before may be true
            if results[0].status == pq.ExecStatus.TUPLES_OK:
                self._set_results(results[:1])
            raise

    def raise_for(self, results: list[PGresult]) -> None:
        """Raises the error that is among the results, or says that they are not what a statement has."""
        super()._check_results(results)
        raise psycopg.InternalError(f"{len(results)} results of one statement")

    def committed_nothing(self) -> bool:
        """Return whether it was a COMMIT that the server answered with ROLLBACK, as the transaction had failed
        before."""
        return self.statusmessage == "ROLLBACK" and not self._converted.query.lstrip().upper().startswith(b"ROLLBACK")

    def rows_nowait(self) -> list[TupleRow]:
        """All rows of a result that is here already; none for a statement that returns none."""
        result = self.pgresult
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            return []
        return self._tx.load_rows(0, result.ntuples, self._make_row)


class TrioServerCursor(psycopg.AsyncRawServerCursor[TupleRow]):
    """psycopg's raw server cursor, its CLOSE shielded: it is the exit of a block, like ROLLBACK."""

    __slots__ = ()

    async def close(self) -> None:
        """Close the cursor, on the server too."""
        with trio.move_on_after(CLEANUP_TIMEOUT_S, shield=True):
            await super().close()


class OneFlushPipeline(psycopg.AsyncPipeline):
    """A pipeline whose statements are all known before the first is sent."""

    def send_and_fetch_gen(self, cursors: list[TrioCursor]) -> PQGen[None]:
        """Send all with a Sync in one flush, read all results. Raises the first error, after the last result.

        psycopg's own flushes after each statement: five are five packets and some 15 system calls more.
        """
        for cursor in cursors:
            yield from cursor.enqueue_gen()
        self._enqueue_sync()
        while self.command_queue:
            self.command_queue.popleft()()
        yield from generators.send(self.pgconn)
        yield from self._read_gen()

    def _read_gen(self) -> PQGen[None]:
        """Read all results. psycopg's own would forget an error for the end of the session that follows it, and leave
        the end of the answer unread when the commit itself fails."""
        first: psycopg.Error | None = None
        pgconn, queue, process = self.pgconn, self.result_queue, self._process_results
        while queue:
            try:
                results = yield from generators.fetch_many(pgconn)
                if not results:
                    raise psycopg.OperationalError("the answer ended before its end")
                queued = queue[0]
                # the last one is the Sync; before its own answer an error of the commit may come
                if len(queue) > 1 or results[0].status == pq.ExecStatus.PIPELINE_SYNC:
                    queue.popleft()
                process(queued, results)
            except psycopg.Error as error:
                first = first or error
                if pgconn.status == pq.ConnStatus.BAD:
                    break
        if first is not None:
            raise first
