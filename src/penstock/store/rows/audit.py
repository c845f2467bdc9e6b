"""The audit trail, of an instance and of everything."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from penstock.store.db.connection import TrioConnection
from penstock.store.db.statements import SQL, Statement

OLD_MAX_CHARS: Final = 1_000
SCANNED_MAX: Final = 20_000
"""So many records are looked at for a page of those wanted."""


class AuditEntry(NamedTuple):
    """One row of the audit table."""

    at: datetime
    kind: str
    step: int | None
    actor: str | None
    detail: str | None
    position: int


async def of_instance(connection: TrioConnection, instance: int) -> list[AuditEntry]:
    """What the audit table holds of an instance, oldest first."""
    return [AuditEntry(*cast(Any, row)) for row in await connection.fetch(SQL["audit_of"], (instance,))]


def add(
    instance: int | None, step: int | None, kind: str, actor: str | None, detail: str | None, old: str | None = None
) -> Statement:
    """Writes one, of now. ``instance`` None: it is about none, but about a queue or a schedule. ``old`` is the value
    before a change, of which ``detail`` has the new one; both are cut."""
    cut = None if old is None else old[:OLD_MAX_CHARS]
    return SQL["add_audit"], (instance, step, kind, actor, detail, cut)


class AnyEntry(NamedTuple):
    """One row of the audit table, whatever it is about."""

    position: int
    at: datetime
    kind: str
    actor: str | None
    detail: str | None
    old: str | None
    instance: int | None


class AuditFilter(NamedTuple):
    """Which records a list has; None is any."""

    since: datetime | None = None
    until: datetime | None = None
    kind: str | None = None
    actor: str | None = None
    contains: str | None = None


async def find(
    connection: TrioConnection, wanted: AuditFilter, *, before: int, limit: int
) -> tuple[list[AnyEntry], int | None]:
    """Up to ``limit`` records below a position, newest first, of the next `SCANNED_MAX`; and below which position there
    may be more."""
    rows = cast(Any, await connection.fetch(SQL["list_audit"], (before, *wanted, limit, SCANNED_MAX)))
    *found, (lowest, *_) = rows
    entries = [AnyEntry(*row) for row in found]
    return entries, entries[-1].position if len(entries) == limit else lowest
