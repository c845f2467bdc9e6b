"""Switching between the modes, in both directions, with jobs in every state: nothing is lost, nothing is done twice."""

from __future__ import annotations

import psycopg
import pytest
import trio

from penstock.errors import Conflict, DispatchModeConflict
from penstock.runtime import dispatch_migration, membership
from penstock.runtime.dispatch_migration import DispatchMigration
from penstock.runtime.membership import Membership, Superseded
from penstock.store.db.database import Database
from penstock.testing.definitions import definition, end
from penstock.wire.model import Heartbeat
from penstock.wire.workflow_v1 import JobDispatchEvent
from tests.dispatch.conftest import KafkaDriver, MakeKafka
from tests.dispatch.fake_producer import UNKNOWN
from tests.dispatch.test_deadlines import TIMEOUT_S, sweep
from tests.dispatch.test_relay import DISPATCHED, READY, done, failed
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.shapes import task
from tests.waiting import wait_until

ONE = definition(task("a", retryCount=3), end(), definition_id="one")


async def move_all(driver: Driver) -> int:
    mover = DispatchMigration(driver.engine)
    moved = 0
    while batch := await mover.run_once():
        moved += batch
    return moved


async def start(driver: Driver, count: int = 1) -> list[str]:
    await driver.upload(ONE)
    return [(await driver.start("one")).id for _ in range(count)]


async def finish_polled(driver: Driver, worker: str = "p") -> list[str]:
    """Complete everything that is in the queue; the instances, in the order in which they came."""
    done: list[str] = []
    while jobs := await driver.poll("a", worker=worker):
        for job in jobs:
            await driver.complete(job)
            done.append(job.instance_id)
    return done


async def finish_published(kafka: KafkaDriver) -> list[str]:
    await kafka.drain()
    for event in kafka.producer.log:
        await kafka.engine.jobs.complete(done(event))
    return [event.instance_id for event in kafka.producer.log]


async def test_queued_jobs_become_outbox_rows_in_their_order(make_driver: MakeDriver, make_kafka: MakeKafka) -> None:
    polling = make_driver()
    instances = await start(polling, 5)
    kafka = make_kafka()
    assert await move_all(kafka) == 5
    assert kafka.rows("SELECT count(*) FROM ready") == [(0,)]
    assert await finish_published(kafka) == instances
    assert {await kafka.status(id) for id in instances} == {"COMPLETED"}


async def test_undelivered_rows_become_queued_jobs_in_their_order(
    make_driver: MakeDriver, make_kafka: MakeKafka
) -> None:
    kafka = make_kafka()
    instances = await start(kafka, 5)
    polling = make_driver()
    assert await move_all(polling) == 5
    assert polling.rows("SELECT count(*) FROM dispatch_outbox") == [(0,)]
    assert await finish_polled(polling) == instances


async def test_a_row_without_an_ack_is_queued_too(make_driver: MakeDriver, make_kafka: MakeKafka) -> None:
    kafka = make_kafka()
    kafka.producer.answer = lambda record: UNKNOWN
    (instance,) = await start(kafka)
    await kafka.drain()
    assert kafka.states() == [(DISPATCHED, 1)]
    polling = make_driver()
    await move_all(polling)
    job = await polling.one("a")
    assert job.attempt == 2
    with pytest.raises(Conflict):  # a Kafka worker had the message after all
        await polling.engine.jobs.complete(done(kafka.producer.sent[0]))
    await polling.complete(job)
    assert await polling.status(instance) == "COMPLETED"
    assert polling.rows("SELECT kind, attempt FROM history WHERE attempt > 0 ORDER BY pos") == [(13, 1), (1, 2)]


async def test_dispatched_jobs_are_completed_or_return_at_their_deadline(
    make_driver: MakeDriver, make_kafka: MakeKafka
) -> None:
    kafka = make_kafka()
    await start(kafka, 2)
    await kafka.drain()
    first, second = kafka.producer.log
    polling = make_driver()
    assert await move_all(polling) == 0
    await polling.engine.jobs.complete(done(first))
    assert await finish_polled(polling) == []
    await sweep(polling, TIMEOUT_S + 1)
    assert await finish_polled(polling) == [second.instance_id]


async def every_state(kafka: KafkaDriver) -> dict[str, JobDispatchEvent | str]:
    """One instance in each state that a job can have in Kafka mode."""
    for name in ("done", "held", "back_off", "unknown"):
        await start(kafka)
        if name == "unknown":
            kafka.producer.answer = lambda record: UNKNOWN
        await kafka.drain()
    first, held, back_off = kafka.producer.log
    await kafka.engine.jobs.heartbeat(Heartbeat(job_id=held.job_id, worker_id="w", lease_seconds=30))
    await kafka.engine.jobs.fail(failed(back_off, retry_after_s=60.0))
    await start(kafka)  # its row is not looked at yet
    assert sorted(state for state, _ in kafka.states()) == [0, 1, 4, 5, 5]
    return {"dispatched": first, "held": held, "back_off": back_off}


