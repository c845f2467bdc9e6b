"""What a Work stream puts into one message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock.rpc.work_stream import MESSAGE_MAX_BYTES, WorkStream, _Pending
from penstock.wire.model import Job, JobOutcome
from penstock.wire.noun import raw

NOW = datetime.now(UTC)


class Jobs:
    """Stands for the engine's stream: gives one job at a time."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = list(sizes)

    def take_nowait(self, max_jobs: int, max_bytes: int) -> list[Job]:
        if not self.sizes:
            return []
        text = b'"%b"' % (b"x" * (self.sizes.pop(0) - 2))
        return [
            Job(
                id="1-2-3", job_type="t", instance_id="1", step_id="s", step_execution_id="1-2-3", retries_remaining=0,
                variables=raw(text), lock_expires_at=NOW, status="LOCKED", worker_id="w", locked_at=NOW, created_at=NOW,
                attempt=1, idempotency_key="1-2-3", checkpoint=None,
            )
        ]  # fmt: skip


async def test_a_large_job_travels_alone() -> None:
    """4 MiB is what clients take: a job near it must not be made larger by outcomes in the same message."""
    nothing: Any = None
    stream = WorkStream(nothing, nothing)
    jobs: Any = Jobs(100, MESSAGE_MAX_BYTES + 1)
    stream._jobs = jobs
    seen: list[tuple[int, int]] = []
    for _ in range(3):
        pending = _Pending()
        pending.outcomes = [JobOutcome(job_id="1-2-3", attempt=1, outcome="ok")]
        stream._pending.append(pending)
    while (composed := stream._compose())[0] is not None:
        message, answers = composed
        assert message is not None
        assert answers == len(message.outcomes)
        seen.append((len(message.jobs), len(message.outcomes)))
        if len(seen) == 1:
            pending = _Pending()
            pending.outcomes = [JobOutcome(job_id="1-2-4", attempt=1, outcome="ok")]
            stream._pending.append(pending)
    assert seen == [(1, 3), (1, 0), (0, 1)]
