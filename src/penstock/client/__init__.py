"""The Python client of a Penstock engine: start workflows, look at them, complete user tasks, signal, cancel.

``Client`` is asynchronous (asyncio or Trio), ``SyncClient`` blocks. Imports nothing of the engine.
"""

from __future__ import annotations

from penstock.client.blocking import SyncClient
from penstock.client.client import Client
from penstock.client.errors import (
    BadRequest,
    ClientError,
    Conflict,
    ConnectionFailed,
    DispatchModeConflict,
    Forbidden,
    IdempotencyConflict,
    InternalError,
    JobCancelled,
    LeaseLost,
    NotFound,
    NotImplementedByEngine,
    NotOverGrpc,
    PayloadTooLarge,
    Problem,
    TimedOut,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    UnsupportedFormat,
)
from penstock.client.model import StartResult
from penstock.client.operation import Operation, Transport
from penstock.client.rest import RestTransport
from penstock.client.token import Token
from penstock.client.tracing import traceparent
from penstock.client.validation import validate_definition
from penstock.wire.model import (
    Attempt,
    AuditRecord,
    Branch,
    Completion,
    DefinitionSummary,
    FailedJob,
    Failure,
    Instance,
    ItemCounts,
    Job,
    JobOutcome,
    JobRef,
    JournalRecord,
    KeptMessage,
    KeptSignal,
    Lease,
    MessageReceiver,
    PublishedMessage,
    RecordedAttempt,
    RunTree,
    StartRequest,
    StepExecution,
)
from penstock.wire.page import Page
from penstock.wire.queue import Queue, QueueKey, QueuePolicy, Rate
from penstock.wire.schedule import Schedule, ScheduleRun, ScheduleSpec, ScheduleTime

__all__ = [
    "Attempt",
    "AuditRecord",
    "BadRequest",
    "Branch",
    "Client",
    "ClientError",
    "Completion",
    "Conflict",
    "ConnectionFailed",
    "DefinitionSummary",
    "DispatchModeConflict",
    "FailedJob",
    "Failure",
    "Forbidden",
    "IdempotencyConflict",
    "Instance",
    "InternalError",
    "ItemCounts",
    "Job",
    "JobCancelled",
    "JobOutcome",
    "JobRef",
    "JournalRecord",
    "KeptMessage",
    "KeptSignal",
    "Lease",
    "LeaseLost",
    "MessageReceiver",
    "NotFound",
    "NotImplementedByEngine",
    "NotOverGrpc",
    "Operation",
    "Page",
    "PayloadTooLarge",
    "Problem",
    "PublishedMessage",
    "Queue",
    "QueueKey",
    "QueuePolicy",
    "Rate",
    "RecordedAttempt",
    "RestTransport",
    "RunTree",
    "Schedule",
    "ScheduleRun",
    "ScheduleSpec",
    "ScheduleTime",
    "StartRequest",
    "StartResult",
    "StepExecution",
    "SyncClient",
    "TimedOut",
    "Token",
    "TooManyRequests",
    "Transport",
    "Unauthenticated",
    "Unavailable",
    "UnsupportedFormat",
    "traceparent",
    "validate_definition",
]
