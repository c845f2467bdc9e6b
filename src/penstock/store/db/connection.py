"""A PostgreSQL connection that lives on Trio: psycopg 3's `AsyncConnection` with everything of asyncio replaced.

Relies on psycopg within the range of `penstock.store`: all that it does passes through `wait` and `lock`, which is
private to it (tools/psycopg_versions.py runs what has to pass before another version is allowed). Figures of the
alternatives, CPU per SELECT 1: this 145 µs, asyncio 205, worker threads 397, trio-asyncio 623.

Cancellation at any point leaves the connection usable or closed, never in between:

- `wait` cancels a running statement on the server and reads its results to the end, shielded, within
  `CLEANUP_TIMEOUT_S`; if that fails the connection is closed. Whether the statement took effect is unknown, as with
  every cancel. That makes the exits of pipeline, COPY and stream safe too, in which Trio cancels every wait again
  (its cancellation is a level, not an edge).
- COMMIT and ROLLBACK at the end of a transaction are shielded as a whole, and bounded: past the bound the connection
  is closed.
- A statement that the server does not answer (its process was stopped, the way to it swallows everything, a standby
  that it waits for is away) is given up after ``answer_within_s``. It is not cancelled, as that would end a COMMIT's
  wait for the standby; it may take effect later.

What an error says of the transaction is decided in `wait`, by the rules of `outcome.py`: it is the server's ERROR, or
`InDoubt`; and then the connection is closed.

Must not know the schema, nor hold SQL other than what it is given.
"""

from __future__ import annotations

import logging
import math
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
import trio
from psycopg import errors as pg_errors
from psycopg import generators, pq
from psycopg.adapt import AdaptersMap, PyFormat, Transformer
from psycopg.conninfo import conninfo_attempts, make_conninfo, timeout_from_conninfo
from psycopg.rows import TupleRow, tuple_row

from penstock.store.db.cursor import OneFlushPipeline, TrioCursor, TrioServerCursor
from penstock.store.db.outcome import InDoubt, is_rolled_back, is_unreplicated
from penstock.store.db.parameters import UNTYPED_ADAPTERS
from penstock.store.db.statement_watchdog import statement_watchdog
from penstock.store.db.vault import Sealing, Vault, offloaded
from penstock.store.db.wait import CLEANUP_TIMEOUT_S, ConnectionLock, Drive, drive_connecting

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from psycopg import AsyncCursor, AsyncTransaction
    from psycopg.abc import AdaptContext, ConnParam, PQGen
    from psycopg.abc import Transformer as TransformerOf
    from psycopg.errors import Diagnostic
    from psycopg.pq.abc import PGconn, PGresult
    from psycopg.rows import AsyncRowFactory

    from penstock.store.db.cursor import Sql, Statement

COMMIT_TIMEOUT_S = 30.0
"""Bound of the COMMIT at the end of a `transaction()`; once cancelled, that is `CLEANUP_TIMEOUT_S` too."""

BUFFER_KEPT_MAX_BYTES = 4 * 1024 * 1024
"""A connection that read a larger row is not used again."""

FINE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
OUTDATED, GONE = b"0A000", b"26000"
"""SQLSTATEs of prepared statements that would fail for ever: their result has other types by now, or there is none."""

RECANCEL_INTERVAL_S = 0.25
"""A cancel that comes between two statements of one operation (PREPARE, then the query) is lost: ask again."""

T = TypeVar("T")
RV = TypeVar("RV")

log = logging.getLogger("penstock.store.connection")


