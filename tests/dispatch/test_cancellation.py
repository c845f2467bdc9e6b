"""Rounds of the relay cancelled at every point: every job is published, the repeats under the same id, none is lost."""

from __future__ import annotations

import pytest
import trio

from penstock.kafka.relay import Relay
from penstock.runtime.requeue import bring_back
from penstock.testing.cancellation import CancelledAttempt, Holdings, Operation, cancel_everywhere
from penstock.testing.definitions import linear
from penstock.wire.model import Completion
from tests.dispatch.conftest import KafkaDriver
from tests.dispatch.test_relay import DISPATCHED, READY
from tests.runtime.test_cancellation import SESSIONS
from tests.waiting import wait_until

POOL = Holdings(tasks=0, threads=0, files=8)
"""The connections that the engine keeps, and the test's own."""


@pytest.mark.slow(reason="cancels at every point")
async def test_relay_rounds_cancelled_at_every_point_lose_no_job(kafka: KafkaDriver) -> None:
    await kafka.upload(linear(1))
    started: list[str] = []
    repeated: list[str] = []
    kafka.producer.gate = trio.Event()
    kafka.producer.gate.set()  # a checkpoint in every publish

    async def prepare() -> Operation[int]:
        started.append((await kafka.start("linear")).id)
        # a new relay, as of an engine that has just been elected: it knows nothing of what the last one did
        kafka.relay = Relay(kafka.engine, kafka.producer, kafka.leading)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in
        return kafka.drain

    async def quiet() -> bool:
        return kafka.engine.database.pool.statistics().busy == 0 and not kafka.rows(SESSIONS)

    async def after(attempt: CancelledAttempt[int]) -> None:
        await wait_until(quiet)
        kafka.relay = Relay(kafka.engine, kafka.producer, kafka.leading)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in
        await kafka.drain()
        assert kafka.outbox() == []
        assert started[-1] in {event.instance_id for event in kafka.producer.log}
        events = [event for event in kafka.producer.sent if event.instance_id == started[-1]]
        assert len({event.dedup_id for event in events}) == 1
        repeated.extend(event.dedup_id for event in events[1:])
        await kafka.engine.jobs.complete(Completion(job_id=events[-1].job_id, worker_id="w", variables=None))
        assert await kafka.status(started[-1]) == "COMPLETED"

    points = await cancel_everywhere(prepare, after, own_task_only=True, may_grow=POOL)
    assert points.cancelled >= 5, points
    assert repeated, "one was cancelled while its record was on its way: what became of it is unknown"


@pytest.mark.slow(reason="cancels at every point")
async def test_a_requeue_cancelled_at_every_point_loses_no_job(kafka: KafkaDriver) -> None:
    """It is done or not: whoever runs it again finishes it, and each job is done once."""
    await kafka.upload(linear(1))
    started: list[str] = []

    async def requeue() -> int:
        async with kafka.engine.database.connection() as connection:
            return await bring_back(connection, [], to_outbox=True, by="cli:ann@host", audit=True)

    async def prepare() -> Operation[int]:
        started.append((await kafka.start("linear")).id)
        await kafka.drain()
        assert kafka.states() == [(DISPATCHED, 1)]
        return requeue

    async def quiet() -> bool:
        return kafka.engine.database.pool.statistics().busy == 0 and not kafka.rows(SESSIONS)

    async def after(attempt: CancelledAttempt[int]) -> None:
        await wait_until(quiet)
        came = kafka.states() == [(READY, 1)]
        assert came or kafka.states() == [(DISPATCHED, 1)]
        assert len(kafka.outbox()) == came
        assert await requeue() == (not came)
        await kafka.drain()
        events = [event for event in kafka.producer.log if event.instance_id == started[-1]]
        assert [event.attempt for event in events] == [1, 2]
        await kafka.engine.jobs.complete(Completion(job_id=events[-1].job_id, worker_id="w", variables=None, attempt=2))
        assert await kafka.status(started[-1]) == "COMPLETED"
        assert kafka.rows("SELECT count(*) FROM audit WHERE kind = 'DISPATCHES_REQUEUED'") == [(len(started),)]

    points = await cancel_everywhere(prepare, after, own_task_only=True, may_grow=POOL)
    assert points.cancelled >= 2, points
