"""What ``penstock.v1`` says about jobs, item by item: messages to requests, outcomes back. Unary calls and the stream
share it. One bad item never fails its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.engine.engine import Engine
from penstock.engine.requests.bound import needed
from penstock.engine.requests.payload import ERROR_MESSAGE_MAX_BYTES, clean_text, given_value, given_variables
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.loop.offload import run_sized
from penstock.wire.model import Completion, Failure, Heartbeat, HeartbeatOutcome, JobOutcome, JobRef, Lease, Park
from penstock.wire.noun import text_bytes

ItemT = TypeVar("ItemT", Completion, Failure, Heartbeat, JobRef, Park)
R = TypeVar("R")


def fence(attempt: int | None) -> int | None:
    """0 is "not given"; a negative one is that of no attempt."""
    return attempt or None


async def complete(engine: Engine, worker_id: str, items: Sequence[Completion]) -> list[JobOutcome]:
    """Return one outcome each, in order. Cancelled, what was queued is still done."""
    limits = engine.limits

    def make(item: Completion) -> Completion:
        return Completion(
            job_id=needed(item.job_id or None, "job_id"),
            worker_id=worker_id,
            attempt=fence(item.attempt),
            variables=given_variables(item.variables, limits, "variables"),
        )

    size_bytes = sum(text_bytes(item.variables) for item in items)
    requests, refused = await run_sized(size_bytes, lambda: _sort_out(items, make))
    return _outcomes(items, refused, await engine.jobs.complete_many(requests))


async def fail(engine: Engine, worker_id: str, items: Sequence[Failure]) -> list[JobOutcome]:
    """Return one outcome each, in order."""
    limits = engine.limits

    def make(item: Failure) -> Failure:
        return Failure(
            job_id=needed(item.job_id or None, "job_id"),
            worker_id=worker_id,
            attempt=fence(item.attempt),
            retryable=item.retryable,
            error_message=clean_text(item.error_message, ERROR_MESSAGE_MAX_BYTES),
            retry_after_s=item.retry_after_s,
            error_code=item.error_code,
            variables=given_variables(item.variables, limits, "variables"),
            stack_trace=item.stack_trace,
        )

    size_bytes = sum(text_bytes(item.variables) for item in items)
    requests, refused = await run_sized(size_bytes, lambda: _sort_out(items, make))
    return _outcomes(items, refused, await engine.jobs.fail_many(requests))


async def release(engine: Engine, worker_id: str, items: Sequence[JobRef]) -> list[JobOutcome]:
    """Return one outcome each, in order."""

    def make(item: JobRef) -> JobRef:
        return JobRef(job_id=needed(item.job_id or None, "job_id"), worker_id=worker_id, attempt=fence(item.attempt))

    requests, refused = _sort_out(items, make)
    return _outcomes(items, refused, await engine.jobs.release_many(requests))


async def park(engine: Engine, worker_id: str, items: Sequence[Park]) -> list[JobOutcome]:
    """Return one outcome each, in order."""

    def make(item: Park) -> Park:
        return Park(
            job_id=needed(item.job_id or None, "job_id"),
            worker_id=worker_id,
            attempt=fence(item.attempt),
            until=item.until,
            signal=item.signal,
        )

    requests, refused = _sort_out(items, make)
    return _outcomes(items, refused, await engine.jobs.park_many(requests))


async def heartbeat(engine: Engine, worker_id: str, items: Sequence[Heartbeat]) -> list[HeartbeatOutcome]:
    """Return one outcome each, in order."""
    limits = engine.limits

    def make(item: Heartbeat) -> Heartbeat:
        return Heartbeat(
            job_id=needed(item.job_id or None, "job_id"),
            worker_id=worker_id,
            attempt=fence(item.attempt),
            lease_seconds=max(item.lease_seconds, 0),
            checkpoint=given_value(item.checkpoint, limits, "checkpoint"),
            progress=given_value(item.progress, limits, "progress"),
        )

    size_bytes = sum(text_bytes(item.checkpoint) + text_bytes(item.progress) for item in items)
    requests, refused = await run_sized(size_bytes, lambda: _sort_out(items, make))
    answers = iter(await engine.jobs.heartbeat_many(requests))
    results: list[HeartbeatOutcome] = []
    for index, item in enumerate(items):
        found = refused.get(index) or next(answers)
        if isinstance(found, Lease):
            outcome, reason, until = "ok", None, found.lock_expires_at
        else:
            outcome, reason, until = found.outcome, found.reason, None
        results.append(
            HeartbeatOutcome(
                job_id=item.job_id, attempt=item.attempt, outcome=outcome, reason=reason, lock_expires_at=until
            )
        )
    return results


def _sort_out(items: Sequence[ItemT], make: Callable[[ItemT], R]) -> tuple[list[R], dict[int, JobOutcome]]:
    """Return the requests of the items that can be made into one, and the outcomes of the others by their place."""
    requests: list[R] = []
    refused: dict[int, JobOutcome] = {}
    for index, item in enumerate(items):
        try:
            requests.append(make(item))
        except (BadRequest, PayloadTooLarge) as error:
            refused[index] = JobOutcome(job_id=item.job_id, outcome="invalid", reason=error.reason)
    return requests, refused


def _outcomes(
    items: Sequence[ItemT], refused: dict[int, JobOutcome], answers: Sequence[JobOutcome]
) -> list[JobOutcome]:
    rest = iter(answers)
    results: list[JobOutcome] = []
    for index, item in enumerate(items):
        found = refused.get(index) or next(rest)
        results.append(JobOutcome(job_id=item.job_id, attempt=item.attempt, outcome=found.outcome, reason=found.reason))
    return results
