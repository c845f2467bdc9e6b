"""What becomes of definitions, as people are told of it over REST."""

from __future__ import annotations

from datetime import datetime

import msgspec


class VersionView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A version of a definition. ``open``: its open instances, where they were counted within the last minute.
    ``active``: new starts use it."""

    version: int
    name: str
    uploaded_at: datetime
    active: bool = False
    open: int | None = None


class DefinitionActivity(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Of a definition: its ``open`` instances as of ``counted_at``, ``sampled`` when that is an estimate; and of those
    that started within the last hour how many there are and how many have failed, each to 1,000, of its newest 20
    versions."""

    id: str
    open: int
    started_within_hour: int
    failed_of_these: int
    counted_at: datetime
    sampled: bool = False


class VersionCounts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How many instances a version has, by status."""

    version: int
    total: int
    active: int = 0
    waiting: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    total_is_estimate: bool = False
    """All of it: from a sample."""


class StepTokens(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What stands on a step now, and how many instances failed there, of 10,000 of the version that did."""

    step_id: str
    open: int
    oldest: datetime | None = None
    backing_off: int = 0
    failed: int = 0


class VariableUse(msgspec.Struct, frozen=True):
    """A variable of instances: the JSON types that it has, and ``in`` how many it is."""

    name: str
    types: list[str]
    found_in: int = msgspec.field(name="in")


class VariablesInUse(msgspec.Struct, frozen=True):
    """Variables of the newest instances, ``of`` so many; those first that most of them have."""

    of: int
    items: list[VariableUse]


class TokensView(msgspec.Struct, frozen=True, rename="camel"):
    """Where the open instances of a version stand, as of ``at``. ``sampled``: an estimate."""

    at: datetime
    sampled: bool
    instances: int
    steps: list[StepTokens]
