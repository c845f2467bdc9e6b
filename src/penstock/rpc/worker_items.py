"""What ``penstock.v1`` says about jobs, item by item: messages to requests, outcomes back. Unary calls and the stream
share it. One bad item never fails its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from penstock.engine.engine import Engine
from penstock.engine.payload import ERROR_MESSAGE_MAX_BYTES, clean_text
from penstock.engine.vocabulary import ItemOutcome
from penstock.errors import BadRequest, PayloadTooLarge
from penstock.offload import run_sized
from penstock.rpc.reading import given_value, given_variables, required
from penstock.wire import penstock_v1 as w
from penstock.wire.model import Completion, Failure, Heartbeat, JobRef, Lease
from penstock.wire.noun import text_bytes

OUTCOMES: Final = {outcome.name.lower().replace("_", "-"): outcome for outcome in w.Outcome}


ItemT = TypeVar("ItemT", Completion, Failure, Heartbeat, JobRef)
R = TypeVar("R")


def fence(attempt: int | None) -> int | None:
    """0 is "not given"; a negative one is that of no attempt."""
    return attempt or None


async def complete(engine: Engine, worker_id: str, items: Sequence[Completion]) -> list[w.JobOutcome]:
    """One outcome each, in order. Cancelled, what was queued is still done."""
    limits = engine.limits

    def make(item: Completion) -> Completion:
        return Completion(
            job_id=required(item.job_id, "job_id"),
            worker_id=worker_id,
            attempt=fence(item.attempt),
            variables=given_variables(item.variables, limits, "variables"),
        )

    size_bytes = sum(text_bytes(item.variables) for item in items)
    requests, refused = await run_sized(size_bytes, lambda: _sort_out(items, make))
    return _outcomes(items, refused, await engine.jobs.complete_many(requests))


async def fail(engine: Engine, worker_id: str, items: Sequence[Failure]) -> list[w.JobOutcome]:
    """One outcome each, in order."""

    def make(item: Failure) -> Failure:
        return Failure(
            job_id=required(item.job_id, "job_id"),
            worker_id=worker_id,
            attempt=fence(item.attempt),
            retryable=item.retryable,
            error_message=clean_text(item.error_message, ERROR_MESSAGE_MAX_BYTES),
            retry_after_s=item.retry_after_s,
        )

    requests, refused = _sort_out(items, make)
    return _outcomes(items, refused, await engine.jobs.fail_many(requests))


async def release(engine: Engine, worker_id: str, items: Sequence[JobRef]) -> list[w.JobOutcome]:
    """One outcome each, in order."""

    def make(item: JobRef) -> JobRef:
        return JobRef(job_id=required(item.job_id, "job_id"), worker_id=worker_id, attempt=fence(item.attempt))

    requests, refused = _sort_out(items, make)
    return _outcomes(items, refused, await engine.jobs.release_many(requests))


async def heartbeat(engine: Engine, worker_id: str, items: Sequence[Heartbeat]) -> list[w.HeartbeatOutcome]:
    """One outcome each, in order."""
    limits = engine.limits

    def make(item: Heartbeat) -> Heartbeat:
        return Heartbeat(
            job_id=required(item.job_id, "job_id"),
            worker_id=worker_id,
            attempt=fence(item.attempt),
            lease_seconds=max(item.lease_seconds, 0),
            checkpoint=given_value(item.checkpoint, limits, "checkpoint"),
            progress=given_value(item.progress, limits, "progress"),
        )

    size_bytes = sum(text_bytes(item.checkpoint) + text_bytes(item.progress) for item in items)
    requests, refused = await run_sized(size_bytes, lambda: _sort_out(items, make))
    answers = iter(await engine.jobs.heartbeat_many(requests))
    results: list[w.HeartbeatOutcome] = []
    for index, item in enumerate(items):
        found = refused.get(index) or next(answers)
        if isinstance(found, Lease):
            until = found.lock_expires_at
            results.append(w.HeartbeatOutcome(item.job_id, item.attempt or 0, w.Outcome.OK, lock_expires_at=until))
        else:
            outcome = OUTCOMES[found.outcome]
            results.append(w.HeartbeatOutcome(item.job_id, item.attempt or 0, outcome, found.reason or ""))
    return results


def _sort_out(items: Sequence[ItemT], make: Callable[[ItemT], R]) -> tuple[list[R], dict[int, ItemOutcome]]:
    """The requests of the items that can be made into one, and the outcomes of the others by their place."""
    requests: list[R] = []
    refused: dict[int, ItemOutcome] = {}
    for index, item in enumerate(items):
        try:
            requests.append(make(item))
        except (BadRequest, PayloadTooLarge) as error:
            refused[index] = ItemOutcome(job_id=item.job_id, outcome="invalid", reason=error.reason)
    return requests, refused


def _outcomes(
    items: Sequence[ItemT], refused: dict[int, ItemOutcome], answers: Sequence[ItemOutcome]
) -> list[w.JobOutcome]:
    rest = iter(answers)
    results: list[w.JobOutcome] = []
    for index, item in enumerate(items):
        found = refused.get(index) or next(rest)
        results.append(w.JobOutcome(item.job_id, item.attempt or 0, OUTCOMES[found.outcome], found.reason or ""))
    return results
