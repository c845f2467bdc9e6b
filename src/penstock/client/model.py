"""What the engine is told and answers, typed: the nouns of `penstock.wire`, and what only REST has.

Field names are snake case here and camelCase on the wire. Fields that a newer engine adds are ignored. Whole
numbers inside ``variables`` are exact at any size. Times are aware datetimes in UTC.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from penstock.client.errors import error_for
from penstock.wire import model
from penstock.wire.model import (
    Attempt,
    AuditRecord,
    Completion,
    DefinitionSummary,
    FailedJob,
    Failure,
    Instance,
    Job,
    JobOutcome,
    JobRef,
    KeptSignal,
    Lease,
    LostJob,
    StartRequest,
    StepExecution,
)
from penstock.wire.noun import TERMINAL_STATUSES, Variables

__all__ = [
    "TERMINAL_STATUSES",
    "Attempt",
    "AuditRecord",
    "Completion",
    "DefinitionSummary",
    "FailedJob",
    "Failure",
    "Instance",
    "Job",
    "JobOutcome",
    "JobRef",
    "KeptSignal",
    "Lease",
    "LostJob",
    "Page",
    "StartRequest",
    "StartResult",
    "StepExecution",
    "Variables",
]

T = TypeVar("T")


class _Wire(msgspec.Struct, rename="camel", frozen=True):
    """Base of all structs: camelCase on the wire."""


class JournalRecord(_Wire, frozen=True):
    """One record of the journal of a run of code: something that came into its body from outside.

    ``kind``: done, failed, stopped, clock, message, cancel, …; ``path`` says which operation of the body it answers.
    ``payload`` is the value, decoded from JSON; with a ``codec`` it is base64 text.
    """

    pos: str
    at: datetime
    kind: str
    path: str = ""
    name: str | None = None
    attempt: int | None = None
    took_ms: int | None = None
    payload: Any = None
    codec: str | None = None


class Branch(_Wire, frozen=True):
    """An operation or branch of a run of code, by path, and what is below it. ``status``: done, failed, stopped,
    running (a step), waiting (a sleep, a message), open (a nursery or branch)."""

    path: str
    status: str
    name: str | None = None
    kind: str | None = None
    attempt: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    due_at: datetime | None = None
    where: str | None = None
    children: list[Branch] = []


class RunTree(_Wire, frozen=True):
    """A run of code and its branches. ``view`` is what its body showed last, ``waits_for`` what it waits for, in words.

    What is open is as of ``as_of``, when its executor last wrote it down.
    """

    id: str
    status: str
    workflow: str
    version: int
    branches: list[Branch] = []
    view: Any = None
    waits_for: str | None = None
    as_of: datetime | None = None
    mail: int = 0


class Page(_Wire, Generic[T], frozen=True):
    """One page of a list. ``total`` counts all pages; it is an estimate where ``total_is_estimate`` says so.

    Read by ``limit`` and ``cursor``: no total, maybe fewer items than asked for, and ``next``, the cursor of what comes
    after them; None at the end.
    """

    items: list[T]
    total: int | None = None
    total_is_estimate: bool = False
    next: str | None = None


class StartResult(model.StartResult, frozen=True):
    """What became of one item of a batch start: the instance, or the error code and reason."""

    def unwrap(self) -> Instance:
        """The instance.

        Raises:
            ClientError: the item was refused; the class says why.
        """
        if self.instance is None:
            raise error_for(self.error, self.reason or "the engine gave no reason")
        return self.instance
