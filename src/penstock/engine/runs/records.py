"""Records of a journal as executors and programs read them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.store.rows.journal import JournalRow
from penstock.wire import penstock_v1 as w


def run_record(row: JournalRow) -> w.RunRecord:
    """Return a record as executors read it."""
    return w.RunRecord(
        kind=row.kind,
        path=row.path,
        name=row.name,
        payload=row.payload,
        digest=row.digest,
        attempt=row.attempt,
        took_ms=row.took_ms,
        mark=row.mark,
        rules=row.rules,
        position=f"{row.pos:x}",
        at=time_of(row.at),
    )


def time_of(seconds: float) -> datetime:
    """Return a time of a journal, in seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)
