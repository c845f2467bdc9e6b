"""Attempts of jobs: what each is given is kept where that is asked for; people see it, with what it told last and gave,
and take its checkpoint away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from penstock.access.identity import actor, may
from penstock.api.permission import Permission
from penstock.core.graph.definition import Definition
from penstock.core.rules.state import HistoryKind
from penstock.engine.requests import ids
from penstock.engine.requests.answers import COPIES, current_reservation
from penstock.engine.requests.payload import check_text, clean_text
from penstock.errors import NotFound, PenstockError
from penstock.log.log import RateLimitedLog, get_logger
from penstock.loop.taskless import need_task
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database, DatabaseError, first_line
from penstock.store.rows import attempts as store
from penstock.store.rows import audit
from penstock.store.rows.attempts import AttemptRow, Given, Note
from penstock.store.rows.instances import HistoryEntry
from penstock.store.rows.jobs import JobKey
from penstock.wire.model import Attempt, RecordedAttempt
from penstock.wire.noun import raw

_lost_records = RateLimitedLog(get_logger("penstock.engine.attempts"), interval_seconds=10)
ATTEMPTS_MAX: Final = 50
"""The newest ones."""
NOTE_MAX_CHARS: Final = 4_096
FROM_ELSEWHERE = (HistoryKind.SKIPPED, HistoryKind.INTERRUPTED)
"""Ends in which the worker, if there was one, had no part."""
_ATTEMPT_STATUS = {
    HistoryKind.COMPLETED: "COMPLETED",
    HistoryKind.FAILED: "FAILED",
    HistoryKind.SKIPPED: "SKIPPED",
    HistoryKind.INTERRUPTED: "FAILED",
    HistoryKind.CAUGHT: "FAILED",
    HistoryKind.COMPENSATED: "COMPLETED",
    HistoryKind.ATTEMPT_FAILED: "FAILED",
    HistoryKind.ATTEMPT_EXPIRED: "LEASE_EXPIRED",
    HistoryKind.ATTEMPT_RELEASED: "RELEASED",
    HistoryKind.ATTEMPT_REDISPATCHED: "REDISPATCHED",
    HistoryKind.ATTEMPT_PARKED: "PARKED",
}
_RESULTS: Final = frozenset({HistoryKind.COMPLETED, HistoryKind.COMPENSATED})
"""What signals and caught errors write is no result of an attempt's."""


class AttemptRecorder:
    """Keeps what attempts are given, of definitions and job types that ask for it."""

    def __init__(self, settings: Settings) -> None:
        self._job_types = frozenset(settings.attempts_recorded_job_types)
        self.asks_types = bool(self._job_types)
        """Whether `note` has to be asked of definitions that say nothing."""
        self._max_bytes = settings.attempt_record_max_bytes

    def note(self, definition: Definition, step: int, job: JobKey, attempt: int, variables: bytes) -> Given | None:
        """What is to be kept of an attempt; None: nothing."""
        if not (definition.record_attempts or (self._job_types and definition.steps[step].job_type in self._job_types)):
            return None
        size_bytes = len(variables)
        return Given(job, attempt, variables if size_bytes <= self._max_bytes else None, size_bytes)

    async def keep(self, connection: TrioConnection, notes: Iterable[Given | None]) -> None:
        """They are on their way: what can't be kept is left out."""
        given = [note for note in notes if note is not None]
        if not given:
            return
        try:
            await store.record_parameters(connection, given)
        except DatabaseError as error:
            _lost_records.warning("given", "what attempts were given is not kept", error=first_line(error))


class StackTraces:
    """Keeps where workers had the errors that they reported."""

    def __init__(self, database: Database, max_bytes: int) -> None:
        self._database = database
        self._max_bytes = max_bytes

    async def keep(self, job: JobKey, attempt: int | None, text: str | None) -> None:
        """The failure is written already: what can't be kept is left out. Of a long one the end is kept, as that is
        where the error was raised."""
        if not text or attempt is None or self._max_bytes == 0:
            return
        text = clean_text(text[-self._max_bytes :], 4 * self._max_bytes)
        kept = text.encode()[-self._max_bytes :].decode(errors="ignore")
        await need_task()
        try:
            async with self._database.connection() as connection:
                await store.record_stack_trace(connection, job, attempt, kept)
        except (DatabaseError, PenstockError) as error:
            _lost_records.warning("trace", "a stack trace is not kept", error=first_line(error))


