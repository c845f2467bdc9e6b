"""The worker calls: poll, complete, fail, heartbeat, and their batch forms. The hot path.

Handlers take a call and give a reply, without a framework in between: with one, a request cost five times as much.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec
import trio

from penstock.engine.engine import Engine
from penstock.engine.queues.polls import MANY_TYPES
from penstock.engine.requests.payload import given_variables
from penstock.errors import BadRequest, DispatchModeConflict, PayloadTooLarge, PenstockError
from penstock.loop.offload import INLINE_MAX_BYTES, run_sized, take_turn
from penstock.loop.taskless import need_task
from penstock.rest.batch import BadItem, BatchReader, JobBatch, Results
from penstock.rest.codec import (
    WatchBody,
    decoder,
    error_text,
    error_tolerant,
    given_value,
    required,
    whole,
)
from penstock.rest.exchange import NO_CONTENT, Receive, Reply, RestRequest
from penstock.wire.model import (
    Completion,
    Failure,
    Heartbeat,
    HeartbeatOutcome,
    Job,
    JobOutcome,
    JobRef,
    Lease,
    LostJob,
    Park,
    PollRequest,
)
from penstock.wire.noun import text_bytes

UNWATCHED_SECONDS: Final = 0.1
"""A long poll begins with this time in which nobody looks whether the client is still there: the look-out costs 35 µs
of a poll that takes 100, and busy workers are answered before it would begin."""

KNOWN_POLLS_MAX_COUNT: Final = 2_000
KNOWN_POLL_MAX_BYTES: Final = 1_000
"""Of a poll's body that is kept with what it says."""

ENCODED_AT_ONCE_BYTES: Final = 262_144
"""Variables of the jobs of one answer that are encoded in one step of the loop."""

ItemT = TypeVar("ItemT", Completion, Failure, Heartbeat, JobRef)
R = TypeVar("R")
W = TypeVar("W", Job, LostJob)

_read_poll = decoder(PollRequest)
_read_watch = decoder(WatchBody)
_read_completion = decoder(Completion)
_read_failure = error_tolerant(decoder(Failure))
_read_heartbeat = decoder(Heartbeat)
_read_park = decoder(Park)
_completions = BatchReader(Results[Completion], Completion, "results")
_failures = BatchReader(Results[Failure], Failure, "results")
_heartbeats = BatchReader(JobBatch[Heartbeat], Heartbeat, "jobs")
_releases = BatchReader(JobBatch[JobRef], JobRef, "jobs")
_encode = msgspec.json.Encoder().encode


