"""The latency probe: one instance at a time on an otherwise idle engine, with workers parked in long polls.

Times, in the client: start sent → last completion confirmed (the instance is durable and COMPLETED by then), and from
the confirmation of a commit to the next job in a worker's hands (0 when the job was there first).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.load.counts import Count
from benchmarks.load.http1 import encode_request
from benchmarks.load.loop import Connection
from benchmarks.load.scripts import Context, Plan, decode_poll, poll_request, single_completions


class Round:
    """The instance under way."""

    def __init__(self, context: Context, plan: ProbePlan) -> None:
        self._context = context
        self._plan = plan
        self._request = encode_request("POST", "/v1/instances", context.host, plan.body)
        self._starter: Connection | None = None
        self._started_at = 0.0
        self._committed: dict[int, float] = {}
        self._received: dict[int, float] = {}
        self._left = plan.rounds

    # -- the starter's script

    def begin(self, connection: Connection) -> None:
        self._starter = connection
        self._context.loop.call_at(time.monotonic() + self._plan.settle_s, self._start)

    def answered(self, status: int, body: bytes) -> bytes | None:
        self._context.counts[Count.CALLS] += 1
        if status != 201:
            self._context.failed("start", status, body)
        self._note("start", time.monotonic() - self._started_at)
        self.committed(0)
        return None

    # -- told by the workers

    def committed(self, position: int) -> None:
        """The commit that made the job at ``position`` was confirmed."""
        self._committed[position] = time.monotonic()
        self._pair(position)

    def received(self, position: int) -> None:
        """The job at ``position`` arrived."""
        self._received[position] = time.monotonic()
        self._pair(position)

    def ended(self, now: float) -> None:
        """The last job's completion was confirmed, at that `time.monotonic()`."""
        self._note("round", now - self._started_at)
        self._context.counts[Count.ENDED] += 1
        self._left -= 1
        if self._left:
            self._context.loop.call_at(now + self._plan.pause_s, self._start)

    def completed(self, seconds: float) -> None:
        """A completion was confirmed after this long."""
        self._note("complete", seconds)

    def _start(self) -> None:
        self._committed.clear()
        self._received.clear()
        self._started_at = time.monotonic()
        assert self._starter is not None
        self._starter.send(self._request)

    def _pair(self, position: int) -> None:
        committed, received = self._committed.get(position), self._received.get(position)
        if committed is not None and received is not None:
            self._note("pickup", max(0.0, received - committed))

    def _note(self, kind: str, seconds: float) -> None:
        moments, durations = self._context.samples.of(kind)
        moments.append(time.monotonic())
        durations.append(seconds)


class ProbeWorker:
    """Parked in a poll for one job; completes it on the same connection, and parks again."""

    def __init__(self, context: Context, plan: ProbePlan, round_: Round, name: str) -> None:
        self._context = context
        self._round = round_
        self._order = {job_type: position for position, job_type in enumerate(plan.job_types)}
        self._poll = poll_request(context.host, name, plan.job_types, 1, plan.wait_s)
        self._completions = single_completions(context.host, name, plan.outputs)
        self._completing = -1
        self._sent_at = 0.0
        self._connection: Connection | None = None

    def begin(self, connection: Connection) -> None:
        self._connection = connection
        connection.send(self._poll)

    def answered(self, status: int, body: bytes) -> bytes | None:
        context, now = self._context, time.monotonic()
        context.counts[Count.CALLS] += 1
        if self._completing < 0:
            jobs = decode_poll(body).jobs if status == 200 else []
            if not jobs:
                return self._poll
            assert self._connection is not None
            self._connection.send(b"POST /v1/jobs/" + jobs[0].id.encode() + self._completions[jobs[0].jobType])
            self._completing = self._order[jobs[0].jobType]
            self._sent_at = now
            self._round.received(self._completing)
            return None
        position, self._completing = self._completing, -1
        if status != 204:
            context.failed("completion", status, body)
        self._round.completed(now - self._sent_at)
        context.counts[Count.COMPLETED] += 1
        if position + 1 == len(self._order):
            self._round.ended(now)
        else:
            self._round.committed(position + 1)
        return self._poll


@dataclass(frozen=True)
class ProbePlan:
    """``rounds`` instances one after the other, ``pause_s`` between them; one process only."""

    rounds: int
    workers: int
    body: bytes
    job_types: tuple[str, ...]
    outputs: dict[str, bytes]
    pause_s: float = 0.02
    settle_s: float = 0.5
    wait_s: float = 30

    def open(self, context: Context) -> None:
        round_ = Round(context, self)
        for index in range(self.workers):
            context.loop.connect(ProbeWorker(context, self, round_, f"probe-{index}"))
        context.loop.connect(round_)

    def share(self, index: int, of: int) -> Plan:
        if of != 1:
            raise ValueError("the latency probe runs in one process")
        return self
