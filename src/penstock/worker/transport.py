"""How a worker gets its jobs and reports about them: the interface, and the long poll over REST.

One call is one exchange: pauses and repeats are the business of who calls. Other transports (the ``Work`` stream,
Kafka) implement the same interface: ``receive`` states the demand, so each of them is held back by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.client.model import Completion, Failure, Job, JobRef, Outcome
from penstock.client.operation import (
    CompleteJobs,
    FailJobs,
    HeartbeatJob,
    HeartbeatJobs,
    PollJobs,
    ReleaseJobs,
    Transport,
)

# An engine holds a call for up to 10 s while its database is away (`outage_wait_seconds`).
EXCHANGE_TIMEOUT_S = 15.0
# A heartbeat that hangs must leave time for others within the same lease.
MAX_HEARTBEAT_TIMEOUT_S = 10.0


class WorkTransport(Protocol):
    """A worker's connection to the engine. All methods raise ``ClientError``; each may be repeated safely."""

    async def receive(self, job_types: Sequence[str], max_jobs: int) -> list[Job]:
        """Wait for jobs, lease at most ``max_jobs`` of them. An empty list after a while without any.

        A cancelled call may leave jobs leased that nobody knows of; they come back at the end of their lease.
        """
        ...

    async def complete(self, results: Sequence[Completion]) -> list[Outcome]:
        """Report completions; one outcome per item."""
        ...

    async def fail(self, results: Sequence[Failure]) -> list[Outcome]:
        """Report failures; one outcome per item."""
        ...

    async def extend(self, jobs: Sequence[JobRef]) -> list[Outcome]:
        """Extend leases, each by its full length from now; one outcome per item."""
        ...

    async def report(
        self, job: JobRef, *, checkpoint: object = msgspec.UNSET, progress: object = msgspec.UNSET
    ) -> None:
        """Store a checkpoint, show progress; extends the lease as well.

        Raises:
            LeaseLost, JobCancelled: the job is no longer this worker's.
        """
        ...

    async def release(self, jobs: Sequence[JobRef]) -> list[Outcome]:
        """Give jobs back to the queue at once, without using up a retry."""
        ...


class LongPoll:
    """Polls that the engine holds until there is a job, and batch calls for everything else.

    Args:
        transport: how to reach the engine; not closed by this.
        worker_id: the holder of the leases; unique per running worker.
        lease_s: length of a lease in seconds, 5 to 3600.
        wait_s: how long the engine holds a poll, 0 to 60 seconds.
    """

    def __init__(self, transport: Transport, *, worker_id: str, lease_s: int, wait_s: int) -> None:
        self._transport = transport
        self._worker_id = worker_id
        self._lease_s = lease_s
        self._wait_s = wait_s

    async def receive(self, job_types: Sequence[str], max_jobs: int) -> list[Job]:
        """See ``WorkTransport``."""
        poll = PollJobs(
            worker_id=self._worker_id,
            job_types=job_types,
            max_jobs=max_jobs,
            lease_s=self._lease_s,
            wait_s=self._wait_s,
        )
        return await self._transport.call(poll, timeout_s=self._wait_s + EXCHANGE_TIMEOUT_S)

    async def complete(self, results: Sequence[Completion]) -> list[Outcome]:
        """See ``WorkTransport``."""
        operation = CompleteJobs(worker_id=self._worker_id, results=results)
        return await self._transport.call(operation, timeout_s=EXCHANGE_TIMEOUT_S)

    async def fail(self, results: Sequence[Failure]) -> list[Outcome]:
        """See ``WorkTransport``."""
        operation = FailJobs(worker_id=self._worker_id, results=results)
        return await self._transport.call(operation, timeout_s=EXCHANGE_TIMEOUT_S)

    async def extend(self, jobs: Sequence[JobRef]) -> list[Outcome]:
        """See ``WorkTransport``."""
        operation = HeartbeatJobs(worker_id=self._worker_id, jobs=jobs, lease_s=self._lease_s)
        return await self._transport.call(operation, timeout_s=min(self._lease_s / 3, MAX_HEARTBEAT_TIMEOUT_S))

    async def report(
        self, job: JobRef, *, checkpoint: object = msgspec.UNSET, progress: object = msgspec.UNSET
    ) -> None:
        """See ``WorkTransport``."""
        operation = HeartbeatJob(
            worker_id=self._worker_id, job=job, lease_s=self._lease_s, checkpoint=checkpoint, progress=progress
        )
        await self._transport.call(operation, timeout_s=EXCHANGE_TIMEOUT_S)

    async def release(self, jobs: Sequence[JobRef]) -> list[Outcome]:
        """See ``WorkTransport``."""
        operation = ReleaseJobs(worker_id=self._worker_id, jobs=jobs)
        return await self._transport.call(operation, timeout_s=EXCHANGE_TIMEOUT_S)
