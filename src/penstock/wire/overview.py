"""What people are told of an engine, all engines, and what goes on in them: over REST."""

from __future__ import annotations

from datetime import datetime

import msgspec

from penstock.wire.attention import Attention
from penstock.wire.open_work import QueueRow


class EngineReport(msgspec.Struct, frozen=True, rename="camel"):
    """What an engine says of itself: connections to the database, of clients, parked polls, jobs under its leases;
    transactions and their items since it said so before; how late its loop was within a minute."""

    version: str
    since: datetime
    database_connections: int
    client_connections: int
    parked_polls: int
    leased_jobs: int
    batches_per_second: float
    items_per_batch: float
    loop_lag_seconds: float


class Counted(msgspec.Struct, frozen=True, rename="camel"):
    """How many within the range, and per second."""

    in_range: int
    per_second: float


class OpenCount(msgspec.Struct, frozen=True):
    """Open instances; not exact beyond `OPEN_MAX`."""

    count: int
    exact: bool


class Series(msgspec.Struct, frozen=True, rename="camel"):
    """Counts per step of time, beginning at ``since``."""

    step_seconds: int
    since: datetime
    started: list[int]
    completed: list[int]
    failed: list[int]


class Durations(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Seconds from start to completion, of those that completed. They are counted by steps of time: these are estimates
    within a step, and ``…_at_most`` where it ends, if it does."""

    p50: float | None = None
    p99: float | None = None
    p50_at_most: float | None = None
    p99_at_most: float | None = None


class OverviewView(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of `GET /v1/overview`."""

    at: datetime
    started: Counted
    completed: Counted
    failed: Counted
    cancelled: Counted
    durations: Durations
    open: OpenCount
    series: Series
    queues: list[QueueRow]
    attention: list[Attention]
    engines: int


class EngineView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An engine that lives, or did within a day. ``report``: what it said of itself within five seconds."""

    number: int
    host: str
    mode: str
    schema_version: int
    alive: bool
    report: EngineReport | None = None


class DatabaseView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The database. ``history_since``: where its oldest partition of history begins; ``oldest_instance`` is what keeps
    the partition of its time."""

    version: str
    bytes: int
    partitions: int
    history_since: datetime | None = None
    oldest_instance: str | None = None


class EngineList(msgspec.Struct, frozen=True):
    """All engines by number, and what they share."""

    items: list[EngineView]
    database: DatabaseView
