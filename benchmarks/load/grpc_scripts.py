"""gRPC workers of the load generator: `workflow.v1` with one call per job, and `penstock.v1`'s Work stream.

Messages are put together from parts that are encoded once, by the project's own codec; answers are read by hand, as
far as a worker here needs them: the engine writes fields in the order of their numbers. Jobs are completed as in
`scripts.py`.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, replace

from benchmarks.load.counts import Count
from benchmarks.load.http2 import Http2
from benchmarks.load.loop import Connection
from benchmarks.load.scripts import Context, Plan, part
from penstock.wire import penstock_v1 as w
from penstock.wire import workflow_v1 as m
from penstock.wire.codec import encode_message
from penstock.wire.model import Completion, JobOutcome, PollRequest
from penstock.wire.protobuf import write_varint

WORKFLOW = "/workflow.v1.WorkflowEngine/"
WORK = "/penstock.v1.Worker/Work"
EMPTY_PAUSE_S = 0.005
"""Before a worker polls again when nothing was there: `PollJobs` does not wait."""

_OK = encode_message(JobOutcome(outcome="ok"))


def field(tag: int, body: bytes) -> bytes:
    """A field of bytes."""
    return bytes((tag,)) + write_varint(len(body)) + body


def read_length(data: bytes, pos: int) -> tuple[int, int]:
    """A length and where what it measures begins."""
    size = data[pos]
    if size < 0x80:
        return size, pos + 1
    size &= 0x7F
    shift = 7
    while True:
        pos += 1
        byte = data[pos]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, pos + 1
        shift += 7


def read_job(data: bytes, pos: int) -> tuple[bytes, str]:
    """The id and type of the job that begins there: the first two fields in both services."""
    size = data[pos + 1]
    id = data[pos + 2 : pos + 2 + size]
    pos += 2 + size
    size = data[pos + 1]
    return id, data[pos + 2 : pos + 2 + size].decode()


def read_jobs(body: bytes) -> list[tuple[bytes, str]]:
    """Id and type of the jobs of a `PollJobsResponse`, which has nothing else."""
    jobs: list[tuple[bytes, str]] = []
    pos, end = 0, len(body)
    while pos < end:
        size, begin = read_length(body, pos + 1)
        jobs.append(read_job(body, begin))
        pos = begin + size
    return jobs


def read_attempt(data: bytes, pos: int) -> int:
    """The attempt of the `penstock.v1` job that begins there: a number behind four texts."""
    for _ in range(4):
        size, pos = read_length(data, pos + 1)
        pos += size
    return read_length(data, pos + 1)[0]


def read_work(body: bytes) -> tuple[list[tuple[bytes, str, int]], int, int]:
    """A `WorkResponse`: id, type and attempt of its jobs; how many outcomes it has, and how many of them are OK."""
    jobs: list[tuple[bytes, str, int]] = []
    answered = done = 0
    pos, end = 0, len(body)
    while pos < end:
        tag = body[pos]
        size, pos = read_length(body, pos + 1)
        if tag == 0x0A:
            jobs.append((*read_job(body, pos), read_attempt(body, pos)))
        elif tag == 0x12:
            answered += 1
            done += body[pos + size - 2 : pos + size] == _OK
        pos += size
    return jobs, answered, done


def completion(id: bytes, attempt: int, output: bytes) -> bytes:
    """A completion in a `WorkRequest`; ``output`` is the encoded rest of it."""
    return field(0x22, field(0x0A, id) + b"\x10" + write_varint(attempt) + output)


def credit(encoded: bytes, jobs: int) -> bytes:
    """A credit in a `WorkRequest`; ``encoded`` is one without a number."""
    return field(0x1A, encoded + b"\x10" + write_varint(jobs))


class UnaryWorker:
    """Polls, completes each job that it got with a call of its own, and polls again, on a connection of its own."""

    def __init__(self, context: Context, plan: GrpcWorkPlan, name: str) -> None:
        self._context = context
        self._http2 = Http2(context.host, self._answered, self._ended)
        self._connection: Connection | None = None
        self._poll = encode_message(PollRequest(name, list(plan.job_types), plan.max_jobs, 60))
        self._rest = {
            job_type: encode_message(Completion("", worker_id=name, variables=output), m.PACKAGE)
            for job_type, output in plan.outputs.items()
        }
        self._last_type = plan.job_types[-1]
        self._completing: str | None = None
        self._jobs: list[tuple[bytes, str]] = []
        self._answer = b""
        self._sent_at = 0.0
        self._moments, self._durations = context.samples.of("complete")
        self.received = self._http2.received

    def begin(self, connection: Connection) -> None:
        self._connection = connection
        self._http2.begin(connection)
        self._again()

    def _again(self) -> None:
        self._send("PollJobs", self._poll)

    def _send(self, method: str, body: bytes) -> None:
        assert self._connection is not None
        self._connection.send(self._http2.call(WORKFLOW + method, body, end=True))

    def _answered(self, body: bytes) -> None:
        self._answer = body

    def _ended(self, status: int) -> None:
        counts, context = self._context.counts, self._context
        body, self._answer = self._answer, b""
        counts[Count.CALLS] += 1
        if self._completing is not None:
            self._completed(status)
        else:
            counts[Count.POLLS] += 1
            if status:
                context.failed("poll", status, body)
            self._jobs = read_jobs(body)
            counts[Count.JOBS] += len(self._jobs)
            if not self._jobs:
                context.loop.call_at(time.monotonic() + EMPTY_PAUSE_S, self._again)
                return
        if not self._jobs:
            self._again()
            return
        id, self._completing = self._jobs.pop()
        self._sent_at = time.monotonic()
        self._send("CompleteJob", field(0x0A, id) + self._rest[self._completing])

    def _completed(self, status: int) -> None:
        now = time.monotonic()
        self._moments.append(now)
        self._durations.append(now - self._sent_at)
        job_type, self._completing = self._completing, None
        if status:
            self._context.failed("completion", status, b"")
            return
        self._context.counts[Count.COMPLETED] += 1
        if job_type == self._last_type:
            self._context.ended(1)


class StreamWorker:
    """One Work stream: whatever comes in a message is completed in one, with as much new credit."""

    def __init__(self, context: Context, plan: GrpcWorkPlan, name: str) -> None:
        self._context = context
        self._http2 = Http2(context.host, self._answered, self._ended)
        self._connection: Connection | None = None
        share = {name: part(plan.in_flight, index, len(plan.job_types)) for index, name in enumerate(plan.job_types)}
        granted = [w.Credit(job_type, jobs) for job_type, jobs in share.items()]
        self._first = encode_message(w.WorkRequest(name, 60, granted))
        self._credit = {name: encode_message(w.Credit(name)) for name in plan.job_types}
        self._output = {
            name: encode_message(w.Completion(variables=output), w.PACKAGE) for name, output in plan.outputs.items()
        }
        self._last_type = plan.job_types[-1]
        self._sent: deque[tuple[float, int, int]] = deque()
        self._moments, self._durations = context.samples.of("complete")
        self.received = self._http2.received

    def begin(self, connection: Connection) -> None:
        self._connection = connection
        self._http2.begin(connection)
        connection.send(self._http2.call(WORK, self._first, end=False))

    def _ended(self, status: int) -> None:
        raise ConnectionResetError(f"the Work stream ended with status {status}")

    def _answered(self, body: bytes) -> None:
        counts = self._context.counts
        counts[Count.CALLS] += 1
        jobs, answered, done = read_work(body)
        if jobs:
            counts[Count.JOBS] += len(jobs)
            types = Counter(job_type for _, job_type, _ in jobs)
            parts = [completion(id, attempt, self._output[job_type]) for id, job_type, attempt in jobs]
            parts += [credit(self._credit[name], number) for name, number in types.items()]
            self._sent.append((time.monotonic(), len(jobs), types[self._last_type]))
            assert self._connection is not None
            self._connection.send(self._http2.more(b"".join(parts)))
        if answered:
            self._settled(answered, done)

    def _settled(self, answered: int, done: int) -> None:
        """Outcomes of one message come in one, messages in their order."""
        now = time.monotonic()
        if done != answered:
            self._context.failed(f"completion of {answered} jobs ({done} done)", 0, b"")
        self._context.counts[Count.COMPLETED] += done
        while answered:
            sent_at, jobs, ending = self._sent.popleft()
            answered -= jobs
            self._moments.append(now)
            self._durations.append(now - sent_at)
            if ending:
                self._context.ended(ending)


@dataclass(frozen=True)
class GrpcWorkPlan:
    """Workers at ``address`` that answer all of ``job_types`` with the type's output (JSON object).

    ``in_flight`` 0: polls of up to ``max_jobs`` and one call per job; else a Work stream with credit for so many jobs.
    A job of the last type ends its instance.
    """

    address: tuple[str, int]
    workers: int
    job_types: tuple[str, ...]
    outputs: dict[str, bytes]
    in_flight: int = 0
    name: str = "bench"
    max_jobs: int = 1

    def open(self, context: Context) -> None:
        kind = StreamWorker if self.in_flight else UnaryWorker
        for index in range(self.workers):
            context.loop.connect_bytes(kind(context, self, f"{self.name}-{index}"), *self.address)

    def share(self, index: int, of: int) -> Plan:
        return replace(self, workers=part(self.workers, index, of), name=f"{self.name}-{index}")
