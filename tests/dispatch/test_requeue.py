"""Jobs that were handed to Kafka, brought back by an operator before their deadline."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
import trio

from penstock.errors import LeaseLost, NotFound
from penstock.runtime.requeue import bring_back
from penstock.testing.definitions import definition, end
from penstock.wire.model import Heartbeat
from penstock.wire.workflow_v1 import JobDispatchEvent
from tests.dispatch.conftest import KafkaDriver, MakeKafka
from tests.dispatch.test_relay import DISPATCHED, LOCKED, READY, done
from tests.dispatch.test_switch import finish_polled, start
from tests.engine.conftest import MakeDriver
from tests.engine.driver import Driver
from tests.runtime.engine_process import REPOSITORY
from tests.shapes import task

BY = "cli:ann@host"


async def back(driver: Driver, *job_types: str, to_outbox: bool = False, audit: bool = True) -> int:
    async with driver.engine.database.connection() as connection:
        return await bring_back(connection, job_types, to_outbox=to_outbox, by=BY, audit=audit)


async def dispatched(kafka: KafkaDriver, count: int) -> list[str]:
    instances = await start(kafka, count)
    await kafka.drain()
    assert kafka.states() == [(DISPATCHED, 1)] * count
    return instances


async def test_after_a_switch_to_polling_jobs_are_queued_at_once(
    make_driver: MakeDriver, make_kafka: MakeKafka
) -> None:
    kafka = make_kafka()
    instances = await dispatched(kafka, 3)
    polling = make_driver()
    assert await finish_polled(polling) == []
    assert await back(polling) == 3
    with pytest.raises(LeaseLost):  # a message that is still consumed
        await polling.engine.jobs.complete(done(kafka.producer.log[0]))
    assert await finish_polled(polling) == instances
    with pytest.raises(LeaseLost):
        await polling.engine.jobs.complete(done(kafka.producer.log[0], attempt=1))
    assert {await polling.status(instance) for instance in instances} == {"COMPLETED"}
    assert await back(polling) == 0
    (item,) = [item for item in await polling.history(instances[0]) if item.step_id == "a"]
    assert item.attempts is not None
    assert [(each.attempt, each.status, each.reason) for each in item.attempts] == [
        (1, "REDISPATCHED", f"brought back by {BY}"),
        (2, "COMPLETED", None),
    ]
    records = (await polling.engine.instances.audit(instances[0])).items
    assert [record.detail for record in records if record.kind == "JOB_REDISPATCHED"] == [f"brought back by {BY}"]
    assert polling.rows("SELECT actor, detail FROM audit WHERE kind = 'DISPATCHES_REQUEUED'") == [(BY, "3 jobs")]


async def test_in_kafka_mode_they_are_published_again(kafka: KafkaDriver) -> None:
    instances = await dispatched(kafka, 2)
    first = kafka.producer.log.copy()
    assert await back(kafka, to_outbox=True, audit=False) == 2
    assert kafka.states() == [(READY, 1)] * 2
    await kafka.drain()
    again = kafka.producer.log[2:]
    assert [(event.instance_id, event.attempt) for event in again] == [(instance, 2) for instance in instances]
    assert {event.dedup_id for event in again}.isdisjoint(event.dedup_id for event in first)
    with pytest.raises(LeaseLost):
        await kafka.engine.jobs.heartbeat(Heartbeat(job_id=first[0].job_id, worker_id="k", attempt=1))
    for event in again:
        await kafka.engine.jobs.complete(done(event))
    assert {await kafka.status(instance) for instance in instances} == {"COMPLETED"}
    assert kafka.rows("SELECT * FROM audit WHERE kind = 'DISPATCHES_REQUEUED'") == []


async def test_what_nobody_dispatched_or_somebody_holds_is_left_alone(
    make_driver: MakeDriver, make_kafka: MakeKafka
) -> None:
    kafka = make_kafka()
    await dispatched(kafka, 2)
    await kafka.engine.jobs.heartbeat(Heartbeat(job_id=kafka.producer.log[0].job_id, worker_id="k", lease_seconds=60))
    polling = make_driver()
    await start(polling)
    assert await back(polling) == 1
    assert polling.rows("SELECT state, attempt FROM token ORDER BY id") == [(LOCKED, 1), (READY, 1), (READY, 0)]


async def test_of_some_types_only(make_kafka: MakeKafka, make_driver: MakeDriver) -> None:
    kafka = make_kafka()
    for name in ("a", "b", "c"):
        await kafka.run(definition(task(name), end(), definition_id=name))
    await kafka.drain()
    polling = make_driver()
    with pytest.raises(NotFound, match="'ghost'"):
        await back(polling, "a", "ghost")
    assert await back(polling, "a", "c") == 2
    assert [state for (state,) in polling.rows("SELECT state FROM token ORDER BY id")] == [READY, DISPATCHED, READY]


async def test_a_worker_and_an_operator_never_run_a_step_twice(make_driver: MakeDriver, make_kafka: MakeKafka) -> None:
    kafka = make_kafka()
    instances = await dispatched(kafka, 60)
    polling = make_driver()
    events = kafka.producer.log.copy()
    lost: list[str] = []

    async def complete(event: JobDispatchEvent) -> None:
        try:
            await polling.engine.jobs.complete(done(event))
        except LeaseLost:
            lost.append(event.instance_id)

    async with trio.open_nursery() as nursery:
        for number, event in enumerate(events):
            nursery.start_soon(complete, event)
            if number % 20 == 10:
                nursery.start_soon(partial(back, polling))
    await back(polling)
    polled = await finish_polled(polling)
    assert sorted(polled) == sorted(lost)
    assert {await polling.status(instance) for instance in instances} == {"COMPLETED"}
    assert polling.rows("SELECT count(*) FROM history WHERE kind = 1 AND step = 0") == [(60,)]


def requeue(dsn: str, *arguments: str) -> tuple[int, str, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WE_")}
    environment |= {"PYTHONPATH": str(REPOSITORY / "src"), "WE_POSTGRES_DSN": dsn}
    command = [sys.executable, "-m", "penstock", "requeue", "--config", os.devnull, *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("mode", ["polling", "kafka_outbox"])
async def test_the_command_goes_by_the_mode_of_the_database(make_kafka: MakeKafka, mode: str) -> None:
    kafka = make_kafka()
    await dispatched(kafka, 2)
    kafka.rows("INSERT INTO setting (name, value) VALUES ('dispatch_mode', %s) RETURNING 1", mode)
    code, out, _ = await trio.to_thread.run_sync(partial(requeue, kafka.dsn, "--job-type", "a"))
    where = {"polling": "in the queue", "kafka_outbox": "published again"}[mode]
    assert (code, out) == (0, f"2 jobs came back; they are {where} (dispatch mode {mode})\n")
    assert len(kafka.outbox()) == (0 if mode == "polling" else 2)
    assert kafka.states() == [(READY, 1)] * 2
    (actor,) = kafka.rows("SELECT actor FROM audit WHERE kind = 'DISPATCHES_REQUEUED'")[0]
    assert actor.startswith("cli:")
    code, out, err = await trio.to_thread.run_sync(partial(requeue, kafka.dsn, "--job-type", "ghost"))
    assert (code, out, err) == (1, "", "penstock: there is no job type 'ghost' in this database\n")
