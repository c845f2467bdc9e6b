"""Who a caller is to an engine, and what they may do."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Me(msgspec.Struct, rename="camel", omit_defaults=True):
    """``jobTypes`` is what a worker is limited to, ``sessionEndsAt`` is of those who signed in at the console."""

    can: list[str]
    name: str | None = None
    job_types: list[str] | None = None
    session_ends_at: datetime | None = None
