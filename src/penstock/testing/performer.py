"""Runs one handler for one job as a worker would, and reports what it came to.

Uses the worker's own `run_handler`, so that validation, `Retry`, `NonRetryable`, threads, processes and time limits are
those of production. Must not poll, and must not know about time.
"""

from __future__ import annotations

import anyio

from penstock.client import Client, Completion, Failure, Job, JobOutcome, JobRef
from penstock.testing.engine_thread import clock_jumps
from penstock.wire.model import Park
from penstock.worker.context import JobContext
from penstock.worker.execution import run_handler
from penstock.worker.handler import Handler, Pools
from penstock.worker.held import LeasedJob, StopReason
from penstock.worker.leases import LeaseKeeper
from penstock.worker.process_pool import ProcessPool
from penstock.worker.transport import LongPoll, WorkerIdentity

HANDLER_TIMEOUT_S = 30.0
"""Real time that a handler may take."""


class HandlerHangs(AssertionError):
    """A handler has not ended in time: it must not wait for what only the test itself can bring about."""


class Performer:
    """What the worker ``worker_id`` does with the jobs it holds, for leases of ``lease_s`` seconds."""

    def __init__(self, client: Client, worker_id: str, lease_s: int) -> None:
        self._client = client
        self._worker_id = worker_id
        self._lease_s = lease_s
        self._transport = LongPoll(client.transport, WorkerIdentity(worker_id, lease_s), wait_s=0)

    async def perform(self, handler: Handler, job: Job) -> str:
        """Run the handler and report; what became of the job, in words. Raises HandlerHangs."""
        held = LeasedJob(job, now=anyio.current_time(), lease_s=self._lease_s)
        leases = LeaseKeeper(self._transport, self._lease_s, _stop)
        leases.add(held)
        pools = Pools(anyio.CapacityLimiter(1), ProcessPool(1))
        report: Completion | Failure | Park | None = None
        try:
            with anyio.move_on_after(None if clock_jumps() else HANDLER_TIMEOUT_S) as scope:
                context = JobContext(held, leases, handler.checkpoint_format)
                report = await run_handler(handler, held, context, (), pools)
        finally:
            await pools.processes.aclose()
        if scope.cancelled_caught:
            raise HandlerHangs(f"the handler of {job.job_type!r} has not ended within {HANDLER_TIMEOUT_S:g} s")
        if isinstance(report, Completion):
            return await self._complete(job, report)
        if isinstance(report, Park):
            [outcome] = await self._transport.park([report])
            return _said("was parked", outcome, "")
        if isinstance(report, Failure):
            [outcome] = await self._transport.fail([report])
            return _said("failed", outcome, report.error_message)
        return f"was lost: {held.stop_reason}"

    async def keep(self, job: Job, lease_s: int) -> bool:
        """Extend the lease of a job; False when the worker does not hold it any more."""
        job_ref = JobRef(job_id=job.id, attempt=job.attempt)
        [outcome] = await self._client.heartbeat_jobs(self._worker_id, [job_ref], lease_s=lease_s)
        return outcome.outcome == "ok"

    async def _complete(self, job: Job, report: Completion) -> str:
        [outcome] = await self._transport.complete([report])
        if outcome.outcome == "invalid":  # as the worker does: what the engine refuses fails the job
            reason = f"the engine refused the result: {outcome.reason}"
            failure = Failure(job_id=job.id, attempt=job.attempt, retryable=False, error_message=reason)
            await self._transport.fail([failure])
            return f"failed: {reason}"
        return _said("was done", outcome, "")


def _said(what: str, outcome: JobOutcome, more: str) -> str:
    if outcome.outcome != "ok":
        return f"{what}, but too late: {outcome.outcome}"
    return f"{what}: {more}" if more else what


def _stop(held: LeasedJob, reason: StopReason) -> None:
    held.stop(reason)
