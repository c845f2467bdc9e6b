"""What the connections of the load generator do: start instances, work on jobs, park.

A plan says what one generator process does, in a form that travels to it; ``open`` makes its connections. Everything
that can be built before the run is: a completed job costs one concatenation and one `send`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Protocol

import msgspec

from benchmarks.load.counts import Count, Counts, Samples
from benchmarks.load.http1 import encode_head, encode_request
from benchmarks.load.loop import Connection, Loop

ERRORS_KEPT = 5
RETRY_PAUSE_S = 0.05
"""Before a worker polls again after an answer that was an error."""
EMPTY_PAUSE_S = 0.005
"""Before it polls again where nothing was there."""


class PolledJob(msgspec.Struct):
    """The part of a job that a worker here needs."""

    id: str
    jobType: str  # noqa: N815 - the wire's name
    attempt: int = 0


class PollAnswer(msgspec.Struct):
    jobs: list[PolledJob]


decode_poll = msgspec.json.Decoder(PollAnswer).decode


@dataclass
class Context:
    """What scripts of one process share."""

    loop: Loop
    host: str
    counts: Counts
    samples: Samples
    problems: list[str] = field(default_factory=list[str])
    quota: Quota | None = None

    def ended(self, instances: int) -> None:
        """Last jobs of instances were completed."""
        self.counts[Count.ENDED] += instances
        if self.quota is not None:
            for _ in range(instances):
                self.quota.ended()

    def failed(self, what: str, status: int, body: bytes) -> None:
        """An answer that should not be; the first few are kept for the report."""
        self.counts[Count.ERRORS] += 1
        if len(self.problems) < ERRORS_KEPT:
            self.problems.append(f"{what}: {status} {body[:300].decode(errors='replace')}")


class Plan(Protocol):
    """What one generator process does."""

    def open(self, context: Context) -> None:
        """Make the connections."""
        ...

    def share(self, index: int, of: int) -> Plan:
        """The part of one of several processes."""
        ...


def part(number: int, index: int, of: int) -> int:
    """The share of ``number`` that falls to process ``index``."""
    return number // of + (1 if index < number % of else 0)


# -- starting


class Quota:
    """How many instances may still be asked for; shared by the connections of a process.

    With ``in_flight`` only so many are open at a time: each that ends lets another one start.
    """

    def __init__(self, instances: int, in_flight: int | None = None) -> None:
        self._later = 0 if in_flight is None else max(0, instances - in_flight)
        self._left = instances - self._later
        self._waiting: list[Starter] = []

    def take(self, wanted: int, starter: Starter) -> int:
        """Up to ``wanted``, 0 when there is nothing now; the starter is told when there is again. A batch that is to
        be limited is only given whole, as long as others are to come."""
        if self._left < wanted and self._later:
            self._waiting.append(starter)
            return 0
        taken = min(wanted, self._left)
        self._left -= taken
        return taken

    def ended(self) -> None:
        """An instance ended."""
        if self._later:
            self._later -= 1
            self._left += 1
            if self._waiting:
                self._waiting.pop().go()


class Starter:
    """Starts instances one after the other, singly (``batch`` 0) or in batches, at full speed or paced."""

    def __init__(self, context: Context, plan: StartPlan, quota: Quota) -> None:
        self._context = context
        self._quota = quota
        self._batch = plan.batch
        self._item = plan.body
        self._interval_s = None if plan.rate is None else max(plan.batch, 1) * plan.connections / plan.rate
        self._next_at = 0.0
        self._asked = 0
        self._sent_at = 0.0
        self._connection: Connection | None = None
        self._requests: dict[int, bytes] = {}
        self._keys = cycle(range(plan.flow_keys)) if plan.flow_keys else None
        self._moments, self._durations = context.samples.of("start")

    def begin(self, connection: Connection) -> None:
        self._connection = connection
        self._next_at = time.monotonic()
        self.go()

    def answered(self, status: int, body: bytes) -> bytes | None:
        context, now = self._context, time.monotonic()
        context.counts[Count.CALLS] += 1
        self._moments.append(now)
        self._durations.append(now - self._sent_at)
        if self._batch:
            started = body.count(b'"instance":{') if status == 200 else 0
            if started != self._asked:
                context.failed(f"start of {self._asked} instances ({started} started)", status, body)
        else:
            started = int(status == 201)
            if not started:
                context.failed("start", status, body)
        context.counts[Count.STARTED] += started
        if self._interval_s is None:
            return self._request()
        self._next_at = max(self._next_at + self._interval_s, now - 1.0)  # at most a second is caught up
        if self._next_at <= now:
            return self._request()
        context.loop.call_at(self._next_at, self.go)
        return None

    def go(self) -> None:
        """Send the next start, if there is one to send."""
        request = self._request()
        if request is not None:
            assert self._connection is not None
            self._connection.send(request)

    def _request(self) -> bytes | None:
        self._asked = asked = self._quota.take(max(self._batch, 1), self)
        if not asked:
            return None
        self._sent_at = time.monotonic()
        request = self._requests.get(asked)
        if request is None:
            host = self._context.host
            items = [self._item] * asked
            if self._keys is not None:
                items = [b'%s,"flowKey":"k%d"}' % (item[:-1], next(self._keys)) for item in items]
            if self._batch:
                body = b'{"items":[' + b",".join(items) + b"]}"
                request = encode_request("POST", "/v1/instances/batch", host, body)
            else:
                request = encode_request("POST", "/v1/instances", host, items[0])
            if self._keys is None:
                self._requests[asked] = request
        return request


@dataclass(frozen=True)
class StartPlan:
    """Start ``instances`` (``body`` each) on some connections. ``rate``: instances per second, None for full speed.
    ``flow_keys``: so many of them, in turn; 0: none. ``in_flight``: open instances at a time (the workers run in the
    same plan then)."""

    connections: int
    instances: int
    body: bytes
    batch: int = 0
    rate: float | None = None
    in_flight: int | None = None
    flow_keys: int = 0

    def open(self, context: Context) -> None:
        quota = Quota(self.instances, self.in_flight)
        if self.in_flight is not None:
            context.quota = quota
        for _ in range(self.connections):
            context.loop.connect(Starter(context, self, quota))

    def share(self, index: int, of: int) -> Plan:
        return replace(
            self,
            connections=part(self.connections, index, of),
            instances=part(self.instances, index, of),
            rate=None if self.rate is None else self.rate / of,
            in_flight=None if self.in_flight is None else part(self.in_flight, index, of),
        )


# -- working


class Worker:
    """Polls, completes what it got, polls again: on one connection, so never two calls at once."""

    def __init__(self, context: Context, plan: WorkPlan, name: str, batched: Batched | None) -> None:
        self._context = context
        self._connection: Connection | None = None
        self._poll = poll_request(context.host, name, plan.job_types, plan.max_jobs, plan.wait_s)
        self._jobs: list[PolledJob] = []
        self._completing = 0
        self._ending = 0
        self._last_type = plan.job_types[-1]
        self._sent_at = 0.0
        self._batched = batched
        self._singles = {} if batched else single_completions(context.host, name, plan.outputs)
        self._counter = plan.counter
        self._name = name
        self._moments, self._durations = context.samples.of("complete")

    def begin(self, connection: Connection) -> None:
        self._connection = connection
        connection.send(self._poll)

    def answered(self, status: int, body: bytes) -> bytes | None:
        counts = self._context.counts
        counts[Count.CALLS] += 1
        if self._completing:
            self._completed(status, body)
        else:
            counts[Count.POLLS] += 1
            if status != 200:
                self._context.failed("poll", status, body)
                self._context.loop.call_at(time.monotonic() + RETRY_PAUSE_S, self._again)
                return None
            self._jobs = decode_poll(body).jobs
            counts[Count.JOBS] += len(self._jobs)
            if not self._jobs:  # of engines that do not wait, or have waited for long
                self._context.loop.call_at(time.monotonic() + EMPTY_PAUSE_S, self._again)
                return None
        if not self._jobs:
            return self._poll
        self._sent_at = time.monotonic()
        if self._batched is not None:
            self._completing, jobs, self._jobs = len(self._jobs), self._jobs, []
            self._ending = sum(job.jobType == self._last_type for job in jobs)
            return self._batched.request(jobs)
        self._completing = 1
        job = self._jobs.pop()
        self._ending = int(job.jobType == self._last_type)
        if self._counter:
            return self._counted(job)
        return b"POST /v1/jobs/" + job.id.encode() + self._singles[job.jobType]

    def _again(self) -> None:
        assert self._connection is not None
        self._connection.send(self._poll)

    def _completed(self, status: int, body: bytes) -> None:
        now = time.monotonic()
        self._moments.append(now)
        self._durations.append(now - self._sent_at)
        asked, self._completing = self._completing, 0
        if self._batched is None:
            done = int(status == 204)
        elif status == 200:
            done = body.count(b'"outcome":"ok"')
        else:
            done = 0
        if done != asked:
            self._context.failed(f"completion of {asked}", status, body)
        self._context.counts[Count.COMPLETED] += done
        if self._ending and done == asked:
            self._context.ended(self._ending)

    def _counted(self, job: PolledJob) -> bytes:
        done = self._context.counts[Count.COMPLETED] + 1
        body = b'{"workerId":"%b","variables":{"%b":%d}}' % (self._name.encode(), self._counter.encode(), done)
        return encode_request("POST", f"/v1/jobs/{job.id}/complete", self._context.host, body)


class Batched:
    """Builds batch completions of one worker name."""

    def __init__(self, host: str, name: str, outputs: dict[str, bytes]) -> None:
        self._host = host
        self._start = b'{"workerId":"%b","results":[' % name.encode()
        self._outputs = {job_type: b',"variables":%b}' % output for job_type, output in outputs.items()}

    def request(self, jobs: list[PolledJob]) -> bytes:
        outputs = self._outputs
        items = [b'{"jobId":"%b","attempt":%d%b' % (job.id.encode(), job.attempt, outputs[job.jobType]) for job in jobs]
        return encode_request("POST", "/v1/jobs/complete", self._host, self._start + b",".join(items) + b"]}")


@dataclass(frozen=True)
class WorkPlan:
    """Workers that poll all of ``job_types`` and answer with the type's output (JSON object).

    ``batch``: one completion call for all jobs of a poll, else one call each. ``counter``: instead of the outputs set
    this variable to the number of jobs completed so far. A job of the last type ends its instance.
    """

    workers: int
    job_types: tuple[str, ...]
    outputs: dict[str, bytes]
    max_jobs: int = 1
    batch: bool = False
    wait_s: float = 20
    counter: str = ""
    name: str = "bench"

    def open(self, context: Context) -> None:
        for index in range(self.workers):
            name = f"{self.name}-{index}"
            batched = Batched(context.host, name, self.outputs) if self.batch else None
            context.loop.connect(Worker(context, self, name, batched))

    def share(self, index: int, of: int) -> Plan:
        return replace(self, workers=part(self.workers, index, of), name=f"{self.name}-{index}")


def poll_request(host: str, worker: str, job_types: tuple[str, ...], max_jobs: int, wait_s: float) -> bytes:
    """A long poll."""
    body = msgspec.json.encode(
        {"workerId": worker, "jobTypes": job_types, "maxJobs": max_jobs, "waitSeconds": wait_s, "leaseSeconds": 60}
    )
    return encode_request("POST", "/v1/jobs/poll", host, body)


def single_completions(host: str, worker: str, outputs: dict[str, bytes]) -> dict[str, bytes]:
    """What follows the job's id in the request that completes it, by job type."""
    endings: dict[str, bytes] = {}
    for job_type, output in outputs.items():
        body = b'{"workerId":"%b","variables":%b}' % (worker.encode(), output)
        endings[job_type] = encode_head("POST", "/complete", host, len(body)).removeprefix(b"POST ") + body
    return endings


# -- parking


class Parked:
    """A worker for whom there is never anything to do."""

    def __init__(self, context: Context, name: str, job_type: str, wait_s: float) -> None:
        self._context = context
        self._poll = poll_request(context.host, name, (job_type,), 1, wait_s)

    def begin(self, connection: Connection) -> None:
        connection.send(self._poll)

    def answered(self, status: int, body: bytes) -> bytes | None:
        self._context.counts[Count.POLLS] += 1
        if status != 200 or decode_poll(body).jobs:
            self._context.failed("idle poll", status, body)
        return self._poll


@dataclass(frozen=True)
class ParkPlan:
    """Workers parked on job types that have no jobs."""

    workers: int
    job_types: tuple[str, ...]
    wait_s: float = 60

    def open(self, context: Context) -> None:
        for index in range(self.workers):
            job_type = self.job_types[index % len(self.job_types)]
            context.loop.connect(Parked(context, f"idle-{index}", job_type, self.wait_s))

    def share(self, index: int, of: int) -> Plan:
        return replace(self, workers=part(self.workers, index, of))
