"""One ``Work`` stream: credit and results come in, jobs and outcomes go out.

Three flows that don't wait for each other. The reader applies credit at once and lets the results of each message be
dealt with in a task of its own, so that the batches of many messages become one transaction; it stops reading at
``RESULTS_MAX_COUNT`` results without a sent outcome, and then the client's window fills up. The writer puts whatever is
there (jobs, outcomes in the order of the results, news) into one message; while the client does not read, jobs wait
within the credit and its buffer, and nothing more is leased. Relies on `engine.jobs.streams` for what credit means.

When the stream ends, however it ends, jobs without a settled result go back to the queue at once.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from penstock.access.identity import current_identity
from penstock.api.permission import Permission
from penstock.core.rules.fencing import FenceDecision
from penstock.engine.engine import Engine
from penstock.engine.jobs.streams import JobStream
from penstock.engine.operations import worker_items
from penstock.engine.requests.payload import check_count
from penstock.errors import BadRequest, PenstockError
from penstock.rpc.call import ServerCall
from penstock.rpc.run_stream_handler import PENDING_MAX_BYTES, RunStreamHandler
from penstock.wire import penstock_v1 as w
from penstock.wire.model import Heartbeat, HeartbeatOutcome, Job, JobOutcome, LostJob
from penstock.wire.noun import text_bytes

RESULTS_MAX_COUNT: Final = 4_000
"""Results and heartbeats of one stream whose outcomes are not sent yet; beyond it nothing is read."""
MESSAGE_MAX_JOBS: Final = 1_000
MESSAGE_MAX_BYTES: Final = 1024 * 1024
"""Of the variables in one message; gRPC clients take 4 MiB by default."""
LOSS_POLL_INTERVAL_S: Final = 1.0
DRAIN_RESULTS_S: Final = 5.0
"""How long a draining engine takes results of jobs that were pushed before; then they go back to the queue."""

_SETTLED: Final = frozenset({"ok", "already-completed", "lease-lost", "cancelled"})
_TOKEN_OVER: Final = GRPCError(Status.UNAUTHENTICATED, "the token has expired; open the stream again with another")
_ENGINE_STOPS: Final = GRPCError(Status.UNAVAILABLE, "the engine is shutting down; open the stream again")


class _Pending:
    """The results of one message, until they are answered."""

    __slots__ = ("attempts", "outcomes")

    def __init__(self) -> None:
        self.attempts: list[int | None] = []
        """Of each result, that which it settles on this stream, if any."""
        self.outcomes: list[JobOutcome] | None = None


class WorkStream:
    """See the module. `run` returns when the worker has half-closed and everything is answered."""

    def __init__(self, engine: Engine, call: ServerCall[w.WorkRequest, w.WorkResponse]) -> None:
        self._engine = engine
        self._call = call
        self._jobs: JobStream
        self._run_handler: RunStreamHandler | None = None
        """Of an executor, which has runs instead of jobs."""
        self._pending: deque[_Pending] = deque()
        self._beats: list[HeartbeatOutcome] = []
        self._beating = 0
        self._lost: list[LostJob] = []
        self._credit_answers: dict[str, None] = {}
        self._unanswered = 0
        self._changed = trio.Event()
        self._answered = trio.Event()
        self._settled = trio.Event()
        self._ended = False
        self._refusal: PenstockError | GRPCError | None = None

    async def run(self) -> None:
        """Raises BadRequest, Forbidden, DispatchModeConflict (credit in Kafka mode), and GRPCError when the engine
        stops."""
        first = await self._call.recv_message()
        if first is None:
            return
        caller = current_identity()
        if caller is not None:
            caller.require(Permission.EXECUTE if first.executor else Permission.WORK)
        self._jobs = JobStream(self._engine, first.worker_id, first.lease_seconds, self._wake, executor=first.executor)
        try:
            async with trio.open_nursery() as nursery:
                if first.executor:
                    self._run_handler = RunStreamHandler(self._engine, self._jobs, self._wake, first.rules)
                    await nursery.start(self._run_handler.run, nursery)
                nursery.start_soon(self._read, first, nursery)
                nursery.start_soon(self._watch_leases)
                nursery.start_soon(self._watch_drain)
                nursery.start_soon(self._watch_token)
                await self._write()
                nursery.cancel_scope.cancel()
        finally:
            self._jobs.close()
        if self._refusal is not None:
            raise self._refusal

    def _wake(self) -> None:
        self._changed.set()

    def _end(self, refusal: PenstockError | GRPCError | None) -> None:
        """Push nothing more; answer what came, then end."""
        if not self._ended:
            self._ended = True
            self._refusal = refusal
            self._jobs.stop()
            self._wake()

    # -- in

    async def _read(self, first: w.WorkRequest, nursery: trio.Nursery) -> None:
        request: w.WorkRequest | None = first
        try:
            while request is not None:
                self._take(request, nursery)
                await self._call.send_initial_metadata()  # the worker knows that it is in, before there is a job
                while self._unanswered > RESULTS_MAX_COUNT or self._has_too_many_bytes():
                    await self._wait_answered()
                request = await self._call.recv_message()
        except (PenstockError, GRPCError) as error:
            self._end(error)
        else:
            self._end(None)

    def _has_too_many_bytes(self) -> bool:
        return self._run_handler is not None and self._run_handler.pending_bytes > PENDING_MAX_BYTES

    def _take(self, request: w.WorkRequest, nursery: trio.Nursery) -> None:
        results = len(request.completions) + len(request.failures) + len(request.releases) + len(request.parks)
        check_count(results, "results")
        check_count(len(request.heartbeats), "heartbeats")
        if self._run_handler is not None:
            if results or request.heartbeats:
                raise BadRequest("executor: a stream of an executor takes no results or heartbeats of jobs")
            self._unanswered += self._run_handler.take(request)
        elif has_runs(request):
            raise BadRequest("executor: is missing from the first message of the stream, so the stream gets no runs")
        for credit in request.credits:
            self._jobs.grant(credit.job_type, credit.jobs)
            if credit.jobs < 0:
                self._credit_answers[credit.job_type] = None
                self._wake()
        if results:
            pending = _Pending()
            self._pending.append(pending)
            self._unanswered += results
            for items in (request.completions, request.failures, request.releases, request.parks):
                pending.attempts += [self._jobs.on_reported(item.job_id, item.attempt or 0) for item in items]
            nursery.start_soon(self._apply, pending, request)
        if request.heartbeats:
            self._unanswered += len(request.heartbeats)
            self._beating += 1
            nursery.start_soon(self._beat, request.heartbeats)

    async def _apply(self, pending: _Pending, request: w.WorkRequest) -> None:
        engine, worker = self._engine, self._jobs.worker
        outcomes: list[JobOutcome] = []
        if request.completions:
            outcomes += await worker_items.complete(engine, worker, request.completions)
        if request.failures:
            outcomes += await worker_items.fail(engine, worker, request.failures)
        if request.releases:
            outcomes += await worker_items.release(engine, worker, request.releases)
        if request.parks:
            outcomes += await worker_items.park(engine, worker, request.parks)
        for outcome, attempt in zip(outcomes, pending.attempts, strict=True):
            if attempt is not None:
                self._jobs.on_settled(outcome.job_id, attempt, final=outcome.outcome in _SETTLED)
        pending.outcomes = outcomes
        self._settled.set()
        self._settled = trio.Event()
        self._wake()

    async def _beat(self, items: list[Heartbeat]) -> None:
        self._beats += await worker_items.heartbeat(self._engine, self._jobs.worker, items)
        self._beating -= 1
        self._wake()

    # -- out

    async def _write(self) -> None:
        """Send what is there until the stream has ended and everything is answered."""
        run_handler = self._run_handler
        while True:
            message, answers = self._compose()
            if message is not None:
                await self._call.send_message(message)
                self._jobs.on_sent()
                if answers:
                    self._unanswered -= answers
                    self._answered.set()
            elif (
                self._ended and not self._pending and not self._beating and (run_handler is None or run_handler.is_idle)
            ):
                return
            else:
                await self._changed.wait()
                self._changed = trio.Event()

    def _compose(self) -> tuple[w.WorkResponse | None, int]:
        """A message of what is there, None when nothing is; and how many results it answers."""
        run_handler = self._run_handler
        if run_handler is not None and run_handler.has_taken:
            jobs: list[Job] = []
        else:
            jobs = self._jobs.take_nowait(MESSAGE_MAX_JOBS, MESSAGE_MAX_BYTES)
        if run_handler is not None:
            if jobs:
                run_handler.describe(jobs)
            jobs = []
        message = w.WorkResponse(jobs=jobs)
        if len(jobs) == 1 and text_bytes(jobs[0].variables) > MESSAGE_MAX_BYTES:
            return message, 0  # alone: nothing else shall make it too large for its client
        pending = self._pending
        while pending and pending[0].outcomes is not None and len(message.outcomes) < RESULTS_MAX_COUNT:
            found = pending.popleft().outcomes
            assert found is not None
            message.outcomes += found
        message.heartbeats, self._beats = self._beats, []
        lost, self._lost = self._lost, []
        for item in lost:
            if item.outcome == FenceDecision.CANCELLED.value:
                reason = "its instance ended or its step was interrupted"
                message.cancellations.append(w.Cancellation(item.job_id, item.attempt, reason))
            else:
                message.lease_losses.append(w.LeaseLoss(item.job_id, item.attempt))
        message.credits = [w.Credit(name, self._jobs.credit(name)) for name in self._credit_answers]
        self._credit_answers.clear()
        answers = len(message.outcomes) + len(message.heartbeats)
        if run_handler is not None:
            answers += run_handler.compose(message)
        empty = not (jobs or answers or lost or message.credits or message.runs or message.mail)
        return (None if empty else message), answers

    # -- beside

    async def _wait_answered(self) -> None:
        await self._answered.wait()
        self._answered = trio.Event()

    async def _watch_leases(self) -> None:
        """Tell of jobs that the worker lost, within about a second: those whose lease this engine does not know. What
        was cancelled through an engine that says so is told at once."""
        while True:
            poll_at = trio.current_time() + LOSS_POLL_INTERVAL_S
            if not await self._jobs.wait_notified(LOSS_POLL_INTERVAL_S):
                await trio.sleep_until(poll_at)
            try:
                lost = await self._jobs.find_lost()
            except PenstockError:  # the database is away: the next look
                continue
            if lost:
                if self._run_handler is not None:
                    self._run_handler.forget(item.job_id for item in lost)
                self._lost += lost
                self._wake()

    async def _watch_drain(self) -> None:
        """A draining engine pushes nothing more, and gives the worker some time for what it has."""
        await self._call.wait_draining()
        self._jobs.stop()
        with trio.move_on_after(DRAIN_RESULTS_S):
            await self._wait_settled()
        self._end(_ENGINE_STOPS)

    async def _watch_token(self) -> None:
        """A token that expires ends the stream, but costs no work: what was pushed is settled first."""
        await self._call.expired.wait()
        self._jobs.stop()
        await self._wait_settled()
        self._end(_TOKEN_OVER)

    async def _wait_settled(self) -> None:
        """An executor's runs have no result to wait for: others go on with them at once."""
        while self._jobs.has_unsettled and self._run_handler is None:
            await self._settled.wait()


def has_runs(request: w.WorkRequest) -> bool:
    """Return whether a message has items that only an executor may send."""
    return bool(
        request.appends or request.run_parks or request.finishes or request.reads or request.children or request.extends
    )
