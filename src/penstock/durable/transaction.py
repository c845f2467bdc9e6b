"""Steps whose own transaction commits their outcome: what they did and the record of it come to be together or not.

In the database of the journals `penstock_append` is the transaction's last statement: it writes the record under the
fence, so a process that lost its run is rolled back. In any other database the outcome is a row of `penstock_step`
there, written by the same transaction and read before the step would run again. The statement that writes the record
checks that the transaction is the one that was opened for the step, so only a COMMIT that was sent can be in doubt. It
is looked up after its session has ended; nothing is taken for rolled back that was not.

Runs in threads of steps, with psycopg's plain connections, which programs know.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final, Protocol

import msgspec
import psycopg
import trio
import trio.from_thread
from psycopg import sql
from psycopg.rows import tuple_row

from penstock.durable.backend import COMMITTED, AppendPermit, LeasedRun, RunLeaseLost
from penstock.durable.codec import decode
from penstock.durable.errors import NonRetryable, PayloadTooLarge, Unencodable
from penstock.durable.step import StepCall, StepInfo, current_step
from penstock.kernel.operation import Outcome
from penstock.store.db.outcome import is_rolled_back

TRIES_MAX: Final = 10
"""Of a transaction that the server undoes because of others: deadlocks, and what could not be serialized."""
TRY_AGAIN: Final = frozenset({"40001", "40P01", "55P03"})
FENCE: Final = "PK001"
IDLE_MAX: Final = 40
"""Connections that are kept open for the next step, of all databases together."""
PAUSE_S: Final = 0.2
LOST_MAX_S: Final = 60.0
"""For so long a transaction whose session ended before its COMMIT is begun again. Then its attempt has failed. The time
in which the database can't be reached is not counted."""
LOST_PAUSE_MAX_S: Final = 5.0
"""The pause between two of these doubles from `PAUSE_S` up to this."""

STEP_TABLE: Final = """CREATE TABLE IF NOT EXISTS penstock_step (
  run        text NOT NULL,            -- id of the instance
  path       text NOT NULL,            -- of the step within its run
  outcome    text NOT NULL,            -- JSON
  written_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (run, path)
)"""
"""What a database that is not the journals' needs, once. Rows of runs that have ended may be deleted."""

_SESSION: Final = (
    "SELECT pg_backend_pid(), extract(epoch FROM backend_start)::text"
    " FROM pg_stat_activity WHERE pid = pg_backend_pid()"
)
_WHICH: Final = "extract(epoch FROM transaction_timestamp())::text"
"""Tells a transaction from every other one of its session."""
_CLEAN: Final = (
    "SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); DISCARD TEMP"
)
"""What an earlier step has set in its session. Prepared statements stay: they are psycopg's."""
_FIND_OUTCOME: Final = "SELECT outcome FROM penstock_step WHERE run = %s AND path = %s"
_KEEP: Final = f"INSERT INTO penstock_step (run, path, outcome) SELECT %s, %s, %s WHERE {_WHICH} = %s"
_APPEND: Final = f"SELECT {{}}(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) WHERE {_WHICH} = %s"

log = logging.getLogger("penstock.durable")


class DatabaseSession(msgspec.Struct, frozen=True):
    """Of the server: what tells it from all others that it has, or had."""

    pid: int
    started: str


class Fence(msgspec.Struct, frozen=True):
    """Under what a run is held, as the tables have it; and their schema."""

    run: int
    seq: int
    attempt: int
    holder: str
    schema: str
    rules: int = 0  # by which its records are delivered


class RecordedOutcomes(Protocol):
    """What a transaction in doubt asks of the backend."""

    async def end_session(self, session: DatabaseSession) -> None:
        """Returns when there is no such session any more."""
        ...

    async def is_written(self, leased: LeasedRun, path: str, after: int) -> bool:
        """Return whether an outcome of the step stands in the journal. Raises `RunLeaseLost`."""
        ...


class _InDoubt(Exception):
    def __init__(self, session: DatabaseSession, error: psycopg.Error) -> None:
        self.session, self.error = session, error


