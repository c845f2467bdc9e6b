"""Polls and completions as nearly all of them are, begun without waiting: what has to be done otherwise is refused.

`Jobs` has the same operations as coroutines, and does all of it: whoever gets None here asks there. A caller is resumed
(`Item.resumes`) when its item is settled. Must not know how a call came or how it is answered.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.access.identity import Identity
from penstock.core.rules.fencing import CallKind, FenceDecision, FenceRequest, known_attempt
from penstock.engine.definitions.definitions import refuse_executors
from penstock.engine.group_commit.item import ItemWaiter
from penstock.engine.jobs.jobs import MAX_JOBS_DEFAULT, Jobs
from penstock.engine.queues.claims import ClaimItem
from penstock.engine.queues.fast_path import FastCompletion, FastPath
from penstock.engine.queues.polls import Polls
from penstock.engine.queues.waiters import Waiter
from penstock.engine.requests import ids
from penstock.engine.requests.answers import MemoryReservation
from penstock.engine.requests.paging import NAME_MAX_CHARS
from penstock.engine.requests.payload import check_text
from penstock.errors import BadRequest, PenstockError
from penstock.settings import Settings
from penstock.telemetry.metrics import Metrics
from penstock.wire.model import Job, PollRequest


class KnownPoll(NamedTuple):
    """A poll that was found good. ``wait_s``: for so many seconds it may be parked."""

    worker: str
    types: tuple[str, ...]
    max_jobs: int
    lease_s: float
    wait_s: float

    @property
    def waits(self) -> bool:
        """Return whether it may be parked."""
        return self.wait_s > 0


class Parker(Protocol):
    """Whoever waits for jobs without a task."""

    def go_on(self) -> None:
        """The poll may be over: look (`InlineJobs.take`). Called where its jobs were committed; must not raise."""
        ...

    def resume_soon(self) -> None:
        """As `go_on`, in another turn of the loop."""
        ...


class PendingPoll(Waiter):
    """A poll that waits without a task. Its jobs leave in the turn of the loop in which their commit was heard of."""

    __slots__ = ("caller",)

    def __init__(self, poll: KnownPoll, reservation: MemoryReservation, caller: Parker) -> None:
        super().__init__(poll.worker, poll.types, poll.max_jobs, poll.lease_s, reservation)
        self.caller = caller

    def on_settled(self) -> None:
        """As `Waiter`."""
        if not (self.reserved or self.closed) and (self.jobs or self.ending):
            self.caller.go_on()

    def wake(self) -> None:
        """As `Waiter`."""
        if not self.closed:
            self.caller.resume_soon()


class InlineJobs:
    """See the module. Who calls has been let pass already, but for the job types that a caller may be limited to."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        jobs: Jobs,
        polls: Polls,
        fast_path: FastPath,
    ) -> None:
        self._through_kafka = settings.through_kafka
        self._max_jobs = settings.poll_max_jobs
        self._metrics = metrics
        self._jobs = jobs
        self._polls = polls
        self._fast_path = fast_path

    def known(self, request: PollRequest, wait_s: float) -> KnownPoll | None:
        """What is asked for, if `Jobs.poll` has found it good."""
        types = tuple(request.job_types)
        if self._through_kafka or not self._jobs.knows_poll(request.worker_id, types):
            return None
        maximum = request.max_jobs if request.max_jobs > 0 else MAX_JOBS_DEFAULT
        lease_s = self._jobs.lease_s(request.lease_seconds)
        return KnownPoll(request.worker_id, types, min(maximum, self._max_jobs), lease_s, wait_s)

    def lets_poll(self, poll: KnownPoll, caller: Identity) -> bool:
        """Note that a caller who was let pass polls; False when it may not, of one of these types."""
        if caller.job_types is not None and not caller.job_types.issuperset(poll.types):
            return False
        self._polls.losses.remember_poller(poll.worker, caller)
        return True

    def claim(
        self, poll: KnownPoll, reservation: MemoryReservation, caller: ItemWaiter, now: float
    ) -> ClaimItem | None:
        """Look into the queue for the caller; None where there is no use, or no room for answers. Raises
        TooManyRequests."""
        polls, types = self._polls, poll.types
        if not polls.may_scan(types) or (poll.waits and polls.queue.known_empty(types, now)):
            return None
        item = ClaimItem(Waiter(poll.worker, types, poll.max_jobs, poll.lease_s, reservation))
        item.versions = polls.queue.versions(types)
        polls.claims.submit_nowait(item, now=now)
        item.resumes(caller)
        return item

    def claimed(self, poll: KnownPoll, item: ClaimItem, caller: ItemWaiter, now: float) -> list[Job] | ClaimItem | None:
        """The jobs that a settled look has found, no more are added; another look, where jobs were queued meanwhile;
        None: nothing, and the poll would wait. Raises what the look was refused with, TooManyRequests."""
        polls, waiter = self._polls, item.waiter
        try:
            item.given_answer()
            if not waiter.jobs and item.versions != polls.queue.versions(poll.types):
                return self.claim(poll, waiter.reservation, caller, now)
        except PenstockError:
            polls.activity.observe_poll(poll.worker, poll.types, now)
            self.release(item)
            raise
        waiter.closed = True
        if waiter.jobs:
            polls.activity.observe_poll(poll.worker, poll.types, now)
            return waiter.jobs
        if poll.waits:
            return None
        polls.activity.observe_poll(poll.worker, poll.types, now)
        self._metrics.empty_polls.inc()
        return waiter.jobs

    def release(self, item: ClaimItem) -> None:
        """Nobody is there any more for what a look finds, or has found."""
        item.resumes(None)
        item.waiter.closed = True
        self._polls.releases.release_jobs(item.waiter.jobs)

    def park(self, poll: KnownPoll, reservation: MemoryReservation, caller: Parker, now: float) -> PendingPoll | None:
        """Let the poll wait for jobs that come to be, or are found in the queue; None where it would be refused, or
        answered at once. Its end is the caller's to know."""
        polls = self._polls
        if polls.draining or not polls.may_scan(poll.types):
            return None
        pending = PendingPoll(poll, reservation, caller)
        if not polls.park_if_free(pending):
            return None
        polls.activity.observe_poll(poll.worker, poll.types, now)
        return pending

    def take(self, pending: PendingPoll, *, ends: bool, gone: bool) -> list[Job] | None:
        """What a parked poll is answered with, nothing where its client has ``gone``; None: it waits on. ``ends``: its
        time is over."""
        polls = self._polls
        if ends or gone or polls.draining:
            pending.ending = True
        if pending.reserved or not (pending.jobs or pending.ending):
            return None  # a statement that fills a slot is under way: its answer is near
        polls.waiters.leave(pending)
        polls.activity.observe_answered(pending.worker)
        if gone:  # a client that only closed its sending side still reads
            polls.releases.release_jobs(pending.jobs)
            pending.jobs = []
        if not pending.jobs:
            self._metrics.empty_polls.inc()
        return pending.jobs

    def unpark(self, pending: PendingPoll) -> None:
        """Nobody is there any more for what a parked poll has got, or may get yet."""
        if not pending.closed:
            self._polls.waiters.leave(pending)
            self._polls.activity.observe_answered(pending.worker)
            self._polls.releases.release_jobs(pending.jobs)

    def complete(
        self,
        job_id: str,
        worker: str,
        attempt: int | None,
        output: bytes | None,
        caller: ItemWaiter,
        now: float,
        job_types: frozenset[str] | None = None,
    ) -> FastCompletion | None:
        """Finish a job that was leased here, is of one of these types (None: of any) and takes the fast path; None for
        others. ``output`` was checked. Raises BadRequest, Forbidden, NotFound, TooManyRequests."""
        check_text(worker, "workerId", NAME_MAX_CHARS)
        if not worker:
            raise BadRequest("workerId: is required")
        refuse_executors(worker)
        job = ids.read_job(job_id)
        lease = self._polls.leases.find(job.token, job.seq)
        if lease is None or lease.loaded is None:
            return None
        if job_types is not None and lease.loaded.definition.steps[lease.step].job_type not in job_types:
            return None
        plan = lease.loaded.plan_of(lease.step, output)
        if plan is None:
            return None
        call = FenceRequest(CallKind.COMPLETE, worker, known_attempt(attempt))
        item = FastCompletion(job, call, output, lease.loaded, lease.step, plan, lease.business_key)
        self._fast_path.submit_nowait(item, now=now)
        item.resumes(caller)
        return item

    def completed(self, job_id: str, item: FastCompletion) -> bool:
        """Return whether a settled completion is over; else the full path has to take it. Raises as `Jobs.complete`."""
        decision = item.given_answer()
        if decision is FenceDecision.DONE:
            return True
        if decision is FenceDecision.APPLY:
            return False
        self._jobs.raise_decision(CallKind.COMPLETE, job_id, decision)
        return True
