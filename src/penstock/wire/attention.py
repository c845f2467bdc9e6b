"""What needs somebody, as people are told of it: over REST, by the client, by commands."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Acknowledgement(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Who acknowledged a row, when, and until when that holds."""

    at: datetime
    until: datetime
    by: str | None = None
    note: str | None = None


class Attention(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Something that needs somebody. ``query`` leads to it in the list of instances. ``exact`` false: there may be more
    than ``count``. ``key`` names the row for an acknowledgement."""

    kind: str
    severity: str
    text: str
    detail: str = ""
    count: int = 0
    since: datetime | None = None
    job_type: str | None = None
    query: dict[str, str] = {}
    exact: bool = True
    key: str = ""
    acknowledged: Acknowledgement | None = None


class AttentionList(msgspec.Struct, frozen=True):
    """All that needs somebody: what is acknowledged comes last."""

    items: list[Attention]


class AcknowledgeBody(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """``count``: how many failures the row tells of; with more it needs attention again."""

    count: int = 0
    note: str | None = None
