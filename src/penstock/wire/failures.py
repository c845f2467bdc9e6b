"""Failures by their cause, as people are told of them over REST."""

from __future__ import annotations

from datetime import datetime

import msgspec


class FailureGroup(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Failures of one definition's version, step and cause. ``text`` is the newest's error code and
    reason: a filter `cause` of lists takes it. ``sample`` is that instance."""

    cause: str
    text: str
    definition_id: str
    version: int
    count: int
    first: datetime
    last: datetime
    sample: str
    step_id: str | None = None


class FailureList(msgspec.Struct, frozen=True):
    """Groups, the most frequent first. ``exact``: no failure of the range was left out."""

    items: list[FailureGroup]
    exact: bool
