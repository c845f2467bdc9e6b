"""One job that this worker holds, from the moment it arrives until its result is settled or it is given back.

State only: who changes it is `session.py`; `leases.py` and `reporter.py` read it.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, MutableMapping
from functools import cached_property
from typing import Any

import anyio

from penstock.wire.model import Job, JobRef

LOGGER = logging.getLogger("penstock.worker")
JOB_LOG_FIELDS = ("job_id", "job_type", "instance_id", "step_id", "attempt")


class StopReason(enum.StrEnum):
    """Why a handler was told to stop before it had finished."""

    LEASE_LOST = "lease-lost"
    """The lease ended, or another attempt has the job: the result would be refused."""
    CANCELLED = "cancelled"
    """The instance ended or the step was interrupted."""
    DEADLINE = "deadline"
    """The handler's own time limit passed: the job is failed, and retried while it has retries left."""
    STOPPING = "stopping"
    """The worker stops and its grace is over: the job goes back to the queue."""


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """Adds the job's ids to every line, and to its record (``record.job_id`` …); a call's own ``extra`` is kept."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """See ``logging.LoggerAdapter``, which would replace the call's ``extra``."""
        fields = dict(self.extra or {})
        kwargs["extra"] = {**fields, **(kwargs.get("extra") or {})}
        # Ids are hexadecimal: no per cent sign of theirs can meet the arguments of the line.
        return f"{msg} (job {fields['job_id']}, attempt {fields['attempt']})", kwargs


class LeasedJob:
    """A job with the cancel scope around its handler. Made in the event loop that runs it."""

    def __init__(self, job: Job, *, now: float, lease_s: float, on_begin: Callable[[str], None] | None = None) -> None:
        self._on_begin = on_begin
        self.job = job
        self.ref = JobRef(job_id=job.id, attempt=job.attempt)
        self.scope = anyio.CancelScope()
        self.stop_reason: StopReason | None = None
        self.lease_ends_at = now + lease_s
        """By this process's clock (``anyio.current_time``); the engine's may end a little later."""
        self.received_at = now
        self.started_at: float | None = None
        """When its handler began to run; None while it waits for a slot."""
        self.running = False
        self.interrupt: KeyboardInterrupt | None = None
        """With which its handler ended: the worker ends by it, once the job's failure is reported."""

    @cached_property
    def log_fields(self) -> dict[str, object]:
        """Return the job's ids, as its lines bear them: made when somebody asks, which most handlers never do."""
        job = self.job
        values = (job.id, job.job_type, job.instance_id, job.step_id, job.attempt)
        fields: dict[str, object] = dict(zip(JOB_LOG_FIELDS, values, strict=True))
        if job.traceparent is not None:
            fields["trace_id"] = job.traceparent.split("-")[1] if job.traceparent.count("-") == 3 else ""
        return fields

    @cached_property
    def log(self) -> JobLog:
        """Return a logger whose lines bear them."""
        return JobLog(LOGGER, self.log_fields)

    @property
    def key(self) -> tuple[str, int | None]:
        """Distinguishes attempts: the same job may come back while an older attempt still cleans up."""
        return (self.job.id, self.job.attempt)

    def begin(self) -> None:
        """Its handler begins to run now."""
        self.started_at = anyio.current_time()
        self.running = True
        if self._on_begin is not None:
            self._on_begin(self.job.job_type)

    @property
    def is_waiting(self) -> bool:
        """Return whether its handler has not begun."""
        return self.started_at is None

    def stop(self, reason: StopReason) -> None:
        """Cancel the handler at its next checkpoint. The first reason given stands."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self.scope.cancel()
