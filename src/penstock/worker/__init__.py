"""The Python worker: register functions for job types, and run them against a Penstock engine.

::

    worker = Worker("http://127.0.0.1:8080")


    @worker.handler("charge-payment")
    async def charge_payment(order: Order) -> Receipt: ...


    worker.main()

Runs under asyncio and Trio. Imports nothing of the engine.
"""

from __future__ import annotations

import penstock.distribution  # noqa: F401 - it refuses  # pyright: ignore[reportUnusedImport] - it refuses
from penstock.worker.context import JobContext, JobLogFilter, current_job
from penstock.worker.errors import Later, NonRetryable, Retry, StepError, WaitFor
from penstock.worker.held import StopReason
from penstock.worker.intake import JobIntake, Subscription
from penstock.worker.observer import WorkerObserver
from penstock.worker.session import Statistics
from penstock.worker.transport import EngineReports, LongPoll, PullTransport, WorkerIdentity, WorkTransport
from penstock.worker.worker import Worker

__all__ = [
    "EngineReports",
    "JobContext",
    "JobIntake",
    "JobLogFilter",
    "Later",
    "LongPoll",
    "NonRetryable",
    "PullTransport",
    "Retry",
    "Statistics",
    "StepError",
    "StopReason",
    "Subscription",
    "WaitFor",
    "WorkTransport",
    "Worker",
    "WorkerIdentity",
    "WorkerObserver",
    "current_job",
]
