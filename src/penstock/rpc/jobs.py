"""The worker calls of ``workflow.v1``: poll, complete, fail. The hot path of existing gRPC workers."""

from __future__ import annotations

from typing import Final

import trio
from grpclib.const import Cardinality, Handler

from penstock.engine.engine import Engine
from penstock.engine.requests.payload import ERROR_MESSAGE_MAX_BYTES, clean_text
from penstock.errors import DispatchModeConflict
from penstock.loop.offload import INLINE_MAX_BYTES, run_sized
from penstock.loop.taskless import need_task
from penstock.rpc.call import ServerCall
from penstock.rpc.inline_handler import InlineCalls
from penstock.rpc.methods import inline, taskless, unary
from penstock.rpc.reading import read_variables, required
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message
from penstock.wire.model import Completion, Failure, Job, PollRequest
from penstock.wire.noun import text_bytes

MAX_JOBS_DEFAULT: Final = 1
"""The contract's default for gRPC; REST's is 10."""

ANSWER_MAX_BYTES: Final = 4_000_000
"""Of the jobs in one answer. Clients take 4 MiB unless told otherwise: they would refuse a larger one, and its jobs
would stay leased to nobody until the lease ends, again and again. A single job may be larger."""
_STRUCT_GROWTH: Final = 6
"""A Struct is at most so many times as large as its JSON text (a list of small numbers)."""

_PREFIX: Final = "/workflow.v1.WorkflowEngine/"


class JobService:
    """PollJobs, CompleteJob, FailJob. None of them carries an ``attempt``: the worker's id alone is the fence."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._limits = engine.limits
        self._inline = InlineCalls(engine.inline_jobs, engine.limits, self.answer)

    def __mapping__(self) -> dict[str, Handler]:
        return {
            f"{_PREFIX}PollJobs": inline(
                Handler(self.poll, Cardinality.UNARY_UNARY, PollRequest, m.PollJobsResponse), self._inline.begin_poll
            ),
            f"{_PREFIX}CompleteJob": inline(
                unary(self.complete, Completion, m.CompleteJobResponse), self._inline.begin_completion
            ),
            f"{_PREFIX}FailJob": unary(self.fail, Failure, m.FailJobResponse),
        }

    @taskless
    async def poll(self, call: ServerCall[PollRequest, m.PollJobsResponse]) -> None:
        """Jobs that are there now, as many as one answer holds. Those of a caller who has gone go back at once."""
        request = await call.recv_message()
        assert request is not None  # ServerCall raises before it returns None for a single request
        if self._engine.settings.through_kafka:
            raise DispatchModeConflict(
                "this engine dispatches jobs through Kafka (dispatch_mode kafka_outbox): polling is off"
            )
        jobs = await self._engine.jobs.poll(
            PollRequest(
                worker_id=required(request.worker_id, "worker_id"),
                job_types=request.job_types,
                max_jobs=request.max_jobs if request.max_jobs > 0 else MAX_JOBS_DEFAULT,
                lease_seconds=max(request.lease_seconds, 0),
            )
        )
        await self.answer(call, jobs)

    async def answer(self, call: ServerCall[PollRequest, m.PollJobsResponse], jobs: list[Job]) -> None:
        """Send the jobs of a poll. What is not sent goes back to the queue."""
        try:
            if call.is_cancelled:  # cancelled, or out of time, in the step in which the jobs came
                await need_task()
                await trio.lowlevel.checkpoint_if_cancelled()
            call.check_caller()
            size_bytes = sum(text_bytes(job.variables) for job in jobs)
            if size_bytes > INLINE_MAX_BYTES:
                await need_task()
            fitting = await run_sized(size_bytes, lambda: _count_fitting(jobs))
            if fitting < len(jobs):
                self._engine.polls.releases.release_jobs(jobs[fitting:])
                jobs = jobs[:fitting]
            await call.send_message(m.PollJobsResponse(jobs))
        except BaseException:
            self._engine.polls.releases.release_jobs(jobs)
            raise

    @taskless
    async def complete(self, request: Completion, _call: object) -> m.CompleteJobResponse:
        """ABORTED when the lease is lost."""
        await self._engine.jobs.complete(
            Completion(
                job_id=required(request.job_id, "job_id"),
                worker_id=required(request.worker_id, "worker_id"),
                variables=await read_variables(request.variables, self._limits, "variables_to_set"),
            )
        )
        return m.CompleteJobResponse()

    @taskless
    async def fail(self, request: Failure, _call: object) -> m.FailJobResponse:
        """Answered with OK also when it is refused, as in REST: an SDK's process ends when it is not."""
        await self._engine.jobs.fail(
            Failure(
                job_id=required(request.job_id, "job_id"),
                worker_id=required(request.worker_id, "worker_id"),
                retryable=request.retryable,
                error_message=clean_text(request.error_message, ERROR_MESSAGE_MAX_BYTES),
            )
        )
        return m.FailJobResponse()


def _count_fitting(jobs: list[Job]) -> int:
    """Return how many of them go into one answer, at least one. Measured only where it may matter."""
    if sum(text_bytes(job.variables) for job in jobs) * _STRUCT_GROWTH < ANSWER_MAX_BYTES:
        return len(jobs)
    size_bytes = 0
    for count, job in enumerate(jobs):
        size_bytes += len(encode_message(job, m.PACKAGE))
        if size_bytes > ANSWER_MAX_BYTES and count:
            return count
    return len(jobs)
