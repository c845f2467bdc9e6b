"""The live part of a worker: runs handlers, keeps leases, delivers results, and drains in order.

One session is one run. It holds at most ``concurrency`` jobs, and for each type with a limit of its own up to that
many more, which wait here with their leases kept. Order at the end: no new jobs, those that have not begun go back
→ handlers finish within the grace → those left are cancelled and clean up → results are delivered → what is still
held goes back to the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from penstock.client.errors import ClientError
from penstock.client.tracing import handling
from penstock.telemetry.spans import Span
from penstock.wire.model import Completion, Failure, Job, JobOutcome, JobRef, Park
from penstock.worker.context import JobContext
from penstock.worker.execution import Report, run_handler
from penstock.worker.handler import Handler, Pools
from penstock.worker.held import LOGGER, LeasedJob, StopReason
from penstock.worker.intake import IntakeEvents, JobIntake, Subscription
from penstock.worker.leases import LeaseKeeper
from penstock.worker.observer import WorkerObserver
from penstock.worker.process_pool import ProcessPool
from penstock.worker.reporter import Reporter
from penstock.worker.transport import WorkTransport

# After the grace: for the clean-up of cancelled handlers, and then for the last results and the release.
CLEAN_UP_S = 5.0
LAST_CALLS_S = 5.0
MAX_RELEASE_ITEMS = 200
# A job that waits here for its turn for longer goes back: another worker may be free, and this one asks again.
MAX_WAIT_S = 5.0


_KIND_OF: Final[Mapping[type[Report], str]] = {Completion: "completion", Failure: "failure", Park: "park"}


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
    parked: int = 0
    """Handlers that wait: for a time or a signal."""
    held: int = 0
    running: int = 0
    unreported: int = 0


class WorkerSession:
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
        self._parks: Reporter[Park] = Reporter(transport.park, self._on_settled)
        self._slots = anyio.Semaphore(settings.concurrency, fast_acquire=True)  # a turn of the loop less for each job
        self._pools = Pools(anyio.CapacityLimiter(settings.max_threads), ProcessPool(settings.max_processes))
        self._type_permits = {
            handler.job_type: anyio.Semaphore(handler.concurrency, fast_acquire=True)
            for handler in handlers.values()
            if handler.concurrency is not None
        }
        calls = IntakeEvents(
            self._accept, self._on_change_, self._leases.renew_nowait, observer.on_engine, observer.on_lag
        )
        self._intake = JobIntake(settings.concurrency, self._may_hold_results, calls)
        self._intake.subscriptions = _subscriptions_of(self._intake, handlers, settings.concurrency)
        self._grace = anyio.CancelScope()
        self._jobs: TaskGroup

    @property
    def refusal(self) -> ClientError | None:
        """Why the engine gives this worker no jobs at all, once it said so; the worker is drained then."""
        return self._intake.refusal

    def drain(self) -> None:
        """Take on no more jobs and end when those held are done, within the grace. Again: end the grace now."""
        if self._intake.draining:
            self._grace.cancel()
        self._intake.drain()

    def refresh_statistics(self) -> None:
        """Bring the figures about this moment up to date."""
        self._counts.held = len(self._leases)
        self._counts.running = sum(held.running for held in self._leases.jobs())
        self._counts.unreported = self._unreported

    async def run(self) -> None:
        """Work until drained; ``refusal`` says whether the engine was the reason."""
        try:
            async with anyio.create_task_group() as services:
                services.start_soon(self._leases.run)
                services.start_soon(self._completions.run)
                services.start_soon(self._failures.run)
                services.start_soon(self._parks.run)
                services.start_soon(self._return_waiting)
                try:
                    await self._work()
                finally:
                    await self._release_jobs(self._leases.jobs())
                    services.cancel_scope.cancel()
        finally:
            await self._pools.processes.aclose()

    async def _work(self) -> None:
        async with anyio.create_task_group() as self._jobs, anyio.create_task_group() as source:
            source.start_soon(self._transport.run, self._intake)
            await self._intake.wait_draining()
            await self._drain()
            source.cancel_scope.cancel()

    async def _drain(self) -> None:
        LOGGER.info("draining: %d jobs in work", self._intake.active)
        await self._release_jobs([held for held in self._leases.jobs() if held.is_waiting])
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
            await self._parks.wait_empty()
        # Before the task group waits for threads, which can't be ended from outside.
        await self._release_jobs(self._leases.jobs())

    # -- taking on jobs

    def _accept(self, job: Job, subscription: Subscription) -> None:
        held = LeasedJob(
            job, now=anyio.current_time(), lease_s=self._settings.lease_s, on_begin=self._observer.on_handler_started
        )
        self._counts.received += 1
        self._leases.add(held)
        self._jobs.start_soon(self._work_on, held, subscription)

    async def _work_on(self, held: LeasedJob, subscription: Subscription) -> None:
        handler = self._handlers[held.job.job_type]
        context = JobContext(held, self._leases, handler.checkpoint_format)
        slots = [self._slots]
        if handler.job_type in self._type_permits:
            slots.insert(0, self._type_permits[handler.job_type])
        try:
            with handling(held.job) as span:
                report = await run_handler(handler, held, context, slots, self._pools)
                if span is not None:
                    _describe(span, _end_of(held, report), report)
        finally:
            self._intake.done(subscription)
        if held.started_at is not None:
            seconds = anyio.current_time() - held.started_at
            self._observer.on_handler_ended(handler.job_type, _end_of(held, report), seconds)
        if held.interrupt is not None:
            await self._count(held, report)
            raise held.interrupt
        if report is None or held.key not in self._leases:  # lost, or given back already
            return
        if isinstance(report, Completion):
            self._completions.put_nowait(held, report)
        elif isinstance(report, Park):
            self._parks.put_nowait(held, report)
        else:
            self._failures.put_nowait(held, report)

    async def _count(self, held: LeasedJob, report: Report | None) -> None:
        """Report a job that ends the worker: given back, it would end the next one, and so on for ever."""
        if not isinstance(report, Failure) or held.key not in self._leases:
            return
        self._leases.remove(held)
        with anyio.move_on_after(LAST_CALLS_S, shield=True):
            try:
                await self._transport.fail([report])
            except ClientError as error:
                held.log.warning("its failure could not be reported, its lease will end: %s", error)

    # -- letting go of jobs

    def _on_change_(self, ref: JobRef, reason: StopReason) -> None:
        self._leases.lose(ref, reason)

    def _on_lost(self, held: LeasedJob, reason: StopReason) -> None:
        self._counts.lost += 1
        held.log.warning("job lost: %s", reason)
        held.stop(reason)
        self._transport.forget(held.ref)

    def _on_settled(self, held: LeasedJob, report: Report, outcome: JobOutcome) -> None:
        if outcome.outcome == "invalid" and not isinstance(report, Failure):
            what = "result" if isinstance(report, Completion) else "wait"
            reason = f"the engine refused the {what}: {outcome.reason}"
            held.log.error(reason)
            failure = Failure(job_id=report.job_id, attempt=report.attempt, retryable=False, error_message=reason)
            self._failures.put_nowait(held, failure)
            return
        if outcome.outcome == "invalid" and isinstance(report, Failure) and report.variables is not None:
            held.log.error("the engine refused the details of the error: %s", outcome.reason)
            self._failures.put_nowait(held, msgspec.structs.replace(report, variables=None))
            return
        self._leases.remove(held)
        self._transport.forget(held.ref)
        self._intake.notify()
        self._observer.on_result_settled(held.job.job_type, _KIND_OF[type(report)], outcome.outcome)
        if outcome.outcome not in ("ok", "already-completed"):
            self._counts.superseded += 1
            held.log.warning("the engine did not accept a result: %s", outcome.reason or outcome.outcome)
        elif isinstance(report, Completion):
            self._counts.completed += 1
        elif isinstance(report, Park):
            self._counts.parked += 1
        else:
            self._counts.failed += 1

    async def _release_jobs(self, jobs: Sequence[LeasedJob]) -> None:
        """Return held jobs to the queue. Those that can't be returned now come back when their lease ends."""
        for held in jobs:
            held.stop(StopReason.STOPPING)
            self._leases.remove(held)
        with anyio.move_on_after(LAST_CALLS_S, shield=True):
            try:
                for first in range(0, len(jobs), MAX_RELEASE_ITEMS):
                    part = [held.ref for held in jobs[first : first + MAX_RELEASE_ITEMS]]
                    await self._transport.release(part)
                    self._counts.released += len(part)
            except ClientError as error:
                LOGGER.warning("%d jobs could not be released, their leases will end: %s", len(jobs), error)

    async def _return_waiting(self) -> None:
        """Give back jobs whose turn does not come. There are some only where several limits share one worker."""
        while True:
            await anyio.sleep(MAX_WAIT_S / 2)
            overdue = anyio.current_time() - MAX_WAIT_S
            late = [held for held in self._leases.jobs() if held.is_waiting and held.received_at < overdue]
            if late:
                LOGGER.info("%d jobs are released: they have waited for %g s", len(late), MAX_WAIT_S)
                await self._release_jobs(late)

    # -- room

    @property
    def _unreported(self) -> int:
        return len(self._completions) + len(self._failures) + len(self._parks)

    def _may_hold_results(self) -> bool:
        return self._unreported < self._settings.max_unreported

    async def _wait_inactive(self) -> None:
        while self._intake.active:
            await self._intake.wait_changed()


def _describe(span: Span, end: str, report: Report | None) -> None:
    """What became of the handler."""
    span.note({"penstock.job.end": end})
    if end not in ("completed", "parked"):
        span.fail(report.error_message if isinstance(report, Failure) else end)


def _end_of(held: LeasedJob, report: Report | None) -> str:
    """How a handler ended, in the words of ``WorkerObserver.on_handler_ended``."""
    if isinstance(report, Completion):
        return "completed"
    if isinstance(report, Park):
        return "parked"
    if held.stop_reason is not None:
        return held.stop_reason
    return "to-retry" if report is not None and report.retryable else "failed"


def _subscriptions_of(intake: JobIntake, handlers: Mapping[str, Handler], concurrency: int) -> list[Subscription]:
    """Return one subscription for all types without a limit of their own, one for each with one.

    A type with a limit is not asked for while it is full, and a parked poll can't be changed: so it has its own.
    """
    shared = [job_type for job_type, handler in handlers.items() if handler.concurrency is None]
    subscriptions = [
        Subscription(intake, [name], limit) for name, handler in handlers.items() if (limit := handler.concurrency)
    ]
    return [*subscriptions, Subscription(intake, shared, concurrency)] if shared else subscriptions
