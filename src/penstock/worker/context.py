"""What a handler sees of its job: ids, attempt, checkpoint, a logger that knows them, and ways to report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.from_thread
import msgspec

from penstock.client.backoff import RetryPauses
from penstock.client.errors import Unavailable
from penstock.wire.noun import Variables
from penstock.worker.checkpoint import value_in, with_format
from penstock.worker.held import JOB_LOG_FIELDS, JobLog, LeasedJob, StopReason
from penstock.worker.leases import LeaseKeeper

_CURRENT: ContextVar[JobContext | None] = ContextVar("penstock_current_job", default=None)


class JobContext:
    """The job that a handler works on. Valid while the handler runs."""

    def __init__(self, held: LeasedJob, leases: LeaseKeeper, checkpoint_format: int | None = None) -> None:
        self._held = held
        self._leases = leases
        self._checkpoint_format = checkpoint_format
        self.job = held.job
        if checkpoint_format is not None:
            readable = value_in(held.job.checkpoint, checkpoint_format)
            self.job = msgspec.structs.replace(held.job, checkpoint=readable)

    @property
    def log(self) -> JobLog:
        """Return a logger whose lines bear the ids of the job."""
        return self._held.log

    @property
    def log_fields(self) -> dict[str, object]:
        """Return the ids of the job, as its lines bear them."""
        return self._held.log_fields

    @property
    def id(self) -> str:
        """Return the job's id."""
        return self.job.id

    @property
    def instance_id(self) -> str:
        """Return the id of the workflow instance."""
        return self.job.instance_id

    @property
    def definition_id(self) -> str:
        """The id of the definition that the instance runs; empty from an engine that does not tell, as in version 0."""
        return self.job.definition_id

    @property
    def definition_version(self) -> int:
        """Its version."""
        return self.job.definition_version

    @property
    def business_key(self) -> str | None:
        """The business key with which the instance was started, if any."""
        return self.job.business_key

    @property
    def step_id(self) -> str:
        """Return the id of the step in its definition."""
        return self.job.step_id

    @property
    def attempt(self) -> int:
        """How often the job was handed out, this time included; 1 from an engine that does not tell. It fences reports,
        and is no key to the outside world: each attempt has another one."""
        return self.job.attempt or 1

    @property
    def idempotency_key(self) -> str:
        """The key under which other systems do this job's work once: a payment, a mail, a row of yours.

        The same in all attempts (retries, leases that ended, repeats from Kafka) and also after somebody lets the
        failed instance go on (``retry_instance``), which makes a new job with another ``id``. Another one when the
        workflow comes to the step again, in a loop. At most 64 characters, of ``0-9a-f-``.
        """
        return self.job.idempotency_key or self.job.id

    @property
    def retries_remaining(self) -> int:
        """Return how many retries are left if this attempt fails."""
        return self.job.retries_remaining

    @property
    def variables(self) -> Variables:
        """All variables of the instance at the moment the job was handed out."""
        return self.job.variables

    @property
    def checkpoint(self) -> Any:
        """What an earlier attempt stored with ``report(checkpoint=…)``; None when it stored nothing.

        With a ``checkpoint_format`` of the handler also None when the checkpoint has another format, or none.
        """
        return self.job.checkpoint

    def checkpoint_of(self, checkpoint_format: int | None) -> Any:
        """Return the checkpoint if it has this format, to convert it; else None.

        Args:
            checkpoint_format: the ``checkpoint_format`` of the handler that stored it; None for a handler without one.
        """
        return value_in(self._held.job.checkpoint, checkpoint_format)

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the handler is to stop; None while it is not. For clean-up code that wants to know."""
        if self._held.stop_reason is None and self._held.scope.cancel_called:
            return StopReason.DEADLINE
        return self._held.stop_reason

    def completion(
        self, variables: Mapping[str, object] | None = None, *, schema: str = "penstock"
    ) -> tuple[bytes, tuple[str, int, str, str | None]]:
        """Return the statement with which the handler's own transaction on Penstock's database completes the job, and
        its parameters, as psycopg takes them: ``connection.execute(*job.completion({"paid": True}))``.

        As the last statement of the transaction: then what the transaction did and the end of the job come to be
        together, or neither. The handler returns nothing after it. ``schema``: that of Penstock's tables.
        A transaction whose job is no longer this worker's is refused (SQLSTATE ``PK001``) and rolled back.
        """
        name = schema.replace('"', '""').replace("%", "%%")
        body = None if variables is None else msgspec.json.encode(variables).decode()
        sql = f'SELECT "{name}".complete(%s, %s, %s, %s::jsonb)'
        return sql.encode(), (self.id, self.attempt, self.job.worker_id or "", body)

    async def report(self, *, checkpoint: object = msgspec.UNSET, progress: object = msgspec.UNSET) -> None:
        """Store a checkpoint (JSON, ≤ 256 kB) for the next attempt, show progress (JSON); extends the lease.

        Leases are extended without this, too. Waits through outages of the engine. With a ``checkpoint_format`` of the
        handler, ``{"format": …, "value": checkpoint}`` is stored.

        Raises:
            LeaseLost, JobCancelled: the job is no longer this worker's; the handler is cancelled as well.
        """
        if self._checkpoint_format is not None:
            checkpoint = with_format(checkpoint, self._checkpoint_format)
        backoff = RetryPauses()
        while True:
            try:
                await self._leases.report(self._held, checkpoint=checkpoint, progress=progress)
            except Unavailable:
                await anyio.sleep(backoff.next_pause_s())
            else:
                return

    def report_blocking(self, *, checkpoint: object = msgspec.UNSET, progress: object = msgspec.UNSET) -> None:
        """``report`` for synchronous handlers."""

        async def report() -> None:
            await self.report(checkpoint=checkpoint, progress=progress)

        anyio.from_thread.run(report)

    def raise_if_stopped(self) -> None:
        """End a synchronous handler here if its work is in vain: it can't be cancelled from outside.

        Raises:
            Cancelled (the event loop's own): the job was lost or cancelled, its deadline passed, or the worker stops.
        """
        anyio.from_thread.check_cancelled()


def current_job() -> JobContext | None:
    """Return the job that the calling code runs for: in a handler, its tasks and its threads; None elsewhere."""
    return _CURRENT.get()


def set_current_job(context: JobContext) -> None:
    """Say for which job the current task runs from now on. The worker does."""
    _CURRENT.set(context)


class JobLogFilter(logging.Filter):
    """Puts the job's ids into the log records of whatever runs for a job, other libraries included.

    Add it to a handler of `logging`: ``record.job_id``, ``job_type``, ``instance_id``, ``step_id`` and ``attempt``;
    None outside of jobs.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """See ``logging.Filter``; lets every record through."""
        context = _CURRENT.get()
        for name in JOB_LOG_FIELDS:
            if not hasattr(record, name):
                setattr(record, name, None if context is None else context.log_fields[name])
        return True
