"""A worker cancelled at any point accounts for every job that it took: enumerated, every point of any task once."""

from __future__ import annotations

from collections.abc import Sequence

import anyio.lowlevel
import trio

from penstock.client import Job
from penstock.testing.cancellation import POINTS_MAX, cancel_at_step
from penstock.worker import NonRetryable, Worker
from tests.sdk.scripted_transport import ScriptedTransport, job


class Recording(ScriptedTransport):
    def __init__(self) -> None:
        super().__init__()
        self.given: list[Job] = []

    async def receive(self, job_types: Sequence[str], max_jobs: int) -> list[Job]:
        jobs = await super().receive(job_types, max_jobs)
        self.given += jobs
        return jobs


async def run_cancelled_at(point: int) -> tuple[Recording, bool]:
    """Run a worker over a few jobs; what its transport saw, and whether the point came at all."""
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

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await transport.wait_until(lambda: len(transport.completed) == 3 and transport.failed)
            nursery.cancel_scope.cancel()

    return transport, (await cancel_at_step(point, work)).fired


async def test_a_worker_cancelled_anywhere_settles_or_releases_every_job() -> None:
    released = 0
    for point in range(1, POINTS_MAX):
        transport, came = await run_cancelled_at(point)
        if not came:
            break
        given = {each.id for each in transport.given}
        settled = {report.job_id for report in (*transport.completed, *transport.failed)}
        back = {ref.job_id for ref in transport.released}
        assert given == settled | back, f"cancelled at point {point}"
        released += len(back)
    assert 60 < point < POINTS_MAX - 1  # pyright: ignore[reportPossiblyUnboundVariable] - bound by the block before
    assert released > 50
