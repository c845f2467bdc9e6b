"""The audit trail of an instance."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple, cast

from penstock.store.connection import TrioConnection
from penstock.store.statements import SQL, Statement


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


def add(instance: int | None, step: int | None, kind: str, actor: str | None, detail: str | None) -> Statement:
    """Writes one, of now. ``instance`` None: it is about none, but about a queue or a schedule."""
    return SQL["add_audit"], (instance, step, kind, actor, detail)
