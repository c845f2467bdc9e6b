"""The audit trail of everything, as people read it: over REST, gRPC, by the client, by commands."""

from __future__ import annotations

from datetime import datetime

import msgspec


class AuditTrailRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What somebody did, or a program. ``detail``: to what, and the new value of a change; ``old`` is the one before.
    ``actor`` is who was proved, with authentication."""

    at: datetime
    kind: str
    actor: str | None = None
    detail: str | None = None
    old: str | None = None
    instance_id: str | None = None
