"""Where an instance stands, as people are told of it over REST."""

from __future__ import annotations

from datetime import datetime

import msgspec

from penstock.wire.model import Instance, StepExecution
from penstock.wire.why import Why


class Edge(msgspec.Struct, frozen=True):
    """A way from one step to another, and how often it was taken."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    times: int


class OpenStep(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An open execution, with the name of the token's state. ``progress``: what its worker told last."""

    id: str
    step_id: str
    state: str
    since: datetime
    text: str
    attempt: int = 0
    failures: int = 0
    worker_id: str | None = None
    lease_until: datetime | None = None
    retry_at: datetime | None = None
    progress: msgspec.Raw | None = None


class OpenTimer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A timer that is armed: ``kind`` is boundary, retry, wait, wake (of a durable run) or engine."""

    step_id: str
    kind: str
    fire_at: datetime
    target: str | None = None


class InstanceState(msgspec.Struct, frozen=True, rename="camel"):
    """Where an instance stands: its open steps and timers, at most 200 each, and how many signals are kept for it.

    ``children``: the newest 200 instances that it has started. ``path``: the ways that its newest 500 executions took.
    ``version`` is that of its variables, as a change of them takes it.
    """

    instance: Instance
    why: Why
    tokens: list[OpenStep]
    timers: list[OpenTimer]
    signals: int
    children: list[str]
    path: list[Edge]
    version: str


class ShownExecution(StepExecution, frozen=True, kw_only=True):
    """One of a slice. ``attempt_number`` is 0: not counted. ``output``: what it wrote, if that is not too large."""

    output: msgspec.Raw | None = None
    output_bytes: int | None = None


class VariablesAsOf(msgspec.Struct, frozen=True, rename="camel"):
    """An instance's variables after one of its executions; ``changed`` are those that it wrote, ``by`` is its step.
    Where they are those of the start, both are empty."""

    variables: msgspec.Raw
    changed: list[str]
    by: str