class Attempts:
    """The operations."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._max_bytes = settings.attempt_record_max_bytes
        self._progress_max_bytes = settings.checkpoint_max_bytes
        self._audit = settings.audit_log_enabled

    async def of(self, execution_id: str) -> list[RecordedAttempt]:
        """Return the newest attempts of an execution, oldest first; stack traces for who may operate. Raises
        NotFound."""
        job = ids.read_job(execution_id)
        await current_reservation().reserve_soon(
            COPIES * ATTEMPTS_MAX * (2 * self._max_bytes + self._progress_max_bytes)
        )
        async with self._database.connection() as connection:
            rows, notes = await store.read(connection, job, ATTEMPTS_MAX, self._max_bytes)
        if not rows:
            raise NotFound(f"execution '{execution_id}' is unknown")
        results = {row.attempt: row for row in rows if row.kind in _RESULTS and row.output_bytes is not None}
        shown: list[RecordedAttempt] = []
        for one in attempts_of([_entry(job.token, job.seq, row) for row in rows]):
            note, result = notes.get(one.attempt), results.get(one.attempt)
            shown.append(RecordedAttempt(**msgspec.structs.asdict(one), **_given(note), **_gave(result)))
        return shown

    async def forget_checkpoint(self, job_id: str, note: str | None) -> None:
        """The job's next attempt begins without one. Raises NotFound for a job that is not open."""
        if note is not None:
            check_text(note, "note", NOTE_MAX_CHARS)
        job = ids.read_job(job_id)
        noted = [audit.add(job.instance, None, "CHECKPOINT_FORGOTTEN", actor(), note)] if self._audit else []
        async with self._database.connection() as connection:
            if not await store.forget_checkpoint(connection, job, noted):
                raise NotFound(f"job '{job_id}' is not open")


def _given(note: Note | None) -> dict[str, Any]:
    if note is None:
        return {}
    return {
        "parameters": None if note.parameters is None else raw(note.parameters.encode()),
        "parameters_bytes": note.parameters_bytes,
        "progress": None if note.progress is None else raw(note.progress.encode()),
        "stack_trace": None
        if note.stack_trace is None or not may(Permission.OPERATE)
        else msgspec.json.decode(note.stack_trace, type=str),
    }


def _gave(row: AttemptRow | None) -> dict[str, Any]:
    if row is None:
        return {}
    return {"result": None if row.output is None else raw(row.output.encode()), "result_bytes": row.output_bytes}


def _entry(token: int, seq: int, row: AttemptRow) -> HistoryEntry:
    return HistoryEntry(
        token,
        seq,
        row.step,
        row.kind,
        row.started_at,
        row.ended_at,
        row.claimed_at,
        row.attempt,
        row.worker,
        row.reason,
        row.position,
        row.code,
        None,
        None,
        None,
    )


def attempts_of(parts: Sequence[HistoryEntry]) -> list[Attempt]:
    """Return the attempts of one execution, each once.

    After one has ended, the job waits for its next one: what then closes the step from elsewhere is no part of it. A
    result that comes late, after the lease, is; and its worker may have come back and hold the job again.
    """
    shown: dict[int, HistoryEntry] = {}
    for part in parts:
        if (
            part.attempt == 0
            or part.kind == HistoryKind.JOB_SIGNALLED
            or (part.kind is None and part.claimed_at is None)
        ):
            continue
        if part.attempt not in shown or part.kind not in FROM_ELSEWHERE:
            shown[part.attempt] = part
    return [_attempt(part) for part in shown.values()]


def _attempt(part: HistoryEntry) -> Attempt:
    return Attempt(
        attempt=part.attempt,
        worker=part.worker,
        started_at=part.claimed_at,
        ended_at=part.ended_at,
        status="RUNNING" if part.kind is None else _ATTEMPT_STATUS[HistoryKind(part.kind)],
        reason=part.reason,
        error_code=part.code,
    )