class StepTransactions:
    """Runs transactional steps, for one executor."""

    def __init__(
        self, dsn: str, journals: RecordedOutcomes | None, seal: Callable[[str], str] = lambda text: text
    ) -> None:
        """``dsn``: of the journals' database, as the program connects to it; without ``journals`` all steps name
        another one. ``seal``: how its payloads are kept."""
        self._dsn, self._journals, self._seal = dsn, journals, seal
        self._idle: list[tuple[str, psycopg.Connection[Any], DatabaseSession]] = []
        self._lock = threading.Lock()

    async def run(
        self,
        leased: LeasedRun,
        fence: Fence,
        call: StepCall,
        info: StepInfo,
        after: int,
        permit: AppendPermit,
        limiter: trio.CapacityLimiter,
        max_bytes: int,
    ) -> Outcome:
        """`COMMITTED`, or what is to be recorded: an error, or the value of a transaction in another database.
        ``after``: the position in the journal when the step was asked for. Raises `RunLeaseLost`."""
        path = "/" + info.key.partition("/")[2]
        lost_until, pause_s = inf, PAUSE_S
        while True:
            began = trio.current_time()
            try:
                return await trio.to_thread.run_sync(
                    self._attempt, fence, call, info, path, permit, max_bytes, limiter=limiter
                )
            except _InDoubt as doubt:
                lost: psycopg.Error | None = doubt.error
                if call.step.database is None:
                    assert self._journals is not None
                    await self._journals.end_session(doubt.session)
                    if await self._journals.is_written(leased, path, after):
                        permit.end(committed=True)
                        return COMMITTED
                    permit.end(committed=False)
            except _Lost as error:
                lost = error.error
            except _Away:
                lost = None
            now = trio.current_time()
            if lost is None:
                lost_until += PAUSE_S + now - began
                await trio.sleep(PAUSE_S)
                continue
            lost_until = min(lost_until, now + LOST_MAX_S)
            if now > lost_until:
                return Outcome(error=lost)
            log.warning(
                "run %s: the session of transaction %r at %s ended before its COMMIT: %s. The transaction is undone and"
                " begun again in %g s. In %.0f s this attempt fails",
                leased, call.name, path, str(lost).split("\n", 1)[0], pause_s, lost_until - now,
            )  # fmt: skip
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOST_PAUSE_MAX_S)

    def close(self) -> None:
        """End the sessions that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection, _ in idle:
            connection.close()

    # -- in a thread

    def _attempt(
        self, fence: Fence, call: StepCall, info: StepInfo, path: str, permit: AppendPermit, max_bytes: int
    ) -> Outcome:
        try:
            args, kwargs = call.step.parameters.arguments(call.arguments)
        except ValueError as error:
            return Outcome(error=NonRetryable(f"{call.name} does not take its arguments: {error}"))
        token = current_step.set(info)
        try:
            for tried in range(1, TRIES_MAX + 1):
                try:
                    return self._in_session(
                        call, lambda connection: call.step.function(connection, *args, **kwargs),
                        fence, info, path, permit, max_bytes,
                    )  # fmt: skip
                except psycopg.Error as error:
                    if error.sqlstate == FENCE:
                        raise RunLeaseLost from error
                    if error.sqlstate not in TRY_AGAIN or tried == TRIES_MAX:
                        return Outcome(error=error)
        except (RunLeaseLost, _InDoubt, _Away, _Lost, KeyboardInterrupt, trio.Cancelled):
            raise
        except BaseException as error:  # SystemExit too: a step does not end the process
            return Outcome(error=error)
        finally:
            current_step.reset(token)
        raise AssertionError

    def _in_session(
        self,
        call: StepCall,
        work: Callable[[psycopg.Connection[Any]], Any],
        fence: Fence,
        info: StepInfo,
        path: str,
        permit: AppendPermit,
        max_bytes: int,
    ) -> Outcome:
        dsn, run = call.step.database, info.key.removesuffix(path)
        connection, session = self._open(dsn or self._dsn)
        has_permit = is_begun = is_sent = False
        try:
            with connection.transaction():
                which = (_fetch(connection, f"SELECT {_WHICH}") or ("",))[0]
                is_begun = True
                if dsn is not None and (found := _fetch(connection, _FIND_OUTCOME, (run, path))):
                    return Outcome(decode(found[0], call.step.parameters.result_type()))
                text = _worked(connection, call, work, path, max_bytes)
                if dsn is not None:
                    is_written = connection.execute(_KEEP, (run, path, text, which)).rowcount == 1
                else:
                    trio.from_thread.run(permit.begin)
                    has_permit = True
                    is_written = self._append(connection, fence, call, path, text, info.attempt, which)
                if not is_written:
                    raise _Refused(_transaction_ended(call))
                is_sent = True  # the COMMIT, by the end of this block
            if has_permit:
                trio.from_thread.run_sync(_end, permit, True)
                has_permit = False
            return COMMITTED if dsn is None else Outcome(decode(text, call.step.parameters.result_type()))
        except _Refused as refused:
            return Outcome(error=refused.error)
        except psycopg.Error as error:
            if is_sent and not is_rolled_back(error):
                has_permit = False  # the turn ends when it is known what became of it
                raise _InDoubt(session, error) from error
            if dsn is not None and error.sqlstate == "23505" and error.diag.table_name == "penstock_step":
                raise _Away from error  # somebody else has done it: it is read
            if connection.broken:  # COMMIT was not sent, so it is undone
                raise (_Lost(error) if is_begun else _Away()) from error
            raise
        finally:
            if has_permit:
                trio.from_thread.run_sync(_end, permit, False)
            self._release(dsn or self._dsn, connection, session)

    def _append(
        self,
        connection: psycopg.Connection[Any],
        fence: Fence,
        call: StepCall,
        path: str,
        text: str,
        attempt: int,
        which: str,
    ) -> bool:
        """Write the record if this is the transaction ``which``."""
        digest = call.digest_by(fence.rules)
        digest = None if digest is None else (digest + (1 << 31)) % (1 << 32) - (1 << 31)  # as `int`
        fields = (fence.run, fence.seq, fence.attempt, fence.holder, path, call.name, self._seal(text), digest, attempt)
        append = sql.SQL(_APPEND).format(sql.Identifier(fence.schema, "penstock_append"))
        return connection.execute(append, (*fields, fence.rules, which)).rowcount == 1

    def _open(self, dsn: str) -> tuple[psycopg.Connection[Any], DatabaseSession]:
        """A connection as it is at first, whatever an earlier step has set in it."""
        while (found := self._take_idle(dsn)) is not None:
            if _clean(found[0]):
                return found
        try:
            connection = psycopg.connect(dsn, autocommit=True, fallback_application_name="penstock step")
            row = connection.execute(_SESSION).fetchone()
        except psycopg.OperationalError as error:
            raise _Away from error
        assert row is not None
        return connection, DatabaseSession(*row)

    def _take_idle(self, dsn: str) -> tuple[psycopg.Connection[Any], DatabaseSession] | None:
        with self._lock:
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index][0] == dsn:
                    return self._idle.pop(index)[1:]
        return None

    def _release(self, dsn: str, connection: psycopg.Connection[Any], session: DatabaseSession) -> None:
        usable = not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if usable:
            with self._lock:
                if len(self._idle) < IDLE_MAX:
                    self._idle.append((dsn, connection, session))
                    return
        with suppress(psycopg.Error):
            connection.close()


class _Away(Exception):
    """The database can't be reached, or it has to be looked again."""


