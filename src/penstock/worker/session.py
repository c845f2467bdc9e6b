"""The live part of a worker: polls, runs handlers, keeps leases, delivers results, and drains in order.

One session is one run. It holds at most ``concurrency`` jobs, and for each type with a limit of its own up to that
many more, which wait here with their leases kept. Order at the end: no new jobs → handlers finish within the grace
→ those left are cancelled and clean up → results are delivered → what is still held goes back to the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import anyio
import msgspec
from anyio.abc import TaskGroup

from penstock.client.backoff import Backoff
from penstock.client.errors import ClientError, InternalError, Unavailable
from penstock.client.model import Completion, Failure, Job, Outcome
from penstock.worker.context import JobContext
from penstock.worker.execution import Report, run_handler
from penstock.worker.handler import Handler, Pools
from penstock.worker.held import LOGGER, HeldJob, StopReason
from penstock.worker.leases import LeaseKeeper
from penstock.worker.observer import WorkerObserver
from penstock.worker.reporter import Reporter
from penstock.worker.transport import WorkTransport

# After the grace: for the clean-up of cancelled handlers, and then for the last results and the release.
CLEAN_UP_S = 5.0
LAST_CALLS_S = 5.0
# A poll that comes back empty sooner than this was not held by the engine: pause, so as not to spin.
MIN_HELD_POLL_S = 0.5
MAX_RELEASE_ITEMS = 200


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. Times are in seconds."""

    concurrency: int
    max_threads: int
    max_processes: int
    max_unreported: int
    lease_s: int
    drain_grace_s: float


class Statistics(msgspec.Struct, kw_only=True):
    """What a worker has done since it was made, and what it holds now."""

    received: int = 0
    completed: int = 0
    failed: int = 0
    superseded: int = 0
    """Results that came too late: the lease was lost, the job done by another, or its instance ended."""
    lost: int = 0
    """Jobs taken away while their handler ran."""
    released: int = 0
    held: int = 0
    running: int = 0
    unreported: int = 0


class _Group:
    """The job types that one poll asks for, and how many of their jobs may be held."""

    def __init__(self, job_types: Sequence[str], limit: int) -> None:
        self.job_types = job_types
        self.limit = limit
        self.active = 0


