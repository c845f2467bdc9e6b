"""The Work stream: jobs pushed over gRPC within the credit that the worker gives, results sent back on the same stream.

One stream at a time; when it breaks it is opened again, with growing pauses, for as long as the worker runs. Results
whose outcomes had not come then fail with ``Unavailable``: the reporter offers them again, and their attempt fences
them, so none is lost or counts twice. Jobs that the worker still holds then are asked for at once (`intake.renew`),
because an engine that lives puts the jobs of a broken stream back into the queue.

Heartbeats, checkpoints and what is too large for the stream go as unary calls on the same connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.lowlevel
import msgspec

from penstock.client.errors import ClientError, ConnectionFailed, InternalError, TimedOut
from penstock.client.grpc import GrpcTransport
from penstock.client.grpc.call import GrpcCall
from penstock.client.grpc.credit import CreditBook
from penstock.client.grpc.jobs import completion_message, failure_message, job_of, park_message, release_message
from penstock.client.grpc.unary import WORKER
from penstock.wire import penstock_v1 as w
from penstock.wire.codec import decode_message, encode_message
from penstock.wire.model import Completion, Failure, Job, JobOutcome, JobRef, Park
from penstock.wire.noun import text_bytes
from penstock.wire.protobuf import DecodeError
from penstock.worker.held import LOGGER, StopReason
from penstock.worker.intake import JobIntake, Subscription
from penstock.worker.outage import Outage
from penstock.worker.transport import EXCHANGE_TIMEOUT_S, NO_JOBS, EngineReports, WorkerIdentity, may_pass

# An engine takes messages of 4 MiB by default; many small ones cost more than a few of this size.
MESSAGE_BYTES = 1024 * 1024
# Tasks that have something for the next message get so many turns to say so.
GATHER_ITERATIONS = 2
# After that without a refusal a stream counts as taken.
TAKEN_LATEST_S = 5.0

ResultMessage = Completion | Failure | JobRef | Park


class _Batch:
    """Results that go out in one message and are answered together."""

    def __init__(self, items: Sequence[ResultMessage]) -> None:
        self.items = items
        self.outcomes: list[JobOutcome] = []
        self.error: ClientError | None = None
        self.settled = anyio.Event()

    def fail(self, error: ClientError) -> None:
        """No answer will come."""
        if not self.settled.is_set():
            self.error = error
            self.settled.set()

    def answer(self, outcome: JobOutcome) -> None:
        """The next item's outcome."""
        self.outcomes.append(outcome)
        if len(self.outcomes) == len(self.items):
            self.settled.set()


