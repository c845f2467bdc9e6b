"""The calls that an engine answers, as values: what to send, what comes back, and when to ask again.

Transports turn an operation into one exchange on their wire; `client.py` decides about repeating it. Pure data:
no I/O here. ``Operation[R]`` carries the type of its answer, so that ``Transport.call`` is typed for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Generic, Protocol, TypedDict, TypeVar

import msgspec

from penstock.api.operation import Repeat
from penstock.client.model import StartResult
from penstock.wire.model import (
    Completion,
    Failure,
    Instance,
    Job,
    JobOutcome,
    JobRef,
    Lease,
    LostJob,
    Park,
    PollRequest,
    StartRequest,
)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Operation(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """Base of all operations."""

    @property
    def label(self) -> str:
        """Its name, for traces and messages."""
        return type(self).__name__

    @property
    def repeat(self) -> Repeat:
        """When the operation may be sent again."""
        return Repeat.ALWAYS

    @property
    def hold_s(self) -> float:
        """How long the engine itself may hold the call before it answers (long polls)."""
        return 0.0


class Transport(Protocol):
    """A way to reach an engine. One call is one exchange: no retries in here."""

    async def call(self, operation: Operation[R], *, timeout_s: float) -> R:
        """Send the operation and wait for its answer.

        Cancel-safe: a cancelled call may or may not have taken effect.

        Raises:
            ClientError: by condition; TimedOut after ``timeout_s`` seconds.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class CheckReady(Operation[None], frozen=True):
    """Ask whether the engine is ready; Unavailable when it is not."""


class StartInstance(Operation[Instance], frozen=True):
    """Start an instance; repeatable because the request carries an idempotency key."""

    request: StartRequest

    @property
    def repeat(self) -> Repeat:
        return Repeat.ALWAYS if self.request.idempotency_key else Repeat.IF_NOT_APPLIED

    @property
    def hold_s(self) -> float:
        return self.request.wait_seconds or 0.0


class StartInstances(Operation[list[StartResult]], frozen=True):
    """Start many instances in one call."""

    items: Sequence[StartRequest]

    @property
    def repeat(self) -> Repeat:
        keyed = all(item.idempotency_key for item in self.items)
        return Repeat.ALWAYS if keyed else Repeat.IF_NOT_APPLIED

    @property
    def hold_s(self) -> float:
        return max((item.wait_seconds or 0.0 for item in self.items), default=0.0)


class InstanceFilters(TypedDict, total=False):
    """Which instances a list has: those with all that is given.

    ``business_key_prefix``: how the key begins. ``parent_instance_id``: which called them, or chained into them.
    ``flow_key``: whose turn their jobs come in.
    ``definition_version`` needs a ``definition_id``. ``cause`` (the text of a failure, whose ids, numbers and quoted
    parts may differ), ``step_id`` and ``error_contains`` need the status ``FAILED``. ``attributes`` are search
    attributes: ``{"customer": "4711", "amount.from": "100", "amount.to": "200"}``. ``delayed``: those that have not
    begun. ``current_step_id``: open ones that stand on this step of the ``definition_id``. ``bulk_id``: to which that
    operation was done; ``open`` then has those that have not ended. ``blocked``: durable runs that no code could go on
    with so far. ``order``: ``newest`` first, ``oldest`` first, by ``businessKey``, or those that ``ended`` or
    ``changed`` last first; but for the first a list needs a ``limit``, and the last two sort at most 10,000 instances.
    Over gRPC there are only the first three, ``delayed``, ``blocked``, ``current_step_id`` and ``order``.
    """

    definition_id: str | None
    status: str | None
    business_key: str | None
    business_key_prefix: str | None
    parent_instance_id: str | None
    flow_key: str | None
    definition_version: int | None
    cause: str | None
    step_id: str | None
    current_step_id: str | None
    error_contains: str | None
    bulk_id: str | None
    open: bool
    started_after: datetime | None
    started_before: datetime | None
    attributes: Mapping[str, str]
    delayed: bool
    blocked: bool
    order: str | None


class PollJobs(Operation[list[Job]], frozen=True):
    """Lease jobs. When an answer is lost, its jobs come back at the end of their lease, repeated call or not."""

    request: PollRequest

    @property
    def hold_s(self) -> float:
        return self.request.wait_seconds or 0


class WaitLostJobs(Operation[list[LostJob]], frozen=True):
    """Hear of jobs that are cancelled under a worker's lease. Each is told once: a lost answer is not asked for again,
    heartbeats say it, too."""

    worker_id: str
    wait_s: int = 0

    @property
    def hold_s(self) -> float:
        return self.wait_s


class CompleteJob(Operation[None], frozen=True):
    """Complete a job: the second of two equal completions changes nothing and succeeds."""

    worker_id: str
    completion: Completion


class FailJob(Operation[None], frozen=True):
    """Fail a job. Without ``attempt`` a repeat could hit the worker's next attempt at the same job."""

    worker_id: str
    failure: Failure

    @property
    def repeat(self) -> Repeat:
        return Repeat.IF_NOT_APPLIED if self.failure.attempt is None else Repeat.ALWAYS


class ParkJob(Operation[None], frozen=True):
    """Wait with a job: until a time, or for a signal."""

    worker_id: str
    park: Park


class HeartbeatJob(Operation[Lease], frozen=True):
    """Extend a lease; may store a checkpoint for the next attempt and show progress."""

    worker_id: str
    job: JobRef
    lease_s: int | None = None
    checkpoint: object = msgspec.UNSET
    progress: object = msgspec.UNSET


class HeartbeatJobs(Operation[list[JobOutcome]], frozen=True):
    """Extend many leases in one call; one outcome per item."""

    worker_id: str
    jobs: Sequence[JobRef]
    lease_s: int | None = None


class CompleteJobs(Operation[list[JobOutcome]], frozen=True):
    """Complete many jobs in one call; one outcome per item."""

    worker_id: str
    results: Sequence[Completion]


class FailJobs(Operation[list[JobOutcome]], frozen=True):
    """Fail many jobs in one call; one outcome per item."""

    worker_id: str
    results: Sequence[Failure]

    @property
    def repeat(self) -> Repeat:
        fenced = all(item.attempt is not None for item in self.results)
        return Repeat.ALWAYS if fenced else Repeat.IF_NOT_APPLIED


class ReleaseJobs(Operation[list[JobOutcome]], frozen=True):
    """Give leased jobs back to the queue at once, without using up a retry."""

    worker_id: str
    jobs: Sequence[JobRef]