class Session:
    """One run of a worker. Made inside the event loop.

    Args:
        transport: the connection to the engine.
        handlers: by job type; at least one.
        settings: limits and times.
        statistics: counted up as things happen.
        observer: told of things as they happen.
    """

    def __init__(
        self,
        transport: WorkTransport,
        handlers: Mapping[str, Handler],
        settings: WorkerSettings,
        statistics: Statistics,
        observer: WorkerObserver,
    ) -> None:
        self._transport = transport
        self._handlers = handlers
        self._settings = settings
        self._counts = statistics
        self._observer = observer
        self._leases = LeaseKeeper(transport, settings.lease_s, self._on_lost)
        self._completions: Reporter[Completion] = Reporter(transport.complete, self._on_settled)
        self._failures: Reporter[Failure] = Reporter(transport.fail, self._on_settled)
        self._slots = anyio.CapacityLimiter(settings.concurrency)
        self._pools = Pools(anyio.CapacityLimiter(settings.max_threads), anyio.CapacityLimiter(settings.max_processes))
        self._type_slots = {
            handler.job_type: anyio.CapacityLimiter(handler.concurrency)
            for handler in handlers.values()
            if handler.concurrency is not None
        }
        self._groups = _groups_of(handlers, settings.concurrency)
        self._active = 0
        self._changed = anyio.Event()
        self._draining = anyio.Event()
        self._grace = anyio.CancelScope()
        self.refusal: ClientError | None = None
        """Why the engine gives this worker no jobs at all, once it said so; the worker is drained then."""

    def drain(self) -> None:
        """Take on no more jobs and end when those held are done, within the grace. Again: end the grace now."""
        if self._draining.is_set():
            self._grace.cancel()
        self._draining.set()

    def refresh_statistics(self) -> None:
        """Bring the figures about this moment up to date."""
        self._counts.held = len(self._leases)
        self._counts.running = sum(held.running for held in self._leases.jobs())
        self._counts.unreported = self._unreported

    async def run(self) -> None:
        """Work until drained; ``refusal`` says whether the engine was the reason."""
        async with anyio.create_task_group() as services:
            services.start_soon(self._leases.run)
            services.start_soon(self._completions.run)
            services.start_soon(self._failures.run)
            try:
                await self._work()
            finally:
                await self._give_back()
                services.cancel_scope.cancel()

    async def _work(self) -> None:
        async with anyio.create_task_group() as jobs:
            async with anyio.create_task_group() as polls:
                for group in self._groups:
                    polls.start_soon(self._poll, group, jobs)
                await self._draining.wait()
                polls.cancel_scope.cancel()
            LOGGER.info("draining: %d jobs running", self._active)
            self._grace.deadline = anyio.current_time() + self._settings.drain_grace_s
            with self._grace:
                await self._wait_inactive()
            for held in self._leases.jobs():
                held.stop(StopReason.STOPPING)
            with anyio.move_on_after(CLEAN_UP_S):
                await self._wait_inactive()
            with anyio.move_on_after(LAST_CALLS_S):
                await self._completions.wait_empty()
                await self._failures.wait_empty()
            # Before the task group waits for threads, which can't be ended from outside.
            await self._give_back()

    # -- taking on jobs

    async def _poll(self, group: _Group, jobs: TaskGroup) -> None:
        """Ask for jobs for ever, as many as there is room for; through outages with growing pauses."""
        outage = Backoff()
        idle = Backoff(max_s=1.0)
        away = False
        while True:
            room = await self._wait_room(group)
            asked_at = anyio.current_time()
            try:
                received = await self._transport.receive(group.job_types, room)
            except (Unavailable, InternalError) as error:
                LOGGER.log(logging.DEBUG if away else logging.WARNING, "no jobs from the engine: %s", error)
                away = True
                self._observer.on_engine(reachable=False)
                await anyio.sleep(outage.next_pause_s())
                continue
            except ClientError as error:
                LOGGER.error("the engine gives this worker no jobs: %s", error)  # raised after the drain
                self.refusal = error
                self.drain()
                return
            if away:
                LOGGER.info("the engine answers again")
            away = False
            self._observer.on_engine(reachable=True)
            outage.reset()
            for job in received:
                self._accept(job, group, jobs)
            if received or anyio.current_time() - asked_at >= MIN_HELD_POLL_S:
                idle.reset()
            else:
                await anyio.sleep(idle.next_pause_s())

    def _accept(self, job: Job, group: _Group, jobs: TaskGroup) -> None:
        held = HeldJob(job, lease_ends_at=anyio.current_time() + self._settings.lease_s)
        self._counts.received += 1
        self._active += 1
        group.active += 1
        self._leases.add(held)
        jobs.start_soon(self._work_on, held, group)

    async def _work_on(self, held: HeldJob, group: _Group) -> None:
        handler = self._handlers[held.job.job_type]
        context = JobContext(held, self._leases)
        slots = [self._slots]
        if handler.job_type in self._type_slots:
            slots.insert(0, self._type_slots[handler.job_type])
        try:
            report = await run_handler(handler, held, context, slots, self._pools)
        finally:
            self._active -= 1
            group.active -= 1
            self._ring()
        if held.started_at is not None:
            seconds = anyio.current_time() - held.started_at
            self._observer.on_handler_ended(handler.job_type, _end_of(held, report), seconds)
        if report is None or held.key not in self._leases:  # lost, or given back already
            return
        if isinstance(report, Completion):
            self._completions.put_nowait(held, report)
        else:
            self._failures.put_nowait(held, report)

    # -- letting go of jobs

    def _on_lost(self, held: HeldJob, reason: StopReason) -> None:
        self._counts.lost += 1
        held.log.warning("job lost: %s", reason)
        held.stop(reason)

    def _on_settled(self, held: HeldJob, report: Report, outcome: Outcome) -> None:
        if outcome.outcome == "invalid" and isinstance(report, Completion):
            reason = f"the engine refused the result: {outcome.reason}"
            held.log.error(reason)
            failure = Failure(job_id=report.job_id, attempt=report.attempt, retryable=False, error_message=reason)
            self._failures.put_nowait(held, failure)
            return
        self._leases.remove(held)
        self._ring()
        kind = "completion" if isinstance(report, Completion) else "failure"
        self._observer.on_result_settled(held.job.job_type, kind, outcome.outcome)
        if outcome.outcome not in ("ok", "already-completed"):
            self._counts.superseded += 1
            held.log.warning("result not taken: %s", outcome.reason or outcome.outcome)
        elif isinstance(report, Completion):
            self._counts.completed += 1
        else:
            self._counts.failed += 1

    async def _give_back(self) -> None:
        """Return all held jobs to the queue. Those that can't be returned now come back when their lease ends."""
        jobs = self._leases.jobs()
        for held in jobs:
            self._leases.remove(held)
        with anyio.move_on_after(LAST_CALLS_S, shield=True):
            try:
                for first in range(0, len(jobs), MAX_RELEASE_ITEMS):
                    part = [held.ref for held in jobs[first : first + MAX_RELEASE_ITEMS]]
                    await self._transport.release(part)
                    self._counts.released += len(part)
            except ClientError as error:
                LOGGER.warning("%d jobs could not be given back, their leases will end: %s", len(jobs), error)

    # -- room

    @property
    def _unreported(self) -> int:
        return len(self._completions) + len(self._failures)

    def _room(self, group: _Group) -> int:
        if self._unreported >= self._settings.max_unreported:
            return 0
        return min(self._settings.concurrency - self._active, group.limit - group.active)

    async def _wait_room(self, group: _Group) -> int:
        while (room := self._room(group)) <= 0:
            await self._changed.wait()
        return room

    async def _wait_inactive(self) -> None:
        while self._active:
            await self._changed.wait()

    def _ring(self) -> None:
        """Wake those who wait for room or for the end of the handlers."""
        self._changed.set()
        self._changed = anyio.Event()


def _end_of(held: HeldJob, report: Report | None) -> str:
    """How a handler ended, in the words of ``WorkerObserver.on_handler_ended``."""
    if isinstance(report, Completion):
        return "completed"
    if held.stop_reason is not None:
        return held.stop_reason
    return "to-retry" if report is not None and report.retryable else "failed"


def _groups_of(handlers: Mapping[str, Handler], concurrency: int) -> list[_Group]:
    """One poll for all types without a limit of their own, one for each with one.

    A type with a limit is not asked for while it is full, and a parked poll can't be changed: so it has its own.
    """
    shared = [job_type for job_type, handler in handlers.items() if handler.concurrency is None]
    groups = [_Group([job_type], limit) for job_type, handler in handlers.items() if (limit := handler.concurrency)]
    return [*groups, _Group(shared, concurrency)] if shared else groups
