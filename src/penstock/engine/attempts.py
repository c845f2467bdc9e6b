"""Attempts of jobs, for people: what each was given, told last and gave; and a checkpoint that they take away."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.access.identity import actor
from penstock.core.state import HistoryKind
from penstock.engine import ids
from penstock.engine.answers import COPIES, current_hold
from penstock.engine.payload import check_text
from penstock.engine.views import attempts_of
from penstock.errors import NotFound
from penstock.settings import Settings
from penstock.store import attempts as store
from penstock.store import audit
from penstock.store.attempts import AttemptRow, Note
from penstock.store.database import Database
from penstock.store.instances import HistoryEntry
from penstock.wire.model import RecordedAttempt
from penstock.wire.noun import raw

ATTEMPTS_MAX: Final = 50
"""The newest ones."""
NOTE_MAX_CHARS: Final = 4_096
_RESULTS: Final = frozenset({HistoryKind.COMPLETED, HistoryKind.COMPENSATED})
"""What signals and caught errors write is no result of an attempt's."""


class Attempts:
    """The operations."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._max_bytes = settings.attempt_record_max_bytes
        self._progress_max_bytes = settings.checkpoint_max_bytes
        self._audit = settings.audit_log_enabled

    async def of(self, execution_id: str) -> list[RecordedAttempt]:
        """The newest attempts of an execution, oldest first. Raises NotFound."""
        job = ids.read_job(execution_id)
        await current_hold().reserve_soon(COPIES * ATTEMPTS_MAX * (2 * self._max_bytes + self._progress_max_bytes))
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
        async with self._database.connection() as connection:
            there = await store.forget_checkpoint(connection, job)
            if there is None:
                raise NotFound(f"job '{job_id}' is not open")
            if there and self._audit:
                await connection.fetch(*audit.add(job.instance, None, "CHECKPOINT_FORGOTTEN", actor(), note))


def _given(note: Note | None) -> dict[str, Any]:
    if note is None:
        return {}
    return {
        "parameters": None if note.parameters is None else raw(note.parameters.encode()),
        "parameters_bytes": note.parameters_bytes,
        "progress": None if note.progress is None else raw(note.progress.encode()),
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
