"""Operations on jobs: poll, complete, fail, heartbeat, release, and their batch forms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, assert_never

import trio

from penstock.access.identity import check_job_types, current_identity, job_type_limit
from penstock.core.advance.event import JobCompleted, JobFailed, JobParked
from penstock.core.graph.retry import wished_s
from penstock.core.rules.fencing import CallKind, FenceDecision, FenceRequest, decide_fence, known_attempt
from penstock.engine.advance.commands import ReportCommand
from penstock.engine.advance.full_path import FullPath
from penstock.engine.definitions.definitions import Definitions, LoadedDefinition, refuse_executors
from penstock.engine.queues.attempts import StackTraces
from penstock.engine.queues.fast_path import FastCompletion, FastPath
from penstock.engine.queues.heartbeats import HeartbeatCall, Heartbeats
from penstock.engine.queues.lookups import Lookup, Lookups
from penstock.engine.queues.polls import MANY_TYPES, Polls
from penstock.engine.queues.releases import ReleaseItem
from penstock.engine.queues.waiters import Waiter
from penstock.engine.requests import ids
from penstock.engine.requests.paging import NAME_MAX_CHARS, page_bounds, read_cursor, show_cursor, slice_limit
from penstock.engine.requests.payload import check_text, checked_code, checked_until
from penstock.errors import (
    BadRequest,
    DispatchModeConflict,
    JobCancelled,
    LeaseLost,
    NotFound,
    PenstockError,
)
from penstock.log.log import RateLimitedLog, get_logger
from penstock.loop.offload import take_turn
from penstock.loop.taskless import need_task
from penstock.settings import Settings
from penstock.store.db.connection import TrioConnection
from penstock.store.db.database import Database
from penstock.store.rows import engines as engine_store
from penstock.store.rows import jobs as store
from penstock.store.rows.jobs import ExecutionInfo, JobKey
from penstock.telemetry.metrics import Metrics
from penstock.wire.model import (
    Completion,
    FailedJob,
    Failure,
    Heartbeat,
    Job,
    JobOutcome,
    JobRef,
    Lease,
    LostJob,
    Park,
    PollRequest,
)
from penstock.wire.page import Page

JOB_TYPES_MAX = 1000
MAX_JOBS_DEFAULT = 10
GOOD_POLLS_MAX = 1_000
GOOD_POLL_TYPES_MAX = 10
"""Workers and their job types that need no second look: three million characters at most."""
PARKED_JOBS_VERSION = 15
"""Of the schema: engines from it on know parked jobs."""
A = TypeVar("A", Completion, Failure, Heartbeat, JobRef, Park)
R = TypeVar("R")
_ignored = RateLimitedLog(get_logger("penstock.engine.jobs"), interval_seconds=10)


class Jobs:
    """The operations on jobs. All but `poll` are idempotent; see `core.rules.fencing` for what a repeated call is
    told."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics,
        definitions: Definitions,
        polls: Polls,
        fast_path: FastPath,
        full_path: FullPath,
    ) -> None:
        self._database = database
        self._settings = settings
        self._metrics = metrics
        self._definitions = definitions
        self._polls = polls
        self._fast_path = fast_path
        self._full_path = full_path
        self._parks = False  # all engines are known to know parked jobs
        self.lookups = Lookups(database, settings, metrics)
        self._stack_traces = StackTraces(database, settings.stack_trace_max_bytes)
        self._good_polls: set[tuple[str, tuple[str, ...]]] = set()
        self.beats = Heartbeats(database, settings, metrics, polls.leases)

    async def poll(self, request: PollRequest) -> list[Job]:
        """Jobs of the wanted types under lease, oldest first; waits for up to ``wait_seconds`` when there is none.

        Cancel-safe: what was leased to a cancelled poll goes back to the queue at once. Raises BadRequest.
        """
        settings = self._settings
        if settings.through_kafka:
            raise DispatchModeConflict(
                "this engine dispatches jobs through Kafka (dispatch_mode kafka_outbox): polling is off"
            )
        types = tuple(request.job_types)
        if (request.worker_id, types) not in self._good_polls:
            types = await self._check_poll(request.worker_id, types)
        check_job_types(types)
        self._polls.losses.remember_poller(request.worker_id, current_identity())
        maximum = request.max_jobs if request.max_jobs > 0 else MAX_JOBS_DEFAULT
        waiter = Waiter(
            request.worker_id, types, min(maximum, settings.poll_max_jobs), self.lease_s(request.lease_seconds)
        )
        jobs = await self._polls.wait_jobs(
            waiter, min(max(request.wait_seconds or 0, 0), settings.poll_max_wait_seconds)
        )
        if not jobs:
            self._metrics.empty_polls.inc()
        return jobs

    def knows_poll(self, worker: str, types: tuple[str, ...]) -> bool:
        """Return whether such a poll was found good."""
        return (worker, types) in self._good_polls

    async def _check_poll(self, worker: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the job types, each once. What is good is known from then on: a worker asks the same all day. Raises
        BadRequest."""
        check_text(worker, "workerId", NAME_MAX_CHARS)
        if not worker:
            raise BadRequest("workerId: is required")
        if len(wanted) > MANY_TYPES:
            await need_task()
            await take_turn()
        types = tuple(dict.fromkeys(wanted))
        if not types or len(types) > JOB_TYPES_MAX:
            raise BadRequest(f"jobTypes: must have 1 to {JOB_TYPES_MAX} job types")
        for name in types:
            check_text(name, "jobTypes", NAME_MAX_CHARS)
        refuse_executors(worker, types)
        if len(types) == len(wanted) <= GOOD_POLL_TYPES_MAX:
            if len(self._good_polls) >= GOOD_POLLS_MAX:
                self._good_polls.clear()
            self._good_polls.add((worker, types))
        return types

    async def wait_lost(self, worker_id: str, wait_seconds: float) -> list[LostJob]:
        """Jobs that were cancelled under this worker's lease, waiting for up to ``wait_seconds`` while there are none.

        A hint: what is not told here (an engine that stopped, a worker that did not ask) the next heartbeat says. Each
        is told once. Raises BadRequest.
        """
        check_text(worker_id, "workerId", NAME_MAX_CHARS)
        if not worker_id:
            raise BadRequest("workerId: is required")
        self._polls.losses.check_listener(worker_id)
        wait_s = min(max(wait_seconds, 0), self._settings.poll_max_wait_seconds)
        return [
            LostJob(
                job_id=ids.show_job(loss.instance, loss.token, loss.seq),
                attempt=loss.attempt,
                outcome=FenceDecision.CANCELLED.value,
            )
            for loss in await self._polls.losses.wait(worker_id, wait_s)
        ]

    def lease_s(self, seconds: float) -> float:
        """The length of a lease for which ``seconds`` were asked; 0 or less is the default."""
        settings = self._settings
        if seconds <= 0:
            return settings.lease_default_seconds
        return min(max(seconds, settings.lease_min_seconds), settings.lease_max_seconds)

    # -- single calls

    async def complete(self, request: Completion) -> None:
        """Finish a job. Raises NotFound, LeaseLost, JobCancelled, Unavailable (nothing was changed then)."""
        self.raise_decision(CallKind.COMPLETE, request.job_id, await self._complete(request, explicit=False))

    async def fail(self, request: Failure) -> None:
        """Report a failure; retried while retries are left, else the instance fails. Raises as `complete`."""
        self.raise_decision(CallKind.FAIL, request.job_id, await self._fail(request, explicit=False))

    async def park(self, request: Park) -> None:
        """Give a job back until a time or a signal; it comes back as the next attempt. Raises as `complete`, and
        BadRequest, and Conflict while engines are there that don't know parked jobs."""
        self.raise_decision(CallKind.PARK, request.job_id, await self._park(request, explicit=False))

    async def heartbeat(self, request: Heartbeat) -> Lease:
        """Extend the lease, and keep a checkpoint or progress. Raises as `complete`."""
        answer = await self._heartbeat(request)
        if isinstance(answer, FenceDecision):
            self.raise_decision(CallKind.HEARTBEAT, request.job_id, answer)
            raise LeaseLost(f"job '{request.job_id}': the lease is lost")
        return answer

    # -- batch calls

    async def complete_many(self, requests: Sequence[Completion]) -> list[JobOutcome]:
        """Finish jobs; one outcome each, in order. A bad item never fails its neighbours."""
        outcomes: list[JobOutcome | None] = [None] * len(requests)
        queued: list[tuple[int, FastCompletion]] = []
        others: list[int] = []
        for index, request in enumerate(requests):  # no task each: 15 µs saved per job of a leased batch
            try:
                item = self._fast_nowait(request)
            except PenstockError as error:
                outcomes[index] = _failed(request.job_id, error)
            else:
                queued.append((index, item)) if item is not None else others.append(index)
        if others:
            await need_task()
            each = await _each([requests[index] for index in others], self._complete_outcome)
            for index, outcome in zip(others, each, strict=True):
                outcomes[index] = outcome
        for index, item in queued:
            try:
                decision = await item.wait_answer()
                if decision is FenceDecision.APPLY:
                    decision = await self._complete_fully(item.job, item.call, item.output, item.plan.job_type)
            except PenstockError as error:
                outcomes[index] = _failed(requests[index].job_id, error)
            else:
                outcomes[index] = self._outcome(requests[index].job_id, decision)
        return [outcome for outcome in outcomes if outcome is not None]

    async def fail_many(self, requests: Sequence[Failure]) -> list[JobOutcome]:
        """Report failures; one outcome each, in order."""
        return await _each(requests, self._fail_outcome)

    async def park_many(self, requests: Sequence[Park]) -> list[JobOutcome]:
        """Park jobs; one outcome each, in order."""
        return await _each(requests, self._park_outcome)

    async def heartbeat_many(self, requests: Sequence[Heartbeat]) -> list[JobOutcome | Lease]:
        """Extend leases; the new end or an outcome each, in order."""
        return await _each(requests, self._beat_outcome)

    async def release_many(self, requests: Sequence[JobRef]) -> list[JobOutcome]:
        """Give jobs back to the queue; no retry is spent. ``lease-lost`` for those the caller does not hold."""
        return await _each(requests, self._release_outcome)

    async def failed(self, page: int, page_size: int, job_type: str | None = None) -> Page[FailedJob]:
        """Jobs that failed for good and failed their instance, newest first; of one type or of any."""
        page_size, offset = page_bounds(page, page_size)
        limit = self._settings.list_exact_total_limit
        async with self._database.connection() as connection:
            rows, total = await store.failed_jobs(
                connection, job_type, limit=page_size, offset=offset, count_max=limit + 1
            )
            items = await self._dead_jobs(connection, rows)
        return Page(items=items, page=page, page_size=page_size, total=total, total_is_estimate=total > limit)

    async def failed_slice(self, cursor: str | None, limit: int, job_type: str | None = None) -> Page[FailedJob]:
        """As `failed`, those after ``cursor``. Raises BadRequest."""
        limit = slice_limit(limit)
        before = read_cursor(cursor)
        async with self._database.connection() as connection:
            rows, _ = await store.failed_jobs(connection, job_type, limit=limit + 1, count_max=0, before=before)
            items = await self._dead_jobs(connection, rows[:limit])
        return Page(items=items, next=show_cursor(rows[limit - 1].instance if len(rows) > limit else None))

    async def _dead_jobs(self, connection: TrioConnection, rows: Sequence[store.FailedJob]) -> list[FailedJob]:
        items: list[FailedJob] = []
        for row in rows:
            step = (await self._definitions.by_key(connection, row.definition)).definition.steps[row.step]
            items.append(
                FailedJob(
                    id=ids.show_job(row.instance, row.token, row.seq),
                    job_type=step.job_type or "",
                    instance_id=ids.show_instance(row.instance),
                    step_id=step.id,
                    failed_at=row.failed_at,
                    reason=row.reason,
                    worker_id=row.worker,
                    error_code=row.code,
                )
            )
        return items

    # -- one item

    async def _complete(self, request: Completion, *, explicit: bool) -> FenceDecision:
        job, call = self._read(request, CallKind.COMPLETE, explicit=explicit)
        if job_type_limit() is not None:
            await self._permit(job)
        lease = self._polls.leases.find(job.token, job.seq)
        loaded: LoadedDefinition | None = None if lease is None else lease.loaded
        step, business_key = (None, None) if lease is None else (lease.step, lease.business_key)
        if loaded is None or step is None:
            known = await self.lookups.submit(Lookup(job, call.worker))
            decision = decide_fence(call, known.execution)
            if decision is not FenceDecision.APPLY:
                return decision
            loaded, step = await self._load(known)
            business_key = known.business_key
        plan = loaded.plan_of(step, request.variables)
        if plan is not None:
            item = FastCompletion(job, call, request.variables, loaded, step, plan, business_key)
            decision = await self._fast_path.submit(item)
            if decision is not FenceDecision.APPLY:
                return decision
        job_type = loaded.definition.steps[step].job_type or ""
        return await self._complete_fully(job, call, request.variables, job_type)

    async def _complete_fully(
        self, job: JobKey, call: FenceRequest, output: bytes | None, job_type: str
    ) -> FenceDecision:
        answer = await self._full_path.submit(ReportCommand(job, call, JobCompleted(job.token, call.worker, output)))
        assert isinstance(answer, FenceDecision)
        if answer is FenceDecision.DONE:  # what was applied before is not counted again
            self._polls.activity.observe_report(call.worker, job_type, failed=False)
        return answer

    async def _load(self, known: ExecutionInfo) -> tuple[LoadedDefinition, int]:
        assert known.definition is not None
        assert known.step is not None
        loaded = self._definitions.cached(known.definition)
        if loaded is None:
            await need_task()
            async with self._database.connection() as connection:
                loaded = await self._definitions.by_key(connection, known.definition)
        return loaded, known.step

    async def _fail(self, request: Failure, *, explicit: bool) -> FenceDecision:
        job, call = self._read(request, CallKind.FAIL, explicit=explicit)
        await self._permit(job)
        lease = self._polls.leases.find(job.token, job.seq)
        attempt = call.attempt or (None if lease is None else lease.attempt)
        failed = JobFailed(
            job.token,
            call.worker,
            request.retryable,
            request.error_message,
            wished_s(request.retry_after_s),
            checked_code(request.error_code),
            request.variables,
        )
        try:
            answer = await self._full_path.submit(ReportCommand(job, call, failed))
        except NotFound:
            answer = FenceDecision.NOT_FOUND
        assert isinstance(answer, FenceDecision)
        if answer is FenceDecision.IGNORED:
            self._metrics.fails_ignored.inc()
            _ignored.info("fail-ignored", "a fail without a lease was ignored", job=request.job_id, worker=call.worker)
        if answer is FenceDecision.DONE:
            self._polls.activity.observe_report(call.worker, "", failed=True)
            await self._stack_traces.keep(job, attempt, request.stack_trace)
        return answer

    async def _park(self, request: Park, *, explicit: bool) -> FenceDecision:
        job, call = self._read(request, CallKind.PARK, explicit=explicit)
        if request.attempt is None:
            raise BadRequest("attempt: is required")
        if request.until is None and not request.signal:
            raise BadRequest("until: is required, unless there is a signal")
        until = checked_until(request.until)
        if request.signal is not None:
            check_text(request.signal, "signal", NAME_MAX_CHARS)
        await self._permit(job)
        if not self._parks:
            await need_task()
            async with self._database.connection() as connection:
                await engine_store.require_version(connection, PARKED_JOBS_VERSION)
            self._parks = True
        parked = JobParked(job.token, call.worker, until, request.signal or None)
        try:
            answer = await self._full_path.submit(ReportCommand(job, call, parked))
        except NotFound:
            answer = FenceDecision.NOT_FOUND
        assert isinstance(answer, FenceDecision)
        return answer

    async def _heartbeat(self, request: Heartbeat) -> FenceDecision | Lease:
        job, call = self._read(request, CallKind.HEARTBEAT, explicit=True)
        await self._permit(job)
        extension = store.Extension(
            job.token, job.seq, call.attempt, call.worker, self.lease_s(request.lease_seconds), request.checkpoint,
            request.progress,
        )  # fmt: skip
        return await self.beats.submit(HeartbeatCall(job, call, extension))

    async def _permit(self, job: JobKey) -> None:
        """Raises Forbidden when the caller is limited to other job types. An unknown job is for others to tell of."""
        if job_type_limit() is None:
            return
        lease = self._polls.leases.find(job.token, job.seq)
        if lease is not None and lease.loaded is not None:
            loaded, step = lease.loaded, lease.step
        else:
            known = await self.lookups.submit(Lookup(job, ""))
            if known.definition is None:
                return
            if known.step is None:  # it is over: whether it is done is told to those only who might have done it
                await need_task()
                async with self._database.connection() as connection:
                    place = await store.step_of_closed(connection, job)
                if place is None:
                    return
                known = known._replace(definition=place[0], step=place[1])
            loaded, step = await self._load(known)
        check_job_types((loaded.definition.steps[step].job_type or "",))

    def _read(
        self, request: Completion | Failure | Heartbeat | JobRef | Park, kind: CallKind, *, explicit: bool
    ) -> tuple[JobKey, FenceRequest]:
        """``explicit``: a batch call, whose answers name every outcome. Raises BadRequest."""
        check_text(request.worker_id, "workerId", NAME_MAX_CHARS)
        if not request.worker_id:
            raise BadRequest("workerId: is required")
        refuse_executors(request.worker_id)
        call = FenceRequest(kind, request.worker_id, known_attempt(request.attempt), explicit)
        return ids.read_job(request.job_id), call

    def raise_decision(self, kind: CallKind, job_id: str, decision: FenceDecision) -> None:
        """Raises what a refusing decision means."""
        match decision:
            case FenceDecision.NOT_FOUND:
                raise NotFound(f"job '{job_id}' is unknown")
            case FenceDecision.LEASE_LOST:
                self._metrics.leases_lost.inc()
                raise LeaseLost(f"job '{job_id}': the lease is lost, or was never held by this worker")
            case FenceDecision.CANCELLED:
                raise JobCancelled(f"job '{job_id}': its instance ended or its step was interrupted")
            case FenceDecision.APPLY | FenceDecision.DONE | FenceDecision.ALREADY | FenceDecision.IGNORED:
                return
            case _:
                assert_never(decision)

    # -- one item of a batch call

    def _fast_nowait(self, request: Completion) -> FastCompletion | None:
        """Queue a completion whose job is known here and on the fast path; None for the others."""
        job, call = self._read(request, CallKind.COMPLETE, explicit=True)
        lease = self._polls.leases.find(job.token, job.seq)
        if lease is None or lease.loaded is None:
            return None
        if job_type_limit() is not None:
            check_job_types((lease.loaded.definition.steps[lease.step].job_type or "",))
        plan = lease.loaded.plan_of(lease.step, request.variables)
        if plan is None:
            return None
        item = FastCompletion(job, call, request.variables, lease.loaded, lease.step, plan, lease.business_key)
        self._fast_path.submit_nowait(item)
        return item

    def _outcome(self, job_id: str, decision: FenceDecision) -> JobOutcome:
        if decision is FenceDecision.LEASE_LOST:
            self._metrics.leases_lost.inc()
        return JobOutcome(job_id=job_id, outcome="ok" if decision is FenceDecision.IGNORED else decision.value)

    async def _complete_outcome(self, request: Completion) -> JobOutcome:
        try:
            return self._outcome(request.job_id, await self._complete(request, explicit=True))
        except PenstockError as error:
            return _failed(request.job_id, error)

    async def _fail_outcome(self, request: Failure) -> JobOutcome:
        try:
            return self._outcome(request.job_id, await self._fail(request, explicit=True))
        except PenstockError as error:
            return _failed(request.job_id, error)

    async def _park_outcome(self, request: Park) -> JobOutcome:
        try:
            return self._outcome(request.job_id, await self._park(request, explicit=True))
        except PenstockError as error:
            return _failed(request.job_id, error)

    async def _beat_outcome(self, request: Heartbeat) -> JobOutcome | Lease:
        try:
            answer = await self._heartbeat(request)
        except PenstockError as error:
            return _failed(request.job_id, error)
        return self._outcome(request.job_id, answer) if isinstance(answer, FenceDecision) else answer

    async def _release_outcome(self, request: JobRef) -> JobOutcome:
        try:
            job, call = self._read(request, CallKind.HEARTBEAT, explicit=True)
            await self._permit(job)
            lease = store.Lease(job.token, job.seq, call.attempt, call.worker)
            freed = await self._polls.releases.submit(ReleaseItem(job, lease))
        except PenstockError as error:
            return _failed(request.job_id, error)
        return JobOutcome(job_id=request.job_id, outcome="ok" if freed else "lease-lost")


async def _each(requests: Sequence[A], one: Callable[[A], Awaitable[R]]) -> list[R]:
    """Run ``one`` on every request at once; results in order."""
    results: dict[int, R] = {}

    async def run(index: int, request: A) -> None:
        results[index] = await one(request)

    async with trio.open_nursery() as nursery:
        for index, request in enumerate(requests):
            nursery.start_soon(run, index, request)
    return [results[index] for index in range(len(requests))]


def _failed(job_id: str, error: PenstockError) -> JobOutcome:
    match error.code:
        case "not-found":
            return JobOutcome(job_id=job_id, outcome="not-found")
        case "unavailable" | "resource-exhausted":
            return JobOutcome(job_id=job_id, outcome="unavailable", reason=error.reason)
        case _:
            return JobOutcome(job_id=job_id, outcome="invalid", reason=error.reason)
