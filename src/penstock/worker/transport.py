"""How a worker gets its jobs and reports about them: the interface, and what its implementations share.

``LongPoll`` asks through REST, ``WorkStream`` (`stream.py`) is pushed jobs through gRPC; both hand them to the
session's intake. One call is one exchange: repeating reports is the business of who calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import anyio
import msgspec

from penstock.client.backoff import RetryPauses
from penstock.client.errors import (
    BadRequest,
    ClientError,
    Conflict,
    InternalError,
    JobCancelled,
    LeaseLost,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from penstock.client.operation import (
    CompleteJobs,
    FailJobs,
    HeartbeatJob,
    HeartbeatJobs,
    ParkJob,
    PollJobs,
    ReleaseJobs,
    Transport,
    WaitLostJobs,
)
from penstock.wire.model import Completion, Failure, Job, JobOutcome, JobRef, Park, PollRequest
from penstock.worker.held import LOGGER, StopReason
from penstock.worker.intake import JobIntake, Subscription
from penstock.worker.outage import Outage

# An engine holds a call for up to 10 s while its database is away (`outage_wait_seconds`).
EXCHANGE_TIMEOUT_S = 15.0
# A heartbeat that hangs must leave time for others within the same lease.
MAX_HEARTBEAT_TIMEOUT_S = 10.0
# A poll that comes back empty sooner than this was not held by the engine: pause, so as not to spin.
MIN_HELD_POLL_S = 0.5
MAX_IDLE_PAUSE_S = 1.0
NO_JOBS = "no jobs from the engine"


class WorkerIdentity(msgspec.Struct, frozen=True):
    """Who holds the leases, and how long they are (seconds)."""

    worker_id: str
    lease_s: int


class WorkTransport(Protocol):
    """A worker's connection to the engine. Calls about jobs raise ``ClientError``; each may be repeated safely."""

    async def run(self, intake: JobIntake) -> None:
        """Bring jobs to the intake, as its subscriptions say, until the worker drains.

        Called once per session, in a task of its own; cancelled at the very end, after the last results. Goes on
        through outages by itself; a refusal for good goes to ``intake.refuse``.
        """
        ...

    async def complete(self, results: Sequence[Completion]) -> list[JobOutcome]:
        """Report completions; one outcome per item."""
        ...

    async def fail(self, results: Sequence[Failure]) -> list[JobOutcome]:
        """Report failures; one outcome per item."""
        ...

    async def park(self, results: Sequence[Park]) -> list[JobOutcome]:
        """Report waits; one outcome per item."""
        ...

    async def extend(self, jobs: Sequence[JobRef]) -> list[JobOutcome]:
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

    async def release(self, jobs: Sequence[JobRef]) -> list[JobOutcome]:
        """Give jobs back to the queue at once, without using up a retry."""
        ...

    def forget(self, job: JobRef) -> None:
        """Forget a job, about which the worker has nothing more to report: its result was settled, whatever the
        outcome, or it was lost. Called once per job; not for those that are released. Doesn't wait."""
        ...


def outcome_of_each(jobs: Sequence[str], outcomes: Sequence[JobOutcome]) -> list[JobOutcome | None]:
    """What became of each job (ids); None for one without an outcome. Two attempts at one job keep their order."""
    if [outcome.job_id for outcome in outcomes] == jobs:  # as all engines of ours answer
        return list(outcomes)
    by_job: dict[str, deque[JobOutcome]] = {}
    for outcome in outcomes:
        by_job.setdefault(outcome.job_id, deque()).append(outcome)
    return [answers.popleft() if (answers := by_job.get(job)) else None for job in jobs]


def may_pass(error: ClientError, *, answered: bool) -> bool:
    """Return whether to ask again after an error. Outages pass; and so does a token that counts no longer, if one has
    counted before: it is renewed, or whoever vouches for it comes back. A worker that never got in has a mistake to
    repair."""
    return isinstance(error, Unavailable | InternalError) or (answered and isinstance(error, Unauthenticated))


class PullTransport(ABC):
    """A transport that asks for jobs: ``run`` in terms of ``receive``, one loop per subscription."""

    @abstractmethod
    async def receive(self, job_types: Sequence[str], max_jobs: int) -> list[Job]:
        """Wait for jobs, at most ``max_jobs``. An empty list after a while without any.

        A cancelled call may leave jobs leased that nobody knows of; they come back at the end of their lease.

        Raises:
            Unavailable, InternalError: asked again after a pause; Unauthenticated too, after a first answer.
            ClientError: any other is a refusal for good.
        """

    async def run(self, intake: JobIntake) -> None:
        """See ``WorkTransport``."""
        async with anyio.create_task_group() as pulls:
            for subscription in intake.subscriptions:
                pulls.start_soon(self._pull, subscription, intake)
            await intake.wait_draining()
            pulls.cancel_scope.cancel()

    async def _pull(self, subscription: Subscription, intake: JobIntake) -> None:
        """Ask for jobs for ever, as many as there is room for; through outages with growing pauses."""
        outage = Outage(NO_JOBS)
        idle = RetryPauses(max_s=MAX_IDLE_PAUSE_S)
        answered = False
        while True:
            free_slots = await subscription.wait_free_slots()
            asked_at = anyio.current_time()
            try:
                received = await self.receive(subscription.job_types, free_slots)
            except ClientError as error:
                if not may_pass(error, answered=answered):
                    LOGGER.error("the engine gives this worker no jobs: %s", error)  # raised after the drain
                    intake.refuse(error)
                    return
                pause_s = outage.note(error)
                intake.set_reachable(False)
                await anyio.sleep(pause_s)
                continue
            outage.over("the engine answers again")
            answered = True
            intake.set_reachable(True)
            asked_for = [job for job in received if job.job_type in subscription.job_types]
            if len(asked_for) < len(received):
                LOGGER.error("the engine sent jobs of types that were not asked for: their leases will end")
            subscription.accept(asked_for)
            if asked_for or anyio.current_time() - asked_at >= MIN_HELD_POLL_S:
                idle.reset()
            else:
                await anyio.sleep(idle.next_pause_s())


