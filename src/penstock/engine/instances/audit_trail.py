"""The audit trail of everything: who paused, changed, uploaded, made a token or signed in. Reads only."""

from __future__ import annotations

from typing import Final

from penstock.engine.requests import ids
from penstock.engine.requests.bound import part
from penstock.engine.requests.paging import NAME_MAX_CHARS, read_numbers, slice_limit
from penstock.engine.requests.payload import check_text
from penstock.store.db.database import Database
from penstock.store.rows import audit as store
from penstock.store.rows.audit import AnyEntry, AuditFilter
from penstock.wire.audit import AuditTrailRecord
from penstock.wire.page import Page
from penstock.wire.repair_v1 import ListAuditRequest

POSITIONS_END: Final = 2**63 - 1


class AuditTrail:
    """Lists it, newest first."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, ask: ListAuditRequest) -> Page[AuditTrailRecord]:
        """Return those after its cursor. Of what is rare a page may have fewer than its limit, also none, and more
        behind it.

        Raises:
            BadRequest: a cursor of another list, or a text that is too long.
        """
        for name, text in (("kind", ask.kind), ("actor", ask.actor), ("contains", ask.contains)):
            if text is not None:
                check_text(text, name, NAME_MAX_CHARS)
        before = read_numbers(ask.cursor, digits=19)[0] if ask.cursor else POSITIONS_END
        async with self._database.connection() as connection:
            wanted = AuditFilter(ask.since, ask.until, ask.kind, ask.actor, ask.contains)
            found, lowest = await store.find(connection, wanted, before=before, limit=slice_limit(part(ask.limit)))
        return Page(items=[_shown(one) for one in found], next=None if lowest is None else str(lowest))


def _shown(one: AnyEntry) -> AuditTrailRecord:
    instance = None if one.instance is None else ids.show_instance(one.instance)
    return AuditTrailRecord(one.at, one.kind, one.actor, one.detail, one.old, instance)
