"""Delayed starts, schedules and limits where jobs go through Kafka: one engine, a real broker, one worker."""

from __future__ import annotations

import pytest
import trio

from penstock.client import QueuePolicy, ScheduleSpec
from penstock.worker import JobContext, Worker
from penstock.worker.kafka import KafkaWork
from tests.kafka.broker import KafkaBroker
from tests.kafka.fleet import Fleet
from tests.runtime.conftest import StartEngine, start_engine

__all__ = ["start_engine"]  # pytest finds the fixture here

RUNS = 2
LIMIT = 2
pytestmark = [pytest.mark.kafka, pytest.mark.slow(reason="a real broker of Kafka")]


async def test_delays_schedules_and_limits_hold_through_kafka(
    database_dsn: str, broker: KafkaBroker, start_engine: StartEngine
) -> None:
    fleet = Fleet(database_dsn, broker.bootstrap, start_engine, steps=1)
    engine = await fleet.engine()
    await fleet.upload(engine)
    running: set[str] = set()
    most = 0
    worker = Worker(KafkaWork.connect(f"http://127.0.0.1:{engine.port}", [fleet.bootstrap]), concurrency=50)

    @worker.handler(fleet.job_type)
    async def handle(context: JobContext) -> None:
        nonlocal most
        running.add(context.instance_id)
        most = max(most, len(running))
        fleet.handled[context.instance_id, context.step_id] += 1
        await trio.sleep(0.05)  # for the others, if they were there
        running.discard(context.instance_id)

    async with fleet.client(engine) as client, worker:
        later = await client.start_instance("linear", delay="PT1S")
        await fleet.wait_ended()
        ((entered,),) = fleet.query("SELECT started_at FROM history WHERE kind = 1")
        assert later.start_at is not None
        assert entered >= later.start_at, "its job was published at its time"

        await client.put_schedule("ticks", ScheduleSpec("linear", every="PT1S", overlap="ALLOW"))
        await fleet.wait(lambda: len(fleet.handled) > RUNS)
        await client.pause_schedule("ticks")
        fired = [run for run in (await client.get_schedule("ticks")).runs if run.outcome == "STARTED"]
        assert len({run.at for run in fired}) == len({run.instance_id for run in fired}) == len(fired) >= RUNS
        await fleet.wait_ended()

        most = 0
        await client.put_queue("q", QueuePolicy([fleet.job_type], concurrency=LIMIT))
        await fleet.start(engine, 8)
        await fleet.wait_ended()
        assert 1 <= most <= LIMIT
        assert (await client.get_queue("q")).running == 0
    assert {id for (id, _) in fleet.handled} >= {later.id} | {run.instance_id for run in fired}
    fleet.check()
