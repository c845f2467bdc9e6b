"""A worker's connection that hands out the jobs of a test and answers reports as it scripts them.

For the order of events inside a worker; what the engine makes of it is tested against the engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import anyio
import msgspec

from penstock.client import Completion, Conflict, Failure, Job, JobOutcome, JobRef
from penstock.wire.model import Park
from penstock.worker import PullTransport


def job(name: str = "1", job_type: str = "t", **changes: object) -> Job:
    plain = Job(id=name, job_type=job_type, instance_id=f"i{name}", step_id="s", attempt=1, retries_remaining=3)
    return msgspec.structs.replace(plain, **changes)


class ScriptedTransport(PullTransport):
    def __init__(self) -> None:
        self.waiting: list[Job] = []
        self.subscriptions: list[tuple[tuple[str, ...], int]] = []
        self.completed: list[Completion] = []
        self.failed: list[Failure] = []
        self.released: list[JobRef] = []
        self.parked: list[Park] = []
        self.let_go_of: list[JobRef] = []
        self.batches: list[int] = []
        self.beats: dict[str, int] = defaultdict(int)
        self.checkpoints: list[object] = []
        self.on_receive: Callable[[], None] = lambda: None
        self.on_complete: Callable[[Sequence[Completion]], list[JobOutcome] | None] = lambda _results: None
        self.on_extend: Callable[[JobRef], None] = lambda _job: None
        self._changed = anyio.Event()

    def hand_out(self, *jobs: Job) -> None:
        self.waiting += jobs
        self.notify()

    def notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self._changed.wait()

    async def receive(self, job_types: Sequence[str], max_jobs: int) -> list[Job]:
        self.subscriptions.append((tuple(job_types), max_jobs))
        self.notify()
        self.on_receive()
        await self.wait_until(lambda: any(waiting.job_type in job_types for waiting in self.waiting))
        given = [waiting for waiting in self.waiting if waiting.job_type in job_types][:max_jobs]
        self.waiting = [waiting for waiting in self.waiting if waiting not in given]
        return given

    async def complete(self, results: Sequence[Completion]) -> list[JobOutcome]:
        await anyio.lowlevel.checkpoint()
        outcomes = self.on_complete(results)
        self.batches.append(len(results))
        if outcomes is None:
            outcomes = [JobOutcome(job_id=result.job_id, outcome="ok") for result in results]
        taken = {outcome.job_id for outcome in outcomes if outcome.outcome == "ok"}
        self.completed += [result for result in results if result.job_id in taken]
        self.notify()
        return outcomes

    async def fail(self, results: Sequence[Failure]) -> list[JobOutcome]:
        await anyio.lowlevel.checkpoint()
        self.failed += results
        self.notify()
        return [JobOutcome(job_id=result.job_id, outcome="ok") for result in results]

    async def extend(self, jobs: Sequence[JobRef]) -> list[JobOutcome]:
        await anyio.lowlevel.checkpoint()
        outcomes: list[JobOutcome] = []
        for ref in jobs:
            self.beats[ref.job_id] += 1
            self.notify()
            outcome = "ok"
            try:
                self.on_extend(ref)
            except Conflict as error:
                outcome = error.code
            outcomes.append(JobOutcome(job_id=ref.job_id, outcome=outcome))
        return outcomes

    async def report(
        self, job: JobRef, *, checkpoint: object = msgspec.UNSET, progress: object = msgspec.UNSET
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.beats[job.job_id] += 1
        if checkpoint is not msgspec.UNSET:
            self.checkpoints.append((checkpoint, progress))
        self.notify()
        self.on_extend(job)

    async def park(self, results: Sequence[Park]) -> list[JobOutcome]:
        await anyio.lowlevel.checkpoint()
        self.parked += results
        self.notify()
        return [JobOutcome(job_id=park.job_id, outcome="ok") for park in results]

    async def release(self, jobs: Sequence[JobRef]) -> list[JobOutcome]:
        await anyio.lowlevel.checkpoint()
        self.released += jobs
        self.notify()
        return [JobOutcome(job_id=ref.job_id, outcome="ok") for ref in jobs]

    def forget(self, job: JobRef) -> None:
        self.let_go_of.append(job)
        self.notify()
