"""Why an instance stands where it stands, as the engine says it and the client reads it."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Why(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Why an instance stands where it stands. ``next``: when something happens by itself."""

    code: str
    text: str
    step_id: str | None = None
    since: datetime | None = None
    next: datetime | None = None
