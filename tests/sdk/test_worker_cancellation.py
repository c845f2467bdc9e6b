"""A worker cancelled at any point accounts for every job that it took: enumerated, every step of any task once."""

from __future__ import annotations

import anyio.lowlevel
import trio

from penstock.client import Job
from penstock.worker import NonRetryable, Worker
from tests.sdk.scripted_transport import ScriptedTransport, job


class CancelAt(trio.abc.Instrument):
    """Cancels the scope before the step of that number, whichever task makes it."""

    def __init__(self, scope: trio.CancelScope, step: int) -> None:
        self._scope = scope
        self.left = step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.left == 0:
            self._scope.cancel()
        self.left -= 1


class Recording(ScriptedTransport):
    def __init__(self) -> None:
        super().__init__()
        self.given: list[Job] = []

    async def receive(self, job_types: object, max_jobs: int) -> list[Job]:
        jobs = await super().receive(["good", "bad", "slow"], max_jobs)
        self.given += jobs
        return jobs


async def run_cancelled_at(step: int) -> tuple[Recording, bool]:
    """Run a worker over a few jobs; what its transport saw, and whether the step came at all."""
    transport = Recording()
    worker = Worker(transport, concurrency=3)

    @worker.handler("good", concurrency=2)
    async def good() -> dict[str, int]:
        await anyio.lowlevel.checkpoint()
        return {"a": 1}

    @worker.handler("bad")
    async def bad() -> None:
        raise NonRetryable("no")

    @worker.handler("slow")
    async def slow() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()

    transport.hand_out(job("1", "good"), job("2", "bad"), job("3", "slow"), job("4", "good"), job("5", "good"))
    with trio.CancelScope() as scope:
        at = CancelAt(scope, step)
        trio.lowlevel.add_instrument(at)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.run)
                await transport.wait_until(lambda: len(transport.completed) == 3 and transport.failed)
                nursery.cancel_scope.cancel()
        finally:
            trio.lowlevel.remove_instrument(at)
    return transport, at.left < 0


async def test_a_worker_cancelled_at_any_step_settles_or_gives_back_every_job() -> None:
    step = 0
    released = 0
    while True:
        transport, came = await run_cancelled_at(step)
        if not came:
            break
        given = {each.id for each in transport.given}
        settled = {report.job_id for report in (*transport.completed, *transport.failed)}
        back = {ref.job_id for ref in transport.released}
        assert given == settled | back, f"cancelled at step {step}"
        released += len(back)
        step += 1
    assert step > 50
    assert released > 50