class EngineReports:
    """The reports of a worker as calls of a client's transport, REST or gRPC.

    Args:
        transport: how to reach the engine; not closed by this.
        identity: the holder of the leases and their length, 5 to 3600 seconds.
    """

    def __init__(self, transport: Transport, identity: WorkerIdentity) -> None:
        self.transport = transport
        self.identity = identity

    async def complete(self, results: Sequence[Completion]) -> list[JobOutcome]:
        """See ``WorkTransport``."""
        operation = CompleteJobs(worker_id=self.identity.worker_id, results=results)
        return await self.transport.call(operation, timeout_s=EXCHANGE_TIMEOUT_S)

    async def fail(self, results: Sequence[Failure]) -> list[JobOutcome]:
        """See ``WorkTransport``."""
        operation = FailJobs(worker_id=self.identity.worker_id, results=results)
        return await self.transport.call(operation, timeout_s=EXCHANGE_TIMEOUT_S)

    async def park(self, results: Sequence[Park]) -> list[JobOutcome]:
        """See ``WorkTransport``."""
        return [await self._park(park) for park in results]

    async def _park(self, park: Park) -> JobOutcome:
        operation = ParkJob(worker_id=self.identity.worker_id, park=park)
        try:
            await self.transport.call(operation, timeout_s=EXCHANGE_TIMEOUT_S)
        except (LeaseLost, JobCancelled, NotFound) as error:
            return JobOutcome(job_id=park.job_id, outcome=error.code, reason=error.reason)
        except (BadRequest, Conflict) as error:
            return JobOutcome(job_id=park.job_id, outcome="invalid", reason=error.reason)
        return JobOutcome(job_id=park.job_id, outcome="ok")

    async def extend(self, jobs: Sequence[JobRef]) -> list[JobOutcome]:
        """See ``WorkTransport``."""
        identity = self.identity
        operation = HeartbeatJobs(worker_id=identity.worker_id, jobs=jobs, lease_s=identity.lease_s)
        return await self.transport.call(operation, timeout_s=min(identity.lease_s / 3, MAX_HEARTBEAT_TIMEOUT_S))

    async def report(
        self, job: JobRef, *, checkpoint: object = msgspec.UNSET, progress: object = msgspec.UNSET
    ) -> None:
        """See ``WorkTransport``."""
        identity = self.identity
        operation = HeartbeatJob(
            worker_id=identity.worker_id, job=job, lease_s=identity.lease_s, checkpoint=checkpoint, progress=progress
        )
        await self.transport.call(operation, timeout_s=EXCHANGE_TIMEOUT_S)

    async def release(self, jobs: Sequence[JobRef]) -> list[JobOutcome]:
        """See ``WorkTransport``."""
        operation = ReleaseJobs(worker_id=self.identity.worker_id, jobs=jobs)
        return await self.transport.call(operation, timeout_s=EXCHANGE_TIMEOUT_S)

    def forget(self, job: JobRef) -> None:
        """See ``WorkTransport``: of no interest here."""


class LongPoll(EngineReports, PullTransport):
    """Polls that the engine holds until there is a job.

    Args:
        transport: how to reach the engine; not closed by this.
        identity: the holder of the leases and their length.
        wait_s: how long the engine holds a poll, 0 to 60 seconds.
    """

    def __init__(self, transport: Transport, identity: WorkerIdentity, *, wait_s: int) -> None:
        super().__init__(transport, identity)
        self._wait_s = wait_s

    async def run(self, intake: JobIntake) -> None:
        """See ``WorkTransport``."""
        async with anyio.create_task_group() as tasks:
            if self._wait_s:
                tasks.start_soon(self._watch, intake)
            await super().run(intake)

    async def _watch(self, intake: JobIntake) -> None:
        """Hear at once of jobs that are cancelled, to the end. Engines that don't tell leave it to the heartbeats."""
        watch = WaitLostJobs(worker_id=self.identity.worker_id, wait_s=self._wait_s)
        backoff = RetryPauses()
        while True:
            asked_at = anyio.current_time()
            try:
                lost = await self.transport.call(watch, timeout_s=self._wait_s + EXCHANGE_TIMEOUT_S)
            except (Unavailable, InternalError, Unauthenticated):
                await anyio.sleep(backoff.next_pause_s())
                continue
            except ClientError as error:
                LOGGER.debug("the engine does not report cancelled jobs: %s", error)
                return
            for item in lost:
                reason = StopReason.CANCELLED if item.outcome == "cancelled" else StopReason.LEASE_LOST
                intake.lost(JobRef(job_id=item.job_id, attempt=item.attempt), reason)
            if lost or anyio.current_time() - asked_at >= MIN_HELD_POLL_S:
                backoff.reset()
            else:
                await anyio.sleep(backoff.next_pause_s())

    async def receive(self, job_types: Sequence[str], max_jobs: int) -> list[Job]:
        """See ``PullTransport``."""
        request = PollRequest(self.identity.worker_id, [*job_types], max_jobs, self.identity.lease_s, self._wait_s)
        return await self.transport.call(PollJobs(request=request), timeout_s=self._wait_s + EXCHANGE_TIMEOUT_S)