class JobRoutes:
    """Handlers of the routes on jobs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._limits = engine.limits
        self._known_polls: dict[bytes, tuple[PollRequest, float]] = {}

    # -- poll

    async def poll(self, call: RestRequest) -> Reply:
        """``POST /v1/jobs/poll``"""
        if self._engine.settings.through_kafka:
            raise DispatchModeConflict(
                "this engine dispatches jobs through Kafka (dispatch_mode kafka_outbox): polling is off"
            )
        if len(call.body) > INLINE_MAX_BYTES:
            await take_turn()
        request, wait_s = self._known_polls.get(call.body) or self._read_poll(call.body)
        # looking into the queue for many types costs more than the look-out
        watched = wait_s > UNWATCHED_SECONDS and len(request.job_types) > MANY_TYPES
        jobs = [] if watched else await self._engine.jobs.poll(request)
        if jobs and wait_s and call.peer_gone_nowait():
            await self._release(jobs)
            jobs = []  # a client that only closed its sending side still reads: without an answer it would get a 500
        elif not jobs and wait_s > UNWATCHED_SECONDS:
            longer = msgspec.structs.replace(request, wait_seconds=wait_s - (0 if watched else UNWATCHED_SECONDS))
            jobs, gone = await _while_connected(call, lambda: self._engine.jobs.poll(longer))
            if gone and jobs:  # both in one step of the scheduler: nothing stays leased to who went away
                await self._release(jobs)
                jobs = []
        size_bytes = 0
        for job in jobs:
            size_bytes += text_bytes(job.variables)
        if size_bytes > ENCODED_AT_ONCE_BYTES:
            return await large_answer(jobs)
        return Reply(200, b'{"jobs":%b}' % _encode(jobs))

    def _read_poll(self, body: bytes) -> tuple[PollRequest, float]:
        """What is asked for at first, and how long the caller would wait. A worker asks the same all day: it is read
        once."""
        found = _read_poll(body)
        if not found.job_types:
            raise BadRequest("jobTypes: needs at least one job type")
        wait_s = min(max(found.wait_seconds or 0, 0), self._engine.settings.poll_max_wait_seconds)
        request = PollRequest(
            worker_id=required(found.worker_id, "workerId"),
            job_types=found.job_types,
            max_jobs=whole(found.max_jobs),
            lease_seconds=whole(found.lease_seconds),
            wait_seconds=min(wait_s, UNWATCHED_SECONDS),
        )
        if len(body) <= KNOWN_POLL_MAX_BYTES:
            if len(self._known_polls) == KNOWN_POLLS_MAX_COUNT:
                self._known_polls.clear()
            self._known_polls[body] = request, wait_s
        return request, wait_s

    def known_poll(self, body: bytes) -> tuple[PollRequest, float] | None:
        """A poll that was read before: what it asks for, and how long it would wait."""
        return self._known_polls.get(body)

    async def _release(self, jobs: Sequence[Job]) -> None:
        """Return jobs whose worker went away before it had them."""
        await need_task()
        releases = [JobRef(job_id=job.id, worker_id=job.worker_id or "", attempt=job.attempt) for job in jobs]
        await self._engine.jobs.release_many(releases)

    async def wait_lost(self, call: RestRequest) -> Reply:
        """``POST /v1/jobs/lost``"""
        body = _read_watch(call.body)
        worker_id = required(body.worker_id, "workerId")
        wait_s = min(max(body.wait_seconds or 0, 0), self._engine.settings.poll_max_wait_seconds)
        lost, _ = await _while_connected(call, lambda: self._engine.jobs.wait_lost(worker_id, wait_s))
        return Reply(200, b'{"lost":%b}' % _encode(lost))

    # -- single calls

    async def complete(self, call: RestRequest) -> Reply:
        """``POST /v1/jobs/{id}/complete``"""

        small = len(call.body) <= INLINE_MAX_BYTES  # nearly always: it spares them 1 µs
        await self._engine.jobs.complete(
            self._completion(call) if small else await run_sized(len(call.body), partial(self._completion, call))
        )
        return NO_CONTENT

    def _completion(self, call: RestRequest) -> Completion:
        body = _read_completion(call.body)
        return Completion(
            job_id=call.job_id,
            worker_id=required(body.worker_id, "workerId"),
            attempt=body.attempt,
            variables=given_variables(body.variables, self._limits),
        )

    async def fail(self, call: RestRequest) -> Reply:
        """``POST /v1/jobs/{id}/fail``"""

        def read() -> Failure:
            body = _read_failure(call.body)
            return self._failure(body, call.job_id, required(body.worker_id, "workerId"))

        await self._engine.jobs.fail(await run_sized(len(call.body), read))
        return NO_CONTENT

    def _failure(self, body: Failure, job_id: str, worker_id: str) -> Failure:
        return Failure(
            job_id=job_id,
            worker_id=worker_id,
            attempt=body.attempt,
            retryable=bool(body.retryable),
            error_message=error_text(body.error_message),
            retry_after_s=body.retry_after_s,
            error_code=body.error_code,
            variables=given_variables(body.variables, self._limits),
            stack_trace=body.stack_trace,
        )

    async def park(self, call: RestRequest) -> Reply:
        """``POST /v1/jobs/{id}/park``"""
        body = _read_park(call.body)
        worker_id = required(body.worker_id, "workerId")
        await self._engine.jobs.park(msgspec.structs.replace(body, job_id=call.job_id, worker_id=worker_id))
        return NO_CONTENT

    async def heartbeat(self, call: RestRequest) -> Reply:
        """``POST /v1/jobs/{id}/heartbeat``"""

        def read() -> Heartbeat:
            body = _read_heartbeat(call.body)
            return self._heartbeat(body, call.job_id, required(body.worker_id, "workerId"))

        answer = await self._engine.jobs.heartbeat(await run_sized(len(call.body), read))
        return Reply(200, _encode(answer))

    def _heartbeat(self, body: Heartbeat, job_id: str, worker_id: str) -> Heartbeat:
        return Heartbeat(
            job_id=job_id,
            worker_id=worker_id,
            attempt=body.attempt,
            lease_seconds=whole(body.lease_seconds),
            checkpoint=given_value(body.checkpoint, self._limits, "checkpoint"),
            progress=given_value(body.progress, self._limits, "progress"),
        )

    # -- batch calls

    async def complete_many(self, call: RestRequest) -> Reply:
        """``POST /v1/jobs/complete``"""
        limits = self._limits

        def make(item: Completion, job_id: str, worker_id: str) -> Completion:
            return Completion(
                job_id=job_id,
                worker_id=worker_id,
                attempt=item.attempt,
                variables=given_variables(item.variables, limits),
            )

        requests, refused = await _sort_out(call, _completions, make)
        return _outcomes(refused, await self._engine.jobs.complete_many(requests))

    async def fail_many(self, call: RestRequest) -> Reply:
        """``POST /v1/jobs/fail``"""

        def make(item: Failure, job_id: str, worker_id: str) -> Failure:
            return self._failure(item, job_id, worker_id)

        requests, refused = await _sort_out(call, _failures, make)
        return _outcomes(refused, await self._engine.jobs.fail_many(requests))

    async def heartbeat_many(self, call: RestRequest) -> Reply:
        """``POST /v1/jobs/heartbeat``"""

        def make(item: Heartbeat, job_id: str, worker_id: str) -> Heartbeat:
            return self._heartbeat(item, job_id, worker_id)

        requests, refused = await _sort_out(call, _heartbeats, make)
        answers = await self._engine.jobs.heartbeat_many(requests)
        outcomes: list[JobOutcome] = [
            HeartbeatOutcome(job_id=request.job_id, outcome="ok", lock_expires_at=answer.lock_expires_at)
            if isinstance(answer, Lease)
            else answer
            for request, answer in zip(requests, answers, strict=True)
        ]
        return _outcomes(refused, outcomes)

    async def release_many(self, call: RestRequest) -> Reply:
        """``POST /v1/jobs/release``"""

        def make(item: JobRef, job_id: str, worker_id: str) -> JobRef:
            return JobRef(job_id=job_id, worker_id=worker_id, attempt=item.attempt)

        requests, refused = await _sort_out(call, _releases, make)
        return _outcomes(refused, await self._engine.jobs.release_many(requests))


async def _while_connected(call: RestRequest, wait: Callable[[], Awaitable[list[W]]]) -> tuple[list[W], bool]:
    """What ``wait`` gives, and whether the client went away; that cancels it."""
    await need_task()
    found: list[W] = []
    with trio.CancelScope() as scope:
        if not call.call_when_gone(scope.cancel):
            return await _while_receiving(call.receive, wait)
        try:
            if call.peer_gone_nowait():  # nobody tells of it again
                scope.cancel()
            else:
                found = await wait()
        finally:
            call.call_when_gone(None)
    return found, scope.cancel_called


async def _while_receiving(receive: Receive, wait: Callable[[], Awaitable[list[W]]]) -> tuple[list[W], bool]:
    """As `_while_connected`, where only reading tells: a task more, and two turns until an answer leaves."""
    found: list[W] = []
    refusal: PenstockError | None = None
    gone = False

    async def watch(scope: trio.CancelScope) -> None:
        nonlocal gone
        await receive()  # the body was read: what comes next is the disconnect
        gone = True
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        try:
            found = await wait()
        except PenstockError as error:  # a nursery would wrap it
            refusal = error
        nursery.cancel_scope.cancel()
    if refusal is not None:
        raise refusal
    return found, gone


async def large_answer(jobs: Sequence[Job]) -> Reply:
    """Return the jobs one by one, with a turn of the loop for others after each. Not to be cancelled: they are
    leased."""
    await need_task()
    pieces: list[bytes] = []
    for job in jobs:
        pieces += (b",", _encode(job))
        await trio.lowlevel.cancel_shielded_checkpoint()
    return Reply(200, b'{"jobs":[', rest=(*pieces[1:], b"]}"))


async def _sort_out(
    call: RestRequest, reader: BatchReader[ItemT], make: Callable[[ItemT, str, str], R]
) -> tuple[list[R], dict[int, JobOutcome]]:
    """The requests of the items that can be made into one (of item, job and worker), and the outcomes of the others by
    their place."""

    def read() -> tuple[list[R], dict[int, JobOutcome]]:
        batch = reader.read(call.body)
        requests: list[R] = []
        refused: dict[int, JobOutcome] = {}
        for index, item in enumerate(batch.items):
            if isinstance(item, BadItem):
                refused[index] = JobOutcome(job_id=item.job_id, outcome="invalid", reason=item.reason)
                continue
            try:
                requests.append(make(item, required(item.job_id, "jobId"), batch.worker_id))
            except (BadRequest, PayloadTooLarge) as error:
                refused[index] = JobOutcome(job_id=item.job_id or "", outcome="invalid", reason=error.reason)
        return requests, refused

    return await run_sized(len(call.body), read)


def _outcomes(refused: Mapping[int, JobOutcome], answers: Sequence[JobOutcome]) -> Reply:
    """Return the answer to a batch: all outcomes in the order of the items."""
    if refused:
        rest = iter(answers)
        count = len(refused) + len(answers)
        answers = [found if (found := refused.get(index)) is not None else next(rest) for index in range(count)]
    return Reply(200, b'{"results":%b}' % _encode(answers))