class TrioConnection(psycopg.AsyncConnection[TupleRow]):
    """A connection in autocommit mode unless asked otherwise, owned by one task at a time.

    ``created_at`` is of Trio's clock, in seconds.
    """

    def __init__(self, pgconn: PGconn, row_factory: AsyncRowFactory[TupleRow] = tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        self._lock_of_ours = ConnectionLock()
        self.lock = self._lock_of_ours  # type: ignore[assignment]  # psycopg only uses `async with`
        self.cursor_factory = TrioCursor
        self.server_cursor_factory = TrioServerCursor
        self._adapters = AdaptersMap(UNTYPED_ADAPTERS)
        self.created_at = trio.current_time()
        self.takes_no_writes = False
        """Closed by `leave_server`."""
        self.answer_within_s = math.inf
        """A statement that has no answer after so many seconds is `InDoubt`."""
        self.unanswered: int | None = None
        """Closed for that: a descriptor of the socket, on which something comes when the server's session ends. It
        belongs to whoever takes it from here."""
        self._statement_watchdog = statement_watchdog()
        self._unreplicated = False
        self._transformer: TransformerOf | None = None  # of `fetch`
        self.backend: tuple[int, str] | None = None
        """The server's process for this session and when it began, where somebody has asked for it."""
        self.vault: Vault | None = None
        """Seals and opens payloads, where they are encrypted."""
        self.add_notice_handler(self._note)

    @classmethod
    async def connect(
        cls,
        conninfo: str = "",
        *,
        autocommit: bool = True,
        prepare_threshold: int | None = 0,
        context: AdaptContext | None = None,
        row_factory: AsyncRowFactory[TupleRow] | None = None,
        cursor_factory: type[AsyncCursor[TupleRow]] | None = None,
        **kwargs: ConnParam,
    ) -> Self:
        """Connect to the first of the hosts (and of their addresses) that answers.

        ``connect_timeout`` of the conninfo is per address, in seconds. With ``prepare_threshold`` 0 a statement is
        prepared at its first use; None (for PgBouncer in transaction mode) prepares nothing. Raises
        `psycopg.OperationalError` of the last attempt, those before it as notes. Cancelled, it leaves no socket.
        """
        params = await cls._get_connection_params(conninfo, **kwargs)
        timeout_s = timeout_from_conninfo(params)
        # In a thread: it resolves host names.
        attempts = await trio.to_thread.run_sync(conninfo_attempts, params, abandon_on_cancel=True)
        failures: list[psycopg.Error] = []
        for attempt in attempts:
            try:
                with trio.fail_after(timeout_s):
                    connection = await drive_connecting(cls._connect_gen(make_conninfo("", **attempt)))
                break
            except trio.TooSlowError:
                failures.append(pg_errors.ConnectionTimeout(f"no connection within {timeout_s} s"))
            except psycopg.OperationalError as error:
                failures.append(error)
        else:
            *earlier, last = failures
            for failure in earlier:
                last.add_note(f"before that: {failure}")
            raise last.with_traceback(None)

        connection._autocommit = autocommit
        connection.prepare_threshold = prepare_threshold
        connection.row_factory = row_factory or connection.row_factory
        connection.cursor_factory = cursor_factory or connection.cursor_factory
        if context is not None:
            connection._adapters = AdaptersMap(context.adapters)
        return connection

    async def wait(self, gen: PQGen[RV], interval: float = 0.0, timeout: float | None = None) -> RV:
        """Drive a generator of this connection to its end: everything that psycopg sends passes through here.

        ``interval`` is psycopg's polling and has no meaning here. Raises psycopg's private time-out after
        ``timeout`` seconds; the server's ERROR; or `InDoubt`, and the connection is closed then.
        """
        if timeout is not None:
            with trio.move_on_after(timeout):
                return await self.wait(gen)
            raise pg_errors._WaitTimeout("wait timeout expired")  # pyright: ignore[reportPrivateUsage] # psycopg waits for it
        drive = Drive(gen, self.pgconn.socket)
        self._unreplicated = False
        try:
            result = await self._wait_answer(drive)
        except psycopg.Error as error:
            refused = drive.nothing_sent and not isinstance(error, psycopg.OperationalError)
            if isinstance(error, InDoubt) or not (refused or is_rolled_back(error)):
                self.close_nowait()
                raise InDoubt(str(error)) from error
            if isinstance(error, pg_errors.ReadOnlySqlTransaction):
                self.leave_server(str(error))
            raise
        except (trio.Cancelled, KeyboardInterrupt):
            if self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                await self._stop_statement(drive)
            elif self._pipeline is not None:
                self._abandon(gen, "interrupted in a pipeline, with statements that are queued but not sent")
            else:
                gen.close()
            raise
        if self._unreplicated:
            raise InDoubt("committed, but maybe not by the standby")
        return result

    async def _wait_answer(self, drive: Drive[RV]) -> RV:
        if self.answer_within_s == math.inf:
            return await drive.run()
        wait = self._statement_watchdog.begin(self.answer_within_s, self._wake)
        try:
            return await drive.run()
        except psycopg.OperationalError:
            if not (wait.is_over and drive.was_woken):
                raise
        finally:
            self._statement_watchdog.end(wait)
        with suppress(OSError):  # no descriptor is free
            self.unanswered = os.dup(self.pgconn.socket)
        self._abandon(drive.generator, f"the server has not answered for {self.answer_within_s:g} s")
        raise InDoubt(f"no answer within {self.answer_within_s:g} s")

    def _wake(self) -> None:
        """Whoever waits for the socket."""
        if not self.closed:
            trio.lowlevel.notify_closing(self.pgconn.socket)

    def leave_server(self, why: str) -> None:
        """Close: the server takes no writes (any more). The next connection may find the primary."""
        self.takes_no_writes = True
        log.debug("left the server: %s", why)
        self.close_nowait()

    def _note(self, notice: Diagnostic) -> None:
        self._unreplicated |= is_unreplicated(notice)

    async def _stop_statement(self, drive: Drive[Any]) -> None:
        """Cancel the running statement on the server and read its results to the end; else close the connection."""
        try:
            with trio.move_on_after(CLEANUP_TIMEOUT_S, shield=True):
                ended = False
                while drive.waits_for is not None and not ended:
                    await self.cancel_safe(timeout=CLEANUP_TIMEOUT_S)
                    with trio.move_on_after(RECANCEL_INTERVAL_S):
                        await drive.run()
                        ended = True
        except psycopg.Error as error:
            log.debug("after the cancel: %r", error)  # QueryCanceled as a rule
        finally:
            if self.pgconn.transaction_status in (pq.TransactionStatus.ACTIVE, pq.TransactionStatus.UNKNOWN):
                self._abandon(drive.generator, "its statement could not be cancelled cleanly")

    def _abandon(self, gen: PQGen[Any], why: str) -> None:
        """Close the connection, then the generator: what it does at its end must meet a closed connection."""
        self.discard(why)
        with suppress(psycopg.Error, RuntimeError):  # it tried to talk on
            gen.close()

    async def cancel_safe(self, *, timeout: float = CLEANUP_TIMEOUT_S) -> None:
        """Ask the server to stop the running statement. ``timeout`` in seconds."""
        if not self._should_cancel():
            return
        with trio.move_on_after(timeout) as scope:
            if psycopg.capabilities.has_cancel_safe():
                connection = self.pgconn.cancel_conn()
                connection.start()
                await drive_connecting(generators.cancel(connection))
            else:  # libpq < 17 can only block
                await trio.to_thread.run_sync(self.cancel, abandon_on_cancel=True)
        if scope.cancelled_caught:
            raise pg_errors.CancellationTimeout(f"no answer to the cancel within {timeout} s")

    async def _try_cancel(self, *, timeout: float = CLEANUP_TIMEOUT_S) -> None:
        # psycopg's, in the clean-up of COPY TO and stream(): cancelled there, it would leave the statement running.
        with trio.CancelScope(shield=True):
            await super()._try_cancel(timeout=timeout)

    async def close(self) -> None:
        """Close at once; who waits on it in another task gets `psycopg.OperationalError`. Not a checkpoint."""
        self.close_nowait()

    def close_nowait(self) -> None:
        """`close` for where nothing may be awaited."""
        if not self.closed:
            trio.lowlevel.notify_closing(self.pgconn.socket)
            self._closed = True
            self.pgconn.finish()

    def remember_row_size(self, row_bytes: int) -> None:
        """A row of that size was read. libpq's buffer has grown to it and never shrinks: after a large one the pool
        makes a new connection."""
        if row_bytes > BUFFER_KEPT_MAX_BYTES:
            self.created_at = -math.inf

    def discard(self, why: str) -> None:
        """Close a connection that is in no known state any more."""
        if not self.closed:
            log.warning("connection to the database discarded: %s", why)
            self.close_nowait()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        try:
            with trio.move_on_after(CLEANUP_TIMEOUT_S, shield=True):
                await super().__aexit__(exc_type, exc_val, exc_tb)
        finally:
            self.close_nowait()

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncGenerator[AsyncTransaction]:
        """A transaction, or a savepoint within one. COMMIT is never abandoned half-way.

        Raises `InDoubt` if COMMIT does not end in time, and an error if the transaction had failed unnoticed.
        """
        if self._pipeline is not None:
            raise psycopg.NotSupportedError("no transaction() in a pipeline: use roundtrip() with BEGIN and COMMIT")
        manager = super().transaction(savepoint_name, force_rollback)
        transaction = await self._enter_shielded(manager)
        try:
            yield transaction
        except BaseException as error:
            if not await self._exit_shielded(manager, error, CLEANUP_TIMEOUT_S, "ROLLBACK"):
                raise
        else:
            failed = None if force_rollback else self._not_to_be_committed()
            if failed is not None:
                await self._exit_shielded(manager, failed, CLEANUP_TIMEOUT_S, "ROLLBACK")
                raise failed
            cancelled = trio.current_effective_deadline() == -math.inf
            timeout_s = CLEANUP_TIMEOUT_S if cancelled else COMMIT_TIMEOUT_S
            await self._exit_shielded(manager, None, timeout_s, "COMMIT")

    def _not_to_be_committed(self) -> psycopg.Error | None:
        """Why a block that ended well has nothing to commit: psycopg leaves it in silence then."""
        match self.pgconn.transaction_status:
            case pq.TransactionStatus.INTRANS:
                return None
            case pq.TransactionStatus.INERROR:
                return pg_errors.InFailedSqlTransaction("a statement of the transaction failed, and nobody minded")
            case _:
                return psycopg.OperationalError("the connection was lost before the COMMIT")

    async def _enter_shielded(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter a transaction in a shield: BEGIN waits for a round trip only, and psycopg undoes an interrupted one."""
        with trio.move_on_after(CLEANUP_TIMEOUT_S, shield=True):
            return await manager.__aenter__()
        self.discard("BEGIN got no answer")
        raise psycopg.OperationalError(f"BEGIN took longer than {CLEANUP_TIMEOUT_S} s")

    async def _exit_shielded(
        self, manager: AbstractAsyncContextManager[object], error: BaseException | None, timeout_s: float, what: str
    ) -> bool:
        """Leave ``manager`` in a shield; True if it swallows the error. Past the time the connection is closed."""
        with trio.move_on_after(timeout_s, shield=True):
            if error is None:
                return bool(await manager.__aexit__(None, None, None))
            return bool(await manager.__aexit__(type(error), error, error.__traceback__))
        self.discard(f"{what} took longer than {timeout_s} s")
        if error is None:
            raise InDoubt(f"{what} took longer than {timeout_s} s")
        return False

    async def fetch(self, sql: Sql, params: Sequence[object] = ()) -> list[TupleRow]:
        """Execute one statement and return all its rows (none if it returns none). A known one with eight
        columns takes 41 µs of CPU, with a cursor 58 (benchmarks/store_connection.py)."""
        if self.vault is not None:
            params = await _sealed(params)
        results: list[PGresult] = []
        try:
            lock = self._lock_of_ours
            if not lock.take_nowait():
                await lock.take()
            try:
                known = await self.wait(self._fetch_gen(sql, params, results))
            finally:
                lock.release()
            if known:
                return self._rows_of(results)
        except InDoubt as doubt:
            doubt.rows = self._rows_of(results)
            raise
        cursor = TrioCursor(self)
        try:
            await cursor.execute(sql, params)
        except InDoubt as doubt:
            doubt.rows = cursor.rows_nowait()
            raise
        return cursor.rows_nowait()

    def _fetch_gen(self, sql: Sql, params: Sequence[object], results: list[PGresult]) -> PQGen[bool]:
        """Execute a statement that this session has prepared, without a cursor: one is made of five objects, and asks
        for the loader of each column. Adds to ``results``; False, and nothing is sent, where it is not prepared."""
        names = self._prepared._names  # pyright: ignore[reportPrivateUsage] - psycopg tells nowhere else
        if self._pipeline is not None or not self._autocommit or not names:
            return False
        transformer = self._transformer
        if transformer is None:
            transformer = self._transformer = Transformer(self)
        values = transformer.dump_sequence(params, [PyFormat.AUTO] * len(params))
        key = (sql if isinstance(sql, bytes) else sql.encode(), transformer.types or ())
        name = names.get(key)
        if name is None:
            return False
        names.move_to_end(key)  # the longest unused is the first to go
        self.pgconn.send_query_prepared(name, values, param_formats=transformer.formats)
        results += yield from generators.execute(self.pgconn)
        if len(results) != 1 or results[0].status not in FINE:
            state = results[0].error_field(pq.DiagnosticField.SQLSTATE) if results else None
            if state in (OUTDATED, GONE):  # any other error leaves it: prepared anew, each takes 0.2 MB of the server
                names.pop(key, None)
                if state == OUTDATED:
                    self._prepared._to_flush.append(name)  # pyright: ignore[reportPrivateUsage] - as `_names`
            TrioCursor(self).raise_for(results)
        return True

    def _rows_of(self, results: list[PGresult]) -> list[TupleRow]:
        """All rows of the first result, if it has any."""
        transformer = self._transformer
        if transformer is None or not results or results[0].status != pq.ExecStatus.TUPLES_OK:
            return []
        transformer.set_pgresult(results[0])
        rows = transformer.load_rows(0, results[0].ntuples, tuple)
        transformer.set_pgresult(None)  # it would be kept until the next
        return rows

    async def roundtrip(self, statements: Sequence[Statement]) -> list[list[TupleRow]]:
        """Send all statements at once and return the rows of each, in one network round trip.

        Without BEGIN they are one transaction, committed at the end if none fails. The first error is raised and
        those after it were not executed; within an explicit transaction that leaves it to be rolled back. A COMMIT
        that the server answers with ROLLBACK raises `psycopg.errors.InFailedSqlTransaction`. Cancelled, what of it
        took effect is unknown; the connection stays usable, a transaction may be open.

        Six statements in two of these, on a Unix socket: 200 µs of CPU, 320 µs in all; one by one 370 and 610, in
        psycopg's pipeline(), which flushes after each, 307 and 313 (benchmarks/store_connection.py).
        """
        if not self._autocommit:
            raise psycopg.ProgrammingError("roundtrip() needs autocommit: put BEGIN and COMMIT into the statements")
        if self.vault is not None:
            statements = [(sql, await _sealed(params)) for sql, params in statements]
        async with self.lock:
            cursors = await self.wait(self._roundtrip_gen(statements))
        if any(cursor.committed_nothing() for cursor in cursors):
            raise pg_errors.InFailedSqlTransaction("COMMIT of a failed transaction: the server rolled it back")
        return [cursor.rows_nowait() for cursor in cursors]

    def _roundtrip_gen(self, statements: Sequence[Statement]) -> PQGen[list[TrioCursor]]:
        cursors = [TrioCursor(self) for _ in statements]
        # All are converted before one is enqueued: from then on psycopg takes the statement for prepared.
        for cursor, statement in zip(cursors, statements, strict=True):
            yield from cursor.convert_gen(statement)
        self._check_connection_ok()
        self.pgconn.enter_pipeline_mode()
        self._pipeline = pipeline = OneFlushPipeline(self)
        try:
            yield from pipeline.send_and_fetch_gen(cursors)
        except psycopg.Error as error:
            try:
                self.pgconn.exit_pipeline_mode()
            except psycopg.Error:  # not in the midst of answers: the session ended, and `error` tells more
                self.close_nowait()
            if any(cursor.committed() for cursor in cursors):
                raise InDoubt(f"after the COMMIT: {error}") from error
            raise
        finally:
            self._pipeline = None
        self.pgconn.exit_pipeline_mode()
        yield from self._prepared.maintain_gen(self)
        return cursors


async def _sealed(params: Sequence[object]) -> Sequence[object]:
    """The parameters of a statement, with those encrypted that have to be. A checkpoint only for large ones."""
    if not any(isinstance(each, Sealing) for each in params):
        return params
    return [await offloaded(each.size_bytes, each.seal) if isinstance(each, Sealing) else each for each in params]