class _Stream:
    """One open stream: what waits to be sent, and what waits for its answer."""

    def __init__(self, call: GrpcCall, intake: JobIntake, identity: WorkerIdentity) -> None:
        self._call = call
        self._intake = intake
        self._identity = identity
        self._credit = CreditBook()
        self._subscriptions = {
            job_type: subscription for subscription in intake.subscriptions for job_type in subscription.job_types
        }
        self._to_send: deque[_Batch] = deque()
        self._unanswered: deque[_Batch] = deque()
        self._changed = anyio.Event()
        self.answered = False
        """Whether the engine has said anything."""

    async def run(self, on_taken: Callable[[], None]) -> None:
        """Send and receive until the stream ends, which always raises ClientError. ``on_taken`` is called when it is
        known that the engine has taken the stream.

        Raises:
            ClientError: why it ended.
        """
        error: ClientError | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_stream)
                tasks.start_soon(self._write)
                try:
                    await self._wait_taken()
                    on_taken()
                    await self._read()
                except ClientError as raised:
                    error = raised
                tasks.cancel_scope.cancel()
        finally:
            for batch in (*self._unanswered, *self._to_send):
                batch.fail(error or ConnectionFailed("the stream ended"))
        if error is not None:
            raise error

    def put(self, batch: _Batch) -> None:
        """Send a batch with the next message."""
        self._to_send.append(batch)
        self._changed.set()

    def drop(self, batch: _Batch) -> None:
        """Nobody waits for the batch any more; what was not sent will not be."""
        if batch in self._to_send:
            self._to_send.remove(batch)

    # -- out

    async def _watch_stream(self) -> None:
        while True:
            await self._intake.wait_changed()
            self._changed.set()

    async def _write(self) -> None:
        first = w.WorkRequest(worker_id=self._identity.worker_id, lease_seconds=self._identity.lease_s)
        first.credits = self._credit.changes(self._intake.subscriptions)
        await self._call.send(encode_message(first))
        while True:
            await self._changed.wait()
            for _ in range(GATHER_ITERATIONS):
                await anyio.lowlevel.checkpoint()
            self._changed = anyio.Event()
            await self._send_what_is_there()

    async def _send_what_is_there(self) -> None:
        changes = self._credit.changes(self._intake.subscriptions)
        while changes or self._to_send:
            message = w.WorkRequest(credits=changes)
            if self._to_send:
                batch = self._to_send.popleft()
                self._unanswered.append(batch)
                for item in batch.items:
                    if isinstance(item, Completion):
                        message.completions.append(item)
                    elif isinstance(item, Failure):
                        message.failures.append(item)
                    elif isinstance(item, Park):
                        message.parks.append(item)
                    else:
                        message.releases.append(item)
            await self._call.send(encode_message(message))
            changes = []

    # -- in

    async def _wait_taken(self) -> None:
        """Until the engine has said that the stream is taken, which an older one says with its first message only.
        Raises what the stream is refused with."""
        with anyio.move_on_after(TAKEN_LATEST_S):
            await self._call.wait_taken()
            self.answered = True

    async def _read(self) -> None:
        while (body := await self._call.receive()) is not None:
            self.answered = True
            try:
                self._take(decode_message(body, w.WorkResponse, as_values=True))
            except (DecodeError, msgspec.MsgspecError) as error:
                raise InternalError(f"unreadable message on the Work stream: {error}") from error
        raise ConnectionFailed("the engine ended the stream")

    def _take(self, message: w.WorkResponse) -> None:
        for job in message.jobs:
            self._take_job(job)
        for credit in message.credits:
            self._credit.answered(credit)
        for outcome in message.outcomes:
            if not self._unanswered:
                raise InternalError("the engine answered a result that was not sent")
            self._unanswered[0].answer(outcome)
            if self._unanswered[0].settled.is_set():
                self._unanswered.popleft()
        for loss in message.lease_losses:
            self._intake.lost(JobRef(job_id=loss.job_id, attempt=loss.attempt), StopReason.LEASE_LOST)
        for end in message.cancellations:
            self._intake.lost(JobRef(job_id=end.job_id, attempt=end.attempt), StopReason.CANCELLED)
        if message.jobs or message.credits:
            self._changed.set()

    def _take_job(self, message: Job) -> None:
        self._credit.used(message.job_type)
        subscription: Subscription | None = self._subscriptions.get(message.job_type)
        if subscription is None or self._intake.draining:  # on its way when the credit was taken back
            self.put(_Batch([JobRef(job_id=message.id, attempt=message.attempt)]))
        else:
            subscription.accept([job_of(message, self._identity.worker_id)])


