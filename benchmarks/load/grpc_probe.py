"""The latency probe of `probe.py` with workers parked on Work streams in place of long polls."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from benchmarks.load.counts import Count
from benchmarks.load.grpc_scripts import WORK, completion, credit, read_work
from benchmarks.load.http2 import Http2
from benchmarks.load.loop import Connection
from benchmarks.load.probe import ProbePlan, Round
from benchmarks.load.scripts import Context
from penstock.wire import penstock_v1 as w
from penstock.wire.codec import encode_message


class StreamProbe:
    """Parked on a stream with credit for one job of each type; completes what comes at once."""

    def __init__(self, context: Context, plan: StreamProbePlan, round_: Round, name: str) -> None:
        self._context = context
        self._round = round_
        self._http2 = Http2(context.host, self._answered, self._ended)
        self._connection: Connection | None = None
        self._order = {job_type: position for position, job_type in enumerate(plan.job_types)}
        self._first = encode_message(w.WorkRequest(name, 60, [w.Credit(job_type, 1) for job_type in plan.job_types]))
        self._credit = {name: credit(encode_message(w.Credit(name)), 1) for name in plan.job_types}
        self._output = {
            name: encode_message(w.Completion(variables=output), w.PACKAGE) for name, output in plan.outputs.items()
        }
        self._sent: deque[tuple[float, int]] = deque()
        self.received = self._http2.received

    def begin(self, connection: Connection) -> None:
        self._connection = connection
        self._http2.begin(connection)
        connection.send(self._http2.call(WORK, self._first, end=False))

    def _ended(self, status: int) -> None:
        raise ConnectionResetError(f"the Work stream ended with status {status}")

    def _answered(self, body: bytes) -> None:
        now = time.monotonic()
        jobs, answered, done = read_work(body)
        if done != answered:
            self._context.failed(f"completion of {answered} jobs ({done} done)", 0, body)
        for id, job_type, attempt in jobs:
            position = self._order[job_type]
            self._round.received(position)
            self._sent.append((now, position))
            request = completion(id, attempt, self._output[job_type]) + self._credit[job_type]
            assert self._connection is not None
            self._connection.send(self._http2.more(request))
        for _ in range(answered):
            sent_at, position = self._sent.popleft()
            self._round.completed(now - sent_at)
            self._context.counts[Count.COMPLETED] += 1
            if position + 1 == len(self._order):
                self._round.ended(now)
            else:
                self._round.committed(position + 1)


@dataclass(frozen=True)
class StreamProbePlan(ProbePlan):
    """As `ProbePlan`, its workers on streams at ``address``."""

    address: tuple[str, int] = ("127.0.0.1", 9090)

    def open(self, context: Context) -> None:
        round_ = Round(context, self)
        for index in range(self.workers):
            context.loop.connect_bytes(StreamProbe(context, self, round_, f"probe-{index}"), *self.address)
        context.loop.connect(round_)