async def test_there_and_back_with_jobs_in_every_state_loses_nothing(
    make_driver: MakeDriver, make_kafka: MakeKafka
) -> None:
    kafka = make_kafka()
    seen = await every_state(kafka)
    polling = make_driver()
    assert await move_all(polling) == 2
    jobs = await polling.poll("a", n=2)  # the row that was not looked at, and the one without an answer
    assert len(jobs) == 2
    await polling.fail(jobs[0], retry_after_s=30.0)  # back-off of the polling mode; the other one stays leased
    (queued,) = await start(polling)

    again = make_kafka()
    assert await move_all(again) == 1
    assert again.rows("SELECT count(*) FROM ready") == [(0,)]
    await again.engine.jobs.complete(done(seen["held"]))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in
    await again.engine.jobs.complete(done(seen["dispatched"], "whoever"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - a stand-in
    assert await again.due(61) == 2  # both back-offs
    again.clock.advance(1)
    assert await sweep(again, 30) == 1  # the lease of the polling mode
    published = await finish_published(again)
    assert len(published) == len(set(published)) == 4
    assert queued in published
    assert again.rows("SELECT status, count(*) FROM instance GROUP BY 1") == [(1, 6)]
    assert again.rows("SELECT count(*) FROM token") == [(0,)]


async def test_a_job_moved_and_taken_together_is_in_one_place(
    make_driver: MakeDriver, make_kafka: MakeKafka, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine of the old mode that was taken for dead polls on while its jobs are moved."""
    monkeypatch.setattr(dispatch_migration, "BATCH_ROWS", 3)
    polling, kafka = make_driver(), make_kafka()
    instances = await start(polling, 40)
    polled: list[str] = []
    async with trio.open_nursery() as both:

        async def poll_on() -> None:
            polled.extend(await finish_polled(polling))

        both.start_soon(poll_on)
        both.start_soon(move_all, kafka)
    published = await finish_published(kafka)
    assert sorted(polled + published) == sorted(instances)


async def test_commits_of_an_engine_in_the_old_mode_are_found(make_driver: MakeDriver, make_kafka: MakeKafka) -> None:
    polling, kafka = make_driver(), make_kafka()
    assert await move_all(kafka) == 0
    late = await start(polling)
    woken: list[bool] = []
    mover = DispatchMigration(kafka.engine)
    kafka.engine.events.migrated.listen(lambda: woken.append(True))
    assert await mover.run_once() == 1
    assert woken == [True]
    assert await finish_published(kafka) == late


async def test_a_late_result_of_a_moved_job_voids_its_row(make_driver: MakeDriver, make_kafka: MakeKafka) -> None:
    polling = make_driver()
    (instance,) = await start(polling)
    job = await polling.one("a")
    await polling.expire(31)
    kafka = make_kafka()
    await move_all(kafka)
    await kafka.complete(job)
    assert await kafka.status(instance) == "COMPLETED"
    await kafka.drain()
    assert (kafka.producer.sent, kafka.outbox()) == ([], [])


async def test_moving_is_batched_and_one_engines_at_a_time(
    make_driver: MakeDriver, make_kafka: MakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch_migration, "BATCH_ROWS", 10)
    polling = make_driver()
    instances = await start(polling, 25)
    one, two = make_kafka(), make_kafka()
    moved: list[int] = []

    async def move(kafka: KafkaDriver) -> None:
        moved.append(await DispatchMigration(kafka.engine).run_once())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(move, one)
        nursery.start_soon(move, two)
    assert moved == [10, 10]
    assert await DispatchMigration(one.engine).run_once() == 5
    assert await finish_published(one) == instances


async def test_released_and_expired_leases_of_polling_go_to_the_outbox(
    make_driver: MakeDriver, make_kafka: MakeKafka
) -> None:
    polling = make_driver()
    await start(polling, 2)
    released, expired = await polling.poll("a", n=2)
    kafka = make_kafka()
    kafka.engine.polls.releases.release_jobs([released])

    async def given_back() -> bool:
        return len(kafka.outbox()) == 1

    await wait_until(given_back)
    await sweep(kafka, 31)
    assert kafka.states() == [(READY, 1), (READY, 1)]
    assert sorted(await finish_published(kafka)) == sorted([released.instance_id, expired.instance_id])


async def test_kafka_mode_has_no_polls_and_credit_but_batch_calls(kafka: KafkaDriver) -> None:
    await start(kafka, 2)
    with pytest.raises(DispatchModeConflict):
        await kafka.poll("a")
    await kafka.drain()
    outcomes = await kafka.engine.jobs.complete_many([done(event) for event in kafka.producer.log])
    assert [outcome.outcome for outcome in outcomes] == ["ok", "ok"]


# -- who may start


async def test_the_mode_in_the_database_changes_with_another_modes_engine(
    database_dsn: str,
) -> None:
    database = Database(database_dsn, max_connections=2)

    async def start_and_stop(mode: str) -> str:
        member = Membership(database, mode)
        await member.join()
        await member.leave()
        with psycopg.connect(database_dsn) as connection:
            row = connection.execute("SELECT value FROM setting WHERE name = 'dispatch_mode'").fetchone()
        assert row is not None
        return str(row[0])

    for mode in ("polling", "kafka_outbox", "kafka_outbox", "polling"):
        assert await start_and_stop(mode) == mode
    await database.close(1)


@pytest.mark.parametrize("given_away", [False, True])
async def test_an_engine_taken_for_dead_ends_after_the_switch(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch, given_away: bool
) -> None:
    """Whether or not its number was given to another engine."""
    database = Database(database_dsn, max_connections=2)
    sleeper, other = Membership(database, "polling"), Membership(database, "kafka_outbox")
    await sleeper.join()
    with psycopg.connect(database_dsn) as connection:  # it stood still for so long that its number lapsed
        connection.execute("UPDATE engine SET leased_until = penstock_now() - interval '1 s'")
    await other.join()
    if given_away:
        with psycopg.connect(database_dsn) as connection:
            connection.execute("DELETE FROM engine WHERE holder = %s", (sleeper.holder,))
    sleeper._renew_at = 0.0
    with pytest.raises(Superseded, match="switched to 'kafka_outbox'"):
        await sleeper.refresh()
    monkeypatch.setattr(membership, "POLL_INTERVAL_S", 0)
    await other.refresh()
    await database.close(1)