class _Lost(Exception):
    """The session ended before its COMMIT."""

    def __init__(self, error: psycopg.Error) -> None:
        self.error = error


class _Refused(Exception):
    """What the step gave can't be kept, so nothing of it may be."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _clean(connection: psycopg.Connection[Any]) -> bool:
    """Return whether it could be made as it was when it was opened; else it is closed."""
    connection.row_factory, connection.cursor_factory = tuple_row, psycopg.Cursor
    connection.server_cursor_factory = psycopg.ServerCursor
    try:
        connection.execute(_CLEAN, prepare=False)  # several statements can't be
    except psycopg.Error:  # its session has ended, as a rule
        connection.close()
        return False
    return True


def _fetch(connection: psycopg.Connection[Any], query: str, fields: tuple[object, ...] = ()) -> tuple[Any, ...] | None:
    return connection.cursor(row_factory=tuple_row).execute(query.encode(), fields).fetchone()


def _worked(
    connection: psycopg.Connection[Any],
    call: StepCall,
    work: Callable[[psycopg.Connection[Any]], Any],
    path: str,
    max_bytes: int,
) -> str:
    """Return what the function gives, as JSON. Raises `_Refused` for what another attempt would meet again: a value
    that can't be kept, and a transaction that the function itself has ended."""
    try:
        text = call.encode_value(work(connection), path, max_bytes)
    except (Unencodable, PayloadTooLarge) as error:
        raise _Refused(error) from error
    except BaseException as error:
        is_final = isinstance(error, (KeyboardInterrupt, NonRetryable, call.options.raises))
        if not is_final and _is_ended(connection):
            raise _Refused(_transaction_ended(call)) from error
        raise
    if _is_ended(connection):
        raise _Refused(_transaction_ended(call))
    return text


def _is_ended(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the function has ended the transaction, as far as is known without asking the server."""
    if connection.broken:  # by the server
        return False
    return connection.closed or connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def _transaction_ended(call: StepCall) -> NonRetryable:
    return NonRetryable(
        f"{call.name} ({call.step.where}) ended the transaction that Penstock had opened for it, with COMMIT or"
        " ROLLBACK or by closing the connection. What it committed stays, and no outcome was recorded with it. Leave"
        " the end of the transaction to Penstock: raise an error to undo it"
    )


def _end(permit: AppendPermit, committed: bool) -> None:
    permit.end(committed=committed)