class WorkerStream(EngineReports):
    """A worker's connection over gRPC.

    Args:
        transport: how to reach the engine; not closed by this.
        identity: the holder of the leases and their length.
    """

    def __init__(self, transport: GrpcTransport, identity: WorkerIdentity) -> None:
        super().__init__(transport, identity)
        self._channel = transport.channel
        self._stream: _Stream | None = None
        self._opened = anyio.Event()
        self._refused = False

    async def run(self, intake: JobIntake) -> None:
        """See ``WorkTransport``."""
        outage = Outage(NO_JOBS)
        answered = False
        while True:
            stream: _Stream | None = None
            try:
                async with self._open(intake) as stream:
                    if outage.away:
                        intake.renew()
                    await stream.run(partial(self._on_taken, intake, outage))
            except ClientError as error:
                answered = answered or (stream is not None and stream.answered)
                if not may_pass(error, answered=answered):
                    LOGGER.error("the engine gives this worker no jobs: %s", error)  # raised after the drain
                    intake.refuse(error)
                    self._refused = True
                    return
                pause_s = outage.note(error)
                intake.set_reachable(False)
                await anyio.sleep(pause_s)

    def _on_taken(self, intake: JobIntake, outage: Outage) -> None:
        intake.set_reachable(True)
        outage.over("the stream to the engine is open again")

    @asynccontextmanager
    async def _open(self, intake: JobIntake) -> AsyncGenerator[_Stream]:
        async with self._channel.open(f"{WORKER}Work") as call:
            stream = self._stream = _Stream(call, intake, self.identity)
            self._opened.set()
            try:
                yield stream
            finally:
                self._stream = None
                self._opened = anyio.Event()

    # -- reports

    async def complete(self, results: Sequence[Completion]) -> list[JobOutcome]:
        """See ``WorkTransport``."""
        if self._refused:
            return await super().complete(results)
        small: list[Completion] = []
        outcomes: list[JobOutcome] = []
        for result in results:
            message = completion_message(result)
            if text_bytes(message.variables) <= MESSAGE_BYTES:
                small.append(message)
            else:
                # Over the size that an engine takes, a message would end the stream and all that is on it.
                outcomes += await super().complete([result])
        return outcomes + await self._report(small)

    async def fail(self, results: Sequence[Failure]) -> list[JobOutcome]:
        """See ``WorkTransport``."""
        if self._refused:
            return await super().fail(results)
        small: list[Failure] = []
        outcomes: list[JobOutcome] = []
        for result in results:
            message = failure_message(result)
            if text_bytes(message.variables) <= MESSAGE_BYTES:
                small.append(message)
            else:
                outcomes += await super().fail([result])
        return outcomes + await self._report(small)

    async def park(self, results: Sequence[Park]) -> list[JobOutcome]:
        """See ``WorkTransport``."""
        if self._refused:
            return await super().park(results)
        return await self._report([park_message(result) for result in results])

    async def release(self, jobs: Sequence[JobRef]) -> list[JobOutcome]:
        """See ``WorkTransport``."""
        if self._stream is None:  # at the end of the worker
            return await super().release(jobs)
        return await self._report([release_message(job) for job in jobs])

    async def _report(self, messages: Sequence[ResultMessage]) -> list[JobOutcome]:
        """Send results on the stream, or on the next one if there is none, and wait for their outcomes."""
        batches = [_Batch(part) for part in _parts(messages)]
        stream: _Stream | None = None
        try:
            with anyio.fail_after(EXCHANGE_TIMEOUT_S):
                while (stream := self._stream) is None:
                    await self._opened.wait()
                for batch in batches:
                    stream.put(batch)
                for batch in batches:
                    await batch.settled.wait()
        except TimeoutError as error:
            if stream is None:
                raise ConnectionFailed("no stream to the engine is open", maybe_applied=False) from error
            raise TimedOut(f"no answer on the Work stream within {EXCHANGE_TIMEOUT_S:g} s") from error
        finally:
            for batch in batches:
                if stream is not None:
                    stream.drop(batch)
        for batch in batches:
            if batch.error is not None:
                raise ConnectionFailed(f"the stream broke before the answer: {batch.error.reason}") from batch.error
        return [outcome for batch in batches for outcome in batch.outcomes]


def _parts(messages: Sequence[ResultMessage]) -> list[list[ResultMessage]]:
    """Messages of a size that every engine takes. Items are alike: all completions, failures, releases or parks."""
    parts: list[list[ResultMessage]] = []
    size_bytes = 0
    for message in messages:
        item_bytes = text_bytes(message.variables) if isinstance(message, Completion | Failure) else 0
        if not parts or size_bytes + item_bytes > MESSAGE_BYTES:
            parts.append([])
            size_bytes = 0
        parts[-1].append(message)
        size_bytes += item_bytes
    return parts
