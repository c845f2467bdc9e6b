"""The worker calls: poll, complete, fail, heartbeat, and their batch forms. The hot path.

Handlers take a call and give a reply, without a framework in between: with one, a request cost five times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
import trio

from penstock.engine.engine import Engine
from penstock.engine.vocabulary import (
    Completion,
    Failure,
    Heartbeat,
    HeartbeatAnswer,
    ItemOutcome,
    Job,
    PollRequest,
    Release,
)
from penstock.errors import BadRequest, DispatchModeConflict, PayloadTooLarge, PenstockError
from penstock.rest.batch import BadItem, BatchReader, Jobs, Results
from penstock.rest.codec import (
    CompletionBody,
    CompletionItem,
    FailureBody,
    FailureItem,
    HeartbeatBody,
    HeartbeatItem,
    PollBody,
    ReleaseItem,
    decoder,
    error_text,
    error_tolerant,
    fenced,
    given_value,
    given_variables,
    required,
    retry_delay,
    whole,
)
from penstock.rest.exchange import NO_CONTENT, Call, Receive, Reply
from penstock.settings import DispatchMode

UNWATCHED_SECONDS: Final = 0.1
"""A long poll begins with this time in which nobody looks whether the client is still there: the look-out costs 35 µs
of a poll that takes 100, and busy workers are answered before it would begin."""

R = TypeVar("R")

_read_poll = decoder(PollBody)
_read_completion = decoder(CompletionBody)
_read_failure = error_tolerant(decoder(FailureBody))
_read_heartbeat = decoder(HeartbeatBody)
_completions = BatchReader(Results[CompletionItem], CompletionItem, "results")
_failures = BatchReader(Results[FailureItem], FailureItem, "results")
_heartbeats = BatchReader(Jobs[HeartbeatItem], HeartbeatItem, "jobs")
_releases = BatchReader(Jobs[ReleaseItem], ReleaseItem, "jobs")
_encode = msgspec.json.Encoder().encode


class JobRoutes:
    """Handlers of the routes on jobs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._limits = engine.limits

    # -- poll

    async def poll(self, call: Call) -> Reply:
        """``POST /v1/jobs/poll``"""
        if self._engine.settings.dispatch_mode is DispatchMode.KAFKA_OUTBOX:
            raise DispatchModeConflict("jobs are dispatched through Kafka here; polling is switched off")
        body = _read_poll(call.body)
        if not body.job_types:
            raise BadRequest("jobTypes: needs at least one job type")
        wait_s = min(max(body.wait_seconds or 0, 0), self._engine.settings.poll_max_wait_seconds)
        request = PollRequest(
            worker_id=required(body.worker_id, "workerId"),
            job_types=body.job_types,
            max_jobs=whole(body.max_jobs),
            lease_seconds=whole(body.lease_seconds),
            wait_seconds=min(wait_s, UNWATCHED_SECONDS),
        )
        jobs = await self._engine.jobs.poll(request)
        if not jobs and wait_s > UNWATCHED_SECONDS:
            longer = msgspec.structs.replace(request, wait_seconds=wait_s - UNWATCHED_SECONDS)
            jobs = await self._poll_watched(longer, call.receive)
        return Reply(200, b'{"jobs":%b}' % _encode(jobs))

    async def _poll_watched(self, request: PollRequest, receive: Receive) -> list[Job]:
        """Poll until jobs are there, the time is over or the client went away; nothing stays leased to one who did."""
        jobs: list[Job] = []
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
                jobs = await self._engine.jobs.poll(request)
            except PenstockError as error:  # a nursery would wrap it
                refusal = error
            nursery.cancel_scope.cancel()
        if refusal is not None:
            raise refusal
        if gone and jobs:  # both in one step of the scheduler
            releases = [Release(job_id=job.id, worker_id=job.worker_id, attempt=job.attempt) for job in jobs]
            await self._engine.jobs.release_many(releases)
            return []
        return jobs

    # -- single calls

    async def complete(self, call: Call) -> Reply:
        """``POST /v1/jobs/{id}/complete``"""
        body = _read_completion(call.body)
        await self._engine.jobs.complete(
            Completion(
                job_id=call.job_id,
                worker_id=required(body.worker_id, "workerId"),
                attempt=fenced(body.attempt),
                variables=given_variables(body.variables, self._limits),
            )
        )
        return NO_CONTENT

    async def fail(self, call: Call) -> Reply:
        """``POST /v1/jobs/{id}/fail``"""
        body = _read_failure(call.body)
        await self._engine.jobs.fail(_failure(body, call.job_id, required(body.worker_id, "workerId"), explicit=False))
        return NO_CONTENT

    async def heartbeat(self, call: Call) -> Reply:
        """``POST /v1/jobs/{id}/heartbeat``"""
        body = _read_heartbeat(call.body)
        worker_id = required(body.worker_id, "workerId")
        answer = await self._engine.jobs.heartbeat(self._heartbeat(body, call.job_id, worker_id, explicit=False))
        return Reply(200, _encode(answer))

    def _heartbeat(self, body: HeartbeatItem, job_id: str, worker_id: str, *, explicit: bool) -> Heartbeat:
        return Heartbeat(
            job_id=job_id,
            worker_id=worker_id,
            attempt=fenced(body.attempt),
            explicit=explicit,
            lease_seconds=whole(body.lease_seconds),
            checkpoint=given_value(body.checkpoint, self._limits, "checkpoint"),
            progress=given_value(body.progress, self._limits, "progress"),
        )

    # -- batch calls

    async def complete_many(self, call: Call) -> Reply:
        """``POST /v1/jobs/complete``"""
        batch = _completions.read(call.body)
        outcomes = Outcomes(len(batch.items))
        requests: list[Completion] = []
        for index, item in enumerate(batch.items):
            if isinstance(item, BadItem):
                outcomes.refuse(index, item.job_id, item.reason)
                continue
            try:
                request = Completion(
                    job_id=required(item.job_id, "jobId"),
                    worker_id=batch.worker_id,
                    attempt=fenced(item.attempt),
                    explicit=True,
                    variables=given_variables(item.variables, self._limits),
                )
            except (BadRequest, PayloadTooLarge) as error:
                outcomes.refuse(index, item.job_id, error.reason)
            else:
                outcomes.expect(index)
                requests.append(request)
        return outcomes.reply(await self._engine.jobs.complete_many(requests))

    async def fail_many(self, call: Call) -> Reply:
        """``POST /v1/jobs/fail``"""
        batch = _failures.read(call.body)
        outcomes = Outcomes(len(batch.items))
        requests: list[Failure] = []
        for index, item in enumerate(batch.items):
            if isinstance(item, BadItem):
                outcomes.refuse(index, item.job_id, item.reason)
            elif not item.job_id:
                outcomes.refuse(index, "", "jobId: is required")
            else:
                outcomes.expect(index)
                requests.append(_failure(item, item.job_id, batch.worker_id, explicit=True))
        return outcomes.reply(await self._engine.jobs.fail_many(requests))

    async def heartbeat_many(self, call: Call) -> Reply:
        """``POST /v1/jobs/heartbeat``"""
        batch = _heartbeats.read(call.body)
        outcomes = Outcomes(len(batch.items))
        requests: list[Heartbeat] = []
        for index, item in enumerate(batch.items):
            if isinstance(item, BadItem):
                outcomes.refuse(index, item.job_id, item.reason)
                continue
            try:
                job_id = required(item.job_id, "jobId")
                request = self._heartbeat(item, job_id, batch.worker_id, explicit=True)
            except (BadRequest, PayloadTooLarge) as error:
                outcomes.refuse(index, item.job_id, error.reason)
            else:
                outcomes.expect(index)
                requests.append(request)
        answers = await self._engine.jobs.heartbeat_many(requests)
        return outcomes.reply(
            [
                BeatOutcome(job_id=request.job_id, outcome="ok", lock_expires_at=answer.lock_expires_at)
                if isinstance(answer, HeartbeatAnswer)
                else answer
                for request, answer in zip(requests, answers, strict=True)
            ]
        )

    async def release_many(self, call: Call) -> Reply:
        """``POST /v1/jobs/release``"""
        batch = _releases.read(call.body)
        outcomes = Outcomes(len(batch.items))
        requests: list[Release] = []
        for index, item in enumerate(batch.items):
            if isinstance(item, BadItem):
                outcomes.refuse(index, item.job_id, item.reason)
            elif not item.job_id:
                outcomes.refuse(index, "", "jobId: is required")
            else:
                outcomes.expect(index)
                attempt = fenced(item.attempt)
                requests.append(
                    Release(job_id=item.job_id, worker_id=batch.worker_id, attempt=attempt, explicit=True)
                )
        return outcomes.reply(await self._engine.jobs.release_many(requests))
