"""What people look at of the work that is open, and of those who do it: over REST, by the client, by commands."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class OpenJobView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An open job: ``since`` when it waits, is under way, or backs off. ``progress``: what its worker told last.
    ``priority``: where it is not 5. ``flow_key``: whose turn it comes in."""

    id: str
    job_type: str
    instance_id: str
    step_id: str
    definition_id: str
    version: int
    since: datetime
    attempt: int = 0
    failures: int = 0
    worker_id: str | None = None
    lease_until: datetime | None = None
    retry_at: datetime | None = None
    progress: Any = None
    priority: int | None = None
    flow_key: str | None = None


class QueueRow(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A job type with jobs that wait (exact to 100,000), with workers, or with jobs under lease (as engines know of
    theirs). ``series``: 15 minutes of what waited; ``done_per_second``: of the last minute."""

    job_type: str
    waiting: int
    waiting_exact: bool
    oldest_seconds: float
    locked: int
    workers: int
    done_per_second: float
    series: list[int]
    last_poll_at: datetime | None = None


class WorkerView(msgspec.Struct, frozen=True, rename="camel"):
    """A worker that an engine has seen within a day. ``leased``: the jobs that it had then; what it did and reported as
    failed within the 15 minutes before."""

    id: str
    job_types: list[str]
    last_poll_at: datetime
    leased: int
    done_last_15m: int = msgspec.field(name="doneLast15m")
    failed_last_15m: int = msgspec.field(name="failedLast15m")
    engine: int


class TimerView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A timer to come: of a boundary event (``target`` is where it leads), a retry, a wait, or a durable run."""

    kind: str
    fire_at: datetime
    instance_id: str
    step_id: str
    definition_id: str
    version: int
    target: str | None = None
    interrupting: bool = False
