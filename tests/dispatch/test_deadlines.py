"""Dispatched jobs that nobody completes: dispatched anew at their deadline, as often as it takes."""

from __future__ import annotations

import pytest
import trio.testing

from penstock.errors import LeaseLost
from penstock.runtime.lease_sweeper import LeaseSweeper
from penstock.settings import DispatchMode
from penstock.testing.definitions import definition, end
from penstock.wire.model import Heartbeat
from penstock.wire.workflow_v1 import JobDispatchEvent
from tests.dispatch.conftest import KafkaDriver
from tests.dispatch.fake_producer import ACKED, UNKNOWN
from tests.dispatch.test_relay import DISPATCHED, LINE, LOCKED, READY, done
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import task

TIMEOUT_S = 1_800


async def sweep(driver: Driver, seconds: float) -> int:
    """Let so much time pass, then do what the lease service does; how many jobs came back."""
    driver.clock.advance(seconds)
    sweeper = LeaseSweeper(driver.engine)
    await sweeper.scan_once()
    return await sweeper.run_once(float("inf"))


async def dispatched(kafka: KafkaDriver, definition: dict[str, object] = LINE) -> JobDispatchEvent:
    await kafka.run(definition)
    await kafka.drain()
    return kafka.producer.log[-1]


async def test_a_job_is_dispatched_anew_at_its_deadline(kafka: KafkaDriver) -> None:
    first = await dispatched(kafka)
    assert await sweep(kafka, TIMEOUT_S - 5) == 0
    assert kafka.states() == [(DISPATCHED, 1)]
    assert await sweep(kafka, 10) == 1
    assert kafka.states() == [(READY, 1)]
    await kafka.drain()
    second = kafka.producer.log[-1]
    assert (second.job_id, second.attempt) == (first.job_id, 2)
    assert second.dedup_id != first.dedup_id
    assert kafka.rows("SELECT kind, attempt, worker FROM history") == [(13, 1, None)]
    attempts = (await kafka.history(first.instance_id))[0].attempts
    assert attempts is not None
    assert [(attempt.attempt, attempt.status) for attempt in attempts] == [(1, "REDISPATCHED"), (2, "RUNNING")]


async def test_neither_missed_deadlines_nor_lost_holders_count_towards_dead_lettering(make_kafka) -> None:
    kafka = make_kafka(lease_expiry_limit=2)
    event = await dispatched(kafka)
    for turn in range(6):
        if turn % 2:
            await kafka.engine.jobs.heartbeat(Heartbeat(job_id=event.job_id, worker_id="w", lease_seconds=30))
        assert await sweep(kafka, TIMEOUT_S + 1) == 1
        await kafka.drain()
    assert kafka.rows("SELECT state, attempt, expiries FROM token") == [(DISPATCHED, 7, 0)]
    assert kafka.rows("SELECT kind, worker FROM history ORDER BY pos") == [(13, None), (11, "w")] * 3
    assert await kafka.status(event.instance_id) == "ACTIVE"


async def test_heartbeats_extend_the_deadline(kafka: KafkaDriver) -> None:
    event = await dispatched(kafka)
    await kafka.engine.jobs.heartbeat(Heartbeat(job_id=event.job_id, worker_id="w", lease_seconds=3_600))
    assert await sweep(kafka, TIMEOUT_S + 100) == 0
    assert kafka.states() == [(LOCKED, 1)]
    assert await sweep(kafka, TIMEOUT_S + 100) == 1


async def test_the_wait_in_the_topic_is_not_the_attempts_time(kafka: KafkaDriver) -> None:
    """A step's `timeout` bounds the attempt of who works on it, from its first heartbeat on."""
    event = await dispatched(kafka, definition(task("a", timeout="PT60S"), end()))
    kafka.clock.advance(600)
    await kafka.engine.jobs.heartbeat(Heartbeat(job_id=event.job_id, worker_id="w", lease_seconds=300))
    assert kafka.rows("SELECT lease_until BETWEEN penstock_now() AND penstock_now() + '60 s' FROM token") == [(True,)]
    kafka.clock.advance(61)
    with pytest.raises(LeaseLost):
        await kafka.engine.jobs.heartbeat(Heartbeat(job_id=event.job_id, worker_id="w", lease_seconds=300))


async def test_a_row_unpublished_until_the_deadline_is_replaced(
    kafka: KafkaDriver, mock_clock: trio.testing.MockClock
) -> None:
    await kafka.run(LINE)
    kafka.producer.answer = lambda record: UNKNOWN
    await kafka.drain()
    assert await sweep(kafka, TIMEOUT_S + 1) == 1
    assert [attempt for *_, attempt in kafka.outbox()] == [1, 2]
    kafka.producer.answer = lambda record: ACKED
    mock_clock.jump(60)
    await kafka.relay.retry_once()
    assert [event.attempt for event in kafka.producer.log] == [2]
    assert kafka.outbox() == []


async def test_a_late_result_of_an_attempt_that_was_replaced(kafka: KafkaDriver) -> None:
    first = await dispatched(kafka)
    await sweep(kafka, TIMEOUT_S + 1)
    await kafka.drain()
    with pytest.raises(LeaseLost):
        await kafka.engine.jobs.complete(done(first, attempt=1))
    await kafka.engine.jobs.complete(done(first))  # without an attempt: the first completion wins
    assert kafka.rows("SELECT kind, attempt FROM history ORDER BY pos") == [(13, 1), (1, 2)]


async def test_in_polling_mode_dispatched_jobs_come_back_to_the_queue(
    kafka: KafkaDriver, make_driver: MakeDriver
) -> None:
    event = await dispatched(kafka)
    polling = make_driver(dispatch_mode=DispatchMode.POLLING, lease_expiry_limit=1)
    assert await polling.poll("a") == []
    assert await sweep(polling, TIMEOUT_S + 1) == 1
    job = await polling.one("a")
    assert (job.id, job.attempt) == (event.job_id, 2)
    assert polling.rows("SELECT expiries FROM token") == [(0,)]
    await polling.complete(job)


async def test_a_dispatched_job_held_after_the_switch_expires_like_others(
    kafka: KafkaDriver, make_driver: MakeDriver
) -> None:
    """The engine of the polling mode has its deadline in memory when the heartbeat comes."""
    event = await dispatched(kafka)
    polling = make_driver()
    sweeper = LeaseSweeper(polling.engine)
    kafka.clock.advance(TIMEOUT_S - 5)
    assert await sweeper.scan_once() == 1
    await polling.engine.jobs.heartbeat(Heartbeat(job_id=event.job_id, worker_id="w", lease_seconds=30))
    kafka.clock.advance(31)
    assert await sweeper.run_once(float("inf")) == 1
    assert (await polling.one("a")).attempt == 2
