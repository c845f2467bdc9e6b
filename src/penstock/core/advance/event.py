"""What can happen to an instance: the inputs of `advance`. Plain data, decided upon nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from penstock.core.rules.state import InstanceStatus

Variables = Mapping[str, object]


class InstanceStarted(msgspec.Struct, frozen=True, tag=True):
    """The instance was created with its start variables. ``at``: when it begins, None for at once. ``checked``: by a
    call, which is refused where the definition's flow key or priority can't be told; else it fails then."""

    at: datetime | None = None
    checked: bool = False


class JobCompleted(msgspec.Struct, frozen=True, tag=True):
    """A worker finished the job; the fence was checked under the token's lock."""

    token_id: int
    worker: str
    output: bytes | None  # the variable delta as a JSON object; None or b"{}" when nothing changes


class JobFailed(msgspec.Struct, frozen=True, tag=True):
    """A worker gave up on the job."""

    token_id: int
    worker: str
    retryable: bool
    error: str
    retry_after_s: float | None = None  # the worker's own wish, instead of the step's back-off
    code: str | None = None
    data: bytes | None = None  # what the worker says beside it, a JSON object


class JobParked(msgspec.Struct, frozen=True, tag=True):
    """A worker waits with the job: for a time, for a signal to the step, or for whichever comes first."""

    token_id: int
    worker: str
    until: datetime | None
    signal: str | None


class JobSignalled(msgspec.Struct, frozen=True, tag=True):
    """The signal that a parked job waits for."""

    token_id: int
    output: bytes | None


class JobDeadLettered(msgspec.Struct, frozen=True, tag=True):
    """The job's lease expired as often as is allowed."""

    token_id: int
    expiries: int


class TaskCompleted(msgspec.Struct, frozen=True, tag=True):
    """A user task was completed, or a wait signalled, through the API."""

    token_id: int
    by: str | None
    output: bytes | None


class TimerFired(msgspec.Struct, frozen=True, tag=True):
    """A timer of the token's present step is due. ``index``: see `effect.Timer`."""

    token_id: int
    index: int


class ChildEnded(msgspec.Struct, frozen=True, tag=True):
    """The instance that a call started has ended."""

    token_id: int
    child: str  # its id, as people see it
    definition_id: str
    status: InstanceStatus
    reason: str | None
    code: str | None  # with which it failed
    result: (
        bytes | None
    )  # a JSON object: its own, else the variables that it ended with; None where nothing is asked for


class MessageReceived(msgspec.Struct, frozen=True, tag=True):
    """The message that a wait waits for."""

    token_id: int
    message: int
    name: str
    by: str | None
    output: bytes | None


class StepGivenUp(msgspec.Struct, frozen=True, tag=True):
    """What the engine itself had to do with the step failed again and again."""

    token_id: int
    reason: str


class CancellationRequested(msgspec.Struct, frozen=True, tag=True):
    """Somebody cancelled the instance. ``compensate``: what it did is undone first."""

    reason: str | None
    compensate: bool = False


class RetryRequested(msgspec.Struct, frozen=True, tag=True):
    """Somebody wants a failed instance to go on; the tokens are those that the failure closed."""


class StepSkipped(msgspec.Struct, frozen=True, tag=True):
    """Somebody says that a step counts as done. A FAILED instance goes on by it; the tokens are those that the failure
    closed. Likewise of the next."""

    token_id: int
    reason: str
    output: bytes | None


class TokenMoved(msgspec.Struct, frozen=True, tag=True):
    """Somebody sends a token to another step; ``token_id`` is what `repair.find_mover` found."""

    token_id: int
    step: int
    reason: str


Event = (
    InstanceStarted
    | JobCompleted
    | JobFailed
    | JobParked
    | JobSignalled
    | JobDeadLettered
    | TaskCompleted
    | TimerFired
    | ChildEnded
    | MessageReceived
    | StepGivenUp
    | CancellationRequested
    | RetryRequested
    | StepSkipped
    | TokenMoved
)
