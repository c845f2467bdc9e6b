"""What ``penstock.v1`` says of many at once, item by item: messages to requests, outcomes back. Unary calls and the
stream share it. One bad item never fails its neighbours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from penstock.engine.engine import Engine
from penstock.engine.requests.bound import needed
from penstock.engine.requests.payload import ERROR_MESSAGE_MAX_BYTES, clean_text, given_value, given_variables
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.loop.offload import run_sized
from penstock.wire.model import Completion, Failure, Heartbeat, HeartbeatOutcome, JobOutcome, JobRef, Lease, Park
from penstock.wire.noun import text_bytes

ItemT = TypeVar("ItemT")
Q = TypeVar("Q")
A = TypeVar("A")
JobItem: TypeAlias = Completion | Failure | Heartbeat | JobRef | Park


async def serve_items(
    items: Sequence[ItemT],
    make: Callable[[ItemT], Q],
    serve: Callable[[list[Q]], Awaitable[Sequence[A]]],
    refuse: Callable[[ItemT, BadRequest | PayloadTooLarge], A],
    size_bytes: int = 0,
) -> list[A]:
    """Return for each item, in order, what ``serve`` answers to the request that ``make`` makes of it. Where ``make``
    raises BadRequest or PayloadTooLarge, it is what ``refuse`` makes of that. ``size_bytes`` is the size of all items:
    many bytes are read away from the loop."""
    requests: list[Q] = []
    refused: dict[int, A] = {}

    def read() -> None:
        for index, item in enumerate(items):
            try:
                requests.append(make(item))
            except (BadRequest, PayloadTooLarge) as error:
                refused[index] = refuse(item, error)

    await run_sized(size_bytes, read)
    answers = iter(await serve(requests))
    return [refused[index] if index in refused else next(answers) for index in range(len(items))]


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
    return _outcomes(items, await serve_items(items, make, engine.jobs.complete_many, _invalid, size_bytes))


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
    return _outcomes(items, await serve_items(items, make, engine.jobs.fail_many, _invalid, size_bytes))


async def release(engine: Engine, worker_id: str, items: Sequence[JobRef]) -> list[JobOutcome]:
    """Return one outcome each, in order."""

    def make(item: JobRef) -> JobRef:
        return JobRef(job_id=needed(item.job_id or None, "job_id"), worker_id=worker_id, attempt=fence(item.attempt))

    return _outcomes(items, await serve_items(items, make, engine.jobs.release_many, _invalid))


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

    return _outcomes(items, await serve_items(items, make, engine.jobs.park_many, _invalid))


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
    results: list[HeartbeatOutcome] = []
    answers = await serve_items(items, make, engine.jobs.heartbeat_many, _invalid, size_bytes)
    for item, found in zip(items, answers, strict=True):
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


def _invalid(item: JobItem, error: BadRequest | PayloadTooLarge) -> JobOutcome:
    return JobOutcome(job_id=item.job_id, outcome="invalid", reason=error.reason)


def _outcomes(items: Sequence[JobItem], found: Sequence[JobOutcome]) -> list[JobOutcome]:
    return [
        JobOutcome(job_id=item.job_id, attempt=item.attempt, outcome=each.outcome, reason=each.reason)
        for item, each in zip(items, found, strict=True)
    ]
