"""Queues: policies for the jobs of some types, as REST, the client and the settings file write them."""

from __future__ import annotations

import msgspec

from penstock.wire.noun import Answer


class Rate(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """``limit`` attempts may begin in each ``period`` (an ISO 8601 duration), evenly; ``burst`` of them (by default
    ``limit``) at once after a pause, so that a period may see more. With ``window`` no period sees more than ``limit``,
    whenever it begins: ``burst`` (by default half of ``limit``) at once, and then fewer in a period."""

    limit: int
    period: str = "PT1S"
    burst: int | None = None
    window: bool = False


def burst_of(rate: Rate) -> int:
    """Return how many attempts a rate lets begin at once after a pause."""
    if rate.burst is not None:
        return rate.burst
    return (rate.limit + 1) // 2 if rate.window else rate.limit


def each_period(rate: Rate) -> int:
    """Return how many attempts begin in a period, one after the other, while enough wait. With ``window`` these and the
    burst are one more than the limit: no period sees all of them."""
    return rate.limit + 1 - burst_of(rate) if rate.window else rate.limit


class QueuePolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """What holds for the jobs of ``job_types``, all together and for those of each flow key. What is not given is not
    limited. ``paused``: nothing begins; put without it, it is as it was. Keys take turns, those of ``weights`` several
    jobs at a time, unless ``fair`` is false. ``runs``: so many runs of durable workflows may be open, from when
    they first become active to their end."""

    job_types: list[str]
    paused: bool | None = None
    concurrency: int | None = None
    concurrency_per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    fair: bool = True
    weights: dict[str, int] = {}
    runs: int | None = None


class QueueKey(Answer, frozen=True):
    """A flow key of a queue: how many jobs wait, to 1,000, and how many of its attempts are under way, where that is
    limited, or was."""

    flow_key: str
    waiting: int
    running: int | None = None


class Queue(Answer, frozen=True):
    """A queue and its policy. Of one that was asked for by name also how it stands: ``running`` attempts, where their
    number is limited, ``waiting`` jobs to 100,000, for how many seconds the first in line waits, the flow keys with
    most under way or first in line, and ``open_runs`` of durable workflows, where their number is limited."""

    name: str
    policy: QueuePolicy
    running: int | None = None
    waiting: int | None = None
    oldest_s: float | None = msgspec.field(default=None, name="oldestSeconds")
    keys: list[QueueKey] | None = None
    open_runs: int | None = None
