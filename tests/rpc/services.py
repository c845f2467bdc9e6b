"""Services for the tests: the contract's messages, with behaviour that a request can choose."""

from __future__ import annotations

import trio
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from penstock import errors
from penstock.rpc.call import ServerCall
from penstock.rpc.methods import both_stream, unary
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.model import Completion, Failure, JobOutcome, PollRequest, StartRequest

POLL = "/workflow.v1.WorkflowEngine/PollJobs"
COMPLETE = "/workflow.v1.WorkflowEngine/CompleteJob"
FAIL = "/workflow.v1.WorkflowEngine/FailJob"
START = "/workflow.v1.WorkflowEngine/StartInstance"
WORK = "/penstock.v1.Worker/Work"


class Engine:
    """Four methods of ``workflow.v1.WorkflowEngine`` and the Work stream."""

    def __init__(self) -> None:
        self.running = 0
        self.started = 0
        self.cancelled = 0
        self.release = trio.Event()
        """Completions of the job "wait" wait for it."""
        self.seen: list[object] = []

    def __mapping__(self) -> dict[str, Handler]:
        return {
            POLL: unary(self._poll, PollRequest, m.PollJobsResponse),
            COMPLETE: unary(self._complete, Completion, m.CompleteJobResponse),
            FAIL: unary(self._fail, Failure, m.FailJobResponse),
            START: unary(self._start, StartRequest, m.StartInstanceResponse),  # pyright: ignore[reportArgumentType] - a stand-in
            WORK: both_stream(self._work, w.WorkRequest, w.WorkResponse),
        }

    async def _poll(self, request: PollRequest, _call: object) -> m.PollJobsResponse:
        """``max_jobs`` jobs of the first type, with the worker's id as a variable."""
        job = m.Job(
            id="1-2-3",
            job_type=request.job_types[0],
            variables=b'{"worker":"%s","n":3}' % request.worker_id.encode(),  # pyright: ignore[reportArgumentType] - a stand-in
        )
        return m.PollJobsResponse([job] * request.max_jobs)

    async def _complete(self, request: Completion, _call: object) -> m.CompleteJobResponse:
        """The job "wait" waits for ``release``, "forever" for its cancellation, "N ms" sleeps."""
        self.running += 1
        self.started += 1
        try:
            if request.job_id == "wait":
                await self.release.wait()
            elif request.job_id == "forever":
                await trio.sleep_forever()
            elif request.job_id.endswith(" ms"):
                await trio.sleep(int(request.job_id[:-3]) / 1000)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        self.seen.append(request)
        return m.CompleteJobResponse()

    async def _fail(self, request: Failure, _call: object) -> m.FailJobResponse:
        """Raises what the error message names."""
        kind, _, text = request.error_message.partition(":")
        if kind == "bug":
            raise RuntimeError(text)
        if kind == "group":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._raise, errors.LeaseLost(text))
                await trio.sleep_forever()
        if kind == "status":
            raise GRPCError(Status[text], "said so")
        if kind:
            raise getattr(errors, kind)(text)
        return m.FailJobResponse()

    async def _raise(self, error: Exception) -> None:
        raise error

    async def _start(self, request: StartRequest, call: ServerCall[object, object]) -> m.StartInstanceResponse:
        """Echoes variables; the business key "header:NAME" answers with that header, "metadata" reads all of it."""
        if request.business_key == "metadata":
            assert call.metadata is not None
        key = request.business_key or ""
        if key.startswith("header:"):
            key = call.header(key[7:]) or ""
        return m.StartInstanceResponse(m.Instance(id="1", variables=request.variables, business_key=key))

    async def _work(self, call: ServerCall[w.WorkRequest, w.WorkResponse]) -> None:
        """Answers every completion; ends when the worker half-closes. Counts as running."""
        self.running += 1
        try:
            async for request in call:
                if request.worker_id == "wait":
                    await self.release.wait()
                self.started += 1
                outcomes = [
                    JobOutcome(job_id=done.job_id, attempt=done.attempt, outcome="ok") for done in request.completions
                ]
                jobs = [
                    w.Job(id=f"{n}", job_type=credit.job_type, variables=b'{"note":"' + b"x" * 200 + b'"}')  # pyright: ignore[reportArgumentType] - a stand-in
                    for credit in request.credits
                    for n in range(credit.jobs)
                ]
                await call.send_message(w.WorkResponse(jobs=jobs, outcomes=outcomes))
        finally:
            self.running -= 1
