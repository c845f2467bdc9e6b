"""The audit trail of everything: who paused, changed, uploaded, made a token or signed in. Reads only."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from penstock.engine.requests import ids
from penstock.engine.requests.paging import NAME_MAX_CHARS, read_numbers, slice_limit
from penstock.engine.requests.payload import check_text
from penstock.store.db.database import Database
from penstock.store.rows import audit as store
from penstock.store.rows.audit import AnyEntry, AuditFilter
from penstock.wire.audit import AuditTrailRecord
from penstock.wire.page import Page

POSITIONS_END: Final = 2**63 - 1


class AuditTrail:
    """Lists it, newest first."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(
        self,
        cursor: str | None,
        limit: int,
        *,
        kind: str | None = None,
        actor: str | None = None,
        contains: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Page[AuditTrailRecord]:
        """Those after ``cursor``. Of what is rare a page may have fewer than ``limit``, also none, and more behind it.

        Raises:
            BadRequest: a cursor of another list, or a text that is too long.
        """
        for name, text in (("kind", kind), ("actor", actor), ("contains", contains)):
            if text is not None:
                check_text(text, name, NAME_MAX_CHARS)
        before = read_numbers(cursor, digits=19)[0] if cursor else POSITIONS_END
        async with self._database.connection() as connection:
            wanted = AuditFilter(since, until, kind, actor, contains)
            found, lowest = await store.find(connection, wanted, before=before, limit=slice_limit(limit))
        return Page(items=[_shown(one) for one in found], next=None if lowest is None else str(lowest))


def _shown(one: AnyEntry) -> AuditTrailRecord:
    instance = None if one.instance is None else ids.show_instance(one.instance)
    return AuditTrailRecord(one.at, one.kind, one.actor, one.detail, one.old, instance)
