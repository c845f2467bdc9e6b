"""Attempts of jobs: what each was given, what it told last, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec

from penstock.store.db import arrays
from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement
from penstock.store.db.vault import PROGRESS, offloaded
from penstock.store.rows.jobs import JobKey


class Given(NamedTuple):
    """What an attempt was given: None where that is too large to be kept."""

    job: JobKey
    attempt: int
    parameters: bytes | None
    bytes: int


class AttemptRow(NamedTuple):
    """A row of history about an execution, or with ``kind`` None the open one. Of a large ``output`` only the bytes."""

    position: int | None
    step: int
    kind: int | None
    started_at: datetime
    ended_at: datetime | None
    claimed_at: datetime | None
    attempt: int
    worker: str | None
    reason: str | None
    code: str | None
    output: str | None
    output_bytes: int | None


class Note(NamedTuple):
    """What is kept of an attempt; JSON."""

    attempt: int
    parameters: str | None
    parameters_bytes: int | None
    progress: str | None
    stack_trace: str | None


async def record_parameters(connection: TrioConnection, given: Sequence[Given]) -> None:
    """Keep what attempts were given."""
    ints = arrays.ints
    instances, tokens, seqs = zip(*(one.job for one in given), strict=True)
    parameters = arrays.sealed((one.parameters for one in given), connection.vault)
    columns = (ints(instances), ints(tokens), ints(seqs), ints(one.attempt for one in given), parameters)
    await connection.roundtrip([(SQL["record_parameters"], (*columns, ints(one.bytes for one in given)))])


async def record_stack_trace(connection: TrioConnection, job: JobKey, attempt: int, text: str) -> None:
    """Keep where an attempt had its error."""
    sealed = arrays.sealed([msgspec.json.encode(text)], connection.vault)
    await connection.fetch(SQL["record_stack_trace"], (*job, attempt, sealed))


async def read(
    connection: TrioConnection, job: JobKey, most: int, max_bytes: int
) -> tuple[list[AttemptRow], dict[int, Note]]:
    """The newest rows about an execution, and what is kept of its attempts. Raises KeyMissing."""
    found, kept = await connection.roundtrip(
        [(SQL["attempts"], (*job, most, max_bytes)), (SQL["attempt_notes"], (*job, most))]
    )
    rows = [AttemptRow(*cast(Any, row)) for row in found]
    notes = [Note(*cast(Any, row)) for row in kept]
    vault = connection.vault
    if vault is not None:

        def opened() -> tuple[list[AttemptRow], list[Note]]:
            return (
                [row._replace(output=None if row.output is None else vault.open(row.output)) for row in rows],
                [
                    note._replace(
                        parameters=None if note.parameters is None else vault.open(note.parameters),
                        stack_trace=None if note.stack_trace is None else vault.open(note.stack_trace),
                        progress=None if note.progress is None else vault.open_value(note.progress, PROGRESS),
                    )
                    for note in notes
                ],
            )

        size_bytes = sum(len(row.output or "") for row in rows)
        size_bytes += sum(
            len(note.parameters or "") + len(note.progress or "") + len(note.stack_trace or "") for note in notes
        )
        rows, notes = await offloaded(size_bytes, opened)
    return rows, {note.attempt: note for note in notes}


async def forget_checkpoint(connection: TrioConnection, job: JobKey, noted: Sequence[Statement]) -> bool:
    """Forget the checkpoint of an open job, with ``noted`` in the same transaction if there was one; False: no such
    job is open."""
    rows = await connection.fetch(SQL["forget_checkpoint"], tuple(job))
    if rows and rows[0][0]:
        await connection.roundtrip([(SQL["drop_checkpoint"], (job.token, job.seq)), *noted])
    return bool(rows)
